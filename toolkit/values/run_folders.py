"""Keep a folder for as long as a block runs. The next run removes those of killed processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK, _BEGUN = ".held", ".new"


@contextmanager
def run_folder(base: Path, prefix: str) -> Iterator[Path]:
    """Make a folder in `base` that only this account can read, and remove it afterwards.

    Folders with the same prefix of killed processes are removed first. A process holds a lock on its folder, and a lock
    ends with its process.

    Raises:
        OSError: the folder cannot be written.
    """
    _sweep(base, prefix)
    with tempfile.TemporaryDirectory(dir=base, prefix=prefix) as name, (Path(name) / _BEGUN).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        (Path(name) / _BEGUN).rename(Path(name) / _LOCK)  # only now, so that no other run takes it for a dead one
        yield Path(name)


def _sweep(base: Path, prefix: str) -> None:
    for folder in base.glob(f"{prefix}*"):
        try:
            if folder.lstat().st_uid != os.geteuid():  # in a shared folder; opening its pipe would wait for ever
                continue
            with (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # held, or being created

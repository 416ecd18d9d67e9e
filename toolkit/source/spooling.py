"""Keep the spool of a run: the bytes that it has read and not yet committed."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.values.errors import LakeError

_LOCK = ".held"


@contextmanager
def spool_directory(base: Path) -> Iterator[Path]:
    """Make a folder for this run in the folder of the spool, and remove it afterwards.

    Folders of killed runs are removed first. A run holds a lock on its folder, and a lock ends with its process.

    Raises:
        LakeError: the folder cannot be written to.
    """
    try:
        base.mkdir(parents=True, exist_ok=True)
        _sweep(base)
        holder = tempfile.TemporaryDirectory(dir=base, prefix="run-")
        lock = (Path(holder.name) / _LOCK).open("wb")
        fcntl.flock(lock, fcntl.LOCK_SH)
    except OSError as error:
        raise LakeError(f"spooling to {base}: {error.strerror or error}; check [drain] spool_dir") from None
    with lock, holder as name:
        yield Path(name)


def _sweep(base: Path) -> None:
    for folder in base.glob("run-*"):
        try:
            with (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # held, or being created

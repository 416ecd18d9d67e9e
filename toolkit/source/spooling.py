"""Keep the spool of a run: the bytes that it has read and not yet committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from toolkit.values.errors import LakeError
from toolkit.values.run_folders import run_folder


@contextmanager
def spool_directory(base: Path) -> Iterator[Path]:
    """Make a folder for this run in the folder of the spool, and remove it afterwards.

    Folders of killed runs are removed first.

    Raises:
        LakeError: the folder cannot be written to.
    """
    with ExitStack() as stack:
        try:
            base.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(run_folder(base, "run-"))
        except OSError as error:
            raise LakeError(f"spooling to {base}: {error.strerror or error}; check [drain] spool_dir") from None
        yield folder

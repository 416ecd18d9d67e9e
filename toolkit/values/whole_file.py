"""Replace a file in one step: readers find the old content or the new one, also if the writer is killed."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: str | bytes, *, mode: int | None = None) -> None:
    """Replace a file, with these permissions or those of a new file. Its folder is created. Text is UTF-8.

    Raises:
        OSError: the content cannot be written; the file is as before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if mode is not None:  # first, because the content may be secret
            partial.touch()
            partial.chmod(mode)
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise

"""Check the folders of this machine that a lake writes to."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit.values.errors import LakeError


def require_writable(what: str, path: Path, key: str) -> None:
    """Create a folder of the lake, which the setting `key` of `[lake]` names, and check that it is writable.

    Raises:
        LakeError: it cannot be created or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        # A test of the permission is not enough. Only a write shows a read-only or full file system.
        probe = path / f".cdc-probe-{os.getpid()}"
        try:
            probe.write_bytes(b"x")  # an empty file needs no space
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise LakeError(
            f"the lake's {what} folder {path} is not writable: {error.strerror}; change its permissions, free space"
            f" there, or set another [lake] {key}"
        ) from None

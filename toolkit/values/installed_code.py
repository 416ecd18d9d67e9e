"""Identify the code of the toolkit, so that two machines can find out whether they run the same."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path

_PACKAGE = __name__.partition(".")[0]


@cache
def code_identity() -> str:
    """Give the version, and a hash of every module of the package: `0.1.0 (3f2a9c01)`."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(text)}\n".encode())
        digest.update(text)
    return f"{sys.modules[_PACKAGE].__version__} ({digest.hexdigest()[:8]})"


__all__ = ["code_identity"]

"""Identify the code of the toolkit, so that two machines can find out whether they run the same."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path

_PACKAGE = __name__.partition(".")[0]


@cache
def code_identity() -> str:
    """Return the version, and a hash of every module and statement of the package: `0.1.0 (3f2a9c01)`."""
    return f"{sys.modules[_PACKAGE].__version__} ({hash_of(Path(__file__).parents[1])})"


def hash_of(folder: Path) -> str:
    """Return a short hash of the modules of a package, and of the statements that it runs on the source."""
    digest = hashlib.sha256()
    for path in sorted([*folder.rglob("*.py"), *(folder / "resources" / "sql").rglob("*.sql")]):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()[:8]

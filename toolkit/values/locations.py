"""Read the location of a file or folder of the lake: a path of this machine, or the address of an object."""

from __future__ import annotations

import re
from pathlib import Path

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_FILE = re.compile(r"file:(?://[^/]*)?(?=/)")


def scheme(location: str) -> str | None:
    """Return the scheme of a location, in lower case and without its colon; None for a path."""
    found = _SCHEME.match(location)
    return found[0][:-1].lower() if found else None


def local_path(location: str) -> Path | None:
    """Return the path of a file of this machine; None if the location is in an object store."""
    if scheme(location) in (None, "file"):
        return Path(_FILE.sub("", location))
    return None


def is_within(location: str, folder: str) -> bool:
    """Return whether a location is in a folder, or is that folder. Paths are compared after links are resolved."""
    path, root = local_path(location), local_path(folder)
    if path is not None and root is not None:
        return path.resolve().is_relative_to(root.resolve())
    if path is not None or root is not None:
        return False
    return f"{location.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")

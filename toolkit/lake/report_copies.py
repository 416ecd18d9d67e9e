"""Copy what a command reports to `[lake] reports`, a folder or an object store, where others can read it."""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.lake import storage
from toolkit.values.locations import scheme
from toolkit.values.log_setup import logger
from toolkit.values.names import in_one_line

if TYPE_CHECKING:
    from toolkit.values.lake_access import LakeAccess

_log = logger(__name__)
LIST = ".cdc-copied"  # names the files of the last copy


def place(access: LakeAccess, kind: str) -> str:
    """Return the location of the copies of a kind; each prefix has its own."""
    given = access.lake.reports
    found = given.rstrip("/") if scheme(given) else str(access.path(given))
    return f"{found}/sources/{access.lake.prefix}/{kind}" if access.lake.prefix else f"{found}/{kind}"


def copy(access: LakeAccess, kind: str, folder: Path, names: Sequence[str]) -> None:
    """Copy files of a folder in this order, then remove what else the last copy of this kind has left there.

    Each copy leaves a list of its files. What no copy has written stays: the place may be a folder of the user.

    A copy that fails is a warning in the log: what it reports is done, and the files are in the folder.
    """
    if not access.lake.reports:
        return
    target = place(access, kind)
    properties = storage.file_properties(access, target)
    try:
        for name in names:
            what = mimetypes.guess_type(name)[0] or "application/octet-stream"
            storage.publish(f"{target}/{name}", (folder / name).read_bytes(), what, properties)
        found = set(storage.names(target, properties))
        copied = storage.read(f"{target}/{LIST}", properties).decode().split("\n") if LIST in found else []
        for name in found.intersection(copied).difference(names):
            storage.delete(f"{target}/{name}", properties)
        storage.publish(f"{target}/{LIST}", "\n".join(names).encode(), "text/plain", properties)
    except OSError as error:
        reason = in_one_line(" ".join(str(error).split()))[:300]
        remedy = "correct [lake] reports, its properties or the rights of this user"
        _log.warning("reports not copied", extra={"to": target, "reason": reason, "remedy": remedy})

"""Hold the lease of a lake: one runner at a time on this machine. `toolkit.source.slot_lease` covers all machines."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING

from toolkit.values.errors import LakeError, LeaseHeld
from toolkit.values.locations import scheme
from toolkit.values.whole_file import write_whole

if TYPE_CHECKING:
    from toolkit.values.lake_access import LakeAccess

LEASE_NAME = "lease"
#: The file that names the warehouse of the lake whose folder it is in.
OWNER_NAME = "warehouse.txt"
_ASKED_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Holder:
    """A description of the process that holds the lease, and the time since when."""

    text: str
    since: datetime | None
    pid: int


def holder(access: LakeAccess) -> Holder | None:
    """Read which process holds the lease; None if no process does. A runner may start right after.

    A killed runner leaves its name in the file. Another process may have its number by now, so the lock decides.
    """
    try:
        with (access.work_dir / LEASE_NAME).open(encoding="utf-8") as file:
            found = re.fullmatch(r"pid (\d+) on (.*) since (\S+)", file.read().strip())
            if found is None or _take(file, fcntl.LOCK_SH):  # closing the file frees it
                return None
    except OSError:
        return None
    return Holder(found[0], datetime.fromisoformat(found[3]), int(found[1]))


def _take(file: IO[str], how: int) -> bool:
    """Lock the lease file; return whether it could be locked."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def hold_lease(access: LakeAccess) -> Iterator[None]:
    """Hold the lease of this lake.

    The kernel frees the lease when the process ends, for whatever reason. The lease keeps runners apart that respect
    it. It is not what prevents two runners from committing the same batch: the commit itself does that.

    Raises:
        LeaseHeld: another process holds it; the message says which.
        LakeError: the lease file cannot be written or locked, or the folder is that of another lake.
    """
    path = access.work_dir / LEASE_NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)  # a user who can open the file can lock it
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise LakeError(f"the lease file {path} is not writable: {error.strerror}; change its permissions") from None
    with file:
        try:
            held = not _take(file, fcntl.LOCK_EX)
            if held:  # perhaps only by `holder`, for a moment
                time.sleep(_ASKED_SECONDS)
                held = not _take(file, fcntl.LOCK_EX)
        except OSError as error:
            raise LakeError(
                f"the lease file {path} cannot be locked: {error.strerror}; set [lake] work_dir to a folder of a file"
                " system that has locks"
            ) from None
        if held:
            file.seek(0)
            holder = file.read().strip()
            since = datetime.fromisoformat(holder.rpartition(" ")[2]) if holder else None
            what = holder or "a process that has just started"
            raise LeaseHeld(f"the lease {path} is held by {what}; wait for it to finish", since)
        holder = f"pid {os.getpid()} on {socket.gethostname()} since {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n"
        try:
            file.truncate(0)
            os.write(file.fileno(), holder.encode())  # not through the buffer, which closing the file would write again
        except OSError as error:
            raise LakeError(f"the lease file {path} cannot be written: {error.strerror}; free space there") from None
        try:
            _require_own(access)
            yield
        finally:
            file.truncate(0)  # still held: closing the file frees it


def _require_own(access: LakeAccess) -> None:
    """Refuse the folder of another lake. Each would report the failed runs and the differing rows of the other.

    A local warehouse is named by its path from the folder, which stays when both are moved.
    """
    path, place = access.work_dir / OWNER_NAME, access.warehouse
    mine = place if scheme(place) else os.path.relpath(place, access.work_dir)
    try:
        found = path.read_text(encoding="utf-8").strip() if path.exists() else None
        if found is None:
            write_whole(path, f"{mine}\n")
    except OSError as error:
        raise LakeError(f"{path} is not readable or writable: {error.strerror}; correct that") from None
    if found not in (None, mine):
        raise LakeError(
            f"[lake] work_dir {access.work_dir} is the folder of the lake with warehouse {found!r}, and this one has"
            f" {mine!r}; set another [lake] work_dir, or, if that lake is gone or was moved here, remove {path}"
        )

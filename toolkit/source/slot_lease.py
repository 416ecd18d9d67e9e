"""Hold the lease on the source: an advisory lock that separates runners on several machines too."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from toolkit.source.connection import Connection, DriverError, connect
from toolkit.values import resources
from toolkit.values.capture_rules import SourceConfig
from toolkit.values.errors import LeaseHeld

_CLASS = 0x636463  # "cdc"
#: Nothing probes a connection with unacknowledged data. If the answer to the lock is lost with the network, the server
#: would wait a quarter of an hour for its acknowledgement, and hold the lease. This session never reads slowly.
_GIVE_UP = """
select pg_catalog.set_config('tcp_user_timeout', '60000', false)
where pg_catalog.current_setting('tcp_user_timeout') = '0'
"""


@contextmanager
def hold_slot_lease(source: SourceConfig) -> Iterator[None]:
    """Hold the lease of the configured slot. The server releases it when this session ends, however it ends.

    If the session is lost in between, another runner can begin. A later commit of the first runner then fails, because
    each commit names the table snapshot that it continues. The first runner moves the slot only to positions that are
    committed.

    Raises:
        LeaseHeld: another session holds it; the message says which.
        SourceUnavailable: the server cannot be reached.
    """
    key = zlib.crc32(source.slot.encode()) & 0x7FFFFFFF
    with connect(source) as conn:
        conn.execute(_GIVE_UP)
        row = conn.execute("select pg_catalog.pg_try_advisory_lock(%s::int4, %s::int4)", [_CLASS, key]).fetchone()
        if not (row and row[0]):
            pid, holder, since = _holder(conn, key)
            ended = f", or run: select pg_terminate_backend({pid}, 5000)" if pid else ""
            raise LeaseHeld(
                f"the lease of slot {source.slot!r} on the source is held by {holder}; wait for it to finish{ended}",
                since,
            )
        try:
            yield
        finally:
            with suppress(DriverError):  # otherwise the server frees it too late for the next command
                conn.execute("select pg_catalog.pg_advisory_unlock(%s::int4, %s::int4)", [_CLASS, key])


def _holder(conn: Connection, key: int) -> tuple[int | None, str, datetime | None]:
    row = conn.execute(resources.load("introspect/lease_holder"), {"class": _CLASS, "key": key}).fetchone()
    if row is None:
        return None, "a session that has just ended", None
    pid, role, application, address, since = row
    return (
        pid,
        f"pid {pid} (role {role}, {application or 'no application name'}, from {address}, since {since or 'unknown'})",
        since,
    )

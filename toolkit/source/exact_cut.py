"""Make cuts without a slot: a REPEATABLE READ transaction that shows exactly the commits below some LSN.

A snapshot and an LSN that is read separately are not a cut: a transaction may be visible while one with a lower commit
LSN is not. The stream therefore decides. Every transaction that is still in the slot is looked up in the snapshot, and
a new snapshot is taken until all visible transactions come before all others.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass

from toolkit.source import row_lines, slot
from toolkit.source.connection import Connection
from toolkit.source.opened import Source
from toolkit.values import resources
from toolkit.values.capture_rules import SourceConfig
from toolkit.values.errors import SlotError
from toolkit.values.lsn import Lsn
from toolkit.values.visibility import Visibility, full_xid

#: Transactions younger than this usually end before another method would pay off.
_PATIENCE = 2.0
_BETWEEN = 0.02


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction of the stream."""

    xid: int
    commit_lsn: Lsn
    end_lsn: Lsn


def slot_at_once(source: Source) -> bool:
    """Return whether a temporary slot is free and its creation would not wait for a long transaction."""
    if source.by_ticks:
        return True  # a tick needs no slot and waits for no transaction
    free, oldest = source.conn.execute(resources.load("introspect/room")).fetchall()[0]
    return bool(free) and (oldest is None or oldest < _PATIENCE)


def without_slot(
    source: Source,
    stack: ExitStack,
    *,
    drained: Lsn,
    unseen: Callable[[Visibility], Collection[int]],
) -> Lsn:
    """Open a snapshot in the source's session that shows exactly the transactions with `commit_lsn` below L.

    The snapshot ends with `stack`.

    Args:
        drained: the ledger's position; the stream contains nothing below it.
        unseen: xids that the log holds already and a snapshot does not show. Such a transaction waits for a synchronous
            standby: its rows are in the stream before any session sees them.

    Raises:
        SlotError: no such snapshot in `[check] cut_seconds`; the message says what prevented it.
    """
    conn = source.conn
    deadline = time.monotonic() + source.access.cut_seconds
    why = ""
    with source.second_connection() as other:
        while True:
            attempt = ExitStack()
            attempt.enter_context(row_lines.inside_snapshot(conn, None, seconds=source.access.cut_seconds))
            try:
                seen = Visibility.parse(slot.shown(conn))
                upto = slot.wait_flush(other)  # everything visible is in the stream now
                ahead = unseen(seen)
                found = position(seen, commits(other, source.access.config, upto, seen.xmax), drained)
                if found is not None and not ahead:
                    stack.push(attempt.pop_all())
                    return found
                why = "transactions kept becoming visible in another order than they committed"
                if ahead:
                    why = f"{_names(other, ahead)} committed and is not visible yet"
            finally:
                attempt.close()
            if time.monotonic() > deadline:
                raise SlotError(
                    f"no exact snapshot in {source.access.cut_seconds:g} s: {why}; raise [check] cut_seconds"
                )
            time.sleep(_BETWEEN)


def position(seen: Visibility, stream: Collection[Commit], drained: Lsn) -> Lsn | None:
    """Return the L below which exactly the visible transactions committed; None if they do not come first."""
    last = max((c.end_lsn for c in stream if seen.sees(c.xid)), default=drained)
    if any(c.commit_lsn < last for c in stream if not seen.sees(c.xid)):
        return None
    return Lsn(max(last, drained))


def commits(conn: Connection, source: SourceConfig, upto: Lsn, near_xid: int) -> tuple[Commit, ...]:
    """Read the transactions that the slot holds, up to an LSN, in commit order. `near_xid`: for `full_xid`."""
    rows = conn.execute(
        resources.load("parity/commits"),
        {
            "slot": source.slot,
            "upto": str(upto),
            "publications": source.publication_names,
        },
    ).fetchall()
    found = []
    xid = 0
    for (data,) in rows:
        message = bytes(data)
        if message[:1] == b"B":
            xid = full_xid(struct.unpack_from(">I", message, 17)[0], near_xid)
        else:
            commit_lsn, end_lsn = struct.unpack_from(">QQ", message, 2)
            found.append(Commit(xid, Lsn(commit_lsn), Lsn(end_lsn)))
    return tuple(found)


def holders(conn: Connection, relid: int) -> str:
    """Describe the sessions that block readers of a table."""
    rows = conn.execute(resources.load("introspect/holders"), {"relid": relid}).fetchall()
    return ", ".join(f"pid {pid} ({application or state}, {seconds} s)" for pid, state, application, seconds in rows)


def _names(conn: Connection, xids: Collection[int]) -> str:
    rows = conn.execute(
        "select a.pid, coalesce(a.wait_event, a.state) from pg_catalog.pg_stat_activity as a"
        " where (a.backend_xid::text::int8 & 4294967295) = any (%s)",
        [[xid % (1 << 32) for xid in xids]],
    ).fetchall()
    return ", ".join(f"pid {pid} ({waits})" for pid, waits in rows) or f"xid {', '.join(map(str, sorted(xids)))}"

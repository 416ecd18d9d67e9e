"""Take ticks: exact cuts of a change log without logical decoding.

A tick is a snapshot S with a WAL position L that is read after it: every transaction visible in S has its commit record
below L. The changes between two ticks are those of the transactions that are visible in one snapshot and not in the
other. Nothing is missed or read twice, however long a transaction lasts. L names the tick; it is an upper bound, not
the position of a commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pyarrow as pa

from toolkit.source import copytext, drain_mode, slot, snapshot_rows
from toolkit.source.connection import Connection, connect, one_line
from toolkit.source.copyout import copy_blocks
from toolkit.source.slot import Cut
from toolkit.values import resources
from toolkit.values.capture_rules import CaptureRules, SourceConfig
from toolkit.values.errors import SourceUnavailable, UnreadableChange
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.lsn import Lsn

_COLUMNS = 6
_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Tick:
    """`snapshot` is a pg_snapshot as text; `lsn` is at or above every commit that it shows."""

    lsn: Lsn
    snapshot: str


@contextmanager
def exact_cut(rules: CaptureRules, *, cut_seconds: float) -> Iterator[Cut]:
    """Open an exact cut to copy or compare at: of a temporary slot, or a tick if there is no logical decoding."""
    with connect(rules.source) as conn:
        ticks = drain_mode.by_ticks(conn, rules)
    if ticks:
        with tick_cut(rules.source) as cut:
            yield cut
    else:
        with slot.create_slot(rules.source, cut_seconds=cut_seconds) as cut:
            yield cut


@contextmanager
def tick_cut(source: SourceConfig) -> Iterator[Cut]:
    """Take a tick and hold its snapshot, exported, until the `with` ends.

    Raises:
        SlotError: a standby answered, whose snapshot lists no running transaction.
        SourceUnavailable: two servers answered, and the transactions of one are not those of the other.
    """
    with connect(source) as holder, connect(source) as other:
        server = slot.server_identity(holder)
        slot.require_server(other, server, "taking a tick")
        slot.require_primary(holder)
        holder.execute("begin isolation level repeatable read, read only")
        tick = record(other, slot.shown(holder))
        row = holder.execute("select pg_catalog.pg_export_snapshot()").fetchone()
        assert row is not None
        yield Cut(lsn=tick.lsn, snapshot_name=row[0], slot="", server=server, tick=tick.snapshot)


@can_fail(Point.TICK)
def record(conn: Connection, shown: str) -> Tick:
    """Assign a position to a snapshot and store both on the source; a restored source does not have the tick.

    The commit of this call writes WAL, so the next tick has another position.
    """
    row = conn.execute("select cdc.record_tick(%s::pg_catalog.pg_snapshot)::text", [shown]).fetchone()
    assert row is not None
    slot.wait_flush(conn)  # WAL that is not flushed could be lost in a crash
    return Tick(Lsn.parse(row[0]), shown)


@can_fail(Point.CUT)
def at_cut(conn: Connection, source: SourceConfig, cut: Cut) -> Tick:
    """Store a slot's cut as a tick: its snapshot shows exactly the commits below the cut's LSN."""
    slot.require_server(conn, cut.server, f"making a tick of the cut at {cut.lsn}")
    with snapshot_rows.reader(source, cut) as holder:
        seen = slot.shown(holder)
    conn.execute(
        "insert into cdc.tick (lsn, snapshot) values (%s::pg_catalog.pg_lsn, %s::pg_catalog.pg_snapshot)"
        " on conflict (lsn) do update set snapshot = excluded.snapshot",
        [str(cut.lsn), seen],
    )
    slot.wait_flush(conn)
    return Tick(cut.lsn, seen)


def known(conn: Connection, lsn: Lsn) -> Tick | None:
    """Read the tick of that position; None if the source does not have it."""
    row = conn.execute("select snapshot::text from cdc.ticks where lsn = %s::pg_catalog.pg_lsn", [str(lsn)]).fetchone()
    return Tick(lsn, row[0]) if row else None


def any_known(conn: Connection) -> bool:
    """Return whether the source has any tick; it always has one unless the ticks were dropped."""
    row = conn.execute("select exists (select from cdc.ticks)").fetchone()
    return bool(row and row[0])


@can_fail(Point.FORGET)
def forget_before(conn: Connection, lsn: Lsn) -> None:
    """Delete the ticks below one that is in the lake."""
    conn.execute("select cdc.forget_ticks(%s::pg_catalog.pg_lsn)", [str(lsn)])


def rows(conn: Connection, since: Tick, upto: Tick, *, messages: bool = False) -> Iterator[pa.StringArray]:
    """Yield blocks of the log between two ticks, in order: xid, lsn, relid, op, old, new as one flat array of cells.

    Args:
        messages: read only the DDL messages; each has its place among all rows before the six cells.

    Raises:
        UnreadableChange: a value is no text of the encoding.
        SourceUnavailable: the server refused, or the connection was lost.
    """
    inner = resources.load("changelog/rows").format(since=_literal(since.snapshot), upto=_literal(upto.snapshot))
    if messages:
        numbered = inner.replace("select\n", "select row_number() over (order by l.lsn, l.xid) - 1 as place,\n", 1)
        inner = f"select * from ({numbered}) as m where m.op = 'M' order by m.place"
    try:
        for block in copy_blocks(conn, f"copy ({inner}) to stdout", _BLOCK_BYTES):
            count = len(block)
            cells = copytext.cells(block)
            if len(cells) != count * (_COLUMNS + messages):
                raise SourceUnavailable(f"reading the change log: {len(cells)} cells in {count} rows; report this")
            yield cells
    except psycopg.errors.CharacterNotInRepertoire as error:
        raise UnreadableChange(
            f"reading the change log: {one_line(error)}: a value there is no text of the encoding; correct it on the"
            " source, or name its table in [source] exclude, then start a new log with `cdc init --new-generation`",
            None,
        ) from None
    except psycopg.Error as error:
        raise SourceUnavailable(f"reading the change log: {one_line(error)}; run it again") from None


def has_messages(conn: Connection) -> bool:
    """Return whether the log contains any DDL message."""
    row = conn.execute("select exists (select from cdc.logged_changes where op = 'M')").fetchone()
    return bool(row and row[0])


def _literal(snapshot_text: str) -> str:
    return f"'{snapshot_text}'::pg_catalog.pg_snapshot"

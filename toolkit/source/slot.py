"""Manage the replication slot: its state, exact cuts, advancing, and beacons.

A cut is the consistent point L of a new slot with its exported snapshot. The snapshot shows exactly the transactions
with `commit_lsn < L`, and the slot sends exactly the others.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from toolkit.source.connection import Connection, connect, one_line
from toolkit.values import resources
from toolkit.values.capture_rules import SourceConfig
from toolkit.values.errors import SlotError, SlotRefused, SourceUnavailable
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.lsn import Lsn
from toolkit.values.names import quote_postgres

PLUGIN = "pgoutput"
_FLUSH_SECONDS = 30.0
_BLOCKERS_SHOWN = 3
#: Bytes before the first record of a WAL page, and of the first page of a segment.
_PAGE_HEADER, _SEGMENT_HEADER = 24, 40
#: What the server did to a slot, by invalidation_reason (17 and later), and how to prevent it.
_INVALIDATIONS = {
    "wal_removed": ("the server removed WAL that it needed", "raise max_slot_wal_keep_size"),
    "rows_removed": ("the server removed catalog rows that it needed", "turn hot_standby_feedback on"),
    "wal_level_insufficient": ("wal_level was not logical for a while", "set wal_level = logical"),
    "idle_timeout": ("it was not read for longer than idle_replication_slot_timeout", "raise that or drain more often"),
}


@dataclass(frozen=True, slots=True)
class SlotState:
    """One row of pg_replication_slots. Positions that the server does not show are 0/0."""

    name: str
    type: str  # logical | physical
    plugin: str | None
    database: str | None
    here: str  # the database of the session that read it, by the server's own name
    active: bool
    active_pid: int | None
    restart_lsn: Lsn
    confirmed_flush_lsn: Lsn
    wal_status: str | None  # reserved | extended | unreserved | lost
    safe_wal_size: int | None  # bytes
    retained: int | None  # bytes of WAL kept for it
    invalidation: str | None  # why it was lost, 17 and later

    @property
    def lost(self) -> bool:
        """Return whether the server removed WAL that this slot needed."""
        return self.wal_status == "lost" or self.invalidation is not None


@dataclass(frozen=True, slots=True)
class Cut:
    """An exact cut: `snapshot_name` can be imported while the `with` of `create_slot` lasts."""

    lsn: Lsn
    snapshot_name: str
    slot: str
    tick: str | None = None  # the pg_snapshot, if the cut is a tick and there is no slot
    server: str = ""  # which server exported it (`server_identity`); empty: not known


def record_end(conn: Connection, lsn: Lsn) -> Lsn:
    """Return the end of the WAL record before a position in a page header; any other position as it is.

    Up to a position in a header, the server also decodes the record behind the header.
    """
    page, header = _page(conn, lsn)
    return Lsn(page if lsn - page <= header else lsn)


def next_record(conn: Connection, end: Lsn) -> Lsn:
    """Return the start of the WAL record that follows a record with this end, after a page header if there is one."""
    page, header = _page(conn, end)
    return Lsn(page + header if end - page <= header else end)


def _page(conn: Connection, lsn: Lsn) -> tuple[int, int]:
    """Return where the WAL page of a position starts, and the bytes of its header."""
    row = conn.execute(
        "select pg_catalog.current_setting('wal_block_size')::int8, s.setting::int8 from pg_catalog.pg_settings as s"
        " where s.name = 'wal_segment_size'"
    ).fetchone()
    assert row is not None
    page = lsn - lsn % row[0]
    return page, _PAGE_HEADER if page % row[1] else _SEGMENT_HEADER


def server_identity(conn: Connection) -> str:
    """Read the identity of the server that answers this session: cluster, start of the process, standby or not."""
    row = conn.execute(resources.load("introspect/server_identity")).fetchone()
    assert row is not None
    return str(row[0])


def require_server(conn: Connection, server: str, doing: str) -> None:
    """Refuse a session on another server than the one of a cut. An empty `server` means that it is not known.

    Raises:
        SourceUnavailable: the session is on another server.
    """
    if server and server_identity(conn) != server:
        raise SourceUnavailable(
            f"{doing}: this session reached another server than the one that exported the snapshot; a load balancer or"
            " several hosts are in [source] conninfo: name the primary alone"
        )


def read_slot(conn: Connection, name: str) -> SlotState | None:
    """Read the slot of that name, whatever program created it; None if there is none."""
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(resources.load("introspect/slot"), {"slot": name}).fetchone()
    if row is None:
        return None
    for key in ("restart_lsn", "confirmed_flush_lsn"):
        row[key] = Lsn.parse(row[key] or "0/0")
    return SlotState(**row)


def require_primary(conn: Connection) -> None:
    """Refuse a standby: its WAL belongs to another server, and the toolkit cannot write anything there.

    Raises:
        SlotError: the server is a standby.
    """
    row = conn.execute("select pg_catalog.pg_is_in_recovery()").fetchone()
    if row and row[0]:
        raise SlotError("the source is a standby; connect to the primary, alone or by target_session_attrs=read-write")


def require_slot(conn: Connection, source: SourceConfig) -> SlotState:
    """Return the configured slot if a drain can use it.

    Raises:
        SlotError: it is missing, lost, in use, or of another kind, plugin or database.
    """
    name = source.slot
    state = read_slot(conn, name)
    if state is None:
        raise SlotError(
            f"slot {name!r} does not exist on the source; run `cdc init`, or `cdc init --new-generation` if it was"
            " dropped after the log was started"
        )
    require_ours(state)
    require_usable(state)
    return state


def require_ours(state: SlotState) -> None:
    """Refuse a slot that this toolkit did not create for this database.

    Raises:
        SlotRefused: it is a physical slot, or has another plugin or database.
    """
    remedy = "give another name in [source] slot"
    if state.type != "logical":
        raise SlotRefused(state.name, f"is a {state.type} slot, not a logical one", remedy)
    if state.plugin != PLUGIN:
        raise SlotRefused(state.name, f"belongs to plugin {state.plugin!r}, not {PLUGIN!r}", remedy)
    if state.database != state.here:
        raise SlotRefused(
            state.name,
            f"belongs to database {state.database!r}, and the source is {state.here!r}",
            f"{remedy}, or another dbname in [source] conninfo",
        )


def require_usable(state: SlotState) -> None:
    """Refuse a slot from which nothing can be read at present.

    Raises:
        SlotRefused: it is lost, or in use by another session.
    """
    if state.lost:
        why = f" ({state.invalidation})" if state.invalidation else ""
        what, remedy = _INVALIDATIONS.get(state.invalidation or "", _INVALIDATIONS["wal_removed"])
        raise SlotRefused(
            state.name,
            f"is lost{why}: {what}",
            f"{remedy} and start a new log with `cdc init --new-generation`",
        )
    if state.active:
        raise SlotRefused(
            state.name,
            f"is in use by pid {state.active_pid}",
            f"wait for that session, or run: select pg_terminate_backend({state.active_pid}, 5000)",
        )


@contextmanager
def create_slot(source: SourceConfig, name: str | None = None, *, cut_seconds: float) -> Iterator[Cut]:
    """Create a logical slot and hold its exported snapshot until the `with` ends.

    Without a name, the slot is a temporary one, which ends with it, and has a name that no other process uses.

    Raises:
        SlotError: the name is taken, no slot is free, or open transactions did not end in `[check] cut_seconds`; the
            message names their pids.
    """
    kind = "" if name else "TEMPORARY "
    name = name or _temporary_name(source.slot)
    statement = f"CREATE_REPLICATION_SLOT {quote_postgres(name)} {kind}LOGICAL {PLUGIN} (SNAPSHOT 'export')"
    with connect(source, replication=True) as session:
        milliseconds = int(cut_seconds * 1000)
        session.execute(f"set statement_timeout = {milliseconds}")
        session.execute(f"set lock_timeout = {milliseconds}")
        server = server_identity(session)
        try:
            row = _created(session, statement)
        except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
            raise SlotError(
                f"creating slot {name!r}: it must wait for every running transaction, and {_blockers(source)} did not"
                f" end in {cut_seconds:g} s; end it, or raise [check] cut_seconds"
            ) from None
        except psycopg.errors.DuplicateObject:
            raise SlotError(
                f"creating slot {name!r}: a slot of that name exists already; set another [source] slot"
            ) from None
        except psycopg.errors.ConfigurationLimitExceeded:
            raise SlotError(f"creating slot {name!r}: all slots are in use; raise max_replication_slots") from None
        except psycopg.Error as error:
            raise SlotError(f"creating slot {name!r}: {one_line(error)}; run `cdc doctor`") from None
        assert row is not None
        # The snapshot lasts until the next command on this session, so none is sent.
        yield Cut(lsn=Lsn.parse(row[1]), snapshot_name=row[2], slot=name, server=server)


def copy_slot(conn: Connection, name: str) -> str:
    """Make a copy of a slot that ends with this session, and return its name, which no other process uses.

    Raises:
        SlotError: no slot is free, or the slot cannot be copied.
    """
    copy = _temporary_name(name)
    try:
        conn.execute("select pg_catalog.pg_copy_logical_replication_slot(%s, %s, true)", [name, copy])
    except psycopg.Error as error:
        raise SlotError(f"copying slot {name!r}: {one_line(error)}; run `cdc doctor`") from None
    return copy


def _temporary_name(name: str) -> str:
    return f"{name[:40]}_{os.getpid()}_{secrets.token_hex(4)}"


@can_fail(Point.SLOT)
def _created(session: Connection, statement: str) -> Any:
    return session.execute(statement).fetchone()


@can_fail(Point.DROP_SLOT)
def drop_slot(conn: Connection, name: str) -> None:
    """Drop a slot; a slot that does not exist is no error.

    Raises:
        SlotError: it is in use.
    """
    try:
        conn.execute("select pg_catalog.pg_drop_replication_slot(%s)", [name])
    except psycopg.errors.UndefinedObject:
        return
    except psycopg.errors.ObjectInUse as error:
        raise SlotError(f"dropping slot {name!r}: {one_line(error)}; end that session first") from None


@can_fail(Point.ADVANCE)
def advance(conn: Connection, name: str, lsn: Lsn) -> Lsn:
    """Move the slot to `lsn` and return its position. A slot that is already there stays.

    Raises:
        SlotError: `lsn` is beyond the flushed WAL, or the server stopped before it.
    """
    lsn, flushed = Lsn(lsn), flush_lsn(conn)
    if lsn > flushed:
        raise SlotError(
            f"advancing slot {name!r} to {lsn}: the source has flushed its WAL only to {flushed}; run it again"
        )
    state = read_slot(conn, name)
    if state is None:
        raise SlotError(f"advancing slot {name!r}: it does not exist; run `cdc doctor`")
    if state.confirmed_flush_lsn >= lsn:
        return state.confirmed_flush_lsn
    try:
        row = conn.execute(
            "select end_lsn::text from pg_catalog.pg_replication_slot_advance(%s, %s::pg_catalog.pg_lsn)",
            [name, str(lsn)],
        ).fetchone()
    except psycopg.Error as error:
        raise SlotError(f"advancing slot {name!r} to {lsn}: {one_line(error)}; run `cdc doctor`") from None
    assert row is not None
    reached = Lsn.parse(row[0])
    if reached < lsn:
        raise SlotError(f"advancing slot {name!r} to {lsn}: the server stopped at {reached}; run `cdc doctor`")
    return reached


def flush_lsn(conn: Connection) -> Lsn:
    """Read the end of the flushed WAL: everything below it can be read from the slot."""
    return _position(conn, "flush")


def spilled(conn: Connection, name: str) -> int:
    """Read how many bytes decoding for this slot has written to the source's disk since its statistics were reset."""
    row = conn.execute(
        "select spill_bytes from pg_catalog.pg_stat_replication_slots where slot_name = %s", [name]
    ).fetchone()
    return int(row[0]) if row else 0


def wait_flush(conn: Connection) -> Lsn:
    """Wait until the WAL is flushed to the current insert position, and return that position.

    With synchronous_commit off a visible row may not be flushed yet. Locking a row of the toolkit's own writes WAL, so
    the commit must flush. It adds no message to the stream and no new row version.

    Raises:
        SlotError: the WAL was not flushed within half a minute.
    """
    target = _position(conn, "insert")
    deadline = time.monotonic() + _FLUSH_SECONDS
    while flush_lsn(conn) < target:
        if time.monotonic() > deadline:
            raise SlotError(f"waiting for the WAL to be flushed to {target}: it is at {flush_lsn(conn)}; run it again")
        with conn.transaction():
            conn.execute("select cdc.write_wal()")
    return target


def shown(conn: Connection) -> str:
    """Return what the snapshot of this session shows, as the text of a pg_snapshot that the server can read.

    The snapshot of a slot may print an xmin above its xmax, because only commits move xmax, and the server refuses such
    a text. All transactions below xmin had ended, and nothing from xmax on is shown unless it is below xmin. The larger
    of the two is therefore used as xmax.
    """
    row = conn.execute("select pg_catalog.pg_current_snapshot()::text").fetchone()
    assert row is not None
    low, high, running = row[0].split(":")
    return f"{low}:{max(int(low), int(high))}:{running}"


@can_fail(Point.BEACON)
def emit_beacon(conn: Connection) -> tuple[str, Lsn]:
    """Have the source write a signed beacon; return its nonce and an LSN at or after the end of its transaction.

    A later drain that reaches that LSN must have read the nonce. Otherwise the source has another history.
    """
    row = conn.execute("select cdc.beacon()").fetchone()
    assert row is not None
    return str(row[0]), flush_lsn(conn)  # the commit was flushed before it returned


def _position(conn: Connection, which: str) -> Lsn:
    row = conn.execute(f"select pg_catalog.pg_current_wal_{which}_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def _blockers(source: SourceConfig) -> str:
    with connect(source) as conn:
        rows = conn.execute(resources.load("introspect/blockers")).fetchall()
    shown = ", ".join(
        f"{which} ({role}{' ' + application if application else ''}, {state}, {seconds} s)"
        for which, role, application, state, seconds in rows[:_BLOCKERS_SHOWN]
    )
    more = f" and {len(rows) - _BLOCKERS_SHOWN} more" if len(rows) > _BLOCKERS_SHOWN else ""
    return f"{shown}{more}" if rows else "one that has just ended"

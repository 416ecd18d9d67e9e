"""Read the source's side of parity in one snapshot.

One process of the server prints a table at a limited speed. A large table is therefore read by several sessions of one
snapshot: it is split into ranges of pages, and each free session takes the next one.
"""

from __future__ import annotations

import itertools
import queue
import re
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from toolkit.source import owners_code, slot
from toolkit.source.connection import connect, one_line
from toolkit.source.copyout import copy_blocks
from toolkit.values.capture_rules import SourceConfig
from toolkit.values.errors import CdcError
from toolkit.values.log_setup import logger
from toolkit.values.names import quote_postgres
from toolkit.values.resources import load
from toolkit.values.row_line import Comparison, Native
from toolkit.values.table import Column, TableVersion

_log = logger(__name__)
#: Less than a socket buffer: the server continues while a block is hashed, so the reader hardly ever waits for it.
_BLOCK_BYTES = 1 << 17
_KEYS_AT_ONCE = 5_000
#: Size of a share of a table, and the number of shares per session: few enough to plan, and enough for the sessions to
#: end together.
_SHARE_BYTES, _SHARES = 16 << 20, 16
#: How long a further session waits for a table that is locked for reading already: it does not queue behind DDL.
_BESIDE_SECONDS = 0.1
#: The number of blocks that are read ahead, and how long a reader that must stop may take for one.
_AHEAD, _BLOCK_SECONDS = 4, 0.05
#: Types whose binary form is their text.
_SENT_AS_TEXT = re.compile(r"text|character( varying)?(\(\d+\))?")
#: The text of a key by its type's output function, as COPY prints it. A cast could run code of the type's owner.
_PRINTED = "pg_catalog.format('%s', {}) COLLATE \"C\""
#: The parts that COPY sends in binary form before its first row, in the same message, and after its last row.
_HEADER_BYTES, _TRAILER = 19, b"\xff\xff"


Session = psycopg.Connection[Any]
Others = Sequence[Callable[[], AbstractContextManager[Session]]]


class TableMoved(CdcError):
    """The table changed after the snapshot, so the rows of the snapshot can no longer be read."""

    advice = "check it again"


@contextmanager
def inside_snapshot(conn: Session, name: str | None, *, seconds: float) -> Iterator[None]:
    """Open a read-only transaction in the exported snapshot `name` (None: a new one); rolled back at the end.

    No wait for a table lasts longer than `seconds`.
    """
    with conn.transaction(force_rollback=True):
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if name is not None:
            conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))
        # The session is idle during drain and build.
        conn.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        conn.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(int(seconds * 1000))))
        yield


@contextmanager
def own_snapshot(source: SourceConfig, *, cut_seconds: float) -> Iterator[Session]:
    """Open a session that reads in one snapshot of its own, taken here."""
    with connect(source) as conn, inside_snapshot(conn, None, seconds=cut_seconds):
        conn.execute("select 1")  # takes the snapshot
        yield conn


def estimated_rows(conn: Session, relid: int) -> int | None:
    """Return the server's estimate of a table's rows; None before its first ANALYZE. Waits for no lock."""
    row = conn.execute(load("parity/estimated_rows"), {"relid": relid}).fetchone()
    return row[0] if row is not None else None


@contextmanager
def _table(conn: Session, plan: Comparison) -> Iterator[None]:
    """Read one table under a lock that ends with the block.

    The transaction stays open during drain and build. With a lock of that length the user's DDL would wait, and all
    readers behind it. Each read therefore has its own savepoint, and the rollback to it releases the lock.
    """
    table = plan.table
    with conn.transaction(force_rollback=True):
        try:
            conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(_relation(plan)))
        except psycopg.errors.LockNotAvailable:
            raise TableMoved(f"{table.identifier} is locked by another session's DDL") from None
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            raise TableMoved(f"{table.identifier} was dropped or renamed after the snapshot was taken") from None
        _require_same(conn, plan)
        yield
        if table.kind == "p":
            _require_same(conn, plan)  # a partition may be attached despite the lock


def _require_same(conn: Session, plan: Comparison) -> None:
    table = plan.table
    name = f"{quote_postgres(table.schema)}.{quote_postgres(table.name)}"
    found = conn.execute(load("introspect/same_table"), {"name": name, "relid": table.relid}).fetchone()
    same_table, same_parts, same_files = found or (False, True, True)
    if not (same_table and same_files):
        raise TableMoved(f"{table.identifier} was truncated, rewritten or replaced after the snapshot was taken")
    if not same_parts:
        raise TableMoved(f"{table.identifier} has other partitions than when the snapshot was taken")


@contextmanager
def lines(
    conn: Session, plan: Comparison, keys: Sequence[Sequence[str]] | None = None, *, others: Others = ()
) -> Iterator[Iterator[Sequence[bytes]]]:
    """Read the table's rows as lines, one block at a time; with `keys` (as text) only the rows of those keys.

    Args:
        others: open sessions on the same server, which help to read a large table if they can. The order of its
            rows then differs each time.

    Raises:
        TableMoved: the rows of the snapshot can no longer be read.
        OwnersCode: reading the table could run code of another role.
    """
    table = plan.table
    exported = _exported(conn) if others and keys is None else ""  # while the session is in no savepoint
    with ExitStack() as stack:
        stack.enter_context(_table(conn, plan))
        sessions: list[Session] = [conn]
        conditions: list[sql.Composable] = [sql.SQL("true")]
        if keys is not None:
            conditions = list(_named(plan, keys))
        elif others and (shares := _shares(conn, plan, 1 + len(others))):
            conditions = shares
            sessions += _beside(stack, conn, plan, others, exported)
        statements = [_statement(plan, condition).as_string(conn) for condition in conditions]
        try:
            with closing(_read(sessions, plan.table, statements)) as blocks:
                yield blocks if keys is None else _once(blocks)
        except (psycopg.errors.UndefinedColumn, psycopg.errors.SnapshotTooOld) as error:
            raise TableMoved(f"{table.identifier} was altered meanwhile: {error.diag.message_primary}") from None


def others(source: SourceConfig, *, sessions: int) -> Others:
    """Return openers of the sessions that may read beside the first one."""
    return (partial(connect, source),) * (sessions - 1)


def _exported(conn: Session) -> str:
    """Return the name by which other sessions import this session's snapshot."""
    row = conn.execute("SELECT pg_catalog.pg_export_snapshot()").fetchone()
    assert row is not None
    return str(row[0])


def _beside(stack: ExitStack, first: Session, plan: Comparison, others: Others, exported: str) -> Iterator[Session]:
    """Yield sessions in the same snapshot that lock the table too; those that cannot are left out.

    The first session's lock keeps other sessions from changing the table, so it need not be checked again.
    """
    server = slot.server_identity(first)
    for opening in others:
        with ExitStack() as attempt:
            try:
                conn = attempt.enter_context(opening())
                slot.require_server(conn, server, f"reading {plan.table.identifier}")
                attempt.enter_context(inside_snapshot(conn, exported, seconds=_BESIDE_SECONDS))
                conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(_relation(plan)))
            except (CdcError, psycopg.Error) as error:
                _log.info("read by fewer sessions", extra={"table": plan.table.identifier, "reason": one_line(error)})
                return
            stack.push(attempt.pop_all())
        yield conn


def _read(sessions: Sequence[Session], table: TableVersion, statements: Sequence[str]) -> Generator[Sequence[bytes]]:
    """Yield the results of all statements; the next free session reads each one."""
    if len(sessions) == 1:
        for statement in statements:
            yield from _sent(sessions[0], table, statement)
        return
    left = queue.SimpleQueue[str]()
    for statement in statements:
        left.put(statement)
    blocks = queue.Queue[Sequence[bytes] | BaseException | None](_AHEAD)
    stopped = threading.Event()

    def read(conn: Session) -> None:
        try:
            while not stopped.is_set():
                with closing(_sent(conn, table, left.get_nowait())) as sent:
                    for rows in sent:
                        blocks.put(rows)
                        if stopped.is_set():
                            break
        except queue.Empty:
            blocks.put(None)
        except BaseException as error:  # raised in the thread that takes the blocks
            blocks.put(error)

    readers = [threading.Thread(target=read, args=(conn,), daemon=True) for conn in sessions]
    try:
        for reader in readers:
            reader.start()
        reading = len(readers)
        while reading:
            block = blocks.get()
            if isinstance(block, BaseException):
                raise block
            if block is None:
                reading -= 1
            else:
                yield block
    finally:
        stopped.set()
        while any(reader.is_alive() for reader in readers):
            with suppress(queue.Empty):
                blocks.get(timeout=_BLOCK_SECONDS)  # no reader must wait for a place


def _once(blocks: Iterator[Sequence[bytes]]) -> Iterator[Sequence[bytes]]:
    """Yield each row once.

    Two texts may be one key to the server, such as 1.0 and 1.00, and the row is then joined to both.
    """
    known: set[bytes] = set()
    for lines in blocks:
        fresh = [line for line in dict.fromkeys(lines) if line not in known]
        known.update(fresh)
        yield fresh


def _sent(conn: Session, table: TableVersion, statement: str) -> Generator[list[bytes]]:
    """Yield the rows of a COPY in binary form, each as it was sent."""
    owners_code.refuse(conn, table.relid, table.identifier)  # each statement is planned again
    header = _HEADER_BYTES
    for rows in copy_blocks(conn, statement, _BLOCK_BYTES):
        rows[0], header = rows[0][header:], 0
        if rows[-1] == _TRAILER:
            rows.pop()
        yield rows


def _relation(plan: Comparison) -> sql.Composable:
    """Return the relation to read.

    The rows of a partitioned table are in its partitions. The children of an ordinary table are tables of their own.
    """
    name = sql.Identifier(plan.table.schema, plan.table.name)
    return name if plan.table.kind == "p" else sql.SQL("ONLY {}").format(name)


def _statement(plan: Comparison, condition: sql.Composable) -> sql.Composable:
    return sql.SQL(load("parity/lines")).format(
        columns=sql.SQL(", ").join(_sending(c, plan.natives.get(i)) for i, c in enumerate(plan.columns)),
        relation=_relation(plan),
        # pg_get_expr() made this text on the source, with an empty search_path: it is an expression, not input.
        filter=sql.SQL(f"({plan.table.row_filter}) AND " if plan.table.row_filter else "") + condition,
    )


def _named(plan: Comparison, keys: Sequence[Sequence[str]]) -> Iterator[sql.Composable]:
    """Yield conditions that together select the rows of these keys.

    No cast and no operator of a table's owner may run with the rights of this session. PostgreSQL's own types are
    compared by value, with an index if there is one. All other types are compared by the text that COPY prints. If no
    key column has a type of PostgreSQL, the whole table is read, so it is read once for all keys.
    """
    columns = [plan.columns[i] for i in plan.key]
    own = [_built_in(c) for c in columns]
    at_once = _KEYS_AT_ONCE if any(own) else max(1, len(keys))
    for start in range(0, len(keys), at_once):
        wanted = keys[start : start + at_once]
        yield sql.SQL("({}) IN (SELECT {} FROM ROWS FROM ({}) AS k({}))").format(
            sql.SQL(", ").join(
                sql.SQL("{}" if built_in else _PRINTED).format(sql.Identifier(c.name))
                for c, built_in in zip(columns, own, strict=True)
            ),
            # format_type() made the names of the types.
            sql.SQL(", ").join(
                sql.SQL(f"CAST(k{n} AS {c.base})" if own[n] else f"k{n}") for n, c in enumerate(columns)
            ),
            sql.SQL(", ").join(
                sql.SQL("pg_catalog.unnest({}::text[])").format(sql.Literal([key[n] for key in wanted]))
                for n in range(len(columns))
            ),
            sql.SQL(", ").join(sql.SQL(f"k{n}") for n in range(len(columns))),
        )


def _built_in(column: Column) -> bool:
    """Return whether the type of the column, or the innermost base of its domain, is one of PostgreSQL's own.

    format_type() names the schema of every other type, because search_path is empty. The base of a domain is known only
    for tables of the source.
    """
    return "." not in column.base


def _shares(conn: Session, plan: Comparison, sessions: int) -> list[sql.Composable]:
    """Return ranges of pages that split a large table, valid for each of its files; none if it is read whole."""
    with conn.cursor(row_factory=dict_row) as cursor:
        files = cursor.execute(load("introspect/pieces"), {"relid": plan.table.relid}).fetchall()
    count = min(sum(file["bytes"] for file in files) // _SHARE_BYTES, _SHARES * sessions)
    if count < 2 or not all(file["heap"] and file["kind"] == "r" for file in files):
        return []
    pages = max(file["bytes"] // file["page"] for file in files)
    starts = [pages * n // count for n in range(count)]
    ranges = [f"ctid >= '({first},0)' AND ctid < '({end},0)'" for first, end in itertools.pairwise(starts)]
    return [sql.SQL(part) for part in (*ranges, f"ctid >= '({starts[-1]},0)'")]  # rows may come after the last page


def _sending(column: Column, native: Native | None) -> sql.Composable:
    """Return the expression that COPY must send for a line: a type that sends its text needs no conversion."""
    name = sql.Identifier(column.name)
    if native is None:
        return name if _SENT_AS_TEXT.fullmatch(column.base) else sql.SQL(load("parity/text")).format(column=name)
    if not native.kind.startswith("timestamp"):
        return name
    return sql.SQL(load("parity/stamp")).format(
        column=name, type=sql.Identifier(native.kind), send=sql.Identifier(f"{native.kind}_send")
    )

"""Read rows of a table in an exported snapshot, as events whose cells are byte-equal with the stream's text.

COPY's text form is what the types' output functions print, as in pgoutput. (A cast to text is not: booleans, char(n)
and inet differ.) One line is one image: columns that have no cell in the stream are selected as NULL.

A table is read in pieces: ranges of pages of its own file, or of each leaf of a partitioned table. Any number of
sessions may read pieces of one cut. No lock outlives its piece. Before a piece is read, it is therefore checked that it
is still the table that the snapshot saw: PostgreSQL shows an empty table after a TRUNCATE, and any rows at all after a
rewrite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg.rows import dict_row
from psycopg.sql import Literal

from toolkit.rawlog import order
from toolkit.rawlog.arrow import EVENT_SCHEMA
from toolkit.rawlog.event import Kind, Origin
from toolkit.source import locks, owners_code
from toolkit.source.connection import Connection, connect, one_line, unread
from toolkit.source.copyout import copy_blocks
from toolkit.source.copytext import cells, constant, numbers
from toolkit.source.slot import Cut, require_server
from toolkit.values import resources
from toolkit.values.capture_rules import SourceConfig
from toolkit.values.errors import CdcError, SourceUnavailable
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn
from toolkit.values.names import qualified, quote_postgres
from toolkit.values.table import TableVersion

_log = logger(__name__)
_BLOCK_BYTES = 1 << 20  # what the processor's cache holds beside the arrays made of it


class TableRefused(CdcError):
    """One table cannot be read at this cut. `moved`: it may be readable at another cut."""

    def __init__(self, message: str, *, moved: bool = False) -> None:
        super().__init__(message)
        self.moved = moved


@dataclass(frozen=True, slots=True)
class Piece:
    """Pages `first` to `last` (exclusive; None: to the end) of one file. `number` orders the pieces of a table."""

    number: int
    relid: int  # of the table itself, or of a leaf
    schema: str
    name: str
    attnums: dict[str, int]  # of the file's own columns
    first: int = 0
    last: int | None = None
    whole: bool = True  # no condition on pages
    bytes: int = 0  # of its pages


@dataclass(frozen=True, slots=True)
class Images:
    """The form of the copied rows: `R` rows of a whole table, or `U` rows of a scoped repair.

    A `U` row sets `columns` (attnums) and leaves every other column unchanged, as an update with unchanged TOAST does;
    None sets all columns. `keys` selects the rows to read, each by the texts of its key columns; without keys, all rows
    are read.
    """

    op: str = "R"
    columns: frozenset[int] | None = None
    keys: tuple[tuple[str, ...], ...] = ()


@contextmanager
def reader(source: SourceConfig, cut: Cut) -> Iterator[Connection]:
    """Open a read-only session that sees exactly what the cut's snapshot shows.

    Raises:
        SourceUnavailable: the snapshot is gone (its slot session has ended), or another server answered.
    """
    with connect(source) as conn:
        require_server(conn, cut.server, f"importing the snapshot at {cut.lsn}")
        conn.execute("begin isolation level repeatable read, read only")
        try:
            conn.execute(f"set transaction snapshot '{cut.snapshot_name}'")
            # A piece is one plain scan. Compiling it costs more than it saves, and the pieces themselves are read in
            # parallel.
            conn.execute("set local jit = off; set local max_parallel_workers_per_gather = 0")
        except psycopg.Error as error:
            raise SourceUnavailable(f"importing the snapshot at {cut.lsn}: {one_line(error)}; run it again") from None
        yield conn
        if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            conn.execute("rollback")


@dataclass(frozen=True, slots=True)
class Size:
    """The amount to read: `bytes` with TOAST, `rows` by the server's estimate."""

    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Cutting:
    """About `parts` pieces per table, each of `least` to `most` bytes of its file."""

    parts: int = 1
    least: int = 1
    most: int = 1 << 62

    def piece_bytes(self, total: int) -> int:
        """Return the size of one piece of a table of `total` bytes."""
        return min(self.most, max(self.least, total // self.parts))


def pieces(
    conn: Connection, table: TableVersion, cutting: Cutting, *, lock_seconds: float = 30.0
) -> tuple[tuple[Piece, ...], Size]:
    """Split a table into pieces, as the snapshot of `conn` shows it.

    Raises:
        TableRefused: a leaf is a foreign table, or the table or a leaf could not be locked.
    """
    with conn.transaction(force_rollback=True):  # a savepoint: a wait that fails does not end the snapshot
        try:
            files = _files(conn, table, f"copying {table.identifier}", lock_seconds)
        except locks.LockTimeout as error:
            raise TableRefused(str(error), moved=True) from None
    found: list[Piece] = []
    piece_bytes = cutting.piece_bytes(sum(file["bytes"] for file in files))
    for file in files:
        if file["kind"] != "r":
            name = qualified(file["schema"], file["name"])
            raise TableRefused(
                f"{table.identifier} has a partition {name} that is no ordinary table; detach it, or name"
                f" {table.identifier} in [source] exclude"
            )
        attnums = dict(zip(file["columns"] or (), file["attnums"] or (), strict=True))
        pages = file["bytes"] // file["page"]
        step = max(1, piece_bytes // file["page"])
        starts = range(0, pages, step) if file["heap"] and pages > step else range(1)
        for first in starts:
            end = first + step if first != starts[-1] else None  # rows may come after the last page
            found.append(
                Piece(
                    number=len(found),
                    relid=file["relid"],
                    schema=file["schema"],
                    name=file["name"],
                    attnums=attnums,
                    first=first,
                    last=end,
                    whole=len(starts) == 1,
                    bytes=file["bytes"] // len(starts),
                )
            )
    return tuple(found), Size(sum(f["total_bytes"] for f in files), sum(f["estimate"] for f in files))


def snapshot_batches(
    conn: Connection,
    table: TableVersion,
    lsn: Lsn,
    *,
    generation: int,
    batch_id: int = 0,
    schema_id: int | None = None,
    piece: Piece | None = None,
    images: Images | None = None,
    lock_seconds: float = 30.0,
) -> Iterator[pa.RecordBatch]:
    """Yield the published rows of `table` as batches of `EVENT_SCHEMA`, about 1 MiB of text each.

    Args:
        conn: a session of `reader`.
        table: its version inside the same snapshot.
        lsn: the cut; the events are at `lsn - 1` and end at `lsn`.
        piece: one of `pieces`; the whole table if None.
        lock_seconds: how long to wait for another session's lock on the table.

    Raises:
        TableRefused: this table cannot be read; the session can read others.
        SourceUnavailable: the session was lost.
    """
    if piece is None:
        for one in pieces(conn, table, Cutting(), lock_seconds=lock_seconds)[0]:
            yield from snapshot_batches(
                conn, table, lsn, generation=generation, batch_id=batch_id, schema_id=schema_id, piece=one,
                images=images, lock_seconds=lock_seconds,
            )  # fmt: skip
        return
    images = images or Images()
    shown = {c.attnum: c.name for c in table.columns if c.published}
    if images.columns is not None:
        shown = {attnum: name for attnum, name in shown.items() if attnum in images.columns}
    width = table.width
    constants: dict[str, int | str | list[int] | None] = {
        "batch_id": batch_id,
        "generation": generation,
        **order.made_at(lsn)._asdict(),
        "origin": Origin.SNAPSHOT,
        "kind": Kind.ROW,
        "relid": table.relid,
        "schema_id": schema_id,
        "op": images.op,
        "unchanged": [c.attnum for c in table.columns if c.published and c.attnum not in shown],
        "absent": [c.attnum for c in table.columns if not c.published],
    }
    done = 0
    try:
        with _held(conn, table, piece, shown, lock_seconds):
            for lines in copy_blocks(conn, copy_statement(table, piece, shown, images.keys), _BLOCK_BYTES):
                rows = len(lines)
                found = cells(lines) if width else pa.nulls(0, pa.string())
                if len(found) != rows * width:
                    raise SourceUnavailable(
                        f"copying {table.identifier}: {len(found)} cells in {rows} rows of {width}; report this"
                    )
                offsets = numbers(pa.int32(), np.arange(rows + 1, dtype=np.int32) * np.int32(width))
                first = order.copied_rows(piece.number, done)
                columns = {
                    "ordinal": numbers(pa.int64(), np.arange(first, first + rows, dtype=np.int64)),
                    "new": pa.ListArray.from_arrays(offsets, found),
                }
                arrays = [
                    columns[field.name]
                    if field.name in columns
                    else constant(field.type, constants.get(field.name), rows)
                    for field in EVENT_SCHEMA
                ]
                batch = pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)
                del found, columns, arrays  # a huge row is not held while the next one comes
                yield batch
                del batch
                done += rows
    except psycopg.Error as error:
        if conn.broken or conn.closed:
            raise SourceUnavailable(f"copying {table.identifier}: {one_line(error)}; run it again") from None
        chosen = f" where {table.row_filter}, its row filter" if table.row_filter else ""
        raise TableRefused(
            f"copying {table.identifier}{chosen}: {unread(error)}; correct that and run it again"
        ) from None


@contextmanager
def _held(
    conn: Connection, table: TableVersion, piece: Piece, shown: dict[int, str], lock_seconds: float
) -> Iterator[None]:
    """Lock the file of one piece while it is read, and check that it is what the snapshot saw."""
    name = f"{quote_postgres(piece.schema)}.{quote_postgres(piece.name)}"
    what = f"copying {table.identifier}"
    with conn.transaction(force_rollback=True):  # a savepoint: its rollback releases the lock
        try:
            with locks.waiting(conn, what, seconds=lock_seconds):
                conn.execute(f"lock table only {name} in access share mode")
        except locks.LockTimeout as error:
            raise TableRefused(str(error), moved=True) from None
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.WrongObjectType):
            raise _moved(table, "was dropped or renamed") from None
        same = conn.execute(resources.load("introspect/same_table"), {"name": name, "relid": piece.relid}).fetchone()
        if same is None or not (same[0] and same[2]):
            raise _moved(table, "was truncated, rewritten or replaced")
        try:
            owners_code.refuse(conn, piece.relid, table.identifier)
        except owners_code.OwnersCode as error:
            raise TableRefused(str(error)) from None
        if shown:
            # Names are resolved by the current catalog, whatever the snapshot: two columns may have exchanged their
            # names.
            listed = ", ".join(quote_postgres(column) for column in shown.values())
            # The result shows a column of a domain as its base type.
            types = {c.attnum: c.type_oid for c in table.columns if c.type_kind not in "da"}
            try:
                # Planning locks the indexes too, and a REINDEX that has not committed holds them. After this they are
                # locked.
                with locks.waiting(conn, what, seconds=lock_seconds):
                    result = conn.execute(f"select {listed} from only {name} limit 0").pgresult
            except locks.LockTimeout as error:
                raise TableRefused(str(error), moved=True) from None
            except psycopg.errors.UndefinedColumn:
                raise _moved(table, "lost or renamed a column") from None
            assert result is not None
            for at, (attnum, column) in enumerate(shown.items()):
                found = (result.ftable(at), result.ftablecol(at), types.get(attnum) and result.ftype(at))
                if found != (piece.relid, piece.attnums.get(column), types.get(attnum)):
                    raise _moved(table, f"has another column {column!r}")
        yield


def _moved(table: TableVersion, how: str) -> TableRefused:
    return TableRefused(f"{table.identifier} {how} after the snapshot was taken; run it again", moved=True)


def copy_statement(table: TableVersion, piece: Piece, shown: dict[int, str], keys: Sequence[Sequence[str]] = ()) -> str:
    """Return the COPY of a piece's published rows, or of `keys` alone.

    Each row has one cell for each attnum up to the last live one.
    """
    listed = ", ".join(
        quote_postgres(shown[attnum]) if attnum in shown else "null" for attnum in range(1, table.width + 1)
    )
    conditions: Sequence[str] = (
        # The filter was printed by pg_get_expr() on the source under a pinned search_path: an expression, not input.
        *((f"({table.row_filter})",) if table.row_filter else ()),
        *(() if piece.whole else (f"ctid >= '({piece.first},0)'",)),
        *(() if piece.last is None else (f"ctid < '({piece.last},0)'",)),
        *((_named(table, shown, keys),) if keys else ()),
    )
    where = f" where {' and '.join(conditions)}" if conditions else ""
    source = f"{quote_postgres(piece.schema)}.{quote_postgres(piece.name)}"
    return f"copy (select {listed} from only {source}{where}) to stdout"


def _named(table: TableVersion, shown: dict[int, str], keys: Sequence[Sequence[str]]) -> str:
    """Return a condition for the rows whose keys print these texts; the log identifies rows by them.

    A cast from text could give another key (it cuts to the type's length) or fail.
    """
    # format() uses the type's output function, as COPY does.
    texts = (f"pg_catalog.format('%s', {quote_postgres(shown[attnum])}) collate \"C\"" for attnum in table.key_attnums)
    wanted = (f"pg_catalog.unnest({Literal(list(column)).as_string()}::text[])" for column in zip(*keys, strict=True))
    return f"({', '.join(texts)}) in (select * from rows from ({', '.join(wanted)}) as k)"


def estimate(source: SourceConfig, tables: Sequence[TableVersion], *, lock_seconds: float) -> dict[int, Size]:
    """Estimate the current size of tables, by relid; tables that DDL of another session holds are left out."""
    found: dict[int, Size] = {}
    with connect(source) as conn:
        for table in tables:
            try:
                files = _files(conn, table, f"sizing {table.identifier}", lock_seconds)
            except locks.LockTimeout as error:
                _log.warning("not sized", extra={"table": table.identifier, "reason": str(error)})
                continue
            found[table.relid] = Size(sum(f["total_bytes"] for f in files), sum(f["estimate"] for f in files))
    return found


def _files(conn: Connection, table: TableVersion, what: str, seconds: float) -> list[dict[str, Any]]:
    """Read the files that contain the rows.

    The server opens the table to read its size, and waits for DDL that holds it.
    """
    with locks.waiting(conn, what, seconds=seconds), conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(resources.load("introspect/pieces"), {"relid": table.relid}).fetchall()

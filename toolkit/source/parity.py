"""The source's side of parity, read inside one snapshot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from toolkit.catalog import Column
from toolkit.config import Config
from toolkit.errors import CdcError
from toolkit.names import quote_postgres
from toolkit.parity import Comparison, Native
from toolkit.queries import load
from toolkit.source.copyout import copy_blocks

#: Less than a socket holds: while a block is hashed the server goes on, and is hardly ever waited for.
_BLOCK_BYTES = 1 << 17
_KEYS_AT_ONCE = 5_000
#: Types whose binary form is their text.
_SENT_AS_TEXT = re.compile(r"text|character( varying)?(\(\d+\))?")
#: What COPY sends in binary form before its first row, in the same message, and behind its last one.
_HEADER_BYTES, _TRAILER = 19, b"\xff\xff"


class TableMoved(CdcError):
    """The table is no longer what the snapshot saw, so its rows of then can no longer be read."""


@contextmanager
def inside_snapshot(conn: psycopg.Connection[Any], name: str | None, *, seconds: float) -> Iterator[None]:
    """A read-only transaction that sees exactly the exported snapshot `name` (None: its own); rolled back at the end.

    No table is waited for longer than `seconds`.
    """
    with conn.transaction(force_rollback=True):
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if name is not None:
            conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))
        # The session idles through drain and build.
        conn.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        conn.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(int(seconds * 1000))))
        yield


def fingerprints(conn: psycopg.Connection[Any], config: Config, relids: Sequence[int]) -> dict[int, str]:
    """By relid, what two snapshots show alike unless somebody may have changed the table past its log."""
    parameters = {"relids": list(relids), "publications": list(config.source.publications)}
    return dict(conn.execute(load("parity/fingerprints"), parameters).fetchall())


@contextmanager
def _table(conn: psycopg.Connection[Any], plan: Comparison) -> Iterator[None]:
    """Read one table under a lock that ends with the block.

    The transaction stays open through drain and build. A lock held so long would make the user's DDL wait, and all
    readers behind it, so each read has a savepoint of its own: rolling back to it gives the lock back.
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
            _require_same(conn, plan)  # a partition may be attached in spite of the lock


def _require_same(conn: psycopg.Connection[Any], plan: Comparison) -> None:
    table = plan.table
    name = f"{quote_postgres(table.schema)}.{quote_postgres(table.name)}"
    found = conn.execute(load("parity/identity"), {"name": name, "relid": table.relid}).fetchone()
    same_table, same_parts, same_files = found or (False, True, True)
    if not (same_table and same_files):
        raise TableMoved(f"{table.identifier} was truncated, rewritten or replaced after the snapshot was taken")
    if not same_parts:
        raise TableMoved(f"{table.identifier} has other partitions than when the snapshot was taken")


@contextmanager
def lines(
    conn: psycopg.Connection[Any], plan: Comparison, keys: Sequence[Sequence[str]] | None = None
) -> Iterator[Iterator[Sequence[bytes]]]:
    """The table's rows as lines, a block at a time; with `keys` (as text) only the rows of those keys.

    Raises:
        TableMoved: the snapshot's rows cannot be read any more.
    """
    table = plan.table
    statements = [_statement(plan)]
    if keys is not None:
        parts = [keys[i : i + _KEYS_AT_ONCE] for i in range(0, len(keys), _KEYS_AT_ONCE)]
        statements = [_statement(plan, part) for part in parts]
    with _table(conn, plan):
        try:
            yield (rows for s in statements for rows in _sent(conn, s.as_string(conn)))
        except (psycopg.errors.UndefinedColumn, psycopg.errors.SnapshotTooOld) as error:
            raise TableMoved(f"{table.identifier} was altered meanwhile: {error.diag.message_primary}") from None


def _sent(conn: psycopg.Connection[Any], statement: str) -> Iterator[list[bytes]]:
    """The rows of a COPY in binary form, each as it was sent."""
    header = _HEADER_BYTES
    for rows in copy_blocks(conn, statement, _BLOCK_BYTES):
        rows[0], header = rows[0][header:], 0
        if rows[-1] == _TRAILER:
            rows.pop()
        yield rows


def _relation(plan: Comparison) -> sql.Composable:
    """The rows of a partitioned table are its partitions'; an ordinary table's children are tables of their own."""
    name = sql.Identifier(plan.table.schema, plan.table.name)
    return name if plan.table.kind == "p" else sql.SQL("ONLY {}").format(name)


def _statement(plan: Comparison, keys: Sequence[Sequence[str]] | None = None) -> sql.Composable:
    table = plan.table
    # pg_get_expr() made this text on the source, with an empty search_path: it is an expression, not input.
    condition: sql.Composable = sql.SQL(f"({table.row_filter})" if table.row_filter else "true")
    if keys is not None:
        columns = [plan.columns[i] for i in plan.key]
        condition += sql.SQL(" AND ({}) IN (SELECT {} FROM ROWS FROM ({}) AS k({}))").format(
            sql.SQL(", ").join(sql.Identifier(c.name) for c in columns),
            # format_type() made the names of the types.
            sql.SQL(", ").join(sql.SQL(f"CAST(k{n} AS {c.type})") for n, c in enumerate(columns)),
            sql.SQL(", ").join(
                sql.SQL("pg_catalog.unnest({}::text[])").format(sql.Literal([key[n] for key in keys]))
                for n in range(len(columns))
            ),
            sql.SQL(", ").join(sql.SQL(f"k{n}") for n in range(len(columns))),
        )
    return sql.SQL(load("parity/lines")).format(
        columns=sql.SQL(", ").join(_sending(c, plan.natives.get(i)) for i, c in enumerate(plan.columns)),
        relation=_relation(plan),
        filter=condition,
    )


def _sending(column: Column, native: Native | None) -> sql.Composable:
    """The expression of which COPY sends what a line holds: a type that sends its text needs none."""
    name = sql.Identifier(column.name)
    if native is None:
        base = (column.base_type or column.type) if column.type_kind == "d" else column.type
        return name if _SENT_AS_TEXT.fullmatch(base) else sql.SQL(load("parity/text")).format(column=name)
    if not native.kind.startswith("timestamp"):
        return name
    return sql.SQL(load("parity/stamp")).format(
        column=name, type=sql.Identifier(native.kind), send=sql.Identifier(f"{native.kind}_send")
    )

"""The source's side of parity, computed inside an imported snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from toolkit.errors import CdcError
from toolkit.names import quote_postgres
from toolkit.parity import BucketFigures, Comparison, Figures
from toolkit.queries import load


class TableMoved(CdcError):
    """The table is no longer what the snapshot saw, so its rows of then can no longer be read."""


@contextmanager
def inside_snapshot(conn: psycopg.Connection[Any], name: str, *, seconds: float) -> Iterator[None]:
    """A read-only transaction that sees exactly the exported snapshot `name`; rolled back at the end.

    No table is waited for longer than `seconds`.
    """
    with conn.transaction(force_rollback=True):
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))
        # The session idles through drain and build.
        conn.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        conn.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(int(seconds * 1000))))
        yield


@contextmanager
def _table(conn: psycopg.Connection[Any], plan: Comparison) -> Iterator[None]:
    """Read one table under a lock that ends with the block.

    The transaction stays open through drain and build. A lock held so long would make the user's DDL wait, and all
    readers behind it, so each read has a savepoint of its own: rolling back to it gives the lock back.
    """
    table = plan.table
    relation = sql.Identifier(table.schema, table.name)
    with conn.transaction(force_rollback=True):
        try:
            conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(relation))
        except psycopg.errors.LockNotAvailable:
            raise TableMoved(f"{table.identifier} is locked by another session's DDL") from None
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            raise TableMoved(f"{table.identifier} was dropped or renamed after the snapshot was taken") from None
        name = f"{quote_postgres(table.schema)}.{quote_postgres(table.name)}"
        found = conn.execute(load("parity/identity"), {"name": name, "relid": table.relid}).fetchone()
        if found is None or not all(found):
            raise TableMoved(f"{table.identifier} was truncated, rewritten or replaced after the snapshot was taken")
        yield


def bucket_figures(conn: psycopg.Connection[Any], plan: Comparison) -> Figures:
    """Figures of every bucket that has rows.

    Raises:
        TableMoved: the snapshot's rows cannot be read any more.
    """
    statement = sql.SQL(load("parity/figures")).format(**_parts(plan))
    with _table(conn, plan):
        try:
            found = conn.execute(statement).fetchall()
        except (psycopg.errors.UndefinedColumn, psycopg.errors.SnapshotTooOld) as error:
            raise TableMoved(f"{plan.table.identifier} was altered meanwhile: {error.diag.message_primary}") from None
    return {bucket: BucketFigures(rows, int(high), int(low)) for bucket, rows, high, low in found}


@contextmanager
def hashed_rows(
    conn: psycopg.Connection[Any], plan: Comparison, wanted: Sequence[int]
) -> Iterator[Iterator[tuple[str | None, ...]]]:
    """Rows `(key hash, row hash, *fields)` of the buckets `wanted`, ascending by key hash, read through a cursor.

    Raises:
        TableMoved: the snapshot's rows cannot be read any more.
    """
    names = sql.SQL(", ").join(sql.Identifier(f"f{i + 1}") for i in range(len(plan.columns)))
    statement = sql.SQL(load("parity/rows")).format(
        **_parts(plan), names=names, wanted=sql.SQL("{}::integer[]").format(sql.Literal(list(wanted)))
    )
    with _table(conn, plan), conn.cursor("cdc_parity_rows") as cursor:
        cursor.itersize = 5000
        try:
            cursor.execute(statement)
        except psycopg.errors.UndefinedColumn as error:
            raise TableMoved(f"{plan.table.identifier} was altered meanwhile: {error.diag.message_primary}") from None
        yield iter(cursor)


def _parts(plan: Comparison) -> dict[str, sql.Composable]:
    """The placeholders that both statements share."""
    table = plan.table
    relation = sql.Identifier(table.schema, table.name)
    return {
        "fields": sql.SQL(", ").join(
            # concat() calls the type's output function, as pgoutput does; a cast to text is not the same for boolean
            # and char(n). num_nulls() sees NULL itself; IS NULL is also true of a composite whose fields are all NULL.
            sql.SQL("CASE num_nulls({column}) WHEN 0 THEN concat({column}) END AS {field}").format(
                column=sql.Identifier(column.name), field=sql.Identifier(f"f{i + 1}")
            )
            for i, column in enumerate(plan.columns)
        ),
        "key": _prefixed(plan.bucket_fields),
        "row": _prefixed(range(len(plan.columns))),
        # The rows of a partitioned table are its partitions'; an ordinary table's children are tables of their own.
        "relation": relation if table.kind == "p" else sql.SQL("ONLY {}").format(relation),
        # pg_get_expr() made this text on the source, with an empty search_path: it is an expression, not input.
        "filter": sql.SQL(f"({table.row_filter})" if table.row_filter else "true"),
        "buckets": sql.Literal(plan.buckets),
    }


def _prefixed(indexes: Sequence[int]) -> sql.Composable:
    fields = sql.SQL(", ").join(
        sql.SQL("coalesce(length({field}) || ':' || {field}, '~')").format(field=sql.Identifier(f"f{i + 1}"))
        for i in indexes
    )
    return sql.SQL("ARRAY[{}]::text[]").format(fields)

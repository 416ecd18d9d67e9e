"""Compare what a benchmark wrote with the source, by code that shares nothing with the toolkit's own check.

A run that loses or changes a value has no speed. Rows are replayed from the log and hashed, and so are the source's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg

from toolkit.lake.lake_catalog import open_catalog
from toolkit.values.config import Config

Row = tuple[str | None, ...]


def source_rows(conn: psycopg.Connection[Any], table: str) -> tuple[str, int]:
    """Return a hash over all rows of a table of schema `public` as texts, and their number."""
    with conn.cursor() as cursor:
        cursor.execute(f"select * from public.{table} limit 0".encode())
        assert cursor.description is not None
        # A cast to text prints a boolean in another way than the server sends it.
        named = [f'"{column.name}"' for column in cursor.description]
        columns = ", ".join(f"case when {name} is not null then format('%s', {name}) end" for name in named)
        conn.execute("set timezone = 'UTC'")
        cursor.execute(f"select {columns} from public.{table}".encode())
        return digest(cursor)


def digest(rows: Iterable[Sequence[str | None]]) -> tuple[str, int]:
    """Return a hash over rows in any order, and their number."""
    hashes = sorted(
        hashlib.md5("".join("N" if cell is None else f"{len(cell)}:{cell}" for cell in row).encode()).digest()
        for row in rows
    )
    return hashlib.md5(b"".join(hashes)).hexdigest(), len(hashes)


def replayed_rows(config: Config, relid: int, key: Sequence[int]) -> list[Row]:
    """Return the rows of one table as the raw log alone gives them: every image by its position, the last one wins.

    Args:
        key: attnums of the key, from 1.
    """
    columns = ("commit_lsn", "ordinal", "op", "new", "old", "unchanged")
    found = open_catalog(config).load_table("raw.events")
    scan = found.scan(row_filter=f"kind = 'row' and relid = {relid}", selected_fields=columns)
    events = scan.to_arrow().sort_by([("commit_lsn", "ascending"), ("ordinal", "ascending")])
    rows: dict[Row, list[str | None]] = {}

    def identity(image: Sequence[str | None]) -> Row:
        return tuple(image[attnum - 1] for attnum in key)

    for batch in events.to_batches(max_chunksize=10_000):
        for event in batch.to_pylist():
            before = rows.pop(identity(event["old"]), None) if event["old"] else None
            if event["op"] == "D":
                continue
            new = list(event["new"])
            if event["op"] == "U" and before is None:
                before = rows.get(identity(new))
            for attnum in event["unchanged"] or ():
                assert before is not None, "an update without the row that it changes"
                new[attnum - 1] = before[attnum - 1]
            rows[identity(new)] = new
    return [tuple(row) for row in rows.values()]


def require_same(config: Config, conn: psycopg.Connection[Any], tables: Sequence[str]) -> None:
    """Compare the replayed log with the source.

    Raises:
        SystemExit: they differ.
    """
    for table in tables:
        row = conn.execute(
            "select c.oid::bigint, i.indkey::int2[]::int[] from pg_class c join pg_index i on i.indrelid = c.oid"
            " where c.oid = %s::regclass and i.indisprimary",
            [f"public.{table}"],
        ).fetchone()
        assert row is not None
        wanted, found = source_rows(conn, table), digest(replayed_rows(config, row[0], row[1]))
        if wanted != found:
            raise SystemExit(
                f"bench: public.{table} has {wanted[1]:,} rows, the log gives {found[1]:,} or other values"
            )


__all__ = ["digest", "replayed_rows", "require_same", "source_rows"]

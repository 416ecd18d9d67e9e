"""Compare what a benchmark wrote with the source, by code that shares nothing with the toolkit's own check.

A run that loses or changes a value has no speed. Rows are replayed from the log and hashed, and so are the source's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
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


def replayed_rows(config: Config, keys: Mapping[int, Sequence[int]]) -> dict[int, list[Row]]:
    """Return the rows of tables as the raw log alone gives them: every image by its position, the last one wins.

    Args:
        keys: attnums of the key of each relid, from 1.
    """
    columns = ("commit_lsn", "ordinal", "relid", "op", "new", "old", "unchanged")
    scan = (
        open_catalog(config.lake_access)
        .load_table("raw.events")
        .scan(row_filter="kind = 'row'", selected_fields=columns)
    )
    events = scan.to_arrow().sort_by([("commit_lsn", "ascending"), ("ordinal", "ascending")])
    tables: dict[int, dict[Row, list[str | None]]] = {relid: {} for relid in keys}
    for batch in events.to_batches(max_chunksize=10_000):
        for event in batch.to_pylist():
            if event["relid"] in tables:
                _apply(tables[event["relid"]], keys[event["relid"]], event)
    return {relid: [tuple(row) for row in rows.values()] for relid, rows in tables.items()}


def _apply(rows: dict[Row, list[str | None]], key: Sequence[int], event: Mapping[str, Any]) -> None:
    def identity(image: Sequence[str | None]) -> Row:
        return tuple(image[attnum - 1] for attnum in key)

    before = rows.pop(identity(event["old"]), None) if event["old"] else None
    if event["op"] == "D":
        return
    new = list(event["new"])
    before = before or rows.get(identity(new))
    for attnum in event["unchanged"] or ():
        assert before is not None, "an update without the row that it changes"
        new[attnum - 1] = before[attnum - 1]
    rows[identity(new)] = new


def require_same(config: Config, conn: psycopg.Connection[Any], tables: Sequence[str]) -> None:
    """Compare the replayed log with the source.

    Raises:
        SystemExit: they differ.
    """
    found = conn.execute(
        "select c.relname, c.oid::bigint, i.indkey::int2[]::int[] from pg_class c join pg_index i on i.indrelid = c.oid"
        " where i.indisprimary and c.relnamespace = 'public'::regnamespace and c.relname = any (%s)",
        [list(tables)],
    ).fetchall()
    replayed = replayed_rows(config, {relid: key for _, relid, key in found})
    assert len(found) == len(tables)
    for table, relid, _ in found:
        wanted, given = source_rows(conn, table), digest(replayed[relid])
        if wanted != given:
            raise SystemExit(f"bench: public.{table} has {wanted[1]:,} rows, the log {given[1]:,}, or other ones")


__all__ = ["digest", "replayed_rows", "require_same", "source_rows"]

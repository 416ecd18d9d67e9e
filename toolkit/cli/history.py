"""Provide the commands that read history by LSN: schemas, columns, rows, and what is published."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import click

from toolkit.cli.frame import MOMENT, Context, command, main
from toolkit.cli.output import plain, say

if TYPE_CHECKING:
    from toolkit.values.lsn import Lsn

_T = TypeVar("_T")
_SHOWN_ROWS = 1000  # progress is shown after so many
_EVERY_ROW = 2**31 - 1  # Spark has no higher limit


@main.group()
def schema() -> None:
    """Show schema history by LSN."""


@schema.command("history")
@click.argument("table")
@command
def schema_history(ctx: Context, table: str) -> None:
    """List all versions of a table: from and to LSN, the DDL, the role that ran it, and what it changed.

    since_lsn is set for a change that was found late: the earliest LSN at which it may have happened.
    """
    rows = [
        {
            "from_lsn": v.valid_from,
            "to_lsn": v.valid_to,
            "since_lsn": v.since,
            "schema_id": v.schema_id,
            "tag": v.ddl and v.ddl.tag,
            "role": v.ddl and v.ddl.role,
            "at": v.ddl and v.ddl.at,
            "changes": [str(c) for c in v.changes],
            "sql": v.ddl and v.ddl.sql,
        }
        for v in ctx.toolkit.versions(table)
    ]
    ctx.output.table(rows, ["from_lsn", "to_lsn", "since_lsn", "schema_id", "tag", "role", "at", "changes"])


@schema.command("show")
@click.argument("table")
@click.option("--as-of", type=MOMENT, help="An LSN or a time; default: now.")
@command
def schema_show(ctx: Context, table: str, as_of: Lsn | datetime | None) -> None:
    """Show a table's columns at an LSN or a time, with their names and types at the source and in the lake."""
    from toolkit.values.lake_types import spark_type
    from toolkit.values.names import lake_columns

    found = ctx.toolkit.shape(table, as_of)
    version = found.table
    names = lake_columns([(c.attnum, c.name) for c in version.columns])
    rows = [
        {
            "attnum": c.attnum,
            "column": c.name,
            "type": c.type,
            "not_null": c.not_null,
            "default": c.default,
            "lake_name": names[c.attnum] if c.published else None,
            "lake_type": spark_type(c) if c.published else None,
            "comment": c.comment,
        }
        for c in version.columns
    ]
    notes = [f"dropped at {found.valid_from}; these were its columns"] if version.dropped else []
    notes += [f"found at {found.valid_from}; it may have been so from {found.since} on"] if found.since else []
    ctx.output.text(version.identifier + (f" ({'; '.join(notes)})" if notes else ""))
    ctx.output.table(rows, list(rows[0]) if rows else ["attnum", "column"])


@schema.command("diff")
@click.argument("table")
@click.option("--from", "since", type=MOMENT, required=True, help="An LSN or a time.")
@click.option("--to", "until", type=MOMENT, required=True, help="An LSN or a time.")
@command
def schema_diff(ctx: Context, table: str, since: Lsn | datetime, until: Lsn | datetime) -> None:
    """Show what changed between two LSNs or times, by column identity."""
    from toolkit.history import versions

    opened = ctx.toolkit
    changes = versions.diff(opened.lake.ledger, table, opened.lsn(since), opened.lsn(until))
    rows = [{"kind": c.kind, "column": c.column, "before": c.before, "after": c.after} for c in changes]
    ctx.output.table(rows, ["kind", "column", "before", "after"])


@schema.command("explain")
@click.argument("table")
@click.argument("column", required=False)
@command
def schema_explain(ctx: Context, table: str, column: str | None) -> None:
    """Show the life of a column: renames, type changes, drops and additions, with DDL, role and rows seen."""
    from toolkit.history import column_life

    rows = [
        {
            "attnum": s.attnum,
            "column": s.name,
            "type": s.type,
            "from_lsn": s.valid_from,
            "to_lsn": s.valid_to,
            "since_lsn": s.since,
            "changes": [str(c) for c in s.changes],
            "role": s.ddl and s.ddl.role,
            "tag": s.ddl and s.ddl.tag,
            "at": s.ddl and s.ddl.at,
            "sql": s.ddl and s.ddl.sql,
            "rows": s.seen.rows if s.seen else 0,
            "first_row": s.seen and s.seen.first,
            "last_row": s.seen and s.seen.last,
        }
        for s in column_life.explain(ctx.toolkit.lake.ledger, table, column)
    ]
    shown = [
        "attnum",
        "column",
        "type",
        "from_lsn",
        "to_lsn",
        "since_lsn",
        "changes",
        "role",
        "rows",
        "first_row",
        "last_row",
    ]
    ctx.output.table(rows, shown)


@main.command()
@click.argument("table")
@click.option("--as-of", type=MOMENT, help="Rows at this LSN or time; default: the newest built.")
@click.option("--key", multiple=True, metavar="COLUMN=VALUE", help="All versions of one key.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=1000, show_default=True, help="Show at most this many; 0 shows all."
)
@command
def rows(ctx: Context, table: str, as_of: Lsn | datetime | None, key: tuple[str, ...], limit: int) -> None:
    """Show the rows of a table at an LSN or a time, or all versions of one key."""
    bad = next((k for k in key if "=" not in k), None)
    if bad is not None:
        raise click.BadParameter(f"{bad!r}: expected COLUMN=VALUE", param_hint="--key")
    pairs = dict(k.split("=", 1) for k in key) or None
    if pairs is not None and len(pairs) < len(key):
        raise click.BadParameter("a column is named twice: ask for one key at a time", param_hint="--key")
    limit = limit if limit < _EVERY_ROW else 0
    read = ctx.toolkit.rows(table, as_of, pairs, limit=limit + 1 if limit else None)
    found = read if sys.stdout.isatty() else _counted(f"reading {table}", read)
    ctx.output.table(itertools.islice(found, limit or None), read.columns)
    if next(found, None) is not None:
        say(f"cdc: only the first {limit} rows are shown; --limit 0 shows all", err=True)


def _counted(what: str, found: Iterator[_T]) -> Iterator[_T]:
    """Yield the rows, and show how many were read, which a file does not show."""
    from toolkit.values import progress

    with progress.stage(what, "rows") as stage:
        for number, row in enumerate(found, 1):
            yield row
            if number % _SHOWN_ROWS == 0:
                stage.add(_SHOWN_ROWS)


@main.command()
@click.option("--duckdb", is_flag=True, help="Print SQL that makes the views of `published` in DuckDB.")
@command
def published(ctx: Context, duckdb: bool) -> None:
    """List the published tables: the LSN of each proof, and where a reader other than Spark finds the rows."""
    if duckdb:
        ctx.output.script(ctx.toolkit.duckdb_script())
        return
    shown = ["table", "relation", "lsn", "proven_at", "status", "snapshot_id", "metadata"]
    ctx.output.table(map(plain, ctx.toolkit.published()), shown)

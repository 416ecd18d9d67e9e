"""Provide the commands on DDL: list what was captured, resolve what was not handled, preview a migration."""

from __future__ import annotations

from typing import TextIO

import click

from toolkit.cli.frame import NOT_PROVEN, Context, command, main
from toolkit.values.errors import ConfigError


@main.group()
def ddl() -> None:
    """List, resolve and preview DDL.

    To leave a table out, add it to [source] exclude and do what `cdc doctor` says. To keep only its structure, set
    capture = "schema". To try again, run `cdc drain`, then `cdc repair` for stale tables. `cdc doctor` reports changes
    on the source that were not captured.
    """


@ddl.command("list")
@click.option("--unhandled", is_flag=True, help="Only events that capture could not handle and that are not resolved.")
@click.option("--resolved", is_flag=True, help="With --unhandled: the resolved ones too.")
@command
def ddl_list(ctx: Context, unhandled: bool, resolved: bool) -> None:
    """List captured DDL in log order."""
    from toolkit.history import versions

    if unhandled:
        from dataclasses import asdict

        from toolkit.history import unhandled_ddl

        found = [asdict(one) for one in unhandled_ddl.unhandled(ctx.toolkit.lake.ledger, resolved=resolved)]
        ctx.output.table(found, ["id", "lsn", "kind", "table", "what", *(["note", "resolved_by"] if resolved else [])])
        return

    events = versions.events(ctx.toolkit.lake.ledger)
    rows = [
        {"lsn": e.end_lsn, "tag": e.tag, "effect": e.effect, "role": e.role, "event": e.event, "sql": e.sql}
        for e in events
    ]
    ctx.output.table(rows, ["lsn", "tag", "effect", "role", "event", "sql"])


@ddl.command("resolve")
@click.argument("ident", metavar="ID")
@click.option("--note", required=True, help="What was done about it.")
@command
def ddl_resolve(ctx: Context, ident: str, note: str) -> None:
    """Acknowledge an unhandled event with a note. A stale table still needs `cdc repair`."""
    from toolkit.capture.runner import only_runner
    from toolkit.history import unhandled_ddl

    toolkit = ctx.toolkit
    with only_runner(toolkit.lake):
        ctx.show(unhandled_ddl.resolve(toolkit.lake.ledger, ident, note))


@ddl.command("pause")
@command
def ddl_pause(ctx: Context) -> None:
    """Stop capturing DDL on the source. Every table is stale from then on, until it is repaired."""
    from toolkit.source import ddl_switch

    ctx.show(ddl_switch.pause(ctx.config.source))


@ddl.command("resume")
@command
def ddl_resume(ctx: Context) -> None:
    """Capture DDL again. Run `cdc repair` afterwards for tables that may have changed meanwhile."""
    from toolkit.source import ddl_switch

    ctx.show(ddl_switch.resume(ctx.config.source))


@ddl.command("lint")
@click.argument("file", type=click.File(encoding="utf-8-sig"))
@click.option("--scratch", metavar="CONNINFO", help="Superuser of a scratch server; default: an embedded PostgreSQL.")
@command
def ddl_lint(ctx: Context, file: TextIO, scratch: str | None) -> int:
    """Show what each DDL statement of FILE would do to the lake. Nothing is run on the source.

    The schema of the source is copied to a scratch database, without rows. DDL runs there, by a role without rights,
    and is rolled back. Other statements are not run. Exit code 3 when a statement changes values without row events,
    fails, is not DDL, or breaks UPDATE and DELETE at the source.
    """
    from toolkit.demo.scratch_server import open_scratch
    from toolkit.history import ddl_lint

    script = _read(file)
    with open_scratch(ctx.config.capture_rules, scratch, ddl=ctx.config.ddl) as conninfo:
        effects = ddl_lint.lint(ctx.config.capture_rules, script, conninfo=conninfo)
    rows = [
        {
            "line": e.line,
            "tag": e.tag,
            "table": e.table,
            "effect": e.effect,
            "detail": e.detail,
            "breaks": e.breaks,
            "remedy": e.remedy,
            "sql": e.sql,
        }
        for e in effects
    ]
    ctx.output.table(rows, ["line", "tag", "table", "effect", "detail", "breaks", "remedy"])
    return NOT_PROVEN if any(e.needs_review for e in effects) else 0


def _read(file: TextIO) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file.name}: not UTF-8: {error.reason} at byte {error.start}; save it as UTF-8") from None

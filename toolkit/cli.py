"""The command line: options in, one use case, one rendering. Exit codes: 0 fine, 1 failed, 2 usage, 3 red, 4 lease."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import click

from toolkit import __version__
from toolkit.errors import CdcError
from toolkit.lsn import Lsn

if TYPE_CHECKING:
    from toolkit.config import Config
    from toolkit.output import Output
    from toolkit.quality.report import CheckReport

RED = 3


@dataclass(frozen=True, slots=True)
class Context:
    """The options that every command takes."""

    config_path: str | None
    output_format: str
    verbose: bool

    @property
    def config(self) -> Config:
        from toolkit import config

        return config.load(self.config_path)

    @property
    def output(self) -> Output:
        from toolkit import output

        return output.JsonOutput() if self.output_format == "json" else output.TextOutput()


class _LsnType(click.ParamType[Lsn]):
    name = "lsn"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Lsn:
        try:
            return value if isinstance(value, Lsn) else Lsn.parse(str(value))
        except CdcError as error:
            self.fail(str(error), param, ctx)


LSN = _LsnType()


def command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Give a command its `Context`; turn refusals into one line and an exit code; stop the JVM it started."""

    @click.option("--config", "config_path", metavar="FILE", help="Configuration; else CDC_CONFIG, else ./cdc.toml.")
    @click.option("--output", "output_format", type=click.Choice(["text", "json"]), default="text", show_default=True)
    @click.option("--verbose", is_flag=True, help="Log to stderr; show tracebacks.")
    @functools.wraps(function)
    def run(config_path: str | None, output_format: str, verbose: bool, **arguments: Any) -> None:
        from toolkit import log

        log.configure(verbose=verbose, as_json=output_format == "json")
        try:
            code = function(Context(config_path, output_format, verbose), **arguments)
        except CdcError as error:
            if verbose:
                traceback.print_exc()
            click.echo(f"cdc: {error}", err=True)
            code = error.exit_code
        except KeyboardInterrupt:
            click.echo("cdc: interrupted; nothing half-done remains, run the command again", err=True)
            code = 130
        finally:
            _stop_spark()
        sys.exit(code or 0)

    return run


def _stop_spark() -> None:
    if "toolkit.lake.session" in sys.modules:
        from toolkit.lake import session

        session.stop_session()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="cdc")
def main() -> None:
    """Batch CDC reconciliation for PostgreSQL and an Iceberg lake: right at every LSN, and proven so."""


@main.command()
@click.option("--directory", metavar="DIR", help="Where to keep everything; default ./cdc-demo.")
@click.option("--postgres", type=click.Choice(["16", "18"]), default="16", show_default=True)
@command
def demo(ctx: Context, directory: str | None, postgres: str) -> int:
    """The whole story on an embedded PostgreSQL; needs no configuration."""
    from pathlib import Path

    from toolkit import demo as story

    del ctx
    return story.run(Path(directory or "cdc-demo"), major=int(postgres), echo=click.echo)


@main.command()
@click.option("--dry-run", is_flag=True, help="Print the SQL; change nothing.")
@click.option("--new-generation", is_flag=True, help="Start a new log after the source's history was lost.")
@command
def init(ctx: Context, dry_run: bool, new_generation: bool) -> int:
    """Install capture on the source, create the slot and take the first snapshot. Idempotent."""
    from toolkit import initialise
    from toolkit.lake.lease import lease

    if dry_run:
        click.echo(initialise.plan_sql(ctx.config))
        return 0
    with lease(ctx.config):
        done = initialise.init(ctx.config, new_generation=new_generation)
    ctx.output.record(done)
    return RED if done.left_out else 0


@main.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@command
def uninstall(ctx: Context, yes: bool) -> None:
    """Remove everything that `init` put on the source."""
    from toolkit import initialise
    from toolkit.lake.lease import lease

    config = ctx.config
    if not yes:
        click.confirm(
            f"Drop slot {config.source.slot!r}, publication {config.source.publication!r} and capture?", abort=True
        )
    with lease(config):
        initialise.uninstall(config)
    ctx.output.text("the source holds nothing of cdc any more")


@main.command()
@click.option("--upto-lsn", type=LSN, help="Drain to this end LSN; default: the WAL flush position now.")
@click.option(
    "--max-changes", type=click.IntRange(min=1), help="Take at most this many messages, in whole transactions."
)
@command
def drain(ctx: Context, upto_lsn: Lsn | None, max_changes: int | None) -> None:
    """Drain the slot into the raw log."""
    from toolkit import drain as draining
    from toolkit.lake.lease import lease

    config = ctx.config
    with lease(config):
        ctx.output.record(draining.drain(config, upto=upto_lsn, max_changes=max_changes))


@main.command()
@click.option("--as-of-lsn", type=LSN, help="Rebuild the tables as of this LSN, in a schema of their own.")
@click.argument("dbt_args", nargs=-1, type=click.UNPROCESSED)
@command
def build(ctx: Context, as_of_lsn: Lsn | None, dbt_args: tuple[str, ...]) -> None:
    """Rebuild the tables for people: models sync, schema changes, dbt. Arguments after `--` go to dbt."""
    from toolkit import build as building
    from toolkit.lake.lease import lease

    config = ctx.config
    with lease(config):
        ctx.output.record(building.build(config, as_of=as_of_lsn, dbt_args=dbt_args))


def _check(ctx: Context, config: Config, tables: tuple[str, ...], *, full: bool = False) -> int:
    from toolkit import build as building
    from toolkit import drain as draining
    from toolkit.quality import check as checking
    from toolkit.quality import expectations

    expectations.preload()
    return _told(ctx, checking.check(config, tables, drain=draining.drain, build=building.build, full=full))


def _told(ctx: Context, report: CheckReport) -> int:
    if ctx.output_format == "json":
        ctx.output.record(report.to_dict())
    else:
        ctx.output.text(report.text)
    return 0 if report.green else RED


@main.command()
@click.argument("tables", nargs=-1)
@click.option("--full", is_flag=True, help="Compare every row, also of large tables proved lately.")
@click.option("--against", metavar="CONNINFO", help="Compare with this PostgreSQL instead; it must stand still.")
@command
def check(ctx: Context, tables: tuple[str, ...], full: bool, against: str | None) -> int:
    """Prove parity at an exact LSN and publish what is proven. Exit code 3 on a difference or a red table."""
    if against is not None:
        from toolkit.quality import against as second

        return _told(ctx, second.against(ctx.config, against, tables))
    from toolkit.lake.lease import lease

    config = ctx.config
    with lease(config):
        return _check(ctx, config, tables, full=full)


@main.command()
@click.option("--heal", is_flag=True, help="Repair stale tables too, within [snapshot] heal_mb.")
@command
def run(ctx: Context, heal: bool) -> int:
    """Drain, build and check: the one line for a scheduler."""
    from toolkit import build as building
    from toolkit import drain as draining
    from toolkit import snapshot
    from toolkit.lake.lease import lease

    config = ctx.config
    with lease(config):
        draining.drain(config)
        if heal:
            snapshot.heal(config)
        building.build(config)
        return _check(ctx, config, ())


@main.command()
@click.argument("tables", nargs=-1)
@click.option("--columns", metavar="A,B", help="Only these columns, of every row.")
@click.option("--partition", metavar="SCHEMA.TABLE", help="Only the rows of this partition.")
@command
def repair(ctx: Context, tables: tuple[str, ...], columns: str | None, partition: str | None) -> int:
    """Copy stale tables again at a new exact LSN; all of them if none is named."""
    from toolkit import snapshot
    from toolkit.lake.lease import lease

    if columns and partition:
        raise click.UsageError("--columns and --partition exclude each other")
    scope = snapshot.Scope(tuple(c.strip() for c in columns.split(",")) if columns else (), partition)
    config = ctx.config
    with lease(config):
        done = snapshot.repair(config, tables, scope=scope)
    ctx.output.record(done)
    return RED if done.left_out else 0


@main.command()
@command
def status(ctx: Context) -> int:
    """Positions, lag and table states. Exit code 3 when a table is red."""
    from toolkit import status as reading

    found = reading.status(ctx.config)
    ctx.output.record(found)
    return RED if found.red else 0


@main.command()
@command
def doctor(ctx: Context) -> int:
    """Everything that is or will be wrong, each with its remedy. Exit code 1 on an error."""
    from toolkit import doctor as looking

    found = looking.doctor(ctx.config)
    rows = [{"level": d.level, "what": d.what, "found": d.found, "remedy": d.remedy} for d in found]
    ctx.output.table(rows, ["level", "what", "found", "remedy"])
    return int(any(d.level == "error" for d in found))


@main.group()
def schema() -> None:
    """Schema history by LSN."""


@schema.command("history")
@click.argument("table")
@command
def schema_history(ctx: Context, table: str) -> None:
    """All versions of a table: from and to LSN, the DDL, who ran it, what it changed."""
    from toolkit import history

    rows = [
        {
            "from_lsn": v.valid_from,
            "to_lsn": v.valid_to,
            "schema_id": v.schema_id,
            "tag": v.ddl and v.ddl.tag,
            "role": v.ddl and v.ddl.role,
            "at": v.ddl and v.ddl.at,
            "changes": [str(c) for c in v.changes],
            "sql": v.ddl and v.ddl.sql,
        }
        for v in history.versions(ctx.config, table)
    ]
    ctx.output.table(rows, ["from_lsn", "to_lsn", "schema_id", "tag", "role", "at", "changes"])


@schema.command("show")
@click.argument("table")
@click.option("--as-of", type=LSN, help="Default: now.")
@command
def schema_show(ctx: Context, table: str, as_of: Lsn | None) -> None:
    """A table's shape at an LSN, at the source and in the lake."""
    from toolkit import history
    from toolkit.names import lake_columns
    from toolkit.pgtypes import spark_type

    version = history.show(ctx.config, table, as_of).table
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
    ctx.output.text(version.identifier)
    ctx.output.table(rows, list(rows[0]) if rows else ["attnum", "column"])


@schema.command("diff")
@click.argument("table")
@click.option("--from", "from_lsn", type=LSN, required=True)
@click.option("--to", "to_lsn", type=LSN, required=True)
@command
def schema_diff(ctx: Context, table: str, from_lsn: Lsn, to_lsn: Lsn) -> None:
    """What changed between two LSNs, by column identity."""
    from toolkit import history

    changes = history.diff(ctx.config, table, from_lsn, to_lsn)
    rows = [{"kind": c.kind, "column": c.column, "before": c.before, "after": c.after} for c in changes]
    ctx.output.table(rows, ["kind", "column", "before", "after"])


@schema.command("explain")
@click.argument("table")
@click.argument("column", required=False)
@command
def schema_explain(ctx: Context, table: str, column: str | None) -> None:
    """A column's life: renames, type changes, drop and re-adding, with the DDL, the role and the rows seen."""
    from toolkit import explain

    rows = [
        {
            "attnum": s.attnum,
            "column": s.name,
            "type": s.type,
            "from_lsn": s.valid_from,
            "to_lsn": s.valid_to,
            "changes": [str(c) for c in s.changes],
            "role": s.ddl and s.ddl.role,
            "tag": s.ddl and s.ddl.tag,
            "at": s.ddl and s.ddl.at,
            "sql": s.ddl and s.ddl.sql,
            "rows": s.seen.rows if s.seen else 0,
            "first_row": s.seen and s.seen.first,
            "last_row": s.seen and s.seen.last,
        }
        for s in explain.explain(ctx.config, table, column)
    ]
    shown = ["attnum", "column", "type", "from_lsn", "to_lsn", "changes", "role", "rows", "first_row", "last_row"]
    ctx.output.table(rows, shown)


@main.command()
@click.argument("table")
@click.option("--as-of", type=LSN, help="Rows at this LSN; default: the newest built.")
@click.option("--key", multiple=True, metavar="COLUMN=VALUE", help="All versions of one key.")
@command
def rows(ctx: Context, table: str, as_of: Lsn | None, key: tuple[str, ...]) -> None:
    """Rows of a table at an LSN, or all versions of one key."""
    from toolkit import rows as reading

    bad = next((k for k in key if "=" not in k), None)
    if bad is not None:
        raise click.BadParameter(f"{bad!r}: expected COLUMN=VALUE", param_hint="--key")
    pairs = dict(k.split("=", 1) for k in key) or None
    found = reading.rows(ctx.config, table, as_of, pairs)
    ctx.output.table(found, list(found[0]) if found else [])


@main.group()
def ddl() -> None:
    """Captured DDL."""


@ddl.command("list")
@click.option("--unhandled", is_flag=True, help="What capture could not take as it came, and nobody has resolved.")
@click.option("--resolved", is_flag=True, help="With --unhandled: the resolved ones too.")
@command
def ddl_list(ctx: Context, unhandled: bool, resolved: bool) -> None:
    """Captured DDL in the order of the log."""
    from toolkit import history

    if unhandled:
        from dataclasses import asdict

        from toolkit import unhandled as events_to_see

        found = [asdict(one) for one in events_to_see.unhandled(ctx.config, resolved=resolved)]
        ctx.output.table(found, ["id", "lsn", "kind", "table", "what", *(["note", "resolved_by"] if resolved else [])])
        return

    events = history.events(ctx.config)
    rows = [{"lsn": e.end_lsn, "tag": e.tag, "role": e.role, "event": e.event, "sql": e.sql} for e in events]
    ctx.output.table(rows, ["lsn", "tag", "role", "event", "sql"])


@ddl.command("resolve")
@click.argument("ident", metavar="ID")
@click.option("--note", required=True, help="What was done about it.")
@command
def ddl_resolve(ctx: Context, ident: str, note: str) -> None:
    """Put a note to an unhandled event. Heals nothing: a stale table wants `cdc repair`."""
    from toolkit import unhandled
    from toolkit.lake.lease import lease

    config = ctx.config
    with lease(config):
        ctx.output.record(unhandled.resolve(config, ident, note))


@ddl.command("pause")
@command
def ddl_pause(ctx: Context) -> None:
    """Stop capturing DDL on the source. Every table is stale from here on, until it is repaired."""
    from toolkit import switch

    ctx.output.record(switch.pause(ctx.config))


@ddl.command("resume")
@command
def ddl_resume(ctx: Context) -> None:
    """Capture DDL again; `cdc repair` then heals what may have changed meanwhile."""
    from toolkit import switch

    ctx.output.record(switch.resume(ctx.config))


@ddl.command("lint")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("--conninfo", metavar="CONNINFO", help="Try it on this copy instead of the source.")
@command
def ddl_lint(ctx: Context, file: TextIO, conninfo: str | None) -> int:
    """What each statement of FILE would do to the lake, tried in a transaction that is rolled back.

    Exit code 3 when one is silent, fails, or breaks UPDATE and DELETE at the source.
    """
    from toolkit import lint

    effects = lint.lint(ctx.config, file.read(), conninfo=conninfo)
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
    return RED if any(e.red for e in effects) else 0


@main.group()
def models() -> None:
    """The generated dbt models."""


@models.command("sync")
@command
def models_sync(ctx: Context) -> None:
    """Generate the models and the dbt profile from the log."""
    from toolkit import models_sync as syncing

    ctx.output.record({"models": syncing.sync(ctx.config)})


if __name__ == "__main__":
    main()

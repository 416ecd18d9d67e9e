"""Provide the commands that move data and prove it, from init to check, and those that show the state."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.frame import LSN, MOMENT, NOT_PROVEN, Context, command, main
from toolkit.cli.output import plain, say
from toolkit.values.outcome import Level

if TYPE_CHECKING:
    from toolkit.build.dbt_run import BuildResult
    from toolkit.quality.report import CheckReport
    from toolkit.values.lsn import Lsn

Keys = tuple[dict[str, str], ...]


class _KeysType(click.ParamType[Keys]):
    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Keys:
        def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            names = [name for name, _ in pairs]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:  # JSON would take the last value
                self.fail(
                    f"{value!r} names the column {twice!r} twice; name each row in an object of its own", param, ctx
                )
            return dict(pairs)

        try:
            found = json.loads(value, object_pairs_hook=once)
            json.dumps(found, ensure_ascii=False).encode()  # half a character is none
        except ValueError as error:
            self.fail(f"{value!r} is no JSON: {error}", param, ctx)
        keys = found if isinstance(found, list) else [found]
        if not keys or not all(isinstance(k, dict) and all(isinstance(v, str) for v in k.values()) for k in keys):
            self.fail(
                f'{value!r}: expected {{"COLUMN": "VALUE"}} of each column of the key, or a list of such objects',
                param,
                ctx,
            )
        return tuple(keys)


@main.command()
@click.option("--directory", metavar="DIR", help="Where to keep everything; default ./cdc-demo.")
@click.option("--postgres", type=click.Choice(["16", "18"]), default="16", show_default=True)
@click.option(
    "--cluster", is_flag=True, help="Keep the lake in an S3 server, and run Spark on a cluster of two workers."
)
@command
def demo(ctx: Context, directory: str | None, postgres: str, cluster: bool) -> int:
    """Run the whole pipeline on an embedded PostgreSQL. Needs no configuration."""
    from pathlib import Path

    from toolkit.demo import story

    del ctx
    return story.run(Path(directory or "cdc-demo"), major=int(postgres), echo=say, cluster=cluster)


@main.command()
@click.argument("directory", metavar="DIR")
@command
def new(ctx: Context, directory: str) -> None:
    """Make a new folder with a cdc.toml to fill in, a dbt project, notebooks, and examples of schedules."""
    from pathlib import Path

    from toolkit.ops import new_project

    written = new_project.create(Path(directory))
    shown = [path.as_posix() for path in written if path.parts[0] not in ("dbt_project", "notebooks")]
    ctx.show({"directory": directory, "files": [*shown, "dbt_project/", "notebooks/"]})


@main.command()
@click.option("--dry-run", is_flag=True, help="Print the SQL; change nothing.")
@click.option("--new-generation", is_flag=True, help="Start a new log because the source's history was lost.")
@click.option("--strict", is_flag=True, help="Refuse to begin if a table that a pattern selects cannot be captured.")
@click.option("--new-key", is_flag=True, help="Also replace the key that signs DDL messages; no message is lost.")
@command
def init(ctx: Context, dry_run: bool, new_generation: bool, strict: bool, new_key: bool) -> int:
    """Install capture on the source, create the slot and copy the tables. Can be run again at any time.

    Tables without a key that only a pattern selects are left out and listed with every remedy: exit code 3.
    """
    if dry_run:
        from toolkit.capture import initialise

        ctx.output.script(initialise.plan_sql(ctx.config.source_access))
        return 0
    done = ctx.toolkit.init(new_generation=new_generation, strict=strict, new_key=new_key)
    ctx.show(done)
    return NOT_PROVEN if done.left_out else 0


@main.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@command
def uninstall(ctx: Context, yes: bool) -> None:
    """Remove everything that `init` created on the source."""
    from toolkit.values import progress

    opened = ctx.toolkit
    source = opened.config.source
    if not yes:
        own = f", publication {source.own!r}" if source.own is not None else ""
        progress.result()  # a line of progress would be drawn over the question
        click.confirm(f"Drop slot {source.slot!r}{own} and capture?", abort=True, err=True)
    removed = opened.uninstall()
    ctx.show({"slot": source.slot, "publication": source.own, "removed": removed})
    there = "all objects of cdc were removed from the source" if removed else "nothing of this configuration was there"
    ctx.output.text(there)


@main.command()
@click.option("--upto-lsn", type=LSN, help="Drain to this end LSN; default: the WAL flush position now.")
@click.option(
    "--max-changes", type=click.IntRange(min=1), help="Take at most this many messages, in whole transactions."
)
@click.option(
    "--skip", type=LSN, help="Skip the transaction with the unreadable change at this LSN; its tables become stale."
)
@command
def drain(ctx: Context, upto_lsn: Lsn | None, max_changes: int | None, skip: Lsn | None) -> None:
    """Drain the slot into the raw log."""
    if skip is not None and (upto_lsn is not None or max_changes is not None):
        raise click.UsageError("--skip goes to that transaction and no further: without --upto-lsn and --max-changes")
    opened = ctx.toolkit
    ctx.show(opened.drain(upto=upto_lsn, max_changes=max_changes) if skip is None else opened.skip(skip))


@main.command()
@click.option(
    "--as-of-lsn",
    "--as-of",
    "as_of",
    type=MOMENT,
    help="Build the tables as of this LSN or time, in a schema of their own.",
)
@click.argument("dbt_args", nargs=-1, type=click.UNPROCESSED)
@command
def build(ctx: Context, as_of: Lsn | datetime | None, dbt_args: tuple[str, ...]) -> int:
    """Build `current` and `history`: sync models, apply schema changes, run dbt. Arguments after `--` go to dbt.

    With --as-of, exit code 3 means that some tables are not known at that LSN; the output names them, and all
    other tables are built.
    """
    ctx.aside = as_of is not None
    built = ctx.toolkit.build(as_of=as_of, dbt_args=dbt_args)
    ctx.show(built)
    if built.stale:
        first, count = built.stale[0], len(built.stale)
        remedy = f" ({first.remedy})" if first.remedy else ""
        return ctx.fail(f"{count} tables are not known at {built.lsn}; {first.table}: {first.reason}{remedy}")
    return _own_failed(ctx, built)


def _show(ctx: Context, report: CheckReport) -> int:
    """Show a report, in JSON with the results of the stages before it; a failure also as a line on standard error."""
    if ctx.output_format == "json":
        ctx.show({**report.to_dict(), **ctx.stages})
    else:
        ctx.result = plain({**report.to_dict(), **ctx.stages})
        ctx.output.text(report.text)
    return 0 if report.green else ctx.fail(f"the check failed: {report.failure}")


@main.command()
@click.argument("tables", nargs=-1)
@click.option("--full", is_flag=True, help="Compare every row, including large tables that were proven lately.")
@click.option(
    "--against",
    metavar="CONNINFO",
    help="Compare with this PostgreSQL server instead: a paused replica, or a restored copy.",
)
@command
def check(ctx: Context, tables: tuple[str, ...], full: bool, against: str | None) -> int:
    """Prove parity at an exact LSN and publish the proven tables. Exit code 3 on a difference or a stale table."""
    if against is not None:
        from toolkit.quality import second_server

        ctx.aside = True
        return _show(ctx, second_server.against(ctx.toolkit.source, ctx.config.check, against, tables))
    report = ctx.toolkit.check(*tables, full=full)
    return _show(ctx, report) or _unmoved(ctx, report) or _own_failed(ctx, report)


@main.command()
@click.option("--heal", is_flag=True, help="Repair stale tables too, within [snapshot] heal_mb.")
@command
def run(ctx: Context, heal: bool) -> int:
    """Drain, build and check: the one command for a scheduler."""
    done = ctx.toolkit.run(heal=heal, finished=ctx.stages.__setitem__)
    return _show(ctx, done.check) or _unmoved(ctx, done.check) or _own_failed(ctx, done.build, done.check)


def _unmoved(ctx: Context, report: CheckReport) -> int:
    """Report views of `published` that do not show what was proven."""
    behind = report.unmoved.items()
    return max((ctx.fail(f"view {view} is not moved: {why}", code=1) for view, why in behind), default=0)


def _own_failed(ctx: Context, *builds: BuildResult | CheckReport) -> int:
    """Report failed models of the user; the toolkit's models are built in any case."""
    found = dict.fromkeys(failed for built in builds for failed in built.own_failed)
    return max((ctx.fail(f"own models in the dbt project: {failed}", code=1) for failed in found), default=0)


@main.command()
@click.argument("tables", nargs=-1)
@click.option("--columns", metavar="A,B", help="Only these columns, of every row.")
@click.option("--partition", metavar="SCHEMA.TABLE", help="Only the rows of this partition.")
@click.option(
    "--rows",
    metavar="JSON",
    type=_KeysType(),
    help="""Only the rows of these keys, also of deleted rows: '{"id": "7"}', or a list of such objects.""",
)
@click.option("--differing", is_flag=True, help="Only the rows that the last check found to differ.")
@command
def repair(
    ctx: Context,
    tables: tuple[str, ...],
    columns: str | None,
    partition: str | None,
    rows: Keys | None,
    differing: bool,
) -> int:
    """Copy stale tables again at a new exact LSN: the named tables, or all stale ones."""
    from toolkit.capture import repair_scope
    from toolkit.quality import differing_rows

    parts = {"--columns": columns, "--partition": partition, "--rows": rows, "--differing": differing or None}
    given = [name for name, value in parts.items() if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"{', '.join(parts)} exclude each other")
    if given and not parts[given[0]]:  # such as a variable of a shell that is not set: all rows were not asked for
        raise click.UsageError(f"{given[0]}: it is empty; name what is to be copied, or leave it out")
    if given and len(tables) != 1:
        raise click.UsageError(f"{', '.join(parts)}: name exactly one table")
    opened = ctx.toolkit
    scope = repair_scope.Scope(
        tuple(c.strip() for c in columns.split(",")) if columns else (),
        partition,
        differing_rows.keys(opened.lake, tables[0]) if differing else rows,
    )
    done = opened.repair(*tables, scope=scope)
    ctx.show(done)
    if not done.left_out:
        return 0
    return ctx.fail(f"not repaired: {'; '.join(f'{name}: {reason}' for name, reason in done.left_out.items())}")


@main.command()
@click.argument("tables", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@command
def erase(ctx: Context, tables: tuple[str, ...], yes: bool) -> None:
    """Erase what the log has of tables from before their newest proven copy; of dropped tables, everything.

    No LSN before the copy can be read then. The next `cdc build` takes it out of `history`, and `cdc maintain` deletes
    it from the log.
    """
    from dataclasses import asdict

    from toolkit.values import progress

    opened = ctx.toolkit
    if not yes:
        progress.result()  # a line of progress would be drawn over the question
        click.confirm(f"Erase the earlier log of {', '.join(tables)}? Nothing brings it back.", abort=True, err=True)
    ctx.output.table([asdict(one) for one in opened.erase(*tables)], ["table", "erased_before"])


@main.command()
@command
def maintain(ctx: Context) -> None:
    """Compact the lake, delete erased rows, and expire table snapshots and tags older than [lake] keep_days.

    Tags that you set yourself stay, or as long as their RETAIN says.

    The first run on a machine also makes an archive of Spark's classes, with which the next commands start faster.
    """
    from dataclasses import asdict

    from toolkit.lake import class_recording, session

    done = [asdict(one) for one in ctx.toolkit.maintain()]
    ctx.output.table(done, ["table", "merged", "into", "snapshots", "tags", "orphans", "erased", "skipped"])
    session.stop_session()  # two JVMs might not have room
    class_recording.make_missing(session.spark_settings(ctx.config.lake_access))


@main.command()
@command
def prepare(ctx: Context) -> None:
    """Download the jars that Spark needs for this configuration, and archive its classes.

    It is for the build of an image, and for a machine that cannot download later. It reads neither source nor lake.
    """
    from toolkit.lake import class_recording, jars, session

    access = ctx.config.lake_access
    archive = class_recording.prepare(access)
    folder = jars.folder_of(session.spark_settings(access))
    ctx.show({"jars": str(folder), "archive": None if archive is None else str(archive)})


@main.command()
@click.argument("tables", nargs=-1)
@command
def audit(ctx: Context, tables: tuple[str, ...]) -> int:
    """Compare both captures of tables that have capture = "both", change by change. Exit code 3 on a difference."""
    from toolkit.quality import dual_capture

    report = dual_capture.audit(ctx.toolkit.lake, tables)
    ctx.show(report)
    return NOT_PROVEN if report.differs else 0


@main.command()
@click.option("--exit-zero", is_flag=True, help="Exit with 0 also when something is wrong.")
@click.option(
    "--metrics",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also replace this file by metrics in the text format of Prometheus.",
)
@command
def status(ctx: Context, exit_zero: bool, metrics: Path | None) -> int:
    """Show the source, positions, the last check and each table. Exit code 3 when anything is wrong.

    These are wrong: a stale table, a failed last check, a source that cannot be read, and a source that a drain
    would refuse.
    """
    found = None
    try:
        found = ctx.toolkit.status()
    finally:
        if metrics is not None:  # also that there is no status: the file must not go on to say that all is well
            from toolkit.ops.metrics import write

            write(metrics, found, ctx.config.lake_access)
    ctx.show(found)
    return NOT_PROVEN if found.failing and not exit_zero else 0


@main.command()
@command
def doctor(ctx: Context) -> int:
    """List everything that is or will go wrong, each with its remedy. Exit code 1 on an error."""
    found = ctx.toolkit.doctor()
    rows = [{"level": d.level, "what": d.what, "found": d.found, "remedy": d.remedy} for d in found]
    ctx.output.table(rows, ["level", "what", "found", "remedy"])
    return int(any(d.level == Level.ERROR for d in found))


@main.group()
def models() -> None:
    """Manage the generated dbt models."""


@models.command("sync")
@command
def models_sync(ctx: Context) -> None:
    """Generate the models and the dbt profile from the raw log."""
    from toolkit.build import models as syncing

    ctx.show({"models": syncing.sync(ctx.toolkit.lake, ctx.config.dbt_project)})

"""Run `cdc build`: build the tables for users with dbt, in this process and on the shared Spark session."""

from __future__ import annotations

import contextlib
import io
import json
import re
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.build.results import ModelResult
from toolkit.lake.proofs import differing_tables
from toolkit.rawlog.plan import Layer
from toolkit.rawlog.states import State, TableState, states_at, verdicts
from toolkit.values import progress
from toolkit.values.errors import BuildFailed, ConfigError, LakeError, TableDamaged, UnknownTable
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.libraries import Library, load, preload
from toolkit.values.lsn import Lsn
from toolkit.values.names import lake_table
from toolkit.values.outcome import BuildAction
from toolkit.values.process_env import environment
from toolkit.values.run_folders import run_folder

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger
    from toolkit.lake.opened import Lake
    from toolkit.lake.plans import Model
    from toolkit.rawlog.batch import BatchRecord
    from toolkit.values.config import DbtProject
    from toolkit.values.lake_access import LakeAccess


#: The status of a dbt node that did not succeed, or of which some batches did not.
_FAILED = ("error", "fail", "runtime error", "partial success")
#: The status of a dbt node that was left out because another one failed.
_LEFT_OUT = "skipped"
#: The most runs of dbt that a build uses to bring tables to the LSN of a DDL. Remaining tables are rebuilt.
_PASSES = 3


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A finished build. Every model is at `lsn`, except those that failed."""

    lsn: Lsn
    batch_id: int
    events_snapshot_id: int
    schema: str  # namespace of the current tables, or of those as of an LSN
    models: tuple[ModelResult, ...]
    stale: tuple[TableState, ...] = ()  # as of an LSN: tables that are not built because their rows are unknown there
    own_failed: tuple[str, ...] = ()  # the user's failed models, with the reason; the toolkit's are built
    failed: Mapping[str, str] = field(default_factory=dict)  # why tables, as schema.alias, are not built or not dropped


def build(
    lake: Lake,
    dbt: DbtProject,
    *,
    as_of: Lsn | None = None,
    select: Sequence[str] | None = None,
    dbt_args: Sequence[str] = (),
) -> BuildResult:
    """Bring every table to the ledger's position, or build tables as of an LSN into `asof_<hex>`.

    Args:
        as_of: an LSN at or below the ledger's position; the tick below it if the log is exact only at ticks. Tables
            have the names and the shape that they had at that LSN.
        select: dbt selectors or lake table names; all models if none.
        dbt_args: further arguments of `dbt run`, such as `--full-refresh`.

    Raises:
        BuildFailed: dbt did not finish, or tables failed; the message is that of the first one. `result` has the
            result if all other tables are built.
        UnknownTable: nothing matches `select`.
    """
    from toolkit.build import models as models_sync
    from toolkit.build import project, retired, schema_changes
    from toolkit.lake import plans, root_views, table_states, tables
    from toolkit.lake.session import own_session, session

    if as_of is not None or dbt_args or project.ran_dbt(lake.access):
        preload(Library.DBT)  # while Spark starts
    ledger = lake.reading()
    last, snapshot = ledger.last(), ledger.snapshot_id()
    if last is None or snapshot is None:
        raise BuildFailed(f"{lake.access.names.events} has no batch yet; run `cdc init`")
    last.require_format()
    if as_of is not None and as_of > last.complete_to:
        raise BuildFailed(f"LSN {as_of} is not in the log yet: it is complete to {last.complete_to}; run `cdc drain`")
    as_of = None if as_of is None else ledger.exact_at(as_of)
    if as_of is not None and not verdicts(ledger, as_of):
        begins = next(Lsn(b.complete_to) for b in ledger.batches() if b.generation == last.generation)
        if as_of < begins:
            raise BuildFailed(f"LSN {as_of} is before the log, which begins at {begins}; give that LSN or a later one")
    synced = models_sync.sync(lake, dbt, as_of=as_of)
    spark = session(lake.access)
    tables.ensure_judged(own_session(lake.access), lake.access)
    plans.write(ledger)
    table_states.write(ledger)
    names = lake.access.names
    schema = names.as_of(as_of.tag) if as_of is not None else names.current
    relations = {
        (layer, relid): f"{schema if layer == Layer.CURRENT else names.of(layer)}.{name}"
        for relid, name in synced.models.items()
        for layer in Layer
    }
    whole = as_of is None and not select and not dbt_args
    views = {} if as_of is not None else root_views.drop_outdated(lake.access, own_session(lake.access), ledger)
    if whole:
        _evolve(lake.access, ledger, relations, dbt=dbt)
    show = partial(plans.show, spark, ledger, as_of, relations)
    try:
        if as_of is not None:
            retired.drop_unknown(lake.access, schema, synced.models.values())
        done, results, own_failed = _build_models(
            lake.access, ledger, synced.models.values(), show, select, dbt_args, as_of, dbt=dbt
        )
    finally:
        if as_of is not None:
            models_sync.sync(lake, dbt)  # a plain `dbt run` must not find the models of that LSN
    broken = {_relation(r): r for r in results if r.status in _FAILED and not project.of_user(r.node)}
    failed = {name: _reason(lake.access, name, result) for name, result in sorted(broken.items())}
    made = [_model(r) for r in results if r.node.resource_type == "model" and _relation(r) not in failed]
    if as_of is None:
        failed |= _uncommitted(lake.access, last, made)
    models = (*(model for model in made if model.name not in failed), *done)
    if as_of is None:
        replaced = [model.name.partition(".")[2] for model in models if model.action == BuildAction.REBUILD]
        schema_changes.describe(lake.access, ledger, replaced)
        failed |= {**views, **retired.retire(lake.access, ledger).failed}
        failed |= root_views.follow(lake.access, own_session(lake.access), ledger)
    stale = _stale(lake.access, ledger, as_of, select)
    if select and not models and not stale and not failed:
        raise UnknownTable(f"no model matches {' '.join(select)}; see dbt_project/models/current")
    finished = BuildResult(
        lsn=as_of if as_of is not None else last.complete_to,
        batch_id=last.batch_id,
        events_snapshot_id=snapshot,
        schema=schema,
        models=models,
        stale=stale,
        own_failed=own_failed,
        failed=failed,
    )
    if failed:
        raise BuildFailed(_not_built(failed), finished)
    return finished


@can_fail(Point.MODELS)
def _build_models(
    access: LakeAccess,
    ledger: Ledger,
    names: Collection[str],
    show: Callable[[], Mapping[str, Model]],
    select: Sequence[str] | None,
    dbt_args: Sequence[str],
    as_of: Lsn | None,
    *,
    dbt: DbtProject,
) -> tuple[list[ModelResult], list[Any], tuple[str, ...]]:
    """Build small tables together, and the others with dbt.

    Return the results of those that dbt was not asked for, what dbt returned, and the user's own models that failed.
    """
    from toolkit.build import project, small_tables
    from toolkit.lake.session import session

    # What a model would only skip, and what is built together with others, is not left to dbt: its start takes seconds.
    alone = as_of is None and not dbt_args and set(select or ()) <= set(names)
    asked = {name: model for name, model in show().items() if not select or name.partition(".")[2] in select}
    quiet = ((name, model.found.decision) for name, model in asked.items() if alone and model.found.quiet)
    done = [ModelResult(name, decision.action, decision.reason, 0.0) for name, decision in quiet if decision]
    if alone and len(done) < len(asked):
        built, moved = small_tables.build(access, session(access), ledger, asked, dbt=dbt)
        done += built
        if moved:
            show()
    own = project.own_files(dbt.folder)
    left = asked.keys() - {model.name for model in done}
    needed = not (alone and not left and (select or not own) and project.has_shared_views(access))
    project.record_dbt(access, needed=needed)
    if not needed:
        return done, [], ()
    tables = {name.partition(".")[2] for name in left}
    part = project.write_part(access, tables, dbt=dbt) if alone and done and not own else None
    done_here = [model.name for model in done if part is None or model.name.partition(".")[2] in tables]
    nodes = [f"{asked[name].plan.layer}__{name.partition('.')[2]}" for name in done_here]
    excluded = ["--exclude", *nodes] if nodes else []
    arguments = ["run", *_selection(select), *dbt_args, *excluded]
    results, own_failed = _invoke(access, arguments, show, as_of=as_of, folder=part, dbt=dbt)
    unbuilt = left - {_relation(result) for result in results} if alone else ()
    if unbuilt:
        raise BuildFailed(
            f"building {', '.join(sorted(unbuilt))}: dbt has run no model that makes it; remove what disables or"
            f" renames its model in {dbt.folder}, such as `+enabled` in dbt_project.yml, and run `cdc build` again"
        )
    if as_of is None and not select and not dbt_args:
        project.record_shared_views(access)  # they are built, or no model of a table would have run
    return done, results, own_failed


def _uncommitted(access: LakeAccess, last: BatchRecord, models: Sequence[ModelResult]) -> dict[str, str]:
    """Say of which tables Iceberg has not made the commits of their models the newest ones, although dbt succeeded.

    It keeps them apart if a session has `spark.wap.id` and the table `write.wap.enabled`.
    """
    from toolkit.lake import reads, targets

    changed = [model.name for model in models if model.action in (BuildAction.MERGE, BuildAction.REBUILD)]
    found = {}
    for name, metadata in zip(changed, reads.each_metadata(access, changed), strict=True):
        if isinstance(metadata, TableDamaged):
            found[name] = str(metadata)
            continue
        target = None if metadata is None else targets.target_of(metadata)
        if target is None or target.place[1:] < (last.batch_id, int(last.complete_to)):
            found[name] = (
                f"what was written is not in the table at {last.complete_to}, as with spark.wap.id and its property"
                " write.wap.enabled; unset one of them and run `cdc build` again"
            )
    return found


def _stale(
    access: LakeAccess, ledger: Ledger, as_of: Lsn | None, select: Sequence[str] | None
) -> tuple[TableState, ...]:
    if as_of is None:
        return ()
    then = states_at(ledger, as_of, differing_tables(access, ledger))
    found = ((version.table, state) for version, state in then if state.state != State.OK)
    named = set(select or ())
    return tuple(state for table, state in found if not named or lake_table(table.schema, table.name) in named)


def _evolve(access: LakeAccess, ledger: Ledger, relations: Mapping[tuple[Layer, int], str], *, dbt: DbtProject) -> None:
    """Apply schema changes without a rewrite of the table, each at its own LSN. The rows before it are merged first."""
    from toolkit.build import schema_changes
    from toolkit.lake import plans
    from toolkit.lake.session import session

    failed: set[str] = set()  # the build makes these tables again
    for number in range(_PASSES + 1):
        pending = [one for one in schema_changes.evolve(access, ledger) if one.alias not in failed]
        if not pending or number == _PASSES:
            return
        upto = min(p.upto for p in pending)
        show = partial(plans.show, session(access), ledger, upto, relations)
        show()
        arguments = ["run", "--select", *(f"current__{p.alias}" for p in pending if p.upto == upto)]
        results, _ = _invoke(access, arguments, show, dbt=dbt)
        failed |= {result.node.alias for result in results if result.status in _FAILED}


def _selection(select: Sequence[str] | None) -> list[str]:
    if not select:
        return []
    known = [
        f"current__{name} history__{name}" if re.fullmatch(r"[a-z0-9_]+__[a-z0-9_]+", name) else name for name in select
    ]
    return ["--select", *" ".join(known).split()]


def _invoke(
    access: LakeAccess,
    arguments: list[str],
    show_again: Callable[[], object],
    *,
    as_of: Lsn | None = None,
    folder: Path | None = None,
    dbt: DbtProject,
) -> tuple[list[Any], tuple[str, ...]]:
    """Run dbt at the position of the plans that are shown, or into a separate schema (`as_of`).

    `folder` has the project to run, if it is not the user's.

    Return the results, with failed tables among them, and the user's own models and hooks in the project that failed.
    If the user's files make the project unreadable, or dbt skips a model of the toolkit for what failed of the user's
    (a hook, or any model with `fail_fast`), dbt runs again without these files. The plans are shown again for this run.

    Raises:
        BuildFailed: dbt did not finish, or more failed than tables.
    """
    import yaml

    from toolkit.build import project
    from toolkit.lake.session import jvm_end

    arguments, variables = _variables(arguments)
    if as_of is not None:
        variables |= {project.AS_OF: str(as_of)}
    options = ["--profiles-dir", str(dbt.folder), "--log-path", str(access.work_dir / "dbt")]
    options += ["--quiet", "--no-use-colors", "--log-level-file", "none", "--vars", yaml.safe_dump(variables)]
    exception, results = _dbt(access, [*arguments, "--project-dir", str(folder or dbt.folder), *options])
    own = [r for r in results if r.status in _FAILED and project.of_user(r.node)]
    own_failed = [f"{result.node.name}: {_line(result.message or 'no message')}" for result in own]
    unread = exception is not None and not results and project.own_files(dbt.folder)
    hooked = any(r.node.resource_type == "operation" for r in own)  # a failed hook, and dbt skips what follows it
    if unread or hooked or (own and any(r.status == _LEFT_OUT and not project.of_user(r.node) for r in results)):
        own_failed = own_failed or [f"no model of the user's was run: {_line(str(exception))}"]
        done = {r.node.unique_id: r for r in results if r.status == "success"}
        show_again()
        with run_folder(access.work_dir, "dbt-") as shared:
            project.copy_shared(dbt.folder, shared)
            exception, results = _dbt(access, [*arguments, "--project-dir", str(shared), *options])
            project.keep_results(access, shared, dbt=dbt)
        results = list({**{r.node.unique_id: r for r in results}, **done}.values())
    elif results:
        project.keep_results(access, folder or dbt.folder, dbt=dbt)
    failed = [r for r in results if r.status in _FAILED and r not in own]
    left_out = any(r.status == _LEFT_OUT and not project.of_user(r.node) for r in results)  # dbt stopped at the first
    alone = as_of is None and not left_out and all(project.of_table(r.node) for r in failed)
    if exception is not None or (failed and (not alone or jvm_end(0.2) is not None)):
        raise BuildFailed(_message(exception, results)) from None
    return results, tuple(own_failed)


def _relation(result: Any) -> str:
    """Return the table of a node of dbt, as schema.alias."""
    return f"{result.node.schema}.{result.node.alias}"


def _variables(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Take the user's variables out of the arguments of dbt, which reads only the last `--vars`.

    Raises:
        ConfigError: they are no variables, or have the one by which an earlier LSN is built.
    """
    import yaml

    from toolkit.build.project import AS_OF

    kept, given, words = [], "{}", iter(arguments)
    for word in words:
        if word == "--vars":
            given = next(words, "")
        elif word.startswith("--vars="):
            given = word.removeprefix("--vars=")
        else:
            kept.append(word)
    try:
        found = yaml.safe_load(given)
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError("--vars of dbt: no variables were found in it; write them as '{name: value}'")
    if AS_OF in found:
        raise ConfigError(f"--vars of dbt: {AS_OF} would only name the tables after an earlier LSN; use --as-of-lsn")
    return kept, found


def _dbt(access: LakeAccess, arguments: list[str]) -> tuple[BaseException | None, list[Any]]:
    """Run dbt in this process. Return the error that stopped it, if any, and the results of the nodes."""
    from toolkit.build import models as models_sync

    dbt = load(Library.DBT)
    # The user's variables for other projects, such as DBT_TARGET, are no options of this run. dbt ignores empty ones.
    named = (option.envvar or () for option in dbt.cli.commands["run"].params)
    unset = {name: "" for names in named for name in ([names] if isinstance(names, str) else names)}
    secrets = {variable: value for _, variable, value in models_sync.secret_variables(access)}
    with (
        progress.stage("building", "models") as stage,
        contextlib.redirect_stdout(io.StringIO()),
        environment({**unset, "CDC_RUN_PLANNED": "1", **secrets}),
    ):

        def note(event: Any) -> None:
            if event.info.name == "LogStartLine":
                stage.total, stage.detail = event.data.total, event.data.description
                stage.show()
            elif event.info.name == "NodeFinished":
                stage.add()

        outcome = dbt.dbtRunner(callbacks=[note]).invoke(arguments)
    if isinstance(outcome.exception, KeyboardInterrupt):  # dbt catches it; after other errors it runs again
        raise outcome.exception
    return outcome.exception, list(getattr(outcome.result, "results", None) or [])


def _model(result: Any) -> ModelResult:
    header = re.match(r"\s*-- cdc (\{.*\})", result.node.compiled_code or "")
    said = json.loads(header[1]) if header else {"action": BuildAction.VIEW, "reason": ""}
    return ModelResult(_relation(result), BuildAction(said["action"]), said["reason"], round(result.execution_time, 3))


def _not_built(failed: Mapping[str, str]) -> str:
    """Return one message, with the first reason and the names of the other tables."""
    first, *others = failed
    if not others:
        return f"building {first}: {failed[first]}"
    return f"building failed for {', '.join(failed)}; the first: {failed[first]}"


def _reason(access: LakeAccess, table: str, result: Any) -> str:
    """Return why a table could not be built, and what to do: the lost file, or else the engine's message."""
    from toolkit.lake.scans import require_files

    try:
        require_files(access, table)
    except LakeError as error:
        return str(error)
    return _corrected(result)


def _corrected(result: Any) -> str:
    found = _line(result.message or "no message").removesuffix("; run `cdc build` again")
    return f"{found}; correct it and run `cdc build` again"


def _message(exception: BaseException | None, results: list[Any]) -> str:
    """Return one line: the end of the JVM, or the first failed node and the engine's message, without its stack."""
    from toolkit.lake.session import jvm_end

    if (ended := jvm_end(0.2)) is not None:
        return f"building: {ended}; run `cdc build` again"
    for result in results:
        if result.status in _FAILED:
            return f"building {result.node.name}: {_corrected(result)}"
    found = _line(str(exception or "dbt did not finish"))
    if isinstance(exception, OSError) and exception.filename is None and exception.__traceback__ is not None:
        place = traceback.extract_tb(exception.__traceback__)[-1]  # such as a lock that needs /dev/shm
        found += f" at {place.filename}:{place.lineno}"
    return f"building: {found}; correct it and run `cdc build` again"


def _line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [
        line
        for line in lines
        if not re.match(r"(at |Compilation Error|Database Error|Runtime Error|>|compiled code)", line)
    ]
    causes = [line for line in lines if line.startswith("Caused by: ")]  # the last one is of what was refused at first
    return re.sub(r"\s+", " ", " ".join([" ".join((kept or lines)[:2])[:400], *causes[-1:]]))[:800]

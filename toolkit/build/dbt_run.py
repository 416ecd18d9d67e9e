"""`cdc build`: the tables for people, by dbt in this process on the shared Spark session."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.lake.proofs import found_wrong
from toolkit.rawlog.states import State, TableState, live_tables, states_at
from toolkit.values.errors import BuildFailed, UnknownTable
from toolkit.values.lsn import Lsn
from toolkit.values.names import lake_table
from toolkit.values.process_env import environment

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger
    from toolkit.values.config import Config


#: Runs of dbt that a build may spend on bringing tables to the LSN of a DDL; what is left then is built anew.
_PASSES = 3


@dataclass(frozen=True, slots=True)
class ModelResult:
    """What became of one model."""

    name: str  # schema.alias
    action: str  # rebuild | merge | skip | view
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A finished build. Every model stands at `lsn`."""

    lsn: Lsn
    batch_id: int
    events_snapshot_id: int
    schema: str  # where the current tables are: `current`, or `asof_<hex>`
    models: tuple[ModelResult, ...]
    stale: tuple[TableState, ...] = ()  # as of an LSN: tables whose rows nobody knows there; they are not built

    @property
    def rebuilt(self) -> tuple[str, ...]:
        """Models whose table changed."""
        return tuple(model.name for model in self.models if model.action in ("rebuild", "merge"))


def build(
    config: Config, *, as_of: Lsn | None = None, select: Sequence[str] | None = None, dbt_args: Sequence[str] = ()
) -> BuildResult:
    """Bring every table to the ledger's position, or build tables as of an LSN into `asof_<hex>`.

    Args:
        as_of: an LSN at or below the ledger's position; the tick below it where the log is exact at ticks only. Tables
            are those of that LSN, under the names and in the shape that they had there.
        select: dbt selectors or lake table names; all models if none.
        dbt_args: further arguments of `dbt run`, such as `--full-refresh`.

    Raises:
        BuildFailed: dbt did not finish; the message is that of the first model that failed.
        UnknownTable: nothing matches `select`.
    """
    from toolkit.build import models as models_sync
    from toolkit.build import retired, schema_changes
    from toolkit.lake import table_states, tables
    from toolkit.lake.ledger import Ledger
    from toolkit.lake.session import own_session, session

    ledger = Ledger(config)
    last, snapshot = ledger.last(), ledger.snapshot_id()
    if last is None or snapshot is None:
        raise BuildFailed("raw.events has no batch yet; run cdc init, then cdc drain")
    last.require_format()
    if as_of is not None and as_of > last.complete_to:
        raise BuildFailed(f"LSN {as_of} is not in the log yet: it is complete to {last.complete_to}; run cdc drain")
    as_of = None if as_of is None else ledger.exact_at(as_of)
    synced = models_sync.sync(config, as_of=as_of)
    session(config)
    tables.ensure_states(own_session(config), config)
    table_states.write(config)
    run_vars = {} if as_of is None else {"as_of_lsn": str(as_of)}
    arguments = ["run", *_selection(select), *dbt_args]
    # Not as vars: other vars make dbt parse the whole project again.
    position = {"CDC_RUN_SNAPSHOT": str(snapshot), "CDC_RUN_BATCH": str(last.batch_id)}
    quiet: list[ModelResult] = []
    if as_of is None and not select and not dbt_args:
        _evolve(config, ledger, position)
        # A quiet table costs a model a second of dbt, only to find nothing to do.
        quiet = _quiet(config, ledger, synced.tables)
        arguments += ["--exclude", *(model.name.replace(".", "__", 1) for model in quiet)] if quiet else []
    try:
        results = _invoke(config, arguments, run_vars, position)
    finally:
        if as_of is not None:
            models_sync.sync(config)  # dbt by itself must not find the models of then
    models = tuple(_model(result) for result in results if result.node.resource_type == "model")
    if as_of is None:
        replaced = [model.name.partition(".")[2] for model in models if model.action == "rebuild"]
        schema_changes.describe(config, ledger, replaced)
        retired.retire(config, ledger)
    stale = _stale(config, ledger, as_of, select)
    if select and not models and not stale:
        raise UnknownTable(f"no model matches {' '.join(select)}; see dbt_project/models/current")
    return BuildResult(
        lsn=as_of if as_of is not None else last.complete_to,
        batch_id=last.batch_id,
        events_snapshot_id=snapshot,
        schema=f"asof_{as_of.tag}" if as_of is not None else "current",
        models=(*models, *quiet),
        stale=stale,
    )


def _stale(config: Config, ledger: Ledger, as_of: Lsn | None, select: Sequence[str] | None) -> tuple[TableState, ...]:
    if as_of is None:
        return ()
    then = states_at(ledger, as_of, found_wrong(config, ledger))
    found = ((version.table, state) for version, state in then if state.state != State.OK)
    named = set(select or ())
    return tuple(state for table, state in found if not named or lake_table(table.schema, table.name) in named)


def _quiet(config: Config, ledger: Ledger, names: Sequence[str]) -> list[ModelResult]:
    """The models of tables with nothing new."""
    from toolkit.lake.applied import behind
    from toolkit.lake.session import own_session

    tables = [t for t in live_tables(ledger) if lake_table(t.schema, t.name) in names]
    late = {layer: behind(config, own_session(config), ledger, tables, layer) for layer in ("current", "history")}
    return [
        ModelResult(f"{layer}.{name}", "skip", "nothing new", 0.0)
        for layer, found in late.items()
        for name in names
        if name not in found
    ]


def _evolve(config: Config, ledger: Ledger, position: dict[str, str]) -> None:
    """Schema changes without rewriting a table, each at its own LSN: the rows before it are merged in first."""
    from toolkit.build import schema_changes

    for number in range(_PASSES + 1):
        pending = schema_changes.evolve(config, ledger)
        if not pending or number == _PASSES:
            return
        upto = min(p.upto for p in pending)
        names = [f"current__{p.alias}" for p in pending if p.upto == upto]
        _invoke(config, ["run", "--select", *names], {}, position | {"CDC_RUN_UPTO": str(int(upto))})


def _selection(select: Sequence[str] | None) -> list[str]:
    if not select:
        return []
    known = [
        f"current__{name} history__{name}" if re.fullmatch(r"[a-z0-9_]+__[a-z0-9_]+", name) else name for name in select
    ]
    return ["--select", *" ".join(known).split()]


def _invoke(config: Config, arguments: list[str], run_vars: dict[str, str], position: dict[str, str]) -> list[Any]:
    from dbt.cli.main import dbtRunner

    project = str(config.project_dir)
    where = ["--project-dir", project, "--profiles-dir", project]
    options = ["--quiet", "--no-use-colors", "--log-level-file", "none", "--log-path", str(config.work_dir / "dbt")]
    if run_vars:
        options += ["--vars", json.dumps(run_vars)]
    with contextlib.redirect_stdout(io.StringIO()), environment(position):
        outcome = dbtRunner().invoke([*arguments, *where, *options])
    results = list(getattr(outcome.result, "results", None) or [])
    if not outcome.success:
        raise BuildFailed(_message(outcome.exception, results)) from None
    return results


def _model(result: Any) -> ModelResult:
    schema, name = result.node.schema, result.node.alias
    header = re.match(r"\s*-- cdc (\{.*\})", result.node.compiled_code or "")
    said = json.loads(header[1]) if header else {"action": "view", "reason": ""}
    return ModelResult(f"{schema}.{name}", said["action"], said["reason"], round(result.execution_time, 3))


def _message(exception: BaseException | None, results: list[Any]) -> str:
    """One line: the first failed node and what the engine said, without its stack."""
    for result in results:
        if str(result.status) in ("error", "fail", "runtime error"):
            found = _line(result.message or "no message")
            return f"building {result.node.name}: {found}; run cdc build again once it is mended"
    return f"building: {_line(str(exception or 'dbt did not finish'))}"


def _line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [
        line
        for line in lines
        if not re.match(r"(at |Compilation Error|Database Error|Runtime Error|>|compiled code)", line)
    ]
    return re.sub(r"\s+", " ", " ".join((kept or lines)[:2]))[:400]

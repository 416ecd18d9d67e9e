"""Prove, at one exact LSN, that the lake holds what the source showed.

A temporary slot names the LSN and exports the snapshot of that very position. The source's figures come from inside
that snapshot, the lake is drained and built to that LSN, and the two are compared. Nothing is retried until equal and
nothing is tolerated: a table is identical, different, stale, or was not taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from toolkit.errors import CdcError
from toolkit.log import logger
from toolkit.lsn import Lsn
from toolkit.parity import Comparison, Figures, comparison, differing, total
from toolkit.quality.classify import HashedRow, classify
from toolkit.quality.report import CheckReport, Classes, Status, TableCheck

if TYPE_CHECKING:
    import psycopg

    from toolkit.catalog import TableVersion
    from toolkit.config import Config
    from toolkit.states import TableState

_log = logger(__name__)


class Drain(Protocol):
    """`toolkit.drain.drain`, handed in so that use cases do not import each other."""

    def __call__(self, config: Config, *, upto: Lsn) -> Any: ...


class Build(Protocol):
    """`toolkit.build.build`; its result's `lsn` is the position that the tables now stand at."""

    def __call__(self, config: Config) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Taken:
    """The source's side of one table, or why there is none."""

    plan: Comparison
    figures: Figures | None
    reason: str | None = None


def check(config: Config, tables: Sequence[str] = (), *, drain: Drain, build: Build) -> CheckReport:
    """Compare `tables` (all captured ones if empty) with the source at one LSN, report it, publish what is proven.

    Drains and builds up to that LSN on the way.

    Raises:
        UnknownTable: before anything is done.
        CdcError: drain or build failed, or Great Expectations and the comparison disagree.
    """
    from toolkit.quality import expectations, publish

    report = compare(config, tables, drain=drain, build=build)
    expectations.validate(config, report)
    report = replace(report, published=publish.publish(config, report, complete=not tables))
    return replace(report, reports=tuple(str(path) for path in expectations.write(config, report)))


def compare(config: Config, tables: Sequence[str] = (), *, drain: Drain, build: Build) -> CheckReport:
    """The comparison alone: drains and builds, but neither reports nor publishes."""
    from toolkit import history
    from toolkit.source import connection

    wanted = {history.resolve(config, name).relid for name in tables}
    with ExitStack() as stack:
        conn = stack.enter_context(connection.connect(config))
        try:
            lsn = _cut(config, conn, stack)
        except (CdcError, _psycopg_error()) as error:
            return _nothing_taken(config, wanted, f"no exact cut could be made: {connection.one_line(error)}")
        taken = _take_source(config, conn, wanted)
        _log.info("parity cut", extra={"lsn": str(lsn), "tables": len(taken)})
        drain(config, upto=lsn)
        built = Lsn(build(config).lsn)
        if built != lsn:
            return _nothing_taken(config, wanted, f"the lake stands at {built}, the source was read at {lsn}")
        results = tuple(_compare_all(config, conn, lsn, taken, wanted))  # while the snapshot is open
    return CheckReport(lsn, tuple(sorted(results, key=lambda t: t.table)))


def _psycopg_error() -> type[Exception]:
    import psycopg

    return psycopg.Error


def _cut(config: Config, conn: psycopg.Connection[Any], stack: ExitStack) -> Lsn:
    """Open the snapshot of an exact LSN in `conn`, and wait until the slot can be drained to it."""
    from toolkit.source import connection, parity, slot, tick

    # Of a temporary slot, so that a kill leaves nothing behind.
    cut = stack.enter_context(tick.exact_cut(config))
    stack.enter_context(parity.inside_snapshot(conn, cut.snapshot_name, seconds=config.check.cut_seconds))
    with connection.connect(config) as other:
        slot.wait_flush(other)
    return Lsn(cut.lsn)


def _take_source(config: Config, conn: psycopg.Connection[Any], wanted: set[int]) -> dict[int, _Taken]:
    """Figures of every published table, read inside the snapshot, by relid."""
    import psycopg

    from toolkit.source import catalog, connection, parity

    with connection.connect(config) as other:
        published = catalog.published_tables(other, config)
    taken = {}
    for table in published:
        if wanted and table.relid not in wanted:
            continue
        plan = comparison(table, config.check.buckets)
        try:
            taken[table.relid] = _Taken(plan, parity.bucket_figures(conn, plan))
        except (parity.TableMoved, psycopg.Error) as error:
            taken[table.relid] = _Taken(plan, None, connection.one_line(error))
    return taken


def _compare_all(
    config: Config, conn: psycopg.Connection[Any], lsn: Lsn, taken: dict[int, _Taken], wanted: set[int]
) -> Iterator[TableCheck]:
    from toolkit.lake.ledger import Ledger
    from toolkit.states import live_tables, table_states

    ledger = Ledger(config)
    live = {t.relid: t for t in live_tables(ledger) if not wanted or t.relid in wanted}
    states = {s.relid: s for s in table_states(ledger)}
    for relid in live.keys() | taken.keys():
        yield _compare(config, conn, relid, live.get(relid), states.get(relid), taken.get(relid))
    for state in states.values():  # captured once, and no longer published: nothing to compare, and not green
        if state.relid not in live.keys() | taken.keys() and (not wanted or state.relid in wanted):
            yield TableCheck(state.table, state.relid, "stale", reason=state.reason, remedy=state.remedy)


def _compare(
    config: Config,
    conn: psycopg.Connection[Any],
    relid: int,
    table: TableVersion | None,
    state: TableState | None,
    taken: _Taken | None,
) -> TableCheck:
    """One table's result; whatever keeps it from being compared is its reason."""
    if table is None:
        assert taken is not None
        name = taken.plan.table.identifier
        remedy = f"cdc repair {name}"
        return TableCheck(name, relid, "not_taken", reason="it is not captured at this LSN", remedy=remedy)
    result = TableCheck(table.identifier, relid, "not_taken")
    if state is not None and not state.comparable:
        since = f" since {state.from_lsn}" if state.from_lsn else ""
        reason = f"{state.state}{since}: {state.reason}"
        status: Status = "stale" if state.state == "stale" else "not_taken"
        return replace(result, status=status, reason=reason, remedy=state.remedy)
    if taken is None:
        return replace(result, reason="the source no longer publishes it", remedy="cdc check again")
    if taken.figures is None:
        return replace(result, reason=taken.reason, remedy="cdc check again")
    plan = comparison(table, config.check.buckets)
    if _shape(plan) != _shape(taken.plan):
        reason = "the source's columns are not those of the log at this LSN: altered while the check was taken"
        return replace(result, reason=reason, remedy="cdc check again")
    try:
        return _compare_figures(config, conn, result, plan, taken)
    except Exception as error:
        # Whatever it was, this table was not proven; the others still can be.
        _log.warning("parity not taken", extra={"table": table.identifier, "error": repr(error)[:500]})
        return replace(result, status="not_taken", reason=f"the comparison failed: {_first_line(error)}")


def _compare_figures(
    config: Config, conn: psycopg.Connection[Any], result: TableCheck, plan: Comparison, taken: _Taken
) -> TableCheck:
    from toolkit.lake import parity as lake
    from toolkit.lake.session import own_session

    assert taken.figures is not None
    spark = own_session(config)  # ANSI mode, whatever dbt did to the shared one
    snapshot_id = lake.current_snapshot(spark, plan.table)
    frame = lake.current_frame(spark, plan, snapshot_id)
    figures = lake.bucket_figures(frame, plan)
    rows = total(taken.figures)
    wanted = differing(taken.figures, figures)
    result = replace(result, rows=rows, snapshot_id=snapshot_id)
    if not wanted:
        return replace(result, status="identical", identical=rows, modified=0, added=0, removed=0)
    result = replace(result, status="different", reason=f"{len(wanted)} of {plan.buckets} buckets differ")
    try:
        found = _descend(config, conn, taken, lake.hashed_rows(frame, plan, wanted), wanted)
    except (CdcError, _psycopg_error()) as error:
        return replace(result, reason=f"{result.reason}; the rows could not be listed: {_first_line(error)}")
    alike = sum(f.rows for bucket, f in taken.figures.items() if bucket not in wanted)
    return replace(
        result,
        identical=alike + found.identical,
        modified=found.modified,
        added=found.added,
        removed=found.removed,
        samples=found.samples,
    )


def _descend(
    config: Config,
    conn: psycopg.Connection[Any],
    taken: _Taken,
    lake_rows: Iterator[tuple[str | None, ...]],
    wanted: Sequence[int],
) -> Classes:
    """Read the rows of differing buckets from both sides and class them."""
    from toolkit.source import parity

    plan = taken.plan
    with parity.hashed_rows(conn, plan, wanted) as source_rows:
        return classify(
            _hashed(source_rows),
            _hashed(lake_rows),
            columns=[c.name for c in plan.columns],
            key=plan.key,
            samples=config.check.samples,
        )


def _hashed(rows: Iterable[tuple[Any, ...]]) -> Iterator[HashedRow]:
    return (HashedRow(row[0], row[1], tuple(row[2:])) for row in rows)


def _shape(plan: Comparison) -> tuple[Any, ...]:
    return plan.table.relid, plan.key, tuple((c.attnum, c.name, c.type) for c in plan.columns)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _nothing_taken(config: Config, wanted: set[int], reason: str) -> CheckReport:
    """A report in which nothing is proven."""
    from toolkit.lake.ledger import Ledger
    from toolkit.states import live_tables

    tables = (t for t in live_tables(Ledger(config)) if not wanted or t.relid in wanted)
    return CheckReport(None, tuple(TableCheck(t.identifier, t.relid, "not_taken", reason=reason) for t in tables))

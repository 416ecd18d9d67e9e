"""Report positions, the slot and table states. Needs no JVM."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from toolkit.lake import log_layout, reads
from toolkit.lake.applied import newest_build
from toolkit.lake.lease import Holder, holder
from toolkit.lake.opened import Lake
from toolkit.lake.tables import require_writable
from toolkit.ops.table_results import LastCheck, TableStatus, checked_tables
from toolkit.rawlog import states
from toolkit.rawlog.states import State, live_tables
from toolkit.values.errors import CdcError, LakeError, SourceUnavailable, TableDamaged
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger
    from toolkit.lake.new_events import Place
    from toolkit.ops.alerts import Alert
    from toolkit.ops.last_run import LastRun
    from toolkit.rawlog.batch import BatchRecord
    from toolkit.source.pressure import Pressure
    from toolkit.source.slot import SlotState
    from toolkit.values.config import Config
    from toolkit.values.lake_access import LakeAccess


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A table that was dropped from the source. `history` has its rows; None until the next build."""

    table: str
    relid: int
    lsn: Lsn
    history: str | None


#: Note on a partitioned table whose partitions are captured as tables of their own.
AS_VIEW = "it is a view over its partitions, each of which is a table of its own"


@dataclass(frozen=True, slots=True)
class Status:
    """The state of capture and lake. Positions are end LSNs; `slot` and `lag_bytes` are None if there is no slot."""

    summary: str
    committed_lsn: Lsn | None  # None if the lake cannot be read
    applied_lsn: Lsn | None
    published_lsn: Lsn | None
    slot: SlotState | None
    problem: str | None  # why the source cannot be read, or why a drain would refuse it
    lag_bytes: int | None  # WAL that the source has flushed and the log does not have yet
    last_check: LastCheck | None
    tables: tuple[TableStatus, ...]
    stage: str | None = None  # the first stage of `cdc init` that is not done; None when capture is complete
    dropped: tuple[DroppedTable, ...] = ()
    not_captured: dict[str, str] = field(default_factory=dict)  # tables to capture that are not, with the reason
    notes: dict[str, str] = field(default_factory=dict)  # what else a table's rows are, or what SELECT also shows
    lake: str | None = None  # why the lake cannot be read or written
    alerts: tuple[Alert, ...] = ()  # everything else that is wrong, each with its remedy
    last_runs: tuple[LastRun, ...] = ()  # how each command last ended
    lease: Holder | None = None  # the process that works on the lake now
    free_mb: dict[str, int] = field(default_factory=dict)  # free space of the folders that a run writes to
    pressure: Pressure | None = None  # the server's remaining capacity for replication

    @property
    def failing(self) -> bool:
        """Return whether anything keeps the lake from being right now, or later."""
        stale = any(t.state != State.OK for t in self.tables)
        return stale or bool(self.lake or self.problem or self.stage or self.alerts)


@dataclass(frozen=True, slots=True)
class _Source:
    """The state of the source. `refused` is the reason why it, or its drain, is refused."""

    refused: CdcError | None = None
    why: str = ""
    slot: SlotState | None = None
    lag: int | None = None
    stage: str | None = None
    left: dict[str, str] = field(default_factory=dict)
    inherited: dict[int, str] = field(default_factory=dict)
    pressure: Pressure | None = None
    by_ticks: bool = False
    refused_writes: tuple[Alert, ...] = ()


def status(config: Config) -> Status:
    """Read positions, states, and everything that is wrong. An unreadable lake or source is part of the result.

    Raises:
        LakeError: there is no ledger yet.
    """
    from toolkit.ops import alerts
    from toolkit.ops.last_run import last_runs

    runs, lease, free = (
        last_runs(config.lake_access),
        holder(config.lake_access),
        alerts.free_mb(config.lake_access, config.source_access.spool_dir),
    )
    found = Status("", None, None, None, None, None, None, None, (), last_runs=runs, lease=lease, free_mb=free)
    wrong = [*alerts.of_runs(runs), *alerts.of_lease(config.notify, lease), *alerts.of_disks(config.limits, free)]
    last, lake = None, Lake(config.lake_access, rules=config.capture_rules)
    try:
        ledger = lake.ledger.require()
        last = ledger.last()
        found = _with_lake(found, ledger)
        wrong += alerts.of_tables(config.check, found.tables)
        stale = {t.relid for t in found.tables if t.state != State.OK}
        found = replace(found, applied_lsn=_applied(ledger, stale))  # fails if the metadata of any table is damaged
        require_writable(config.lake_access)
        log_layout.require(config.lake_access)
    except CdcError as error:
        reason = error if last is not None else _unreadable(config.lake_access)
        if reason is None:
            raise LakeError(f"{error}{_begun(config, lake)}") from None
        found = replace(found, lake=str(reason))
    except OSError as error:
        where = error.filename or config.lake_access.work_dir
        found = replace(found, lake=f"reading {where}: {error.strerror}; correct permissions or free space there")
    source, last = _settled(config, lake, last, {table.relid for table in found.tables})
    if source.pressure is not None:
        wrong += alerts.of_server(config.limits, config.source, source.slot, source.pressure, by_ticks=source.by_ticks)
    wrong += source.refused_writes
    tables = found.tables
    if source.refused is not None and last is not None:
        # The lake is right up to this position. Later changes cannot be drained.
        why, at, remedy = source.why, last.complete_to, source.refused.remedy
        tables = tuple(
            replace(t, state=State.STALE, from_lsn=at, reason=why, remedy=remedy) if t.state == State.OK else t
            for t in tables
        )
    found = replace(
        found,
        slot=source.slot,
        problem=None if source.refused is None else str(source.refused),
        lag_bytes=source.lag,
        tables=tables,
        stage=source.stage,
        not_captured={name: why for name, why in source.left.items() if name not in {t.table for t in tables}},
        notes={t.table: source.inherited[t.relid] for t in tables if t.relid in source.inherited}
        | {t.table: AS_VIEW for t in tables if t.parts},
        alerts=tuple(wrong),
        pressure=source.pressure,
    )
    return replace(found, summary=_summary(found))


def _unreadable(access: LakeAccess) -> CdcError | None:
    """Return why the log cannot be read although `cdc init` has begun it; None if it has not."""
    try:
        reads.metadata(access, access.names.events)
        reads.require_no_data(access, access.names.events)
    except CdcError as error:
        return error
    return None


def _with_lake(found: Status, ledger: Ledger) -> Status:
    from toolkit.quality import published

    last = ledger.last()
    assert last is not None
    tables, checked = checked_tables(ledger)
    return replace(
        found,
        committed_lsn=last.complete_to,
        published_lsn=published.published_lsn(ledger),
        last_check=checked,
        tables=tables,
        dropped=dropped_tables(ledger),
    )


def _settled(
    config: Config, lake: Lake, last: BatchRecord | None, known: set[int]
) -> tuple[_Source, BatchRecord | None]:
    """Read the source and the last batch that it was compared with.

    A drain may commit a batch and then move the slot between the two readings. So what is wrong counts only if the
    ledger is still the same after it.
    """
    while True:
        found = _source(config, lake, last, known)
        if last is None or (found.refused is None and found.stage is None):
            return found, last
        newest = lake.reading().last()
        if newest is None or newest.batch_id == last.batch_id:
            return found, last
        lake, last = Lake(config.lake_access, rules=config.capture_rules), newest


def _source(config: Config, lake: Lake, last: BatchRecord | None, known: set[int]) -> _Source:
    from toolkit.capture import slot_drain, stages
    from toolkit.ops import alerts
    from toolkit.source import catalog, connection, pressure, selection, slot
    from toolkit.source.opened import open_source

    found, why = _Source(), "the source cannot be read"
    try:
        with open_source(config.source_access) as source:
            left = pressure.read_pressure(source.conn)
            found = replace(found, slot=source.slot, pressure=left, by_ticks=source.by_ticks)
            if last is None:
                return found
            refused = slot_drain.refusal(source, last)
            unknown = isinstance(refused, SourceUnavailable)
            why = "it is not known whether a drain refuses the source" if unknown else "a drain refuses the source"
            found = replace(found, refused=refused, why=why)
            why = "the source cannot be read"
            found = replace(found, lag=max(0, slot.flush_lsn(source.conn) - last.complete_to))
            stage = stages.next_stage(lake.ledger, source.conn)
            return replace(
                found,
                stage=None if stage is None else str(stage),
                left=selection.not_captured(source.conn, config.capture_rules, ticks=source.by_ticks, known=known),
                inherited=catalog.inherited(source.conn),
                refused_writes=tuple(alerts.of_writes(source.conn, config.source)),
            )
    except CdcError as error:
        return found if found.refused is not None else replace(found, refused=error, why=why)
    except connection.DriverError as error:
        if found.refused is not None:
            return found
        refusal = SourceUnavailable(f"reading the source: {connection.one_line(error)}; run `cdc doctor`")
        return replace(found, refused=refusal, why=why)


def _summary(found: Status) -> str:
    """Summarise in one line what is wrong, each with its remedy, or that nothing is wrong."""
    wrong = []
    if found.lake is not None:
        wrong.append(f"lake: {found.lake}")
    if found.problem is not None:
        wrong.append(f"source: {found.problem}")
    elif found.stage is not None:
        wrong.append(f"`cdc init` is not complete: {found.stage}; run `cdc init`")
    stale = [t for t in found.tables if t.state != State.OK]
    if stale:
        remedy = f", such as {stale[0].table}: {stale[0].reason}; {stale[0].remedy}" if found.problem is None else ""
        wrong.append(f"{len(stale)} of {len(found.tables)} tables stale{remedy}")
    if found.last_check is not None and not found.last_check.green:
        results = ", ".join(f"{count} {result}" for result, count in found.last_check.results.items())
        wrong.append(f"the last check failed: {results}")
    wrong += map(str, found.alerts)
    if wrong:
        return f"not ok: {'; '.join(wrong)}"
    proven = sum(t.proven_lsn is not None for t in found.tables)
    return f"ok: {len(found.tables)} tables ok at {found.committed_lsn}, {proven} of them proven by a check"


def dropped_tables(ledger: Ledger) -> tuple[DroppedTable, ...]:
    """List captured tables that were dropped from the source, in log order."""
    built = set(reads.tables(ledger.access, ledger.access.names.history))
    return tuple(
        DroppedTable(
            v.table.identifier,
            v.table.relid,
            Lsn(v.end_lsn),
            f"{ledger.access.names.history}.{v.history_name}" if v.history_name in built else None,
        )
        for v in states.dropped_tables(ledger)
    )


def _begun(config: Config, lake: Lake) -> str:
    """Describe the progress of a first `cdc init`; empty if the source is not reachable."""
    from toolkit.capture import stages
    from toolkit.source import connection

    try:
        with connection.connect(config.source) as conn:
            found = stages.stages(lake.ledger, conn)
    except CdcError:
        return ""
    done = ", ".join(stage.name for stage in found if stage.done) or "nothing"
    return f"; done so far: {done}; next: {next(stage for stage in found if not stage.done)}"


def _applied(ledger: Ledger, stale: Collection[int]) -> Lsn | None:
    """Return the position up to which `current` and `history` have every event of each table.

    None if a table was never built, or not from this log, unless it is one of those that are `stale`, which may be
    impossible to build.

    Raises:
        LakeError: the metadata of a table is missing or damaged, or a file of the log is.
    """
    from toolkit.lake.new_events import news
    from toolkit.values.names import lake_table

    last = ledger.last()
    assert last is not None
    access = ledger.access
    layers = (access.names.current, access.names.history)
    built = [(t, f"{layer}.{lake_table(t.schema, t.name)}") for t in live_tables(ledger) for layer in layers]
    places: list[tuple[int, Place]] = []
    for (table, _), found in zip(built, reads.each_metadata(access, [name for _, name in built]), strict=True):
        if isinstance(found, TableDamaged):
            raise found
        build = newest_build(found or {})
        if build is not None and build.place is not None and build.generation == last.generation:
            places.append((table.relid, build.place))
        elif table.relid not in stale:
            return None
    later = news(None, ledger, {place for _, place in places})
    return min((Lsn(place[1]) for relid, place in places if later.after(relid, place)), default=last.complete_to)

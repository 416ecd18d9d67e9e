"""Report positions, the slot and table states. Needs no JVM."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from toolkit.lake.ledger import require_ledger
from toolkit.rawlog import states
from toolkit.rawlog.states import State, TableState, live_tables
from toolkit.values.errors import CdcError, LakeError
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger
    from toolkit.source.slot import SlotState
    from toolkit.values.config import Config


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A table that was dropped from the source. `history` has its rows; None until the next build."""

    table: str
    relid: int
    lsn: Lsn
    history: str | None


@dataclass(frozen=True, slots=True)
class TableStatus(TableState):
    """A captured table: its state, its newest proof, and the result of its last check."""

    proven_lsn: Lsn | None = None  # the newest LSN at which a check found every row equal
    proven_seconds: int | None = None  # age of that proof
    last_check: str | None = None  # identical, different, stale or not_taken; None before the first


@dataclass(frozen=True, slots=True)
class LastCheck:
    """The newest check: where, when, and how many tables had each result. `green` if all were identical."""

    lsn: Lsn | None
    at: datetime
    results: dict[str, int]

    @property
    def green(self) -> bool:
        """Say whether every table was found identical."""
        return self.results.keys() <= {"identical"}


@dataclass(frozen=True, slots=True)
class Status:
    """The state of capture and lake. Positions are end LSNs; `slot` and `lag_bytes` are None if there is no slot."""

    summary: str
    committed_lsn: Lsn
    applied_lsn: Lsn | None
    published_lsn: Lsn | None
    slot: SlotState | None
    problem: str | None  # why the source cannot be read, or why a drain would refuse it
    lag_bytes: int | None  # WAL flushed on the source and not yet in the log
    last_check: LastCheck | None
    tables: tuple[TableStatus, ...]
    stage: str | None = None  # the first stage of `cdc init` that is not done; None when capture is complete
    dropped: tuple[DroppedTable, ...] = ()
    not_captured: dict[str, str] = field(default_factory=dict)  # tables that are asked for, with the reason
    notes: dict[str, str] = field(default_factory=dict)  # what SELECT shows of a table beyond the rows of the lake

    @property
    def red(self) -> bool:
        """Say whether anything keeps the lake from being right, or from staying so."""
        failed = self.last_check is not None and not self.last_check.green
        stale = any(t.state != State.OK for t in self.tables)
        return failed or stale or self.problem is not None or self.stage is not None


def status(config: Config) -> Status:
    """Read positions and states.

    Raises:
        LakeError: there is no ledger yet.
    """
    from toolkit.quality import published

    try:
        ledger = require_ledger(config)
    except LakeError as error:
        raise LakeError(f"{error}{_begun(config)}") from None
    last = ledger.last()
    assert last is not None
    tables, checked = _tables(ledger)
    slot_state, lag, refused, stage = None, None, None, None
    left: dict[str, str] = {}
    notes: dict[str, str] = {}
    try:
        from toolkit.capture import slot_drain, stages
        from toolkit.source import catalog, slot
        from toolkit.source.opened import open_source

        with open_source(config) as source:
            slot_state = source.slot
            lag = max(0, slot.flush_lsn(source.conn) - last.complete_to)
            refused = slot_drain.refusal(source, last)
            stage = stages.next_stage(config, source.conn)
            left = catalog.not_captured(source.conn, config, ticks=source.by_ticks)
            inherited = catalog.inherited(source.conn)
            notes = {t.table: inherited[t.relid] for t in tables if t.relid in inherited}
        problem = refused
    except CdcError as error:
        problem = str(error)
    if refused is not None:
        # What the lake has is right up to here. What comes after cannot be drained.
        why, at = "a drain refuses the source", last.complete_to
        tables = tuple(
            replace(t, state=State.STALE, from_lsn=at, reason=why) if t.state == State.OK else t for t in tables
        )
    found = Status(
        summary="",
        committed_lsn=last.complete_to,
        applied_lsn=_applied(ledger),
        published_lsn=published.published_lsn(ledger),
        slot=slot_state,
        problem=problem,
        lag_bytes=lag,
        last_check=checked,
        tables=tables,
        stage=None if stage is None else str(stage),
        dropped=dropped_tables(ledger),
        not_captured=left,
        notes=notes,
    )
    return replace(found, summary=_summary(found))


def _tables(ledger: Ledger) -> tuple[tuple[TableStatus, ...], LastCheck | None]:
    """Give each captured table with its newest proof, and the newest check."""
    from toolkit.lake.proofs import PUBLISHED, current_states, proven
    from toolkit.lake.scans import scan

    now, proofs = datetime.now(UTC), proven(ledger.config, ledger)
    states = {state.relid: state for state in current_states(ledger)}
    rows = {row["relid"]: row for row in scan(ledger.config, PUBLISHED) if row["relid"] in states}
    checks = [row for row in rows.values() if row["checked_at"] is not None]
    newest = max((row["checked_at"] for row in checks), default=None)
    checked = None
    if newest is not None:
        mine = [row for row in checks if row["checked_at"] == newest]
        lsn = max((Lsn(row["checked_lsn"]) for row in mine if row["checked_lsn"] is not None), default=None)
        checked = LastCheck(lsn, newest, dict(sorted(Counter(row["status"] for row in mine).items())))
    tables = []
    for relid, state in states.items():
        row = rows.get(relid, {})
        at = (row.get("full_at") or row.get("proven_at")) if relid in proofs else None
        age = None if at is None else round((now - at).total_seconds())
        tables.append(
            TableStatus(
                **{f.name: getattr(state, f.name) for f in fields(state)},
                proven_lsn=proofs.get(relid),
                proven_seconds=age,
                last_check=row.get("status"),
            )
        )
    return tuple(tables), checked


def _summary(found: Status) -> str:
    """Say in one line what is wrong, or that nothing is."""
    wrong = []
    if found.problem is not None:
        wrong.append(f"source: {found.problem}")
    if found.stage is not None:
        wrong.append(f"`cdc init` is not complete: {found.stage}")
    stale = sum(t.state != State.OK for t in found.tables)
    if stale:
        wrong.append(f"{stale} of {len(found.tables)} tables stale")
    if found.last_check is not None and not found.last_check.green:
        results = ", ".join(f"{count} {result}" for result, count in found.last_check.results.items())
        wrong.append(f"the last check failed: {results}")
    if wrong:
        return f"red: {'; '.join(wrong)}"
    proven = sum(t.proven_lsn is not None for t in found.tables)
    return f"ok: {len(found.tables)} tables ok at {found.committed_lsn}, {proven} of them proven by a check"


def dropped_tables(ledger: Ledger) -> tuple[DroppedTable, ...]:
    """List captured tables that were dropped from the source, in log order."""
    from toolkit.lake import reads

    built = set(reads.tables(ledger.config, "history"))
    return tuple(
        DroppedTable(
            v.table.identifier,
            v.table.relid,
            Lsn(v.end_lsn),
            f"history.{v.history_name}" if v.history_name in built else None,
        )
        for v in states.dropped_tables(ledger)
    )


def _begun(config: Config) -> str:
    """Describe the progress of a first `cdc init`; empty if the source is not reachable."""
    from toolkit.capture import stages
    from toolkit.source import connection

    try:
        with connection.connect(config) as conn:
            found = stages.stages(config, conn)
    except CdcError:
        return ""
    done = ", ".join(stage.name for stage in found if stage.done) or "nothing"
    return f"; done so far: {done}; next: {next(stage for stage in found if not stage.done)}"


def _applied(ledger: Ledger) -> Lsn | None:
    """Give the newest position that a finished build has applied."""
    from toolkit.lake import reads
    from toolkit.values.names import lake_table

    newest = 0
    for table in live_tables(ledger):
        summary = reads.snapshot_summary(ledger.config, f"current.{lake_table(table.schema, table.name)}")
        newest = max(newest, int((summary or {}).get("cdc.applied-lsn", 0)))
    return Lsn(newest) if newest else None

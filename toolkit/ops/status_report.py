"""Report positions, the slot and table states. Needs no JVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.lake.ledger import require_ledger
from toolkit.lake.proofs import proven
from toolkit.rawlog import states
from toolkit.rawlog.states import State, TableState, live_tables, table_states
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
class Status:
    """The state of a lake. Positions are end LSNs. `slot` is None if the source was not reachable; see `slot_error`."""

    committed_lsn: Lsn
    applied_lsn: Lsn | None
    published_lsn: Lsn | None
    slot: SlotState | None
    slot_error: str | None
    lag_bytes: int | None  # WAL flushed on the source and not yet in the log
    tables: tuple[TableState, ...]
    stage: str | None = None  # the first stage of `cdc init` that is not done; None when capture is complete
    dropped: tuple[DroppedTable, ...] = ()

    @property
    def red(self) -> bool:
        """Say whether a table is stale."""
        return any(t.state != State.OK for t in self.tables)


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
    slot_state, lag, problem, stage = None, None, None, None
    try:
        from toolkit.capture import stages
        from toolkit.source import slot
        from toolkit.source.opened import open_source

        with open_source(config) as source:
            slot_state = source.slot
            lag = max(0, slot.flush_lsn(source.conn) - last.complete_to)
            if slot_state is None and not source.by_ticks:
                problem = f"slot {config.source.slot!r} does not exist"
            stage = stages.next_stage(config, source.conn)
    except CdcError as error:
        problem = str(error)
    return Status(
        committed_lsn=last.complete_to,
        applied_lsn=_applied(ledger),
        published_lsn=published.published_lsn(ledger),
        slot=slot_state,
        slot_error=problem,
        lag_bytes=lag,
        tables=table_states(ledger, proven(config, ledger)),
        stage=None if stage is None else str(stage),
        dropped=dropped_tables(ledger),
    )


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

"""Report how far the capture of a source is set up, as named stages in the order of `cdc init`.

A stage is done when a fact is true on the source or in the lake. No other state is stored. A kill therefore leaves no
state to repair, and no state can be tampered with: `cdc init` begins at the first stage whose fact is not true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.rawlog.states import not_copied
from toolkit.values.errors import SlotRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.lake.ledger import Ledger
    from toolkit.rawlog.batch import BatchRecord
    from toolkit.rawlog.store import LogReader
    from toolkit.source.connection import Connection
    from toolkit.values.capture_rules import CaptureRules
    from toolkit.values.table import TableVersion


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage. `found` describes what exists, or what is missing."""

    name: str  # lake | objects | slot | ledger | snapshot
    done: bool
    found: str

    def __str__(self) -> str:
        return f"{self.name} ({self.found})"


def stages(ledger: Ledger, conn: Connection) -> tuple[Stage, ...]:
    """Return all stages of `cdc init`, in order. Reads only."""
    last = ledger.last()
    events = ledger.access.names.events
    stored = Stage("lake", ledger.snapshot_id() is not None, events if ledger.snapshot_id() else f"no {events}")
    begun = Stage("ledger", last is not None, f"generation {last.generation}" if last else "no batch")
    return (stored, _objects(ledger.rules, conn), _slot(ledger.rules, conn, last), begun, _snapshot(ledger, conn))


def next_stage(ledger: Ledger, conn: Connection) -> Stage | None:
    """Return the first stage that is not done; None when capture is complete."""
    return next((stage for stage in stages(ledger, conn) if not stage.done), None)


def _objects(rules: CaptureRules, conn: Connection) -> Stage:
    from toolkit.source import catalog, drain_mode, preflight

    missing = []
    if not catalog.installed(conn):
        missing.append("schema cdc")
    elif not drain_mode.by_ticks(conn, rules):
        missing += [f"publication {name}" for name in catalog.missing_publications(conn, rules.source)]
        if not preflight.triggers_enabled(conn) and catalog.is_superuser(conn):  # other roles can work without them
            missing.append("event triggers")
    return Stage("objects", not missing, f"no {', no '.join(missing)}" if missing else "capture installed")


def _slot(rules: CaptureRules, conn: Connection, last: BatchRecord | None) -> Stage:
    from toolkit.source import drain_mode, slot

    if drain_mode.by_ticks(conn, rules):
        return Stage("slot", True, "drained by ticks")
    state = slot.read_slot(conn, rules.source.slot)
    if state is None:
        return Stage("slot", False, f"slot {rules.source.slot} does not exist")
    try:
        slot.require_ours(state)
    except SlotRefused as refused:
        return Stage("slot", False, f"slot {state.name} {refused.found}")
    if last is not None and state.confirmed_flush_lsn > last.complete_to:
        return Stage("slot", False, f"slot {state.name} is ahead of the ledger: its generation was not begun")
    return Stage("slot", not state.lost, f"slot {state.name} is lost" if state.lost else f"slot {state.name}")


def _snapshot(ledger: LogReader, conn: Connection) -> Stage:
    from toolkit.source import catalog

    if ledger.last() is None or not catalog.installed(conn):
        return Stage("snapshot", False, "not begun")
    return snapshot_stage(ledger, catalog.published_tables(conn))


def snapshot_stage(ledger: LogReader, published: Sequence[TableVersion]) -> Stage:
    """Return the last stage: all published tables are copied."""
    missing = not_copied(ledger, published)
    return Stage("snapshot", not missing, f"{len(published) - len(missing)} of {len(published)} tables")

"""The state of each captured table, read from the log alone: `ok`, `stale`, `quarantined` or `unsupported`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.lsn import Lsn

if TYPE_CHECKING:
    from toolkit.catalog import TableVersion
    from toolkit.lake.ledger import Ledger


@dataclass(frozen=True, slots=True)
class TableState:
    """One captured table. `from_lsn` is the first end LSN at which the table is doubtful; None when it is `ok`."""

    table: str
    relid: int
    state: str
    reason: str | None
    from_lsn: Lsn | None
    remedy: str | None
    repaired_lsn: Lsn | None = None  # it was copied again here, and no check has proven it since


def live_tables(ledger: Ledger) -> tuple[TableVersion, ...]:
    """Latest versions of the tables that exist and are published, ordered by name."""
    versions = (version.table for version in ledger.latest_versions().values())
    live = [t for t in versions if not t.dropped and t.published and t.kind in "rp"]
    return tuple(sorted(live, key=lambda t: (t.schema, t.name)))


def table_states(ledger: Ledger) -> tuple[TableState, ...]:
    """States of all live tables. A table is stale from its first gap after its latest baseline."""
    baselines: dict[int, tuple[int, int]] = {}
    for event in ledger.baselines():
        if event.relid is not None:
            at = (int(event.commit_lsn), event.ordinal)
            baselines[event.relid] = max(at, baselines.get(event.relid, at))
    gaps = sorted(ledger.gaps(), key=lambda g: (int(g.commit_lsn), g.ordinal))
    states = []
    for table in live_tables(ledger):
        baseline = baselines.get(table.relid)
        remedy = f"cdc repair {table.identifier}"
        if baseline is None:
            reason = "no complete snapshot of it is in the log"
            states.append(TableState(table.identifier, table.relid, "stale", reason, Lsn(0), remedy))
            continue
        gap = next((g for g in gaps if g.relid == table.relid and (int(g.commit_lsn), g.ordinal) > baseline), None)
        if gap is None:
            states.append(TableState(table.identifier, table.relid, "ok", None, None, None))
        else:
            reason = str(gap.payload.get("reason"))
            states.append(TableState(table.identifier, table.relid, "stale", reason, Lsn(gap.end_lsn), remedy))
    return tuple(states)

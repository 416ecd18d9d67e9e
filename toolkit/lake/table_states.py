"""Keep the states that `toolkit.rawlog.states` decides in `ops.table_states`; the dbt model `ops.tables` shows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from toolkit.lake import check_results
from toolkit.lake.proofs import current_states
from toolkit.lake.scans import scan
from toolkit.lake.tables import STATE_COLUMNS
from toolkit.rawlog.states import State, TableState, dropped_tables, verdicts

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger
    from toolkit.rawlog.store import LogReader
    from toolkit.values.lake_access import LakeAccess


def write(ledger: Ledger) -> None:
    """Write the current states, if any state differs from the stored one. Needs no JVM."""
    check_results.replace_rows(ledger.access, ledger.access.names.states, rows(ledger, current_states(ledger)))


def withhold(access: LakeAccess) -> None:
    """Let `ops.tables` call no table ok before the states are written again."""
    stored = scan(access, access.names.states)
    check_results.replace_rows(access, access.names.states, [row | {"batch_id": None} for row in stored])


def rows(ledger: LogReader, states: Iterable[TableState]) -> list[dict[str, Any]]:
    """Return the rows of `ops.table_states`, ordered by relid."""
    last, versions, judged = ledger.last(), ledger.latest_versions(), verdicts(ledger)
    if last is None:
        return []
    found: dict[int, dict[str, Any]] = {
        state.relid: {
            "table_name": state.table, "state": str(state.state), "reason": state.reason, "remedy": state.remedy,
            "from_lsn": None if state.from_lsn is None else int(state.from_lsn),
        }
        for state in states
    }  # fmt: skip
    for version in dropped_tables(ledger):
        found[version.table.relid] = {
            "table_name": version.table.identifier, "state": str(State.DROPPED), "reason": None, "remedy": None,
            "from_lsn": int(version.end_lsn),
        }  # fmt: skip
    for relid, row in found.items():
        known = judged[relid].known if relid in judged else None
        row |= {"relid": relid, "generation": last.generation, "batch_id": last.batch_id}
        row |= {"baseline_lsn": int(known.end_lsn) if known else None, "schema_id": versions[relid].schema_id}
    return [{column: found[relid][column] for column in STATE_COLUMNS} for relid in sorted(found)]

"""Read what the log and the checks say about each captured table. Needs no JVM."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from toolkit.rawlog.states import TableState
from toolkit.values.lsn import Lsn
from toolkit.values.outcome import CheckStatus

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger


@dataclass(frozen=True, slots=True)
class TableStatus(TableState):
    """A captured table: its state, its newest proof, and the result of its last check."""

    proven_lsn: Lsn | None = None  # the newest LSN at which a check found every row equal, or all partitions' rows
    proven_seconds: int | None = None  # age of that proof
    last_check: str | None = None  # identical, different, stale or not_taken; None before the first
    last_reason: str | None = None  # why it was not found identical
    checked_seconds: int | None = None  # age of the last check that found it identical, by any kind of proof
    orphans: int | None = None  # rows whose referenced row is missing; None if no check has counted them
    proof_lost: bool = False  # the table snapshot that was proven is gone from the lake: nothing is proven now


@dataclass(frozen=True, slots=True)
class LastCheck:
    """The newest check: where, when, and how many tables had each result. `green` is the check's own result."""

    lsn: Lsn | None
    at: datetime
    results: dict[str, int]
    orphans: int = 0  # rows whose referenced row is missing

    @property
    def green(self) -> bool:
        """Return whether there were tables, all were found identical, and every row has the row that it references."""
        return self.results.keys() == {CheckStatus.IDENTICAL} and not self.orphans


def checked_tables(ledger: Ledger) -> tuple[tuple[TableStatus, ...], LastCheck | None]:
    """Return each captured table with its newest proof, and the newest check."""
    from toolkit.lake.proofs import current_states, lost_proofs, proofs_by_relid, proven

    now, lost = datetime.now(UTC), lost_proofs(ledger.access)
    proofs = {relid: lsn for relid, lsn in proven(ledger.access, ledger).items() if relid not in lost}
    states = {state.relid: state for state in current_states(ledger)}
    rows = {relid: row for relid, row in proofs_by_relid(ledger).items() if relid in states}
    checks = [row for row in rows.values() if row["checked_at"] is not None]
    newest = max((row["checked_at"] for row in checks), default=None)
    checked = None
    if newest is not None:
        mine = [row for row in checks if row["checked_at"] == newest]
        lsn = max((Lsn(row["checked_lsn"]) for row in mine if row["checked_lsn"] is not None), default=None)
        results = dict(sorted(Counter(row["status"] for row in mine).items()))
        checked = LastCheck(lsn, newest, results, sum(row.get("orphans") or 0 for row in mine))
    tables = []
    for relid, state in states.items():
        row = rows.get(relid, {})
        proven_at = row.get("proven_at") if relid in proofs else None
        full_at = (row.get("full_at") or proven_at) if relid in proofs else None
        parts = [proofs.get(part) for part in state.parts]
        lsns = [lsn for lsn in parts or [proofs.get(relid)] if lsn is not None]
        tables.append(
            TableStatus(
                **{f.name: getattr(state, f.name) for f in fields(state)},
                proven_lsn=min(lsns) if lsns and len(lsns) == max(1, len(parts)) else None,
                proven_seconds=_age(now, full_at),
                last_check=row.get("status"),
                last_reason=row.get("reason"),
                checked_seconds=_age(now, proven_at),
                orphans=row.get("orphans"),
                proof_lost=relid in lost,
            )
        )
    return tuple(tables), checked


def _age(now: datetime, at: datetime | None) -> int | None:
    return None if at is None else round((now - at).total_seconds())

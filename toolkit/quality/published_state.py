"""Give the state of the published tables that Great Expectations checks besides parity: ages, LSNs, references.

Rules within one table (NOT NULL, unique keys, enum labels, ranges of types) are dbt tests of the models. `cdc models
sync` writes them, and they are not repeated here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from toolkit.quality.report import CheckReport
from toolkit.values.lsn import Lsn
from toolkit.values.outcome import CheckStatus

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger


@dataclass(frozen=True, slots=True)
class PublishedRows:
    """Rows for the expectations, in the state after this check has published.

    `tables`: table, status, lsn, hours since its proof and since the last full proof. `references`: one row per foreign
    key of the source between two published tables, with the LSN of both and the number of rows whose referenced row is
    missing. References are complete only if both tables are at one LSN.
    """

    tables: tuple[dict[str, Any], ...]
    references: tuple[dict[str, Any], ...]


def published_rows(ledger: Ledger, report: CheckReport) -> PublishedRows:
    """Return the state of `published.*` after this check."""
    from toolkit.lake.proofs import proofs_by_relid

    return after(proofs_by_relid(ledger), report)


def after(proofs: Mapping[int, Mapping[str, Any]], report: CheckReport) -> PublishedRows:
    """Apply a report to the proofs."""
    now = datetime.now(UTC)
    tables: dict[int, dict[str, Any]] = {}
    for relid, row in proofs.items():
        tables[relid] = _row(row["table"], row["status"], row["lsn"], row["proven_at"], row["full_at"], now)
    for result in report.tables:
        known = proofs.get(result.relid, {})
        proven = result.status == CheckStatus.IDENTICAL
        tables[result.relid] = _row(
            result.table,
            result.status,
            report.lsn if proven else known.get("lsn"),
            now if proven else known.get("proven_at"),
            result.full_at if proven else known.get("full_at"),
            now,
        )
    references = [
        {"name": r.key.name, "table": tables[one]["table"], "references": tables[two]["table"]}
        | {"lsn": tables[one]["lsn"], "references_lsn": tables[two]["lsn"], "orphans": r.orphans}
        for r in report.references
        for one, two in [(r.key.relid, r.key.references)]
        if one in tables and two in tables and tables[one]["lsn"] and tables[two]["lsn"]
    ]
    return PublishedRows(tuple(sorted(tables.values(), key=lambda t: str(t["table"]))), tuple(references))


def _row(
    table: str, status: str, lsn: int | None, proven_at: datetime | None, full_at: datetime | None, now: datetime
) -> dict[str, Any]:
    ages = {"age_hours": proven_at, "full_age_hours": full_at}
    hours = {name: None if at is None else round((now - at).total_seconds() / 3600, 3) for name, at in ages.items()}
    return {"table": table, "status": status, "lsn": None if lsn is None else str(Lsn(lsn))} | hours


def columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[Any]]:
    """Convert rows to columns, even if there are none."""
    return {name: [row[name] for row in rows] for name in names}

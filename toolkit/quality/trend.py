"""Read what checks found over time from `ops.parity_results`, `ops.parity_rows` and `ops.published`. No JVM."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from toolkit.lake.proofs import checked_generation, of_another
from toolkit.values.lsn import Lsn
from toolkit.values.outcome import CheckStatus

if TYPE_CHECKING:
    from toolkit.values.lake_access import LakeAccess


@dataclass(frozen=True, slots=True)
class Episode:
    """A period in which a table was not proven. `healed_*` are None until it ends."""

    table: str
    status: str  # at the beginning
    reason: str | None
    remedy: str | None
    from_at: datetime
    from_lsn: Lsn | None
    checks: int  # number of failed checks
    healed_at: datetime | None = None
    healed_lsn: Lsn | None = None


def results(access: LakeAccess) -> list[dict[str, Any]]:
    """Return every result of every check, oldest first."""
    from toolkit.lake.scans import scan

    return sorted(scan(access, access.names.results), key=lambda row: (row["checked_at"], row["table"]))


def proven(access: LakeAccess) -> list[dict[str, Any]]:
    """Return for each table the LSN and time of its proof and of the last full proof, and the last result."""
    from toolkit.lake.scans import scan

    found = []
    for row in sorted(scan(access, access.names.proofs), key=lambda row: row["table"]):
        shown = {name: row[name] for name in ("table", "status", "proven_at", "full_at", "tag", "reason")}
        lsns = {name: None if row[name] is None else str(Lsn(row[name])) for name in ("lsn", "full_lsn")}
        found.append(shown | lsns)
    return found


def differing(access: LakeAccess) -> list[dict[str, Any]]:
    """Count the differing rows of each check, oldest first: checked_at, lsn, table, class, rows."""
    from toolkit.lake.scans import scan_batches

    names = ("checked_at", "lsn", "table", "class")
    found: Counter[tuple[Any, ...]] = Counter()
    for batch in scan_batches(access, access.names.differing_rows, names, where="lsn is not null"):
        found.update(zip(*(batch[name].to_pylist() for name in names), strict=True))
    return [
        dict(zip(names, (at, str(Lsn(lsn)), *rest), strict=True)) | {"rows": rows}
        for (at, lsn, *rest), rows in sorted(found.items())
    ]


def episodes(access: LakeAccess) -> list[Episode]:
    """Return the periods in which checks of a table failed, ordered by their start."""
    from dataclasses import replace

    found: list[Episode] = []
    running: dict[int, Episode] = {}
    before: dict[int, dict[str, Any]] = {}
    for row in results(access):
        lsn = None if row["lsn"] is None else Lsn(row["lsn"])
        begun = running.pop(row["relid"], None)
        if begun is not None and of_another(before[row["relid"]], row["table"], checked_generation(row)):
            found.append(begun)
            begun = None
        before[row["relid"]] = row
        if row["status"] != CheckStatus.IDENTICAL:
            running[row["relid"]] = (
                replace(begun, checks=begun.checks + 1)
                if begun is not None
                else Episode(row["table"], row["status"], row["reason"], row["remedy"], row["checked_at"], lsn, 1)
            )
        elif begun is not None:
            found.append(replace(begun, healed_at=row["checked_at"], healed_lsn=lsn))
    return sorted([*found, *running.values()], key=lambda e: (e.from_at, e.table))

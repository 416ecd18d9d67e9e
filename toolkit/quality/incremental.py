"""Prove tables by comparing only what the log touched since the last proof.

For a large table, only the touched keys are compared. A small table is compared whole if anything touched it.

Unlike a full proof, this assumes that nothing changed on the source without a change in the log, and nothing in the
lake without a table snapshot. Such changes on the source are a rewrite, a partition, the publication, or DDL without an
event. They leave a trace in the catalogs, so a table whose catalog fingerprint changed since its last proof is compared
whole. For everything else, a full comparison becomes due by age, and the report gives the age of the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.quality.report import TableCheck
from toolkit.quality.row_classes import Every, Kept, classify
from toolkit.values.lsn import Lsn
from toolkit.values.outcome import CheckStatus, ProofKind
from toolkit.values.row_line import fields

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.applied import Applied
    from toolkit.lake.ledger import Ledger
    from toolkit.lake.row_lines import Side
    from toolkit.values.config import CheckConfig

#: With more keys than this, or a larger share of the rows, comparing the whole table is as fast.
_SHARE, _MOST = 0.1, 200_000


@dataclass(frozen=True, slots=True)
class Proof:
    """The last successful proof of a table."""

    lsn: Lsn
    snapshot_id: int
    batch_id: int
    rows: int
    full_lsn: Lsn
    full_at: datetime
    fingerprint: str  # of the source's catalogs at that time

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Proof | None:
        """Read a row of `ops.published`; None unless the last check of the table succeeded."""
        names = ("lsn", "snapshot_id", "batch_id", "rows", "full_lsn", "full_at", "fingerprint")
        if row.get("status") != CheckStatus.IDENTICAL or any(row.get(name) is None for name in names):
            return None
        at: dict[str, Any] = {name: Lsn(row[name]) if name in ("lsn", "full_lsn") else row[name] for name in names}
        return cls(**at)


def candidates(ledger: Ledger, check: CheckConfig) -> dict[int, Proof]:
    """Return, by relid, the last proof of each table that was fully proven lately, and may be proven from it.

    Of the small ones, those with the oldest full proof are left out: each check compares some of them whole.
    """
    from toolkit.lake.proofs import proofs_by_relid

    now = datetime.now(UTC)
    due = now - timedelta(hours=check.full_hours)
    read = {relid: Proof.from_row(row) for relid, row in proofs_by_relid(ledger).items()}
    fresh = {r: p for r, p in read.items() if p is not None and due < p.full_at <= now}  # not from the future
    small = sorted((proof.full_at, relid) for relid, proof in fresh.items() if not large(check, proof))
    return {relid: fresh[relid] for relid in fresh.keys() - {relid for _, relid in small[: check.full_tables]}}


def large(check: CheckConfig, proof: Proof) -> bool:
    """Return whether the keys that the log touched are compared, and not all rows."""
    return proof.rows >= check.full_rows


def unchanged(applied: Applied, proof: Proof) -> bool:
    """Return whether only builds and compactions have committed to the table in the lake since the proof."""
    since = applied.since(proof.snapshot_id)
    return since is not None and all(commit.batch_id is not None or commit.rewrite for commit in since)


def touched(
    spark: SparkSession, ledger: Ledger, side: Side, applied: Applied, proof: Proof
) -> Sequence[tuple[str, ...]] | None:
    """Return the keys that the log touched since the proof; None if a full comparison is needed."""
    from toolkit.lake import evidence

    if not side.plan.key or not unchanged(applied, proof):
        return None
    most = min(_MOST, int(proof.rows * _SHARE))
    return evidence.touched_keys(spark, ledger, side.plan, after=proof.batch_id, most=most)


def compared(
    check: CheckConfig,
    spark: SparkSession,
    side: Side,
    source: Iterable[bytes],
    keys: Sequence[tuple[str, ...]],
    proof: Proof,
    result: TableCheck,
    every: Every | None = None,
    directory: Path | None = None,
) -> TableCheck:
    """Compare the rows with these keys; `source` has the source's lines, which `rows` counts.

    Lines that do not fit in memory are spooled in `directory`.
    """
    from toolkit.lake import row_lines

    result = replace(result, snapshot_id=side.snapshot_id, full_lsn=proof.full_lsn, full_at=proof.full_at)
    if not keys:
        # The log and the table snapshots show that neither side has changed.
        return replace(
            result, status=CheckStatus.IDENTICAL, rows=0, identical=0, modified=0, added=0, removed=0,
            proof=ProofKind.CARRIED,
        )  # fmt: skip
    plan = side.plan
    # To the server, other texts may be equal to one of the keys, and it sent the rows with these texts too.
    sent = set() if plan.natives.keys() >= set(plan.key) else {_key(line, side) for line in source}
    found = classify(
        source,
        row_lines.lines_of_keys(
            spark, side, [*keys, *sorted(sent.difference(keys))], long=isinstance(source, Kept) and source.long
        ),
        columns=[c.name for c in plan.columns],
        key=plan.key,
        samples=check.samples,
        natives=plan.natives,
        directory=directory,
        every=every,
    )
    alike = not (found.modified or found.added or found.removed)
    return replace(
        result,
        status=CheckStatus.IDENTICAL if alike else CheckStatus.DIFFERENT,
        rows=found.identical + found.modified + found.removed,
        identical=found.identical,
        modified=found.modified,
        added=found.added,
        removed=found.removed,
        samples=found.samples,
        proof=ProofKind.INCREMENTAL,
    )


def _key(line: bytes, side: Side) -> tuple[str, ...]:
    texts = fields(line, side.plan.natives)
    return tuple(str(texts[i]) for i in side.plan.key)

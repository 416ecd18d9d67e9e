"""Compare the two captures of a table that both the slot and triggers capture, transaction by transaction.

Both copies of a change arrive through one slot and share their commit LSN. Within a transaction, change number n of one
side must equal change number n of the other. Tables are built from the slot's copy only. The logged copy is evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from toolkit.values.errors import UnknownTable
from toolkit.values.lsn import Lsn
from toolkit.values.modes import Capture
from toolkit.values.names import meant, nearest
from toolkit.values.outcome import CheckStatus

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger
    from toolkit.lake.opened import Lake
    from toolkit.values.table import SchemaVersion

_SHOWN = 100  # differences listed


@dataclass(frozen=True, slots=True)
class AuditDifference:
    """One change in which the two captures differ. An op is None if that capture does not have the change."""

    table: str
    commit_lsn: Lsn
    xid: int | None
    slot_op: str | None
    logged_op: str | None


@dataclass(frozen=True, slots=True)
class AuditTable:
    """The comparison of one table."""

    table: str
    relid: int
    status: CheckStatus
    changes: int
    different: int


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit. `tables` is empty if nothing is captured twice; `differences` lists the first ones."""

    tables: tuple[AuditTable, ...]
    differences: tuple[AuditDifference, ...]

    @property
    def differs(self) -> bool:
        """Return whether the captures differ."""
        return any(t.status == CheckStatus.DIFFERENT for t in self.tables)


def audit(lake: Lake, tables: Sequence[str] = ()) -> AuditReport:
    """Compare the two captures of `tables` over the whole log (of all tables with two captures if empty).

    Raises:
        UnknownTable: a named table was never captured twice.
    """
    from toolkit.lake import captured_twice, session

    ledger = lake.reading().require()
    last = ledger.last()
    assert last is not None
    spans = list(windows(ledger))
    names = {version.table.relid: version.table.identifier for version in ledger.latest_versions().values()}
    known = {names[relid] for relid, _, _ in spans}
    asked = set()
    for given in tables:
        name = meant(given, known)
        if name is None:
            hint = 'set capture = "both" for it' if meant(given, names.values()) else nearest(given, known)
            raise UnknownTable(f"auditing {given}: it was never captured twice; {hint}")
        asked.add(name)
    chosen = [w for w in spans if not tables or names[w[0]] in asked]
    if not chosen:
        return AuditReport((), ())
    spark = session.own_session(lake.access)
    found = captured_twice.compare(spark, lake.access.names.events, chosen, generation=last.generation, shown=_SHOWN)
    return AuditReport(
        tuple(
            AuditTable(
                names[relid], relid,
                CheckStatus.DIFFERENT if relid in found.different else CheckStatus.IDENTICAL,
                found.changes.get(relid, 0), found.different.get(relid, 0),
            )
            for relid in sorted({w[0] for w in chosen})
        ),
        tuple(
            AuditDifference(names[r["relid"]], Lsn(r["commit_lsn"]), r["xid"], r["slot_op"], r["logged_op"])
            for r in found.first
        ),
    )  # fmt: skip


def windows(ledger: Ledger) -> Iterator[tuple[int, int, int | None]]:
    """Return `(relid, low, high)`: both captures were active for commits between these bounds, which are excluded.

    They are of the current generation, because LSNs of an earlier one may be of another history. A table that joins the
    slot while triggers capture it may miss open transactions, so its windows begin at the next baseline. Installing
    triggers waits for every writer, so in the other order no transaction is open.
    """
    last = ledger.last()
    newest = 0 if last is None else last.generation
    chains: dict[int, list[SchemaVersion]] = {}
    for version in ledger.schema_versions():
        if version.generation == newest:
            chains.setdefault(version.table.relid, []).append(version)
    for relid, chain in chains.items():
        copied = sorted(int(b.commit_lsn) for b in ledger.baselines() if (b.relid, b.generation) == (relid, newest))
        before: Capture | None = None
        joined: int | None = None  # where both captures have every change, since the table has both
        for version, after in zip_longest(chain, chain[1:]):
            capture = None if version.table.dropped else version.table.capture
            at = int(version.commit_lsn)
            if capture == Capture.BOTH:
                if before == Capture.CHANGE_LOG:
                    joined = next((lsn for lsn in copied if lsn > at), None)
                elif before != Capture.BOTH:
                    joined = at
                low, high = joined, None if after is None else int(after.commit_lsn)
                if low is not None and (high is None or low < high):
                    yield relid, max(low, at), high
            before = capture

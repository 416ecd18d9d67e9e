"""Define the result of a check as plain values that every renderer uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from toolkit.values.lsn import Lsn
from toolkit.values.names import in_one_line
from toolkit.values.outcome import CauseKind, CheckStatus, ProofKind, RowClass
from toolkit.values.table import ForeignKey

Row = tuple[str | None, ...]

#: Longest value in a sample, in characters.
SHOWN = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """One cell that differs. Both values are PostgreSQL text, cut to `SHOWN` characters."""

    column: str
    source: str | None
    lake: str | None


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a difference. The position is that of the change that the row should show, if the log has it."""

    kind: CauseKind
    text: str
    remedy: str
    lsn: Lsn | None = None  # end LSN of that change
    batch_id: int | None = None
    xid: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        lsn = None if self.lsn is None else str(self.lsn)
        return {"kind": self.kind, "text": self.text, "remedy": self.remedy} | {
            "lsn": lsn,
            "batch_id": self.batch_id,
            "xid": self.xid,
        }


@dataclass(frozen=True, slots=True)
class Sample:
    """One row that is not identical: its key (without a key, the whole row) and, if modified, the cells that differ."""

    kind: RowClass
    key: tuple[tuple[str, str | None], ...]
    differences: tuple[Difference, ...] = ()
    copies: tuple[int, int] | None = None  # number of equal rows in source and lake, if it is not one
    source: Row | None = None  # the whole rows, to find the cause; not in the reports
    lake: Row | None = None
    cause: Cause | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        found: dict[str, Any] = {
            "class": self.kind,
            "key": {name: cut(value) for name, value in self.key},
            "columns": {d.column: {"source": d.source, "lake": d.lake} for d in self.differences},
        }
        if self.copies is not None:
            found["copies"] = {"source": self.copies[0], "lake": self.copies[1]}
        if self.cause is not None:
            found["cause"] = self.cause.to_dict()
        return found


@dataclass(frozen=True, slots=True)
class Classes:
    """Rows by class. `added` rows are only in the lake, `removed` rows only in the source."""

    identical: int = 0
    modified: int = 0
    added: int = 0
    removed: int = 0
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class TableCheck:
    """The result of one table. Counts are None if nothing was compared; `rows` are the source's."""

    table: str
    relid: int
    status: CheckStatus
    rows: int | None = None
    identical: int | None = None
    modified: int | None = None
    added: int | None = None
    removed: int | None = None
    samples: tuple[Sample, ...] = ()
    reason: str | None = None  # also set if identical: what SELECT on the source shows besides the compared rows
    remedy: str | None = None
    snapshot_id: int | None = None  # the table snapshot of `current` that was compared
    proof: ProofKind = ProofKind.FULL
    full_lsn: Lsn | None = None  # LSN of the last full proof: of this check, or an older one
    full_at: datetime | None = None
    fingerprint: str | None = None  # fingerprint of the source's catalogs at the cut; not in the reports

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "table": self.table,
            "status": self.status,
            "rows": self.rows,
            "identical": self.identical,
            "modified": self.modified,
            "added": self.added,
            "removed": self.removed,
            "samples": [s.to_dict() for s in self.samples],
            "reason": self.reason,
            "remedy": self.remedy,
            "proof": self.proof,
            "full_lsn": None if self.full_lsn is None else str(self.full_lsn),
            "full_at": None if self.full_at is None else self.full_at.isoformat(timespec="seconds"),
        }


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key of the source between two tables.

    `orphans` counts rows of the first table whose row of the second table is missing. It is None if they were not
    counted: this check has not fully proven both tables, or `reason` says why.
    """

    key: ForeignKey
    orphans: int | None = None
    samples: tuple[tuple[str, ...], ...] = ()  # values that the second table lacks
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result for all tables at one LSN. `lsn` is None if no cut could be taken."""

    lsn: Lsn | None
    tables: tuple[TableCheck, ...]
    published: tuple[str, ...] = ()  # tables whose published view was moved to `lsn`
    reports: tuple[str, ...] = ()  # files written
    references: tuple[Reference, ...] = ()
    unmoved: Mapping[str, str] = field(default_factory=dict)  # why views of `published` do not show what was proven
    own_failed: tuple[str, ...] = ()  # the user's models and hooks in the dbt project that failed in its build
    batch_id: int | None = None  # newest batch that was compared; batches drained later are not proven

    @property
    def green(self) -> bool:
        """Return whether every table is identical and every row has the row that it references.

        The result is false for a report without any table.
        """
        proven = {t.status for t in self.tables} == {CheckStatus.IDENTICAL}
        return proven and self.lsn is not None and not self.orphaned

    @property
    def orphaned(self) -> tuple[Reference, ...]:
        """Return the foreign keys that some rows violate."""
        return tuple(r for r in self.references if r.orphans)

    def in_words(self, reference: Reference) -> str | None:
        """Describe the result for a foreign key in words; None if there is nothing to report."""
        names = {t.relid: t.table for t in self.tables}
        one, two = (names.get(relid) for relid in (reference.key.relid, reference.key.references))
        if one is None or two is None:
            return None
        what = f"foreign key {reference.key.name} of {one}"
        if reference.orphans:
            shown_ = ", ".join(f"({', '.join(map(str, values))})" for values in reference.samples)
            return (
                f"{what}: {reference.orphans} rows without their row in {two}, on the source too: {shown_}"
                " (the constraint did not apply to them: correct them at the source)"
            )
        return None if reference.reason is None else f"{what} was not looked at: {reference.reason}"

    @property
    def failure(self) -> str:
        """Describe in one line what is not identical: the counts, and one table with its remedy."""
        counts = Counter(table.status for table in self.tables)
        found = [", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no table was compared"]
        wrong = next((table for table in self.tables if table.status != CheckStatus.IDENTICAL), None)
        if wrong is not None:
            found.append(f"{wrong.table}: {wrong.reason}" + (f" ({wrong.remedy})" if wrong.remedy else ""))
        found += [self.in_words(reference) or "" for reference in self.orphaned[:1]]
        return in_one_line("; ".join(filter(None, found)))

    @property
    def text(self) -> str:
        """Return the report as text."""
        return as_text(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, for scripts."""
        return {
            "lsn": None if self.lsn is None else str(self.lsn),
            "green": self.green,
            "tables": [t.to_dict() for t in self.tables],
            "references": [said for said in map(self.in_words, self.references) if said],
            "published": list(self.published),
            "unmoved": dict(self.unmoved),
            "reports": list(self.reports),
            "own_failed": list(self.own_failed),
        }


def noted(tables: Iterable[TableCheck], notes: Mapping[int, str]) -> tuple[TableCheck, ...]:
    """Add to the reason of each table the notes about it, apart from its result. `notes`: by relid."""
    stated = ((t, filter(None, (t.reason, notes.get(t.relid)))) for t in tables)
    return tuple(replace(t, reason="; ".join(reasons) or None) for t, reasons in stated)


def as_text(report: CheckReport) -> str:
    """Render the report as a text table, followed by the samples of each table that differs."""
    where = f"at LSN {report.lsn}" if report.lsn is not None else "not taken"
    lines = [f"parity {where}: {headline(report)}", ""]
    head = ("table", "status", "rows", "identical", "modified", "added", "removed", "last full proof")
    body = [
        (
            t.table,
            t.status,
            *("-" if n is None else str(n) for n in (t.rows, t.identical, t.modified, t.added, t.removed)),
            _last_full(report, t),
        )
        for t in report.tables
    ]
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    lines += [_line(row, widths) for row in [head, *body]]
    for table in report.tables:
        if table.reason:
            remedy = f" ({table.remedy})" if table.remedy else ""
            lines += ["", f"{table.table}: {table.reason}{remedy}"]
        if table.samples:
            lines += ["", f"{table.table}:"]
            lines += [_sample_line(s) for s in table.samples]
    for said in map(report.in_words, report.references):
        lines += ["", said] if said else []
    for view, reason in report.unmoved.items():
        lines += ["", f"view {view} is not moved: {reason}"]
    return "\n".join(map(in_one_line, lines)) + "\n"


def headline(report: CheckReport) -> str:
    """Summarise the result in a few words."""
    if report.green:
        return "all identical"
    proven = replace(report, references=()).green
    return "all identical, but rows lack what they reference" if proven else "NOT proven"


def _last_full(report: CheckReport, table: TableCheck) -> str:
    if table.full_at is None:
        return "-"
    if table.full_lsn == report.lsn:
        return "now"
    hours = (datetime.now(UTC) - table.full_at).total_seconds() / 3600
    return f"{hours:.1f} h ago at {table.full_lsn}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(w) if i < 2 or i > 6 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _sample_line(sample: Sample) -> str:
    key = ", ".join(f"{name}={shown(cut(value))}" for name, value in sample.key)
    cells = "; ".join(f"{d.column}: source {shown(d.source)}, lake {shown(d.lake)}" for d in sample.differences)
    if sample.copies is not None:
        cells = f"{sample.copies[0]} copies in the source, {sample.copies[1]} in the lake"
    text = f"  {sample.kind} {key}" + (f": {cells}" if cells else "")
    if sample.cause is not None:
        text += f"\n    {sample.cause.kind}: {sample.cause.text}; {sample.cause.remedy}"
    return text


def shown(value: str | None) -> str:
    """Quote a value for display, so that it differs from NULL."""
    return "NULL" if value is None else repr(value)


def cut(value: str | None) -> str | None:
    """Cut a value to `SHOWN` characters."""
    return value if value is None or len(value) <= SHOWN else value[: SHOWN - 1] + "…"

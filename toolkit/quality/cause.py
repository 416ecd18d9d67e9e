"""Find where a difference arose: compare the sampled rows in the log, in the source and in the lake."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from toolkit.quality.differing_rows import FEW
from toolkit.quality.report import Cause, Row, Sample, TableCheck
from toolkit.values.names import command, lake_table, rebuild_command
from toolkit.values.outcome import CauseKind
from toolkit.values.row_line import Comparison, fields

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.applied import Applied, Commit, Foreign
    from toolkit.lake.evidence import RowEvent
    from toolkit.lake.ledger import Ledger
    from toolkit.lake.row_lines import Side
    from toolkit.values.lsn import Lsn
    from toolkit.values.table import TableVersion

#: A cell that the events read so far do not determine.
_UNKNOWN = "\0"
_BUILT = re.compile(r"g\d+_lsn_")
#: How many commits by other writers are examined, newest first.
_TIMES = 20

#: A commit by another writer, with the named rows before and after it.
Written = Sequence[tuple["Foreign", Counter[Row], Counter[Row]]]


def explain(
    spark: SparkSession,
    ledger: Ledger,
    side: Side,
    applied: Applied,
    samples: Sequence[Sample],
    *,
    upto: Lsn,
    proven: int | None,
) -> tuple[Sample, ...]:
    """Return the samples with their causes. `proven` is the table snapshot of the last proof."""
    from toolkit.lake import evidence

    if not samples:
        return ()
    plan = side.plan
    named = [tuple(value for _, value in sample.key) for sample in samples]
    account = Account(plan, evidence.events(spark, ledger, plan, set(named), upto=upto))

    def rows_at(commit: Commit) -> Counter[Row]:
        lines = evidence.lines_at(spark, side, commit.snapshot_id, set(named))
        return Counter({fields(line, plan.natives): copies for line, copies in lines.items()})

    written = [(one, rows_at(one.before), rows_at(one.commits[-1])) for one in applied.foreign(proven)[:_TIMES]]
    return tuple(
        replace(sample, cause=_cause(side, name, sample, account, written))
        for name, sample in zip(named, samples, strict=True)
    )


def remedy(plan: Comparison, result: TableCheck) -> str | None:
    """Return the command that repairs all differing rows; None without a cause. A repair also rebuilds the table."""
    causes = [s.cause for s in result.samples if s.cause is not None]
    if all(cause.kind != CauseKind.CAPTURE for cause in causes):
        return causes[0].remedy if causes else None
    few = plan.key and sum(n or 0 for n in (result.modified, result.added, result.removed)) <= FEW
    return command("repair", plan.table.identifier, *(["--differing"] if few else []))


def rebuild(table: TableVersion) -> str:
    """Return the command that rebuilds the lake's table from the log."""
    return rebuild_command(lake_table(table.schema, table.name))


class Account:
    """The state of a few rows according to the log: a fold of their events in log order."""

    def __init__(self, plan: Comparison, events: Sequence[RowEvent]) -> None:
        self.rows: dict[Row, Row] = {}  # by key
        self.copies: Counter[Row] = Counter()  # for a table without a key
        self.newest: dict[Row, RowEvent] = {}  # by key, or by the row itself
        self._key = plan.key
        for event in events:
            (self._keyed if plan.key else self._bag)(event)

    def agrees(self, name: Row, sample: Sample) -> bool:
        """Return whether the log gives the rows that the source shows."""
        ours = sample.copies[0] if sample.copies else int(sample.source is not None)
        if not self._key:
            return self.copies[name] == ours
        mine = self.rows.get(name)
        if sample.source is None:  # only in the lake: the log is wrong only if it has exactly this row
            return ours > 0 or mine is None or not _same(mine, sample.lake)
        return _same(mine, sample.source)

    def _keyed(self, event: RowEvent) -> None:
        if event.op == "T":
            self.newest |= dict.fromkeys(self.rows, event)
            self.rows.clear()
            return
        before = event.old if event.old is not None else event.new
        assert before is not None
        old = self._name(before)
        previous = self.rows.pop(old, None)
        self.newest[old] = event
        if event.new is not None:
            source = event.old if event.whole else previous
            row = list(event.new)
            # These events do not determine a row that had another key before. If the log has lost a row, a build has
            # the same information as these events.
            lost = _UNKNOWN if event.old is not None else None
            for i in event.unchanged:
                row[i] = lost if source is None else source[i]
            self.rows[self._name(event.new)] = tuple(row)
            self.newest[self._name(event.new)] = event

    def _bag(self, event: RowEvent) -> None:
        if event.op == "T":
            self.newest |= dict.fromkeys(self.copies, event)
            self.copies.clear()
            return
        new = event.new
        if event.old is not None:
            self.copies[event.old] -= 1
            self.newest[event.old] = event
            if new is not None:
                new = tuple(event.old[i] if i in event.unchanged else cell for i, cell in enumerate(new))
        if new is not None:
            self.copies[new] += 1
            self.newest[new] = event

    def _name(self, row: Row) -> Row:
        return tuple(row[i] for i in self._key)


def _cause(side: Side, name: Row, sample: Sample, account: Account, written: Written) -> Cause:
    plan = side.plan
    table = plan.table
    event = account.newest.get(name)
    at = f"at {event.end_lsn} (batch {event.batch_id}, xid {event.xid})" if event is not None else ""
    where = (None, None, None) if event is None else (event.end_lsn, event.batch_id, event.xid)
    if not account.agrees(name, sample):
        text = "the log does not hold what the source shows"
        text += f": its newest change of this row is {at}" if event is not None else ": it has no change of this row"
        row = ["--rows", json.dumps(dict(sample.key))] if plan.key else []
        return Cause(CauseKind.CAPTURE, text, command("repair", table.identifier, *row), *where)
    for foreign, before, after in written:
        if _of(plan, name, before) != _of(plan, name, after):
            known = foreign.before
            tag = next((f"tag {t}" for t in known.tags if _BUILT.match(t)), f"table snapshot {known.snapshot_id}")
            by = ", ".join(str(c.snapshot_id) for c in foreign.commits)
            text = f"{side.table} was changed after its build ({tag}) by table snapshot {by}"
            return Cause(CauseKind.TAMPERED, text, rebuild(table), *where)
    text = "the log holds what the source shows" + (f", {at}" if at else "") + "; the table does not"
    return Cause(CauseKind.BUILD, text, rebuild(table), *where)


def _of(plan: Comparison, name: Row, rows: Counter[Row]) -> Counter[Row]:
    """Return the rows of one key, or the copies of the row itself."""
    return Counter({r: n for r, n in rows.items() if (tuple(r[i] for i in plan.key) if plan.key else r) == name})


def _same(mine: Row | None, other: Row | None) -> bool:
    if mine is None or other is None:
        return mine is other
    return all(cell in (_UNKNOWN, shown) for cell, shown in zip(mine, other, strict=True))

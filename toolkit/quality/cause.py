"""Where a difference came in: the log's own account of the sampled rows against what each side shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from toolkit.names import lake_table
from toolkit.parity import Comparison, fields
from toolkit.quality.report import Cause, Row, Sample

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.applied import Applied
    from toolkit.lake.evidence import RowEvent
    from toolkit.lake.ledger import Ledger
    from toolkit.lake.parity import Side
    from toolkit.lsn import Lsn

#: A cell that the events at hand do not tell.
_UNKNOWN = "\0"


def explain(
    spark: SparkSession, ledger: Ledger, side: Side, applied: Applied, samples: Sequence[Sample], *, upto: Lsn
) -> tuple[Sample, ...]:
    """The samples with their causes."""
    from toolkit.lake import evidence

    if not samples:
        return ()
    plan = side.plan
    named = [tuple(value for _, value in sample.key) for sample in samples]
    account = Account(plan, evidence.events(spark, ledger, plan, set(named), upto=upto))
    built: Counter[Row] | None = None
    if applied.foreign and applied.build is not None:
        lines = evidence.lines_at(spark, side, applied.build.snapshot_id, set(named))
        built = Counter({fields(line, plan.stamps): copies for line, copies in lines.items()})
    return tuple(
        replace(sample, cause=_cause(plan, name, sample, account, built, applied))
        for name, sample in zip(named, samples, strict=True)
    )


class Account:
    """What the log says of a few rows: a fold of their events, in log order."""

    def __init__(self, plan: Comparison, events: Sequence[RowEvent]) -> None:
        self.rows: dict[Row, Row] = {}  # by key
        self.copies: Counter[Row] = Counter()  # of a bag
        self.newest: dict[Row, RowEvent] = {}  # by key, or by the row itself
        self._key = plan.key
        for event in events:
            (self._keyed if plan.key else self._bag)(event)

    def agrees(self, name: Row, sample: Sample) -> bool:
        """Whether the log comes to what the source shows."""
        ours = _copies(sample)[0]
        if not self._key:
            return self.copies[name] == ours
        mine = self.rows.get(name)
        if sample.source is None:  # too much in the lake: wrong in the log only if the log made that very row
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
            for i in event.unchanged:
                row[i] = _UNKNOWN if source is None else source[i]
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


def _cause(
    plan: Comparison, name: Row, sample: Sample, account: Account, built: Counter[Row] | None, applied: Applied
) -> Cause:
    table = plan.table
    lake = lake_table(table.schema, table.name)
    rebuild = f"cdc build -- --full-refresh --select current__{lake} history__{lake}"
    event = account.newest.get(name)
    at = f"at {event.end_lsn} (batch {event.batch_id}, xid {event.xid})" if event is not None else ""
    where = (None, None, None) if event is None else (event.end_lsn, event.batch_id, event.xid)
    if not account.agrees(name, sample):
        text = "the log does not hold what the source shows"
        text += f": its newest change of this row is {at}" if event is not None else ": it has no change of this row"
        return Cause("capture", text, f"cdc repair {table.identifier}", *where)
    if built is not None and applied.build is not None and _was_right(plan, name, sample, built):
        tag = applied.build.tags[-1] if applied.build.tags else f"table snapshot {applied.build.snapshot_id}"
        by = ", ".join(str(c.snapshot_id) for c in reversed(applied.foreign))
        text = f"current.{lake} was changed after its build (tag {tag}) by table snapshot {by}"
        return Cause("tampered", text, rebuild, *where)
    text = "the log holds what the source shows" + (f", {at}" if at else "") + "; the table does not"
    return Cause("build", text, rebuild, *where)


def _was_right(plan: Comparison, name: Row, sample: Sample, built: Counter[Row]) -> bool:
    """Whether the table showed at its last build what the source shows."""
    ours, theirs = _copies(sample)
    if not plan.key:
        return built[name] == ours
    return built[sample.lake] < theirs if sample.source is None and sample.lake else sample.source in built


def _copies(sample: Sample) -> tuple[int, int]:
    return sample.copies or (int(sample.source is not None), int(sample.lake is not None))


def _same(mine: Row | None, other: Row | None) -> bool:
    if mine is None or other is None:
        return mine is other
    return all(cell in (_UNKNOWN, shown) for cell, shown in zip(mine, other, strict=True))

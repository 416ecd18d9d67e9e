"""Compare the slot's copy of each change in the raw log with the triggers' copy of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.values import progress

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

_EVENTS = 100_000  # a job compares about as many
_STRETCH = 1 << 24  # bytes of WAL, which no job divides
_COMPARE = """
with s as (
  select *, row_number() over (partition by relid, commit_lsn order by ordinal) as n
  from {events}
  where kind in ('row', 'truncate') and origin = 'slot' and ({where})
), l as (
  select *, row_number() over (partition by relid, commit_lsn order by ordinal) as n
  from {events}
  where kind = 'logged' and ({where})
)
select coalesce(s.relid, l.relid) as relid, coalesce(s.commit_lsn, l.commit_lsn) as commit_lsn,
  coalesce(l.xid, s.xid) as xid, s.op as slot_op, l.op as logged_op,
  coalesce(s.op <=> l.op, false)
    and (s.new is null or transform(s.new, (x, i) -> if(array_contains(s.unchanged, i + 1), null, x))
      <=> transform(l.new, (x, i) -> if(array_contains(s.unchanged, i + 1), null, x)))
    and (s.old is null or s.old <=> transform(l.old, (x, i) -> if(s.old[i] is null, null, x))) as same
from s full join l on s.relid = l.relid and s.commit_lsn = l.commit_lsn and s.n = l.n
"""
_COUNT = """
select cast(commit_lsn div {stretch} as bigint) as stretch, count(*) as events
from {events}
where (kind in ('row', 'truncate') and origin = 'slot' or kind = 'logged') and ({where})
group by 1 order by 1
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The number of changes and of differing changes by relid, and the first differing changes with their columns."""

    changes: Mapping[int, int]
    different: Mapping[int, int]
    first: Sequence[Row]  # relid, commit_lsn, xid, slot_op, logged_op


def compare(
    spark: SparkSession,
    events: str,
    windows: Sequence[tuple[int, int, int | None]],
    *,
    generation: int,
    shown: int,
) -> Comparison:
    """Compare within `windows`, each `(relid, low, high)` of commit LSNs, bounds excluded; list `shown` differences.

    `events` is the table of the log. Each job compares a range of commit LSNs. All changes of a transaction have the
    same, so no job divides one.
    """
    from pyspark.sql.functions import expr

    within = " or ".join(
        f"relid = {relid} and commit_lsn > {low}" + ("" if high is None else f" and commit_lsn < {high}")
        for relid, low, high in windows
    )
    where = f"generation = {generation} and ({within})"
    changes, different = Counter[int](), Counter[int]()
    first: list[Row] = []
    with progress.stage(f"comparing both captures of {len({w[0] for w in windows})} tables", "events") as stage:
        found = spark.sql(_COUNT.format(events=events, stretch=_STRETCH, where=where)).collect()
        stage.total = sum(held for _, held in found)
        stage.show()
        for start, end, held in _jobs([(row[0], row[1]) for row in found]):
            limits = f"commit_lsn >= {start * _STRETCH} and commit_lsn < {end * _STRETCH}"
            compared = spark.sql(_COMPARE.format(events=events, where=f"{limits} and {where}"))
            counted = compared.groupBy("relid").agg(expr("count(*)"), expr("count_if(not same)")).collect()
            changes.update({relid: total for relid, total, _ in counted})
            different.update({relid: wrong for relid, _, wrong in counted if wrong})
            if len(first) < shown and any(wrong for *_, wrong in counted):
                first += compared.where("not same").orderBy("commit_lsn").limit(shown - len(first)).collect()
            stage.add(held)
    return Comparison(changes, different, first)


def _jobs(found: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Divide stretches, each with a number of events, into jobs: the first stretch, the one after the last, events."""
    start = events = 0
    for stretch, count in found:
        start, events = (start, events + count) if events else (stretch, count)
        if events >= _EVENTS:
            yield start, stretch + 1, events
            events = 0
    if events:
        yield start, found[-1][0] + 1, events

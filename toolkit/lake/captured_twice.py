"""Compare the slot's copy of each change in the raw log with the triggers' copy of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

_COMPARE = """
with s as (
  select *, row_number() over (partition by relid, commit_lsn order by ordinal) as n
  from raw.events
  where kind in ('row', 'truncate') and origin = 'slot' and ({where})
), l as (
  select *, row_number() over (partition by relid, commit_lsn order by ordinal) as n
  from raw.events
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """The number of changes and of differing changes by relid, and the first differing changes with their columns."""

    changes: Mapping[int, int]
    different: Mapping[int, int]
    first: Sequence[Row]  # relid, commit_lsn, xid, slot_op, logged_op


def compare(
    spark: SparkSession, windows: Iterable[tuple[int, int, int | None]], *, generation: int, shown: int
) -> Comparison:
    """Compare within `windows`, each `(relid, low, high)` of commit LSNs, bounds excluded; list `shown` differences."""
    where = " or ".join(
        f"relid = {relid} and commit_lsn > {low}" + ("" if high is None else f" and commit_lsn < {high}")
        for relid, low, high in windows
    )
    compared = spark.sql(_COMPARE.format(where=f"generation = {generation} and ({where})"))
    rows = compared.groupBy("relid").agg({"*": "count"}).collect()
    wrong = compared.where("not same")
    different = {r[0]: r[1] for r in wrong.groupBy("relid").agg({"*": "count"}).collect()}
    first = wrong.orderBy("commit_lsn").limit(shown).collect() if different else []
    return Comparison({r[0]: r[1] for r in rows}, different, first)

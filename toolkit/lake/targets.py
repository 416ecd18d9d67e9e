"""Find the start of a run of the models, and decide whether each table is skipped, merged or rebuilt.

The start is the position of each built table, and its events in the log since. For all tables at once, the question
costs one read of a metadata file for each table, and three Spark jobs. A model that dbt runs alone asks for the start
itself, and its macro `cdc_decide` calls `decide` through the toolkit's plugin for dbt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from toolkit.lake import reads
from toolkit.lake.applied import BUILT_FROM, Applied
from toolkit.lake.new_events import news
from toolkit.lake.table_layout import spec_of
from toolkit.rawlog.plan import Layer
from toolkit.values.errors import TableDamaged
from toolkit.values.outcome import BuildAction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.ledger import Ledger
    from toolkit.rawlog.plan import TablePlan
    from toolkit.values.lsn import Lsn

_FIRST = -1  # less than every batch and LSN
#: Facts about rows that decide how much work a fold has to do, in the order of `Facts`.
_FACTS = """count(relid), coalesce(min(commit_lsn), 0), coalesce(max(commit_lsn), 0),
  count_if(kind not in ('row', 'schema')),
  count_if(op = 'U' and old_kind is not null),
  count_if(op = 'U' and old_kind is not null and size(unchanged) > 0),
  array_join(array_sort(array_distinct(flatten(collect_set(unchanged)))), ','),
  count_if(op in ('I', 'U', 'D')), count_if(op = 'R')"""


@dataclass(frozen=True, slots=True)
class Target:
    """A built table: what its properties say that it was built from, and the position of its newest build."""

    relid: int
    generation: int
    schema_id: int
    snapshot: str
    batch: int
    lsn: int
    altered: bool = False  # another program has altered the table's columns since
    written: bool = False  # another program has written rows since the table was last replaced

    @property
    def place(self) -> tuple[int, int, int]:
        """Return the relation and the position; events after it are new."""
        return self.relid, self.batch, self.lsn


@dataclass(frozen=True, slots=True)
class Facts:
    """Events of one table: their number, their lowest and highest commit LSN, and special cases among them."""

    n: int = 0
    low: int = 0
    high: int = 0
    control: int = 0  # events that are neither rows nor schema versions
    moved: int = 0  # updates that may change a key
    chained: int = 0  # such updates that leave values out
    toast: str = ""  # attnums of the values that are left out
    changed: int = 0  # rows that are no rows of a copy
    copied: int = 0

    @property
    def left_out(self) -> tuple[int, ...]:
        """Return the attnums of the values that are left out."""
        return tuple(map(int, self.toast.split(","))) if self.toast else ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What a build does with a table, and why."""

    action: BuildAction
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """The start of one model. `news` are the events since its target; `whole` are all events, for a rebuild.

    `since` is the current snapshot of its table, whatever made it. What is built is built on it, or not committed.
    `damage` says that the table's metadata cannot be read, and the remedy. Its model fails with it. `partitioned` says
    that a user has given the table partitions.
    """

    target: Target | None
    decision: Decision | None  # None: only the model can say it when it runs
    news: Facts = Facts()
    whole: Facts | None = None
    since: str | None = None
    damage: str | None = None
    partitioned: bool = False

    @property
    def quiet(self) -> bool:
        """Return whether the model has nothing to do."""
        return self.decision is not None and self.decision.action == BuildAction.SKIP


@dataclass(frozen=True, slots=True)
class Aim:
    """What a run brings a table to: its plan's relation and schema version, and the position of the run."""

    relid: int
    schema_id: int
    exists: bool  # at the position
    keyed: bool
    generation: int
    batch: int
    upto: int
    compared: bool  # a check compares its rows with the source


def decide(aim: Aim, target: Target | None, news: Facts) -> Decision | None:
    """Decide what brings a table to its aim by the events after its target.

    None if the table is ahead of the log: either another run has built it further in the meantime, or the table or the
    log was restored. The model finds out which when it runs, from the log at that time.
    """
    if not aim.exists:
        return Decision(BuildAction.SKIP, "dropped at the source")
    if target is None:
        return Decision(BuildAction.REBUILD, "no table with a position")
    if target.batch > aim.batch or (target.generation == aim.generation and target.lsn > aim.upto):
        return None
    if target.altered:
        return Decision(BuildAction.REBUILD, "another program has altered its columns")
    if target.written and not aim.compared:
        return Decision(BuildAction.REBUILD, "another program has written to it")
    if (target.relid, target.generation) != (aim.relid, aim.generation):
        return Decision(BuildAction.REBUILD, "another table had this name")
    if target.schema_id != aim.schema_id:
        return Decision(BuildAction.REBUILD, f"schema version {aim.schema_id}")
    if not news.n:
        return Decision(BuildAction.SKIP, "nothing new")
    if news.control:
        return Decision(BuildAction.REBUILD, "a baseline, a truncate or a schema version")
    if news.low < target.lsn:
        return Decision(BuildAction.REBUILD, "new events below the applied position")
    return Decision(BuildAction.MERGE if aim.keyed else BuildAction.REBUILD, "new events")


def find(spark: SparkSession, log: Ledger, upto: Lsn, models: Sequence[tuple[TablePlan, str]]) -> list[Found]:
    """Return what each model finds, in the order of `models`: plans at the position, each with its table's name."""
    last = log.last()
    assert last is not None
    tables = [_table(metadata) for metadata in reads.each_metadata(log.access, [name for _, name in models])]
    targets = [table.target for table in tables]
    aims = [
        Aim(
            plan.relid, plan.schema_id, bool(plan.segments), bool(plan.segments and plan.segments[-1].key),
            last.generation, last.batch_id, int(upto), plan.layer == Layer.CURRENT,
        )
        for plan, _ in models
    ]  # fmt: skip
    # Ask the log about the tables whose news decide: without news they are quiet.
    asked = [
        target
        for target, aim in zip(targets, aims, strict=True)
        if target is not None and Found(target, decide(aim, target, Facts())).quiet
    ]
    built = {t.place for t in asked if (t.batch, t.lsn) != (last.batch_id, int(upto))}
    new = news(spark, log, {(batch, lsn) for _, batch, lsn in built})
    facts = _facts(spark, log, upto, {place for place in built if new.after(place[0], place[1:])})
    found = []
    for table, aim in zip(tables, aims, strict=True):
        own = Facts() if table.target is None else facts.get(table.target.place, Facts())
        found.append(replace(table, decision=None if table.damage else decide(aim, table.target, own), news=own))
    rebuilt = [not f.damage and (f.decision is None or f.decision.action == BuildAction.REBUILD) for f in found]
    places = [(plan.relid, _FIRST, _FIRST) for plan, _ in models]
    whole = _facts(spark, log, upto, {place for place, folded in zip(places, rebuilt, strict=True) if folded})
    return [
        replace(f, whole=whole.get(place)) if folded else f
        for f, place, folded in zip(found, places, rebuilt, strict=True)
    ]


def _table(metadata: dict[str, Any] | TableDamaged | None) -> Found:
    """Return what a table says of its build, and its current snapshot."""
    if isinstance(metadata, TableDamaged):
        return Found(None, None, damage=str(metadata))
    current = reads.current_snapshot(metadata)
    if metadata is None or current is None:
        return Found(None, None)
    partitioned = bool(spec_of(metadata)["fields"])
    return Found(target_of(metadata), None, since=str(current["snapshot-id"]), partitioned=partitioned)


def target_of(metadata: dict[str, Any]) -> Target | None:
    """Return what the metadata of a table say of its newest build; None if no build has made it.

    Compaction does not change the position. After a rollback it is the older one.
    """
    properties = metadata.get("properties") or {}
    made = Applied.of(metadata)
    keys = ("cdc.relid", "cdc.generation", "cdc.schema-id")
    build = made.build
    if build is None or build.place is None or not properties.keys() >= set(keys):
        return None
    relid, generation, schema_id = (int(properties[key]) for key in keys)
    return Target(
        relid, generation, schema_id, str(made.snapshot_id), *build.place, altered=made.altered, written=made.written
    )


def _facts(
    spark: SparkSession, log: Ledger, upto: Lsn, since: Iterable[tuple[int, int, int]]
) -> Mapping[tuple[int, int, int], Facts]:
    """Return the facts of events after a batch, or at or above an LSN, by (relid, batch, LSN)."""
    wanted = sorted(since)
    last = log.last()
    if not wanted or last is None:
        return {}
    # Rows of a copy leave no value out, so that their arrays need not be read.
    columns = "relid, batch_id, commit_lsn, kind, op"
    events = (
        f"from {log.access.names.events} version as of {log.snapshot_id()} where kind in {BUILT_FROM}"
        f" and generation = {last.generation} and batch_id <= {last.batch_id} and commit_lsn < {int(upto)}"
    )
    places = ", ".join(str(place) for place in wanted)
    relids = ", ".join(str(relid) for relid in sorted({relid for relid, _, _ in wanted}))
    batch, lsn = min(place[1] for place in wanted), min(place[2] for place in wanted)
    events += f" and (batch_id > {batch} or commit_lsn >= {lsn}) and relid in ({relids})"
    rows = spark.sql(
        f"select t_relid, t_batch, t_lsn, {_FACTS} from ("
        f"select {columns}, old_kind, unchanged {events} and (op is null or op in ('I', 'U', 'D', 'T'))"
        f" union all select {columns}, null, null {events} and op = 'R'"
        f") e join (values {places}) as t (t_relid, t_batch, t_lsn)"
        " on e.relid = t.t_relid and (e.batch_id > t.t_batch or e.commit_lsn >= t.t_lsn)"
        " group by t_relid, t_batch, t_lsn"
    ).collect()
    return {(row[0], row[1], row[2]): Facts(*row[3:]) for row in rows}

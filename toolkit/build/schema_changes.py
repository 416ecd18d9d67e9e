"""Apply source DDL to `current.*` as one Iceberg schema change where that is exact, with stable field ids.

Renamed, added, dropped and widened columns keep their field ids, and no row is rewritten. A table is first brought to
the LSN of the DDL in its old shape. Then it is changed, and then it is brought further. So at every position it has the
source's state at that position. Where this is not possible, the table is replaced.

It is also replaced for a new column whose older rows show a default. Iceberg could hold it as the field's initial
default. But its Spark readers (1.11) still drop files and row groups as if the missing column were NULL: `where stock =
42` found no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from toolkit.lake.applied import Applied, position, rows_between
from toolkit.lake.schema_update import Step
from toolkit.rawlog.states import copied
from toolkit.values.errors import TableDamaged
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.lake_types import spark_type
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn
from toolkit.values.names import lake_columns, lake_table, quote_spark
from toolkit.values.table import Column, SchemaVersion, TableVersion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.ledger import Ledger
    from toolkit.values.lake_access import LakeAccess

_log = logger(__name__)

_BEFORE = "_cdc_from_lsn"  # the first of the columns that the source does not have


@dataclass(frozen=True, slots=True)
class Pending:
    """A table that must first be brought to the LSN of its next DDL: events with `commit_lsn < upto`."""

    alias: str
    upto: Lsn


@dataclass(frozen=True, slots=True)
class _Target:
    """The position of a built table."""

    batch: int
    lsn: int
    schema_id: int
    snapshot_id: int


@can_fail(Point.EVOLVE)
def evolve(access: LakeAccess, ledger: Ledger) -> tuple[Pending, ...]:
    """Change every table of `current` that is behind its schema version, as far as its rows allow.

    Return the tables that can continue when their rows up to their next DDL are applied.
    """
    last = ledger.last()
    assert last is not None
    done = copied(ledger)
    chains: dict[int, list[SchemaVersion]] = {}
    for version in ledger.schema_versions():
        if version.generation == last.generation and version.table.relid in done:
            chains.setdefault(version.table.relid, []).append(version)
    pending = []
    for relid, chain in chains.items():
        if len(chain) == 1:
            continue  # never altered, so its built table needs no check
        alias = lake_table(chain[-1].table.schema, chain[-1].table.name)
        target = _target(access, alias, relid, last.generation)
        if target is None or target.schema_id == chain[-1].schema_id:
            continue
        upto = _follow(access, ledger, alias, chain, target)
        if upto is not None:
            pending.append(Pending(alias, upto))
    return tuple(pending)


def describe(access: LakeAccess, ledger: Ledger, aliases: Sequence[str]) -> None:
    """Set the column comments of tables that dbt has replaced, because a replacement does not name them."""
    from toolkit.lake import schema_update
    from toolkit.lake.session import own_session

    for version in ledger.latest_versions().values():
        alias = lake_table(version.table.schema, version.table.name)
        if alias in aliases and not version.table.dropped and any(c.comment for c in version.table.columns):
            table = f"{quote_spark(access.lake.catalog)}.{access.names.current}.{alias}"
            schema_update.describe(own_session(access), table, _comments(version.table))


def step(before: TableVersion, after: TableVersion) -> Step | None:
    """Return the schema change from one version to a later one of the same table; None if more than that happened."""
    if after.dropped or not after.published or _whole(before) != _whole(after):
        return None
    old = {c.attnum: c for c in before.columns}
    new = {c.attnum: c for c in after.columns}
    was, now = (lake_columns([(c.attnum, c.name) for c in v.columns]) for v in (before, after))
    if any(_values(old[a], new[a]) for a in old.keys() & new.keys()):
        return None
    added = []
    for attnum in sorted(new.keys() - old.keys()):
        if new[attnum].published:
            if new[attnum].missing is not None:
                return None
            added.append((now[attnum], spark_type(new[attnum])))
    kept = [a for a in old if a in new and old[a].published]
    return Step(
        drops=tuple(was[a] for a in old if a not in new and old[a].published),
        renames={was[a]: now[a] for a in kept if was[a] != now[a]},
        widened={was[a]: spark_type(new[a]) for a in kept if spark_type(old[a]) != spark_type(new[a])},
        added=tuple(added),
    )


def _whole(table: TableVersion) -> tuple[object, ...]:
    """Return the properties that must stay the same for rows to keep their meaning."""
    identity = (table.replica_identity, table.key_attnums, table.kind, table.persistence)
    return (*identity, table.published, table.row_filter)


def _values(before: Column, after: Column) -> bool:
    """Return whether a column changed in more than name, comment or constraints, or needs another typing."""
    kept = ("published", "generated", "has_missing", "missing", "former_labels", "inner_labels", "inner_rows")
    if any(getattr(before, name) != getattr(after, name) for name in kept):
        return True
    labels = dict(after.enum_labels)
    if any(labels.get(oid) != label for oid, label in before.enum_labels):
        return True
    one, two = spark_type(before), spark_type(after)
    if one == two or (one, two) == ("int", "bigint"):
        return False
    return not (one.startswith("decimal") and two.startswith("decimal") and _wider(one, two))


def _wider(before: str, after: str) -> bool:
    (p1, s1), (p2, s2) = (tuple(map(int, t[8:-1].split(","))) for t in (before, after))
    return s1 == s2 and p2 > p1


def _comments(table: TableVersion) -> dict[str, str | None]:
    names = lake_columns([(c.attnum, c.name) for c in table.columns])
    return {names[c.attnum]: c.comment for c in table.columns if c.published}


def _target(access: LakeAccess, alias: str, relid: int, generation: int) -> _Target | None:
    """Read position and schema version of a built table, if its newest commit is of exactly this relation."""
    from toolkit.lake import reads

    try:
        found = reads.metadata(access, f"{access.names.current}.{alias}")
    except TableDamaged:
        return None  # its model fails with what is damaged
    if found is None or Applied.of(found).altered:
        return None
    properties, stated = found.get("properties") or {}, position(found)
    try:
        if (int(properties["cdc.relid"]), int(properties["cdc.generation"])) != (relid, generation):
            return None
        return _Target(
            int(stated["cdc.applied-batch"]),
            int(stated["cdc.applied-lsn"]),
            int(properties["cdc.schema-id"]),
            int(found["current-snapshot-id"]),
        )
    except KeyError:
        return None


def _follow(access: LakeAccess, ledger: Ledger, alias: str, chain: list[SchemaVersion], target: _Target) -> Lsn | None:
    """Apply the DDL transactions that come before any row.

    Return the commit LSN of the next DDL transaction if rows come before it.
    """
    from toolkit.lake.session import own_session

    here = next((i for i, v in enumerate(chain) if v.schema_id == target.schema_id), None)
    if here is None or any(v.commit_lsn < target.lsn for v in chain[here + 1 :]):
        return None
    spark = own_session(access)
    rows = _rows_between(spark, ledger, chain[here + 1 :], target)
    done, upto = here, None
    for before, at, versions in rows:
        end = done + len(versions)
        if at or any(step(a.table, b.table) is None for a, b in pairwise(chain[done : end + 1])):
            break
        if before:
            # A table without a key is never merged. To bring it to that LSN would rewrite it.
            upto = Lsn(versions[0].commit_lsn) if chain[here].table.keyed else None
            break
        done = end
    if done > here and not _change(access, spark, ledger, alias, chain[here], chain[done], target.snapshot_id):
        return None
    return upto


def _rows_between(
    spark: SparkSession, ledger: Ledger, versions: list[SchemaVersion], target: _Target
) -> Iterator[tuple[int, int, list[SchemaVersion]]]:
    """For each DDL transaction, count the rows since the previous one and the rows inside it, and yield its versions.

    Before the first DDL transaction, rows count from the target's position. Nothing is yielded after a truncate, a
    baseline or a late row, because the table must then be rebuilt.
    """
    relid = versions[0].table.relid
    groups = [(commit, list(found)) for commit, found in groupby(versions, key=lambda v: int(v.commit_lsn))]
    counts = rows_between(
        spark, ledger, relid, commits=[commit for commit, _ in groups], batch=target.batch, lsn=target.lsn
    )
    for (before, inside), (_, found) in zip(counts, groups, strict=bool(counts)):
        yield before, inside, found


def _change(
    access: LakeAccess,
    spark: SparkSession,
    ledger: Ledger,
    alias: str,
    before: SchemaVersion,
    after: SchemaVersion,
    since: int,
) -> bool:
    """Commit the change from one version to another.

    Return false if a value kept as text or the table's partitions prevent it, or if another process has changed the
    table snapshot `since`.
    """
    from toolkit.lake import schema_update

    wanted = step(before.table, after.table)
    assert wanted is not None
    table, last = f"{access.names.current}.{alias}", ledger.last()
    assert last is not None
    if wanted.moves_names and schema_update.holds_text(spark, table):
        return False  # the keys of _cdc_text are column names
    name = f"{quote_spark(access.lake.catalog)}.{table}"
    if wanted.drops and schema_update.lays_out(spark, name, wanted.drops):
        return False  # Iceberg drops no such column, but a rebuild can do without it
    done = schema_update.apply(
        spark,
        name,
        wanted,
        since=since,
        comments=_comments(after.table),
        properties={"cdc.schema-id": str(after.schema_id), "comment": after.table.comment},
        summary={
            "cdc.applied-batch": str(last.batch_id),
            "cdc.applied-lsn": str(int(after.end_lsn)),
            "cdc.generation": str(last.generation),
        },
        tag=f"g{last.generation}_lsn_{Lsn(after.end_lsn).tag}",
        before=_BEFORE,
    )
    if not done:
        _log.warning("schema not changed: another process has changed the table", extra={"table": table})
        return False
    _log.info("schema changed", extra={"table": table, "schema_id": after.schema_id, "lsn": str(Lsn(after.end_lsn))})
    return True

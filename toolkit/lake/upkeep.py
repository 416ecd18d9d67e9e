"""Compact and expire one table of the lake. No row changes, and table snapshots that readers need stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from toolkit.lake import applied, reads, removal, storage
from toolkit.lake.lake_catalog import force
from toolkit.lake.pandas_on_demand import create_frame
from toolkit.lake.proofs import PROVEN, generation_of
from toolkit.values.errors import CommitConflict, LakeError
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.lake_types import literal
from toolkit.values.locations import scheme
from toolkit.values.names import quote_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.values.lake_access import LakeAccess

_MIN_FILES = 5  # the fewest small data files of one partition that are merged
_MIN_MANIFESTS = 20  # an empty batch adds one manifest, and every reader opens all of them
_BUILD = "cdc_build_"  # prefix of the branches on which builds merge; a killed build leaves its own
_LISTED = "cdc_files"  # the temporary view of the files of a table's folder


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The work done on one table.

    The counts are: merged data files, files that replaced them, expired table snapshots and tags, removed orphan files,
    and erased rows that were deleted from the log. `skipped` says why nothing, or nothing more, was done.
    """

    table: str
    merged: int = 0
    into: int = 0
    snapshots: int = 0
    tags: int = 0
    orphans: int = 0
    erased: int = 0
    skipped: str | None = None


def maintain_table(
    spark: SparkSession,
    access: LakeAccess,
    table: str,
    *,
    generation: int | None = None,
    keep_tags: Collection[str],
    since: datetime,
    orphans: datetime,
) -> Upkeep:
    """Compact `namespace.table`, then expire what is older than `since`.

    With `generation`, only files that may have rows of it are merged. A tag in `keep_tags` stays with its table
    snapshot, and so does the present state. A tag that no build or check has set stays as long as its own retention
    says. Files that nothing names and that are older than `orphans` are what killed runs left behind.

    Raises:
        LakeError: a file of the table is missing or damaged; or what was compacted cannot be forced to the disk, and
            nothing was removed; or a file that nothing names any more cannot be deleted.
    """
    from py4j.protocol import Py4JJavaError

    try:
        return _maintained(spark, access, table, generation, keep_tags=keep_tags, since=since, orphans=orphans)
    except Py4JJavaError as error:
        cause = str(error.java_exception.toString()).partition("\n")[0]
        raise LakeError(f"{table} cannot be maintained: {cause}; {access.names.remedy(table)}") from None


def _maintained(
    spark: SparkSession,
    access: LakeAccess,
    table: str,
    generation: int | None,
    *,
    keep_tags: Collection[str],
    since: datetime,
    orphans: datetime,
) -> Upkeep:
    from py4j.protocol import Py4JJavaError

    before = reads.metadata(access, table)  # first: Iceberg tries to read a damaged file for a minute and a half
    present = reads.current_snapshot(before)
    if before is None or present is None:
        return Upkeep(table, skipped="it never held a row")
    jvm: Any = spark._jvm
    name = f"{quote_spark(access.lake.catalog)}.{table}"
    native = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
    actions = jvm.org.apache.iceberg.spark.actions.SparkActions.get(spark._jsparkSession)
    # The commit of a compaction becomes the newest one, so it must repeat the position of the commit before it.
    position = applied.position(before)
    if table.startswith(f"{access.names.current}.") and not position:
        return Upkeep(table, skipped="another process wrote to it after its build: run `cdc check`")
    # Files are removed below: what replaces them must be on the disk, and a killed run's newest commit too.
    force(access, table, present["snapshot-id"])
    conditions = jvm.org.apache.iceberg.expressions.Expressions
    where = conditions.alwaysTrue() if generation is None else conditions.equal("generation", generation)
    try:
        merging = _compact(access, table, native, actions, position, where)
    except Py4JJavaError as error:
        found = str(error.java_exception.toString())
        if not _is_conflict(found):
            raise
        return Upkeep(table, skipped="another process changed it during its compaction: run `cdc maintain` again")
    if str(native.properties().get("gc.enabled")).lower() == "false":
        why = "a user has set its property gc.enabled to false: no table snapshot and no file of it is removed"
        return Upkeep(table, merging.rewrittenDataFilesCount(), merging.addedDataFilesCount(), skipped=why)
    oldest = int(since.timestamp() * 1000)
    kept = {*keep_tags, *_just_proven(before)}
    tags = [name for name in _old(before, "tag", oldest) if name not in kept and generation_of(name) is not None]
    branches = [name for name in _old(before, "branch", oldest) if name.startswith(_BUILD)]
    if tags or branches:
        _remove_refs(native, tags, branches)
    native.refresh()
    held = _count(native.snapshots())
    # If a build committed before the compaction did, its table snapshot has to stay: only that one has its position.
    if applied.repeats_position(reads.metadata(access, table) or {}):
        _expire(jvm, access, table, native, oldest)
    removed = _remove_orphans(spark, access, table, str(native.location()).rstrip("/"), orphans)
    return Upkeep(
        table,
        merged=merging.rewrittenDataFilesCount(),
        into=merging.addedDataFilesCount(),
        snapshots=held - _count(native.snapshots()),
        tags=len(tags),
        orphans=removed,
    )


@can_fail(Point.ERASE)
def delete_erased(spark: SparkSession, access: LakeAccess, condition: str) -> int:
    """Delete the rows of the log for which a condition in Spark SQL is true, and return their number.

    Raises:
        CommitConflict: another process changed the log meanwhile; nothing was deleted.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    events = access.names.events
    row = spark.sql(f"SELECT count(*) FROM {events} WHERE {condition}").first()
    if row is None or not row[0]:
        return 0
    # This commit becomes the newest one, so it must repeat what the commit before it says of the ledger.
    summary = applied.position(reads.metadata(access, events) or {})
    keys = [f"spark.sql.iceberg.snapshot-property.{key}" for key in summary]
    try:
        for key, value in zip(keys, summary.values(), strict=True):
            spark.conf.set(key, value)
        # Iceberg deletes whole files without Spark, and then sets no property, if it can decide the condition itself.
        spark.sql(f"DELETE FROM {events} WHERE {condition} AND length(kind) > 0")
    except (Py4JJavaError, PySparkException) as error:
        if not _is_conflict(str(error)):
            raise
        raise CommitConflict(
            f"deleting erased rows of {events}: another process changed it meanwhile; run `cdc maintain` again"
        ) from None
    finally:
        for key in keys:
            spark.conf.unset(key)
    return int(row[0])


def _is_conflict(found: str) -> bool:
    return "CommitFailedException" in found or "ValidationException" in found


@can_fail(Point.COMPACT)
def _compact(access: LakeAccess, table: str, native: Any, actions: Any, position: Mapping[str, str], where: Any) -> Any:
    rewriting = actions.rewriteDataFiles(native).option("min-input-files", str(_MIN_FILES)).filter(where)
    merging = _saying(rewriting, position).execute()
    _forced(access, table, native)
    if native.currentSnapshot().allManifests(native.io()).size() >= _MIN_MANIFESTS:
        _saying(actions.rewriteManifests(native), position).execute()
        _forced(access, table, native)
    return merging


@can_fail(Point.UNTAG)
def _remove_refs(native: Any, tags: Collection[str], branches: Collection[str]) -> None:
    manage = native.manageSnapshots()
    for tag in tags:
        manage = manage.removeTag(tag)
    for branch in branches:
        manage = manage.removeBranch(branch)
    manage.commit()


@can_fail(Point.EXPIRE)
def _expire(jvm: Any, access: LakeAccess, table: str, native: Any, oldest: int) -> None:
    unused = removal.Unused(jvm)
    native.expireSnapshots().expireOlderThan(oldest).retainLast(1).deleteWith(unused.consumer).commit()
    _forced(access, table, native)
    # What is left is taken for a file of a killed run then, and not before: it could be one of a running build.
    then = "run `cdc maintain` again in three days, or after `lake.keep_days` if that is longer"
    removal.delete(access, table, unused.places(), "is only of expired table snapshots", then)


@can_fail(Point.ORPHANS)
def _remove_orphans(spark: SparkSession, access: LakeAccess, table: str, folder: str, before: datetime) -> int:
    """Delete the files of the table's folder that are older than `before` and that nothing names; give their number.

    Iceberg's procedure finds them. It does not list the folder, because Hadoop has no client of a store, and Iceberg's
    own for Azure lists objects by other names than those that tables have.
    """
    properties = storage.file_properties(access)
    listing = storage.files_in(folder, properties)
    # Of the metadata, some name a local file with its scheme and some without. A listed one with it matches both.
    old = {_with_scheme(place): place for place, written in listing if _is_shown(place) and written < before}
    listed = create_frame(spark, [(name,) for name in old], "file_path string")
    listed.selectExpr("file_path", "TIMESTAMP '1970-01-01' AS last_modified").createOrReplaceTempView(_LISTED)
    try:
        unnamed = spark.sql(
            f"CALL {quote_spark(access.lake.catalog)}.system.remove_orphan_files("
            f"table => '{table}', location => {literal(_with_scheme(folder))}, dry_run => true,"
            f" file_list_view => '{_LISTED}')"
        ).collect()
    finally:
        spark.catalog.dropTempView(_LISTED)
    removal.delete(access, table, [old[name] for (name,) in unnamed], "is of a killed run", "run `cdc maintain` again")
    return len(unnamed)


def _is_shown(place: str) -> bool:
    return not place.rpartition("/")[2].startswith((".", "_"))  # others are Hadoop's own


def _with_scheme(place: str) -> str:
    return place if scheme(place) is not None else f"file:{place}"


def _forced(access: LakeAccess, table: str, native: Any) -> None:
    native.refresh()
    force(access, table, native.currentSnapshot().snapshotId())


def _count(java: Any) -> int:
    """Count the elements of a Java Iterable."""
    found, items = 0, java.iterator()
    while items.hasNext():
        items.next()
        found += 1
    return found


def _saying(action: Any, summary: Mapping[str, str]) -> Any:
    for key, value in summary.items():
        action = action.snapshotProperty(key, value)
    return action


def _just_proven(metadata: Mapping[str, Any]) -> Collection[str]:
    """Return the tags of proofs of the current table snapshot: a check on another machine may have set one just now."""
    refs, current = (metadata.get("refs") or {}).items(), metadata["current-snapshot-id"]
    return [name for name, ref in refs if name.startswith(PROVEN) and ref["snapshot-id"] == current]


def _old(metadata: Mapping[str, Any], kind: str, oldest: int) -> list[str]:
    made = {s["snapshot-id"]: s["timestamp-ms"] for s in metadata["snapshots"]}
    refs = (metadata.get("refs") or {}).items()
    return [name for name, ref in refs if ref["type"] == kind and made[ref["snapshot-id"]] < oldest]

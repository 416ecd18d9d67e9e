"""Make the views of `published` show the table snapshots that `ops.published` names.

A view names the table snapshot that was compared, because a build or an analyst can move a tag. The check's own tag
only keeps the snapshot from expiring.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from toolkit.lake import reads
from toolkit.lake.proofs import PROVEN, generation_of, proofs_by_name, shown_sql
from toolkit.values.errors import TableDamaged
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.log_setup import logger
from toolkit.values.names import quote_spark
from toolkit.values.threads import in_threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.values.lake_access import LakeAccess

_log = logger(__name__)
#: Properties of a view: the table of `current` that it reads, the tag that keeps what it shows of it, and the time at
#: which its own name became deprecated. The view of a partitioned table has several tables and tags.
READ, TAG, DEPRECATED = "cdc.relation", "cdc.tag", "cdc.deprecated"


@can_fail(Point.TAG)
def keep(access: LakeAccess, spark: SparkSession, name: str, snapshot_id: int | None, generation: int) -> str:
    """Tag a table snapshot of `current.<name>`, so that it is kept while a view shows it. Return the tag.

    Raises:
        TableDamaged: a branch has the name of the tag.
    """
    tag = f"{PROVEN}g{generation}_{snapshot_id}"
    table = f"{access.names.current}.{name}"
    held = ((reads.metadata(access, table) or {}).get("refs") or {}).get(tag) or {}
    if held.get("type") == "branch":
        raise TableDamaged(
            f"{table} has a branch {tag}, so that no tag of this name can keep what is proven; run ALTER TABLE {table}"
            f" DROP BRANCH {quote_spark(tag)}, and `cdc check` again"
        )
    if held.get("snapshot-id") != snapshot_id:
        made = f"CREATE OR REPLACE TAG {quote_spark(tag)} AS OF VERSION {snapshot_id}"
        spark.sql(f"ALTER TABLE {table} {made}")
    return tag


def follow(
    access: LakeAccess, spark: SparkSession, now: datetime, *, threads: int, deprecated_days: float
) -> dict[str, str]:
    """Update the views from `ops.published`, and keep deprecated views under names that it no longer has.

    A renamed table is also shown under its old name. A dropped table is shown as it was last proven. `now` is the time
    of the check. The view is dropped `[check] deprecated_days` after the first check that found it deprecated.

    A view with damaged metadata does not keep the others from it. Return why such views are left as they are.
    """
    failed: dict[str, str] = {}
    wanted = proofs_by_name(access)
    views = reads.each_metadata(access, [f"{access.names.published}.{name}" for name in wanted])
    shown = ((name, row, found) for (name, row), found in zip(wanted.items(), views, strict=True))

    def show(name: str, row: Mapping[str, Any], found: dict[str, Any] | TableDamaged | None) -> None:
        with reads.noting_damage(failed, f"{access.names.published}.{name}"):
            _show(access, spark, name, row, _readable(found))

    for _ in in_threads(lambda item: show(*item), shown, threads):
        pass
    # In another generation, another table may have the relid.
    renamed = {(str(row["relid"]), generation_of(row["tag"])): row for row in wanted.values()}
    for name in set(reads.tables(access, access.names.published, "VIEW")) - wanted.keys():
        with reads.noting_damage(failed, f"{access.names.published}.{name}"):
            _deprecate(access, spark, name, renamed, now, days=deprecated_days)
    return failed


def _deprecate(
    access: LakeAccess,
    spark: SparkSession,
    name: str,
    renamed: Mapping[tuple[str, int | None], Mapping[str, Any]],
    now: datetime,
    *,
    days: float,
) -> None:
    """Keep a view under a name that no table has any more, and drop it once it has been deprecated for these days."""
    found = reads.metadata(access, f"{access.names.published}.{name}") or {}
    known = found.get("properties") or {}
    if "cdc.relid" not in known:  # the toolkit did not create the view
        return
    since = datetime.fromisoformat(known.get(DEPRECATED, now.isoformat()))
    last: dict[str, Any] = {"relid": known["cdc.relid"], "tag": known[TAG], "relation": known.get(READ, name)}
    last["snapshot_id"] = _tagged(access, last["relation"], last["tag"])
    generation = generation_of(known[TAG])
    row = renamed.get((known["cdc.relid"], generation), last)
    if now - since >= timedelta(days=days) or row["snapshot_id"] is None:
        spark.sql(f"DROP VIEW {access.names.published}.{quote_spark(name)}")
        return
    if DEPRECATED not in known:
        instead = None if row is last else f"{access.names.published}.{row['relation']}"
        _log.warning("view deprecated", extra={"view": f"{access.names.published}.{name}", "instead": instead})
    if row is last and generation is not None:
        keep(access, spark, row["relation"], row["snapshot_id"], generation)
    _show(access, spark, name, row, found, since)


def _readable(found: dict[str, Any] | TableDamaged | None) -> dict[str, Any]:
    if isinstance(found, TableDamaged):
        raise found
    return found or {}


def _tagged(access: LakeAccess, name: str, tag: str) -> int | None:
    """Return the table snapshot of `current.<name>` for which a check has made this tag; None if it is gone.

    The tag may have been moved since.
    """
    snapshot_id = int(tag.rpartition("_")[2])
    found = reads.metadata(access, f"{access.names.current}.{name}")
    return None if reads.snapshot(found, snapshot_id) is None else snapshot_id


def _show(
    access: LakeAccess,
    spark: SparkSession,
    name: str,
    row: Mapping[str, Any],
    found: Mapping[str, Any],
    deprecated: datetime | None = None,
) -> None:
    """Make one view, with this metadata, show a table snapshot of `current`.

    Do nothing if it already does or the snapshot is missing.
    """
    known = found.get("properties") or {}
    ours = known.get("cdc.query") == _digest(reads.sql_of_view(found) or "")  # not replaced since
    wanted = {"cdc.relid": str(row["relid"]), TAG: row["tag"], READ: row["relation"]}
    again = deprecated is None and DEPRECATED in known  # a table has the name again
    if deprecated is not None:
        wanted[DEPRECATED] = deprecated.isoformat()
    if ours and wanted.items() <= known.items() and not again:
        return
    if (
        reads.tags(access, f"{access.names.current}.{row['relation']}").get(row["tag"]) == row["snapshot_id"]
    ):  # otherwise it cannot be shown
        _create(access, spark, name, row["snapshot_id"], wanted)
        if again:
            spark.sql(f"ALTER VIEW {access.names.published}.{quote_spark(name)} UNSET TBLPROPERTIES ('{DEPRECATED}')")


def _create(access: LakeAccess, spark: SparkSession, name: str, snapshot_id: int, known: Mapping[str, str]) -> None:
    # A view keeps the column names that it was created with, whatever `current` becomes later. It also keeps its
    # properties if another program replaces it. The digest of the query shows whether the query is still the toolkit's.
    query = shown_sql(access, known[READ], snapshot_id)
    create(spark, f"{access.names.published}.{quote_spark(name)}", query, {**known, "cdc.query": _digest(query)})


@can_fail(Point.VIEW)
def create(spark: SparkSession, view: str, query: str, known: Mapping[str, str]) -> None:
    """Create or replace a view with these properties."""
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in known.items())
    spark.sql(f"CREATE OR REPLACE VIEW {view} TBLPROPERTIES ({properties}) AS {query}")


def _digest(query: str) -> str:
    return hashlib.sha256(query.encode()).hexdigest()

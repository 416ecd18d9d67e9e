"""Show partitioned tables whose partitions are captured as tables of their own: views over those tables.

`current.<root>` reads the tables of its partitions as they are. `published.<root>` reads the table snapshots that one
check has proven, of all partitions that the root had at the LSN of that check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from toolkit.lake import published_views, reads
from toolkit.lake.proofs import generation_of, proofs_by_name
from toolkit.lake.table_layout import schema_of, spark_type_of
from toolkit.rawlog.roots import Root, find_roots
from toolkit.rawlog.states import copied
from toolkit.values.errors import TableDamaged
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn
from toolkit.values.names import lake_table, quote_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.ledger import Ledger
    from toolkit.values.lake_access import LakeAccess

_log = logger(__name__)
#: Property of the views: the relid of the root.
ROOT = "cdc.root"
#: Property of the views of `current`: the types of their columns in the tables that they read.
_TYPES = "cdc.types"


def shown_roots(ledger: Ledger, at: Lsn | None = None) -> tuple[Root, ...]:
    """Return the roots that can be shown, now or at an LSN: the rows of all partitions are in the lake."""
    found = find_roots(ledger.rules, ledger.latest_versions(at), copied(ledger))
    return tuple(root for root in found if root.fault is None)


def query(columns: Iterable[str], relations: Iterable[str], quote: Callable[[str], str] = quote_spark) -> str:
    """Write the query of a view: these columns of all relations."""
    named = ", ".join(map(quote, columns))
    return "\nunion all\n".join(f"select {named} from {relation}" for relation in relations)


def drop_outdated(access: LakeAccess, spark: SparkSession, ledger: Ledger) -> dict[str, str]:
    """Drop the views of `current` whose root no longer exists under this name, or cannot be shown.

    Return why views with damaged metadata are left as they are.
    """
    failed: dict[str, str] = {}
    wanted = {root.name: str(root.version.table.relid) for root in shown_roots(ledger)}
    for name in reads.tables(access, access.names.current, "VIEW"):
        view = f"{access.names.current}.{name}"
        with reads.noting_damage(failed, view):
            made_of = reads.properties(access, view).get(ROOT)
            if made_of is not None and wanted.get(name) != made_of:
                spark.sql(f"DROP VIEW {access.names.current}.{quote_spark(name)}")
                _log.info("view dropped", extra={"view": view})
    return failed


def follow(access: LakeAccess, spark: SparkSession, ledger: Ledger) -> dict[str, str]:
    """Create or replace the views of `current` of which the query or a type has changed, once all partitions are built.

    Return why views with damaged metadata are left as they are.
    """
    failed: dict[str, str] = {}
    roots = shown_roots(ledger)
    built = set(reads.tables(access, access.names.current)) if roots else set()
    for root in roots:
        if root.name in built:  # a renamed table had the name, and leaves it after the next check
            _log.warning(
                "view not created: a table has its name", extra={"view": f"{access.names.current}.{root.name}"}
            )
            continue
        parts = [lake_table(part.schema, part.name) for part in root.parts]
        if built.issuperset(parts):
            relations = [f"{access.names.current}.{quote_spark(part)}" for part in parts]
            columns = (*root.columns.values(), "_cdc_from_lsn", "_cdc_text")
            view = f"{access.names.current}.{root.name}"
            types = _types(access, parts, columns)
            if types is None:
                continue
            with reads.noting_damage(failed, view):
                _show(access, spark, view, query(columns, relations), root, {_TYPES: types})
    return failed


def _types(access: LakeAccess, parts: Sequence[str], columns: Sequence[str]) -> str | None:
    """Return the types of these columns in the tables of `current`; None if the metadata of a table is damaged.

    A view keeps the types that it was created with, and cannot be read once a table has a type that does not fit them.
    """
    shapes = set()
    for found in reads.each_metadata(access, [f"{access.names.current}.{part}" for part in parts]) if parts else ():
        if found is None or isinstance(found, TableDamaged):
            return None
        types = {field["name"]: spark_type_of(field["type"]) for field in schema_of(found)["fields"]}
        shapes.add(", ".join(types.get(name, "none") for name in columns))
    return "; ".join(sorted(shapes))


def follow_published(
    access: LakeAccess, spark: SparkSession, ledger: Ledger, now: datetime, *, deprecated_days: float
) -> dict[str, str]:
    """Move the views of `published` whose partitions are all proven at the newest LSN.

    Other views stay as they are, such as that of a root with a partition that is not captured. If the root no longer
    exists, its view is dropped `deprecated_days` after the first check that found that. Return why views with damaged
    metadata are left as they are.
    """
    failed: dict[str, str] = {}
    proofs = proofs_by_name(access)
    last = ledger.last()
    if last is None:
        return failed
    # LSNs of an earlier generation may be higher, and are of another history.
    by_relid = {row["relid"]: row for row in proofs.values() if generation_of(row["tag"]) == last.generation}
    newest = max((row["lsn"] for row in by_relid.values()), default=None)
    if newest is None:
        return failed
    for root in shown_roots(ledger, Lsn(newest)):
        rows = [by_relid.get(part.relid) for part in root.parts]
        proven = [row for row in rows if row and row["lsn"] == newest]
        if len(proven) == len(rows) and root.name not in proofs:
            with reads.noting_damage(failed, f"{access.names.published}.{root.name}"):
                _publish(access, spark, root, proven, Lsn(newest))
    there = find_roots(ledger.rules, ledger.latest_versions(), copied(ledger))
    wanted = {str(root.version.table.relid) for root in there}  # also those that cannot be shown now
    for name in sorted(set(reads.tables(access, access.names.published, "VIEW")) - proofs.keys()):
        with reads.noting_damage(failed, f"{access.names.published}.{name}"):
            known = reads.properties(access, f"{access.names.published}.{name}")
            if ROOT in known and known[ROOT] not in wanted:
                _deprecate(spark, f"{access.names.published}.{quote_spark(name)}", known, now, days=deprecated_days)
    return failed


def _publish(
    access: LakeAccess, spark: SparkSession, root: Root, proven: Iterable[Mapping[str, Any]], lsn: Lsn
) -> None:
    rows = list(proven)
    relations = [
        f"{access.names.current}.{quote_spark(row['relation'])} VERSION AS OF {row['snapshot_id']}" for row in rows
    ]
    text = query((*root.columns.values(), "_cdc_text"), relations)
    # The tags keep the table snapshots, and the tables stay while a view reads them.
    known = {published_views.TAG: " ".join(row["tag"] for row in rows), "cdc.lsn": str(lsn)}
    known[published_views.READ] = " ".join(row["relation"] for row in rows)
    _show(access, spark, f"{access.names.published}.{root.name}", text, root, known)


def _show(access: LakeAccess, spark: SparkSession, view: str, text: str, root: Root, more: Mapping[str, str]) -> None:
    found = reads.metadata(access, view) or {}
    known = found.get("properties") or {}
    wanted = {ROOT: str(root.version.table.relid), **more}
    if reads.sql_of_view(found) == text and wanted.items() <= known.items() and published_views.DEPRECATED not in known:
        return
    namespace, _, name = view.partition(".")
    published_views.create(spark, f"{namespace}.{quote_spark(name)}", text, wanted)
    if published_views.DEPRECATED in known:
        spark.sql(f"ALTER VIEW {namespace}.{quote_spark(name)} UNSET TBLPROPERTIES ('{published_views.DEPRECATED}')")


def _deprecate(spark: SparkSession, view: str, known: Mapping[str, str], now: datetime, *, days: float) -> None:
    since = known.get(published_views.DEPRECATED)
    if since is None:
        spark.sql(f"ALTER VIEW {view} SET TBLPROPERTIES ('{published_views.DEPRECATED}' = '{now.isoformat()}')")
        _log.warning("view deprecated", extra={"view": view, "instead": None})
    elif now - datetime.fromisoformat(since) >= timedelta(days=days):
        spark.sql(f"DROP VIEW {view}")

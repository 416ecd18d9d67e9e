"""Keep the lake fast: every drain adds a commit with its own files, and every build adds a tag.

The raw log keeps every event that is not erased, so that any table can be rebuilt from it. Maintenance merges small
files, deletes erased rows, and removes old table snapshots and tags that no view uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from toolkit.values import progress
from toolkit.values.errors import LakeError, TableDamaged
from toolkit.values.locations import local_path

if TYPE_CHECKING:
    from toolkit.lake.opened import Lake
    from toolkit.lake.upkeep import Upkeep
    from toolkit.values.lake_access import LakeAccess

#: Days to keep table snapshots of the log. Only a running build reads an older one, and each one costs every commit
#: three milliseconds, because pyiceberg copies the list of them.
_LOG_DAYS = 1.0
_GIVE_UP = 3  # failed tables in a row: the store is at fault then
_ORPHAN_DAYS = 3.0  # a plain `dbt run` holds no lease and may not have committed its files yet


def maintain(lake: Lake) -> tuple[Upkeep, ...]:
    """Compact all tables, delete erased rows, and expire what is older than `[lake] keep_days`.

    Tags that a `published` view uses are kept, however old. A damaged table does not keep the others from it. The
    caller holds the lease.

    Raises:
        LakeError: the lake has no `raw.events`, or two of its tables could share a folder; or tables could not be
            maintained.
        CommitConflict: another process changed the log meanwhile.
    """
    from toolkit.lake import reads, session, upkeep
    from toolkit.lake.ledger import Ledger
    from toolkit.lake.proofs import kept_tags
    from toolkit.rawlog import erasure

    setting = f"spark.sql.catalog.{lake.access.lake.catalog}.unique-table-location"
    if session.spark_settings(lake.access).get(setting) != "true":
        raise LakeError(
            f"[spark] {setting} is off: a table made again under an old name shares its folder, and removing orphans"
            " would destroy its data; set it to true"
        )
    if reads.metadata_location(lake.access, lake.access.names.events) is None:
        raise LakeError(f"the lake has no {lake.access.names.events} yet; run `cdc init` first")
    now = datetime.now(UTC)
    days = lake.access.lake.keep_days
    orphans = now - timedelta(days=max(days, _ORPHAN_DAYS))
    ledger = Ledger(lake.access, rules=lake.rules)
    ledger.write_checkpoint()  # before the compaction, so that the events after it stay files of their own
    shown = kept_tags(lake.access)
    spark, last = session.own_session(lake.access), ledger.last()
    erased = erasure.condition(ledger)
    deleted = 0 if erased is None else upkeep.delete_erased(spark, lake.access, erased)
    own = lake.access.names
    kept = (own.raw, own.current, own.history, own.ops)
    names = [(namespace, table) for namespace in kept for table in reads.tables(lake.access, namespace)]
    _require_own_folders(lake.access, [f"{namespace}.{table}" for namespace, table in names])
    done: list[Upkeep] = []
    failed: dict[str, LakeError] = {}
    in_a_row = 0
    with progress.stage("maintaining", "tables", len(names)) as stage:
        for namespace, table in names:
            since = now - timedelta(days=min(days, _LOG_DAYS) if namespace == own.raw else days)
            name = stage.detail = f"{namespace}.{table}"
            stage.show()
            try:
                # An earlier log may lack files: that can be why this one was begun.
                newest = last.generation if last is not None and name == own.events else None
                one = upkeep.maintain_table(
                    spark, lake.access, name, generation=newest, keep_tags=shown, since=since, orphans=orphans
                )
                done.append(replace(one, erased=deleted) if name == own.events else one)
                in_a_row = 0
            except LakeError as error:
                failed[name], in_a_row = error, in_a_row + 1
                if in_a_row == _GIVE_UP or not _is_there(lake.access):
                    break
            stage.add()
    if failed:
        raise LakeError(_in_words(failed, untried=len(names) - len(done) - len(failed)))
    return tuple(done)


def _is_there(access: LakeAccess) -> bool:
    """Return whether store and catalog can be used. If not, each further table would wait for them in vain."""
    from toolkit.lake import tables

    try:
        tables.require_writable(access)
    except LakeError:
        return False
    return True


def _in_words(failed: Mapping[str, LakeError], untried: int) -> str:
    """Return one message, with the first error whole and the other tables by name."""
    first, *others = failed
    if not others and not untried:
        return str(failed[first])
    left = f", and {untried} more were not tried" if untried else ""
    return f"these tables could not be maintained: {', '.join(failed)}{left}; the first: {failed[first]}"


def _require_own_folders(access: LakeAccess, tables: Sequence[str]) -> None:
    """Refuse tables that share a folder, or whose folder is inside another's. A catalog server may choose them so."""
    from toolkit.lake import reads

    found = {}
    for table, metadata in zip(tables, reads.each_metadata(access, tables), strict=True):
        if isinstance(metadata, TableDamaged):  # its newest file is in its folder all the same
            place = str(reads.metadata_location(access, table)).rpartition("/metadata/")[0]
        else:
            place = str((metadata or {}).get("location", table))
        found[table] = f"{local_path(place) or place.partition('://')[2].rstrip('/')}/"
    ordered = sorted(found.items(), key=lambda item: item[1])
    for (table, folder), (other, inner) in pairwise(ordered):
        if inner.startswith(folder):
            raise LakeError(
                f"tables {table} and {other} share the folder {folder}, and removing orphans of one would destroy data"
                " of the other; set unique-table-location in the catalog, then drop and build one of them again"
            )

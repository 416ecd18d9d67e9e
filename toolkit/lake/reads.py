"""Read the metadata of lake tables without a JVM, whichever catalog names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toolkit.lake import storage
from toolkit.lake.lake_catalog import folder_of, open_catalog
from toolkit.lake.table_layout import schema_of
from toolkit.values.errors import LakeError, TableDamaged
from toolkit.values.locations import scheme
from toolkit.values.threads import in_threads

if TYPE_CHECKING:
    from toolkit.values.lake_access import LakeAccess

_AT_ONCE = 8  # tables of which a server is asked at a time


def metadata_location(access: LakeAccess, table: str) -> str | None:
    """Find the current metadata file of `namespace.table`; None if there is no such catalog or table.

    Raises:
        LakeError: the catalog cannot be read.
    """
    return open_catalog(access).location(table)


def metadata(access: LakeAccess, table: str) -> dict[str, Any] | None:
    """Read the metadata of `namespace.table`, as the Iceberg specification lays it out; None if there is no such table.

    Raises:
        LakeError: the catalog names metadata that is missing or damaged.
    """
    return open_catalog(access).metadata(table)


def each_metadata(access: LakeAccess, tables: Sequence[str]) -> Iterator[dict[str, Any] | TableDamaged | None]:
    """Read the metadata of many `namespace.table`, in their order, or return the error of one that is damaged.

    A catalog or a store that is a server is asked for several at a time, so that their answers are awaited together.

    Raises:
        LakeError: the catalog or the store cannot be read.
    """
    catalog = open_catalog(access)

    def read(table: str) -> dict[str, Any] | TableDamaged | None:
        try:
            return catalog.metadata(table)
        except TableDamaged as error:
            return error

    if catalog.folder is None or scheme(access.warehouse) not in (None, "file"):
        yield from in_threads(read, tables, _AT_ONCE)
        return
    with catalog.reading():
        yield from map(read, tables)


@contextmanager
def noting_damage(failed: MutableMapping[str, str], name: str) -> Iterator[None]:
    """Add the reason to `failed`, by this `namespace.table`, if what is done with it finds damaged metadata."""
    try:
        yield
    except TableDamaged as error:
        failed[name] = str(error)


def tables(access: LakeAccess, namespace: str, kind: str = "TABLE") -> tuple[str, ...]:
    """List the tables of a namespace (or, with kind `VIEW`, its views), in order; empty without a catalog."""
    return open_catalog(access).tables(namespace, kind)


def restore_remedy(access: LakeAccess, table: str) -> str:
    """Return the remedy for a table or view whose newest metadata file, or a file that it names, is damaged.

    A commit to the log is forced to the disk before the slot moves. The changes of a lost commit are therefore still in
    the slot, and the metadata file before it is a complete state; otherwise the next drain refuses. All other tables
    are made from the log, so the command that makes them brings an earlier state, or none, up to date.
    """
    names, namespace = access.names, table.rpartition(".")[0]
    change, usable = open_catalog(access).repair_statement(table)
    if namespace == names.raw and not usable:
        return "restore that file from a backup of the lake"
    procedure = f"stop all runs, and {change}; then run"
    if namespace == names.raw:
        return (
            f"restore that file from a backup of the lake; or {procedure} `cdc drain`, which reads what was lost from"
            " the slot once more, or refuses"
        )
    made_by = "cdc check" if namespace in (names.ops, names.published) else "cdc build"
    return f"{procedure} `{made_by}`, which makes it from the log again"


def require_no_data(access: LakeAccess, table: str) -> None:
    """Refuse a warehouse with data files of a table that the catalog does not name.

    Raises:
        LakeError: the catalog was lost or replaced, or is another one.
    """
    namespace, _, name = table.rpartition(".")
    folder = folder_of(access, namespace)
    try:
        found = storage.find(folder, f"{name}*/data/*.parquet", storage.file_properties(access))
    except OSError as error:
        raise LakeError(
            f"looking for files of {table} in {folder}: {error}; correct [lake] warehouse, its properties or the rights"
            " of this user"
        ) from None
    if found is not None:
        raise LakeError(
            f"the catalog {open_catalog(access).where} names no {table} in catalog {access.lake.catalog!r}, but the"
            f" warehouse has its files, such as {found}: the catalog was lost, or [lake] uri, catalog or warehouse is"
            " wrong; correct it, restore the catalog from a backup, or set an empty warehouse and run `cdc init`"
        )


def table_uuid(access: LakeAccess, table: str) -> str | None:
    """Read the identifier that Iceberg gave `namespace.table` at its creation; None if there is no such table."""
    found = metadata(access, table)
    return None if found is None else str(found["table-uuid"])


def properties(access: LakeAccess, table: str) -> dict[str, str]:
    """Return the properties of `namespace.table`; empty if there is no such table."""
    found = metadata(access, table)
    return dict(found.get("properties") or {}) if found else {}


def columns(access: LakeAccess, table: str) -> frozenset[str]:
    """Return the column names of `namespace.table`; empty if there is no such table."""
    found = metadata(access, table)
    return frozenset(field["name"] for field in schema_of(found)["fields"]) if found else frozenset()


def view_sql(access: LakeAccess, view: str) -> str | None:
    """Return the query of `namespace.view`; None if there is no such view."""
    return sql_of_view(metadata(access, view) or {})


def sql_of_view(found: Mapping[str, Any]) -> str | None:
    """Return the query of a view from its metadata; None if that is empty."""
    versions = (v for v in found.get("versions", ()) if v["version-id"] == found["current-version-id"])
    return next((r["sql"] for v in versions for r in v["representations"]), None)


def current_snapshot(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the current table snapshot of a metadata file; None if the table has none."""
    current = (found or {}).get("current-snapshot-id")
    return None if current is None or current == -1 else snapshot(found, current)


def snapshot(found: dict[str, Any] | None, snapshot_id: int) -> dict[str, Any] | None:
    """Return a table snapshot of a metadata file by its id; None if the table no longer has it."""
    return next((s for s in (found or {}).get("snapshots") or () if s["snapshot-id"] == snapshot_id), None)


def snapshot_id(access: LakeAccess, table: str) -> int | None:
    """Return the id of the current table snapshot of `namespace.table`."""
    current = current_snapshot(metadata(access, table))
    return None if current is None else int(current["snapshot-id"])


def commit_times(access: LakeAccess, table: str) -> tuple[int, ...]:
    """Return the times of the last commit to `namespace.table` and of its last table snapshot, in ms since 1970."""
    found = metadata(access, table) or {}
    log = (found.get("snapshot-log") or ())[-1:]
    return (*(entry["timestamp-ms"] for entry in log), *([found["last-updated-ms"]] if found else ()))


def snapshot_summary(access: LakeAccess, table: str) -> dict[str, str] | None:
    """Return the summary of the current table snapshot of `namespace.table`, which the commit wrote."""
    current = current_snapshot(metadata(access, table))
    return None if current is None else dict(current.get("summary") or {})


def tags(access: LakeAccess, table: str) -> dict[str, int]:
    """Return the table snapshot id of each tag of `namespace.table`."""
    refs = (metadata(access, table) or {}).get("refs") or {}
    return {name: int(ref["snapshot-id"]) for name, ref in refs.items() if ref["type"] == "tag"}

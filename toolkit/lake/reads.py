"""Read the metadata of lake tables without a JVM.

A table's metadata file is read as JSON. The catalog's SQLite file names it. The import of pyiceberg alone takes longer
than `cdc status` may take, so pyiceberg is used only to read rows.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from toolkit.values.errors import LakeError

if TYPE_CHECKING:
    from toolkit.values.config import Config

#: How long to wait for a process that writes to the catalog's file.
BUSY_SECONDS = 30.0


def metadata_location(config: Config, table: str) -> str | None:
    """Find the current metadata file of `namespace.table`; None if there is no such catalog or table.

    Raises:
        LakeError: the catalog file is not a catalog, or cannot be read.
    """
    return _locations(config, table)[0]


def _locations(config: Config, table: str) -> tuple[str | None, str | None]:
    """Give the current and the previous metadata file, as the catalog names them."""
    database = config.catalog_db
    if not database.is_file():
        return None, None
    namespace, _, name = table.rpartition(".")
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as connection:
            if not _columns(connection):
                return None, None
            row = connection.execute(
                "SELECT metadata_location, previous_metadata_location FROM iceberg_tables"
                " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?",
                (config.lake.catalog, namespace, name),
            ).fetchone()
    except sqlite3.OperationalError as error:
        raise LakeError(f"reading the catalog {database}: {error}; run it again, or restore that file") from None
    except sqlite3.DatabaseError as error:
        raise LakeError(f"reading the catalog {database}: {error}; [lake] uri must name an Iceberg catalog") from None
    return (row[0], row[1]) if row else (None, None)


#: The command that brings a table up to date after the catalog was pointed to an earlier metadata file.
_BROUGHT_BACK = {"current": "cdc build", "history": "cdc build", "ops": "cdc check", "published": "cdc check"}


def way_back(config: Config, table: str) -> str:
    """Say what to do about a table or view of which the newest metadata file, or a file that it names, is damaged.

    Of the log, a commit is forced to the disk before the slot moves: what the lost commit had is still in the slot, and
    the metadata file before it is a complete state; where that does not hold, the next drain refuses. All others are
    made from the log, so that an earlier state, or none, is brought up to date by the command that makes them.
    """
    namespace, _, name = table.rpartition(".")
    place = zip(("catalog_name", "table_namespace", "table_name"), (config.lake.catalog, namespace, name), strict=True)
    where = " and ".join(f"{column} = '{value}'" for column, value in place)
    before = _locations(config, table)[1]
    usable = before is not None and _readable(before)
    if namespace == "raw" and not usable:
        return "restore that file from a backup of the lake"
    change = f"update iceberg_tables set metadata_location = '{before}'" if usable else "delete from iceberg_tables"
    procedure = (
        f"stop all runs, and let the catalog {'name the file before it' if usable else 'forget it'} by"
        f' sqlite3 {config.catalog_db} "{change} where {where}"; then run'
    )
    if namespace == "raw":
        return (
            f"restore that file from a backup of the lake; or {procedure} `cdc drain`, which reads what was lost from"
            " the slot once more, or refuses"
        )
    return f"{procedure} `{_BROUGHT_BACK.get(namespace, 'cdc build')}`, which makes it from the log again"


def _readable(location: str) -> bool:
    try:
        return bool(_parsed(location))
    except (OSError, ValueError):
        return False


def _parsed(location: str) -> dict[str, Any]:
    path = urlparse(location).path if location.startswith("file:") else location
    data = Path(path).read_bytes()
    return dict(json.loads(gzip.decompress(data) if path.endswith(".gz.metadata.json") else data))


def metadata(config: Config, table: str) -> dict[str, Any] | None:
    """Read the metadata of `namespace.table`, as the Iceberg specification lays it out; None if there is no such table.

    Raises:
        LakeError: the catalog names a metadata file that is missing or damaged.
    """
    for attempt in (1, 2):
        location = metadata_location(config, table)
        if location is None:
            return None
        try:
            return _parsed(location)
        except (OSError, ValueError) as error:
            # Between the two reads the table may have been dropped. Many commits may also have removed the file.
            if attempt == 2 or metadata_location(config, table) == location:
                raise LakeError(
                    f"table {table}: metadata file {urlparse(location).path} cannot be read: {error}; run `cdc doctor`"
                ) from None
    return None


def require_no_data(config: Config, table: str) -> None:
    """Refuse a warehouse with data files of a table that the catalog does not name.

    Raises:
        LakeError: the catalog was lost or replaced, or is another one.
    """
    namespace, _, name = table.rpartition(".")
    found = next((config.warehouse / namespace).glob(f"{name}*/data/**/*.parquet"), None)
    if found is not None:
        raise LakeError(
            f"the catalog {config.catalog_db} names no {table} in catalog {config.lake.catalog!r}, but the warehouse"
            f" has its files, such as {found}: the catalog was lost, or [lake] uri, catalog or warehouse is wrong;"
            " correct it, restore the catalog's file from a backup, or set an empty warehouse and run `cdc init`"
        )


def properties(config: Config, table: str) -> dict[str, str]:
    """Give the properties of `namespace.table`; empty if there is no such table."""
    found = metadata(config, table)
    return dict(found.get("properties") or {}) if found else {}


def columns(config: Config, table: str) -> frozenset[str]:
    """Give the column names of `namespace.table`; empty if there is no such table."""
    found = metadata(config, table) or {}
    fields = (s["fields"] for s in found.get("schemas", ()) if s["schema-id"] == found["current-schema-id"])
    return frozenset(field["name"] for field in next(fields, ()))


def view_sql(config: Config, view: str) -> str | None:
    """Give the query of `namespace.view`; None if there is no such view."""
    found = metadata(config, view) or {}
    versions = (v for v in found.get("versions", ()) if v["version-id"] == found["current-version-id"])
    return next((r["sql"] for v in versions for r in v["representations"]), None)


def current_snapshot(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """Give the current table snapshot of a metadata file; None if the table has none."""
    current = (found or {}).get("current-snapshot-id")
    if found is None or current is None or current == -1:
        return None
    return next((s for s in found.get("snapshots", ()) if s["snapshot-id"] == current), None)


def snapshot_id(config: Config, table: str) -> int | None:
    """Give the id of the current table snapshot of `namespace.table`."""
    snapshot = current_snapshot(metadata(config, table))
    return None if snapshot is None else int(snapshot["snapshot-id"])


def commit_times(config: Config, table: str) -> tuple[int, ...]:
    """Give the times of the last commit to `namespace.table` and of its last table snapshot, in ms since 1970."""
    found = metadata(config, table) or {}
    log = (found.get("snapshot-log") or ())[-1:]
    return (*(entry["timestamp-ms"] for entry in log), *([found["last-updated-ms"]] if found else ()))


def snapshot_summary(config: Config, table: str) -> dict[str, str] | None:
    """Give the summary of the current table snapshot of `namespace.table`, which the commit wrote."""
    snapshot = current_snapshot(metadata(config, table))
    return None if snapshot is None else dict(snapshot.get("summary") or {})


def tags(config: Config, table: str) -> dict[str, int]:
    """Give the table snapshot id of each tag of `namespace.table`."""
    refs = (metadata(config, table) or {}).get("refs") or {}
    return {name: int(ref["snapshot-id"]) for name, ref in refs.items() if ref["type"] == "tag"}


def tables(config: Config, namespace: str, kind: str = "TABLE") -> tuple[str, ...]:
    """List the tables of a namespace (or, with kind `VIEW`, its views), in order; empty without a catalog."""
    database = config.catalog_db
    if not database.is_file():
        return ()
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as connection:
        try:
            if "iceberg_type" not in _columns(connection):
                return ()
            rows = connection.execute(
                "SELECT table_name FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ?"
                " AND coalesce(iceberg_type, 'TABLE') = ? ORDER BY 1",
                (config.lake.catalog, namespace, kind),
            ).fetchall()
        except sqlite3.OperationalError as error:
            raise LakeError(f"reading the catalog {database}: {error}; run it again, or restore that file") from None
    return tuple(row[0] for row in rows)


def _columns(connection: sqlite3.Connection) -> set[str]:
    """Give the columns of the catalog's list of tables; empty before the first table."""
    return {row[0] for row in connection.execute("SELECT name FROM pragma_table_info('iceberg_tables')").fetchall()}

"""Read rows of lake tables without a JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.lake import direct_scan, storage
from toolkit.lake.direct_scan import PARQUET, Unusual, Where
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.reads import current_snapshot, metadata, metadata_location
from toolkit.values.errors import LakeError

if TYPE_CHECKING:
    import pyarrow as pa

    from toolkit.values.lake_access import LakeAccess


def scan_arrow(
    access: LakeAccess,
    table: str,
    columns: Sequence[str] = ("*",),
    *,
    where: Where | str = (),
    snapshot: int | None = None,
) -> pa.Table | None:
    """Read rows of a small `namespace.table` at table snapshot id `snapshot` (by default the current one).

    None if there is no such table. A condition that is a text is one for pyiceberg.

    Raises:
        LakeError: a file of the table is missing or damaged.
    """
    found = metadata(access, table)
    if found is None:
        return None
    try:
        if not isinstance(where, str):
            try:
                return direct_scan.read(found, snapshot, columns, where, storage.file_properties(access))
            except Unusual:
                where = direct_scan.text(where)
        from pyiceberg.expressions import AlwaysTrue

        opened = open_catalog(access).load_table(table)
        return opened.scan(where or AlwaysTrue(), selected_fields=tuple(columns), snapshot_id=snapshot).to_arrow()
    except (OSError, EOFError, ValueError) as error:  # the last two: half a file
        raise unreadable(access, table, error) from None


def unreadable(access: LakeAccess, table: str, error: Exception) -> LakeError:
    """Return the error for a `namespace.table` of which a file is missing or damaged."""
    return LakeError(
        f"table {table}: a file of it cannot be read: {' '.join(str(error).split())[:300]};"
        f" {access.names.remedy(table)}"
    )


def require_files(access: LakeAccess, table: str) -> None:
    """Check that the files of the current table snapshot of a small `namespace.table` are there and can be read.

    Raises:
        LakeError: a file of the table is missing or damaged.
    """
    current = current_snapshot(metadata(access, table))
    properties = storage.file_properties(access)
    try:
        for file in direct_scan.all_files(current["manifest-list"], properties) if current else ():
            (storage.footer if file["file_format"] == PARQUET else storage.read)(file["file_path"], properties)
    except (OSError, EOFError, ValueError) as error:
        raise unreadable(access, table, error) from None


def lost_files(access: LakeAccess, table: str, where: Where = ()) -> list[str]:
    """Return the locations of the files that a `namespace.table` of any size names and that are not there.

    One listing of the table's folder finds the others. They are not opened. With a condition, only files are looked for
    that may have rows for which it holds.

    Raises:
        LakeError: a manifest of the table is missing or damaged, or its folder cannot be listed.
    """
    found = metadata(access, table)
    current = current_snapshot(found)
    if found is None or current is None:
        return []
    properties = storage.file_properties(access)
    try:
        files = direct_scan.all_files(current["manifest-list"], properties, found, where)
        named = [file["file_path"] for file in files]
        return storage.missing(named, found["location"], properties)
    except (OSError, EOFError, ValueError) as error:
        raise unreadable(access, table, error) from None


def scan_batches(access: LakeAccess, table: str, columns: Sequence[str], *, where: str) -> Iterator[pa.RecordBatch]:
    """Read rows of a `namespace.table` of any size, one batch at a time; none if there is no such table.

    Raises:
        LakeError: a file of the table is missing or damaged.
    """
    if metadata_location(access, table) is None:
        return
    found = open_catalog(access).load_table(table).scan(where, selected_fields=tuple(columns))
    try:
        yield from found.to_arrow_batch_reader()
    except (OSError, EOFError, ValueError) as error:
        raise unreadable(access, table, error) from None


def scan(
    access: LakeAccess,
    table: str,
    columns: Sequence[str] = ("*",),
    *,
    where: Where | str = (),
    snapshot: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Read rows of a small `namespace.table` as `scan_arrow` does; none if there is no such table."""
    found = scan_arrow(access, table, columns, where=where, snapshot=snapshot)
    yield from direct_scan.rows_of(found) if found is not None else ()

"""Read rows of lake tables through pyiceberg, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.reads import metadata_location
from toolkit.values.errors import LakeError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression

    from toolkit.values.config import Config


def scan_arrow(
    config: Config,
    table: str,
    columns: Sequence[str] = ("*",),
    *,
    where: BooleanExpression | str | None = None,
    snapshot: int | None = None,
) -> pa.Table | None:
    """Read rows of a small `namespace.table` at table snapshot id `snapshot` (by default the current one).

    None if there is no such table.

    Raises:
        LakeError: a file of the table is missing or damaged.
    """
    if metadata_location(config, table) is None:
        return None
    from pyiceberg.expressions import AlwaysTrue

    opened = open_catalog(config).load_table(table)
    try:
        return opened.scan(where or AlwaysTrue(), selected_fields=tuple(columns), snapshot_id=snapshot).to_arrow()
    except (OSError, EOFError, ValueError) as error:  # the last two: half a file
        raise LakeError(f"table {table}: a file of it cannot be read: {error}; run `cdc doctor`") from None


def scan_batches(config: Config, table: str, columns: Sequence[str], *, where: str) -> Iterator[pa.RecordBatch]:
    """Read rows of a `namespace.table` of any size, one batch at a time; none if there is no such table."""
    if metadata_location(config, table) is None:
        return
    yield from (
        open_catalog(config).load_table(table).scan(where, selected_fields=tuple(columns)).to_arrow_batch_reader()
    )


def scan(
    config: Config, table: str, columns: Sequence[str] = ("*",), *, where: str | None = None
) -> Iterator[dict[str, Any]]:
    """Read rows of a small `namespace.table`; none if there is no such table."""
    found = scan_arrow(config, table, columns, where=where)
    yield from found.to_pylist() if found is not None else ()

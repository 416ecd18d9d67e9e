"""Give readers other than Spark the rows that the views of `published` show, without a JVM.

Only Spark can run those views. Their content is a table snapshot of `current` that `ops.published` names, and any
Iceberg reader can ask for it by its id. This module reads `ops.published` and not the views: one commit changes
`ops.published`, and the views are updated after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from toolkit.lake import reads
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.proofs import proofs_by_name, shown_columns
from toolkit.values.errors import NotProven
from toolkit.values.lsn import Lsn
from toolkit.values.names import in_one_line, meant, nearest, quote_postgres

if TYPE_CHECKING:
    from pyiceberg.table import DataScan

    from toolkit.values.lake_access import LakeAccess


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """The content of the view `published.<relation>`, and the location of its rows.

    `metadata` is the newest metadata file of `current.<relation>`, and `columns` are those of the view.
    """

    table: str
    relation: str
    lsn: Lsn
    proven_at: datetime
    status: str
    tag: str
    snapshot_id: int
    metadata: str
    columns: tuple[str, ...]


def published_tables(access: LakeAccess) -> tuple[PublishedTable, ...]:
    """List the published tables by their names in the lake, all from one commit of `ops.published`.

    Raises:
        NotProven: no check has published a table yet.
        LakeError: a published table snapshot no longer exists.
    """
    return tuple(_published(access, name, row) for name, row in sorted(_proofs(access).items()))


def scan_published(access: LakeAccess, table: str) -> DataScan:
    """Return pyiceberg's scan of a published table, by its name at the source or in the lake.

    The scan has the columns of the view. Narrow it with `filter` and `select`, and read it with `to_arrow` or another
    method.

    Raises:
        NotProven: no table of that name is published.
        LakeError: the published table snapshot no longer exists.
    """
    proofs = _proofs(access)
    names = {row["table"]: name for name, row in sorted(proofs.items(), reverse=True)}
    name = table if table in proofs else names.get(meant(table, names) or "")
    if name is None:
        hint = nearest(table, names)
        raise NotProven(f"published table {table}: there is none; {hint}; run `cdc check` if it was never proven")
    found = _published(access, name, proofs[name])
    current = open_catalog(access).load_table(f"{access.names.current}.{found.relation}")
    snapshot = current.snapshot_by_id(found.snapshot_id)
    # pyiceberg takes the columns of a filter from the table's current schema, even for an older table snapshot.
    at_proof = {"current_schema_id": snapshot and snapshot.schema_id, "current_snapshot_id": found.snapshot_id}
    current.metadata = current.metadata.model_copy(update=at_proof)
    return current.scan(selected_fields=found.columns, snapshot_id=found.snapshot_id)


def duckdb_script(access: LakeAccess) -> str:
    """Write the statements that create DuckDB views with the names, columns and rows of the views of `published`."""
    schema = access.names.published
    lines = [f"create schema if not exists {schema};"]
    for table in published_tables(access):
        columns = ", ".join(map(quote_postgres, table.columns))
        metadata = table.metadata.replace("'", "''")
        lines += [
            f"-- {in_one_line(table.table)} at {table.lsn}",
            f"create or replace view {schema}.{quote_postgres(table.relation)} as select {columns}"
            f" from iceberg_scan('{metadata}', snapshot_from_id = {table.snapshot_id});",
        ]
    return "\n".join(lines)


def _proofs(access: LakeAccess) -> dict[str, dict[str, Any]]:
    proofs = proofs_by_name(access)
    if not proofs:
        raise NotProven(f"published tables of {access.warehouse}: there are none; run `cdc check`")
    return proofs


def _published(access: LakeAccess, name: str, row: Mapping[str, Any]) -> PublishedTable:
    columns = shown_columns(access, name, row["snapshot_id"])
    metadata = reads.metadata_location(access, f"{access.names.current}.{name}")
    assert metadata is not None
    return PublishedTable(
        table=row["table"], relation=name, lsn=Lsn(row["lsn"]), proven_at=row["proven_at"],
        status=row["status"], tag=row["tag"], snapshot_id=row["snapshot_id"],
        metadata=metadata, columns=columns,
    )  # fmt: skip

"""Refuse to write to a log that another program has altered: files of the toolkit would not be of its form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolkit.lake import reads
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.table_layout import BATCH_WIDTH, schema_of, spark_type_of, spec_of
from toolkit.lake.tables import SPARK_TYPES
from toolkit.rawlog.arrow import EVENT_SCHEMA
from toolkit.values.errors import LakeError

if TYPE_CHECKING:
    from toolkit.values.lake_access import LakeAccess

_PARTITIONS = (("kind", "identity"), ("batch_id", f"truncate[{BATCH_WIDTH}]"))


def require(access: LakeAccess) -> None:
    """Refuse a table of the log that has another format, other partitions, or not the columns of events.

    Raises:
        LakeError: it is such a table.
    """
    events = access.names.events
    found = reads.metadata(access, events)
    altered = None if found is None else _altered(found)
    if altered is not None:
        change, usable = open_catalog(access).repair_statement(events)
        way_back = f"stop all runs, and {change}" if usable else "restore its metadata file from a backup of the lake"
        raise LakeError(
            f"{events}: another program has altered the table: {altered}; nothing can be written to it until that is"
            f" undone: {way_back}, and run it again"
        )


def _altered(found: dict[str, Any]) -> str | None:
    """Describe what is not as `cdc init` has created it; None if nothing is."""
    if found["format-version"] != 2:
        return f"its format is {found['format-version']}, not 2"
    fields = schema_of(found)["fields"]
    columns = {field["name"]: spark_type_of(field["type"]).upper() for field in fields}
    for field in EVENT_SCHEMA:
        wanted = SPARK_TYPES[field.type]
        if field.name not in columns:
            return f"it has no column {field.name}"
        if columns[field.name] != wanted:
            return f"its column {field.name} is {columns[field.name].lower()}, not {wanted.lower()}"
    names = {field["id"]: field["name"] for field in fields}
    if [(names.get(f["source-id"]), f["transform"]) for f in spec_of(found)["fields"]] != [*_PARTITIONS]:
        return "it has other partitions than by kind and batch"
    return None

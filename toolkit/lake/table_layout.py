"""Say from a table's metadata which columns and partitions it has, and where its new data files are.

Metadata are here as the JSON of the Iceberg specification, not as objects of pyiceberg, whose import takes longer than
the rest of a small drain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Properties of a table that change where its data files are.
ELSEWHERE = ("write.data.path", "write.object-storage.enabled")
#: Batches in one partition of `raw.events`.
BATCH_WIDTH = 1000
#: Spark's names of Iceberg types, where the two names differ.
_SPARK = {"long": "bigint", "timestamp": "timestamp_ntz", "timestamptz": "timestamp"}


def schema_of(metadata: Mapping[str, Any], number: int | None = None) -> dict[str, Any]:
    """Return a schema of a table: the current one, unless another number is given."""
    wanted = metadata["current-schema-id"] if number is None else number
    return dict(next(schema for schema in metadata["schemas"] if schema["schema-id"] == wanted))


def spark_type_of(type_: Any) -> str:
    """Return Spark's name of a type in a metadata file."""
    if isinstance(type_, str):
        return _SPARK.get(type_, type_.replace(" ", ""))
    if type_["type"] == "list":
        return f"array<{spark_type_of(type_['element'])}>"
    if type_["type"] == "map":
        return f"map<{spark_type_of(type_['key'])},{spark_type_of(type_['value'])}>"
    return str(type_)


def spec_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the current partitioning of a table."""
    wanted = metadata["default-spec-id"]
    return dict(next(spec for spec in metadata["partition-specs"] if spec["spec-id"] == wanted))


def field_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Return the Iceberg field id of each column, and of the elements of lists as `column.element`."""
    found: dict[str, int] = {}
    for field in schema_of(metadata)["fields"]:
        found[field["name"]] = field["id"]
        if isinstance(field["type"], dict) and "element-id" in field["type"]:
            found[f"{field['name']}.element"] = field["type"]["element-id"]
    return found


def partition_of(metadata: Mapping[str, Any], kind: str, batch_id: int) -> dict[str, Any]:
    """Return the partition of `raw.events` that has the events of a kind of a batch, by the names of its fields."""
    columns = {number: name for name, number in field_ids(metadata).items()}
    values = partition_values(kind, batch_id)
    return {field["name"]: values[columns[field["source-id"]]] for field in spec_of(metadata)["fields"]}


def partition_values(kind: str, batch_id: int) -> dict[str, Any]:
    """Return the values of a partition of `raw.events` by the columns that they are made of."""
    return {"kind": kind, "batch_id": batch_id - batch_id % BATCH_WIDTH}


def new_location(metadata: Mapping[str, Any], kind: str, batch_id: int, name: str) -> str:
    """Return the place of a new Parquet file of `raw.events`, as the properties of the table have it."""
    folders = (f"{field}={value}" for field, value in partition_of(metadata, kind, batch_id).items())
    file, given = "/".join((*folders, f"{name}.parquet")), metadata.get("properties", {})
    if not any(key in given for key in ELSEWHERE):
        return f"{metadata['location']}/data/{file}"
    from pyiceberg.table.locations import load_location_provider

    return load_location_provider(metadata["location"], given).new_data_location(file)

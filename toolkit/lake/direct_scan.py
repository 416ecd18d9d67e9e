"""Read rows of a small lake table from its Parquet files: pyiceberg takes longer to import than `cdc status` may.

Whatever is unusual about the table (deletes, a column that a file lacks, a type that needs more than a cast) is left to
pyiceberg.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from toolkit.lake import avro, storage

if TYPE_CHECKING:
    import pyarrow as pa

#: A condition on one column: its name, an operator, and a value, or values for `in` and `not in`.
Term = tuple[str, str, Any]
Terms = Sequence[Term]
#: Rows for which all terms of one of these hold; every row if there is none.
Where = Sequence[Terms]

_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATA = 0  # content of a manifest, or of a file, that is no delete
PARQUET = "PARQUET"  # the format of a data file; deletion vectors have another
DELETED = 2  # status of an entry whose file is no part of the table any more


class Unusual(Exception):
    """The table snapshot has what this module does not read."""


@dataclass(frozen=True, slots=True)
class _Column:
    id: int
    name: str
    kind: Any  # as the Iceberg specification names it


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table as `to_pylist` does."""
    columns = map(values_of, table.columns)
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as `to_pylist` does, which imports pandas for a time.

    Raises:
        Unusual: a time is outside the range of Python's datetime.
    """
    import pyarrow as pa

    if not pa.types.is_timestamp(column.type) or column.type.unit != "us":
        return list(column.to_pylist())
    start = _EPOCH if column.type.tz is not None else _EPOCH.replace(tzinfo=None)
    numbers = column.cast(pa.int64()).to_pylist()
    try:
        return [None if n is None else start + timedelta(microseconds=n) for n in numbers]
    except OverflowError:
        raise Unusual from None


def text(where: Where) -> str:
    """Write a condition in the words that pyiceberg reads; empty for every row."""
    return " or ".join(f"({' and '.join(map(_term_text, terms))})" for terms in where)


def _term_text(term: Term) -> str:
    column, comparison, value = term
    if comparison in ("in", "not in"):
        return f"{column} {comparison} ({', '.join(map(_literal, value))})"
    return f"{column} {comparison} {_literal(value)}"


def _literal(value: Any) -> str:
    if isinstance(value, datetime):
        return f"'{value.isoformat()}'"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(int(value))


def read(
    metadata: Mapping[str, Any],
    snapshot: int | None,
    columns: Sequence[str],
    where: Where,
    properties: Mapping[str, str],
) -> pa.Table:
    """Read columns (all for `*`) of the rows for which a condition holds, at a table snapshot.

    Raises:
        Unusual: pyiceberg must read it.
        OSError, ValueError: a file is missing or damaged.
    """
    import pyarrow as pa

    chosen = metadata.get("current-snapshot-id") if snapshot is None else snapshot
    found = next((s for s in metadata.get("snapshots") or () if s["snapshot-id"] == chosen), None)
    if found is None and snapshot is not None:
        raise Unusual
    of = metadata["current-schema-id"] if snapshot is None or found is None else found.get("schema-id")
    known = _columns(metadata, of)
    wanted = list(known) if tuple(columns) == ("*",) else list(columns)
    needed = list(dict.fromkeys([*wanted, *(term[0] for terms in where for term in terms)]))
    if not known.keys() >= set(needed):
        raise Unusual
    parts = [
        _matching(file["file_path"], [known[name] for name in needed], where, properties)
        for file in ([] if found is None else data_files(found["manifest-list"], properties))
        if _may_hold(file, known, where)
    ]
    schema = pa.schema([(name, _arrow_type(known[name].kind)) for name in needed])
    return (pa.concat_tables(parts) if parts else pa.Table.from_batches([], schema)).select(wanted)


def data_files(manifest_list: str, properties: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Return the data files of a table snapshot, as Iceberg's manifests describe them.

    Raises:
        Unusual: there is any other file, such as a deletion vector.
        OSError, ValueError: a file is missing or damaged.
    """
    for manifest in _records(manifest_list, properties):
        if manifest["content"] != _DATA:
            raise Unusual
        for file in _files(manifest, properties):
            if file.get("content", _DATA) != _DATA or file["file_format"] != PARQUET:
                raise Unusual
            yield file


def all_files(
    manifest_list: str, properties: Mapping[str, str], metadata: Mapping[str, Any] | None = None, where: Where = ()
) -> Iterator[dict[str, Any]]:
    """Return the data files of a table snapshot and those that delete rows, as Iceberg's manifests describe them.

    With a condition and the metadata of the table, only files that may have rows for which the condition holds.

    Raises:
        OSError, ValueError: a manifest is missing or damaged.
    """
    known = {} if metadata is None else _columns(metadata, metadata["current-schema-id"])
    for manifest in _records(manifest_list, properties):
        yield from (file for file in _files(manifest, properties) if _may_hold(file, known, where))


def _files(manifest: Mapping[str, Any], properties: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for entry in _records(manifest["manifest_path"], properties):
        if entry["status"] != DELETED:
            yield entry["data_file"]


def _columns(metadata: Mapping[str, Any], schema: int | None) -> dict[str, _Column]:
    fields = next((s["fields"] for s in metadata["schemas"] if s["schema-id"] == schema), None)
    if fields is None:
        raise Unusual
    return {field["name"]: _Column(field["id"], field["name"], field["type"]) for field in fields}


def _records(location: str, properties: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    data = storage.read(location, properties)
    with storage.decoding(location):
        yield from avro.records(data)


def _may_hold(file: Mapping[str, Any], columns: Mapping[str, _Column], where: Where) -> bool:
    """Return whether a file may have rows for which the condition holds, by the bounds of its columns."""
    if not where:
        return True
    lower, upper = _by_id(file["lower_bounds"]), _by_id(file["upper_bounds"])

    def may(term: Term) -> bool:
        name, comparison, value = term
        column = columns[name]
        low, high = _bound(column, lower.get(column.id)), _bound(column, upper.get(column.id))
        if low is None or high is None:
            return True
        if comparison == "in":
            return any(low <= one <= high for one in value)
        if comparison == "not in":
            return low != high or low not in value
        if comparison == "=":
            return bool(low <= value <= high)
        return _COMPARED[comparison](high if comparison.startswith(">") else low, value)

    return any(all(map(may, terms)) for terms in where)


def _by_id(found: Collection[Mapping[str, Any]] | None) -> dict[int, Any]:
    """Return the bounds of each column by field id: a map of Avro has only texts as keys."""
    return {pair["key"]: pair["value"] for pair in found or ()}


def _bound(column: _Column, value: bytes | None) -> Any:
    """Read the bound of a column; None where it says nothing of use. A text may be cut, except where all is kept."""
    if value is None:
        return None
    if column.kind == "long" and len(value) == 8:
        return struct.unpack("<q", value)[0]
    if column.kind == "int" and len(value) == 4:
        return struct.unpack("<i", value)[0]
    return value.decode() if column.kind == "string" and len(value) < 16 else None


def _matching(location: str, columns: Sequence[_Column], where: Where, properties: Mapping[str, str]) -> pa.Table:
    """Read columns of the rows of a Parquet file for which a condition holds."""
    data = storage.read(location, properties)
    with storage.decoding(location):
        rows = _rows(data, columns)
    return rows.filter(_mask(rows, where)) if where else rows


def _rows(data: bytes, columns: Sequence[_Column]) -> pa.Table:
    """Read columns of a Parquet file by their field ids."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(data))
    names: dict[int, str] = {}
    for field in file.schema_arrow:
        number = (field.metadata or {}).get(b"PARQUET:field_id")
        if number is not None:
            names[int(number)] = field.name
    if any(column.id not in names for column in columns):
        raise Unusual  # the file is older than the column
    rows = file.read([names[column.id] for column in columns], use_threads=False)
    cast = [_cast(rows.column(names[column.id]), column) for column in columns]
    return pa.Table.from_arrays(cast, [column.name for column in columns])


def _cast(column: pa.ChunkedArray, wanted: _Column) -> pa.ChunkedArray:
    import pyarrow as pa

    type_ = _arrow_type(wanted.kind)
    if column.type == type_:
        return column
    alike = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary(), pa.int32(): pa.int64()}
    if alike.get(column.type) == type_ or (pa.types.is_map(type_) and pa.types.is_map(column.type)):
        return column.cast(type_)
    raise Unusual


def _arrow_type(kind: Any) -> pa.DataType:
    import pyarrow as pa

    if isinstance(kind, dict) and kind["type"] == "map":
        return pa.map_(_arrow_type(kind["key"]), _arrow_type(kind["value"]))
    if isinstance(kind, str) and kind.startswith("decimal("):
        precision, scale = map(int, kind[len("decimal(") : -1].split(","))
        return pa.decimal128(precision, scale)
    found = {
        "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "string": pa.string(), "binary": pa.binary(),
        "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", tz="UTC"),
    }.get(kind if isinstance(kind, str) else "")  # fmt: skip
    if found is None:
        raise Unusual
    return found


def _mask(rows: pa.Table, where: Where) -> pa.Array:
    """Return for each row whether the condition holds. A comparison with NULL does not hold.

    Python compares the few rows: a value or an array that pyarrow makes of Python's values imports pandas.
    """
    import numpy as np
    import pyarrow as pa

    names = {name for terms in where for name, _, _ in terms}
    values = {name: values_of(rows.column(name)) for name in names}

    def holds(row: int) -> bool:
        return any(all(_holds(values[name][row], *rest) for name, *rest in terms) for terms in where)

    bits = np.packbits(np.fromiter(map(holds, range(rows.num_rows)), bool, rows.num_rows), bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), rows.num_rows, [None, pa.py_buffer(bits)])


def _holds(found: Any, comparison: str, value: Any) -> bool:
    if found is None:
        return False
    if comparison in _COMPARED:
        return _COMPARED[comparison](found, value)
    return (found in value) == (comparison == "in")

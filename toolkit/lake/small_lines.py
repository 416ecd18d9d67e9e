"""Compute the lake's side of parity of many small tables in one query, with the lines of `toolkit.lake.row_lines`.

A scan by Spark costs more than the rows of a small table. The driver therefore reads the files of small tables itself,
and one query converts the cells of all of them: columns of one type together, by the expressions of `row_lines`. A
table is read like this only if its files have all columns of its table snapshot, in the types that a build writes, and
if no delete file and no text of `_cdc_text` changes what they show. Every other table is left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from toolkit.lake import direct_scan, reads, row_lines, storage
from toolkit.lake.direct_scan import Unusual
from toolkit.lake.pandas_on_demand import create_frame
from toolkit.lake.table_layout import schema_of
from toolkit.values import progress
from toolkit.values.errors import LakeError
from toolkit.values.lake_types import BareType, spark_type
from toolkit.values.log_setup import logger
from toolkit.values.names import lake_columns
from toolkit.values.row_line import total

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from toolkit.lake.row_lines import Side
    from toolkit.values.lake_access import LakeAccess
    from toolkit.values.progress import Stage
    from toolkit.values.row_line import Figures, Native

_log = logger(__name__)
_VIEW = "cdc_small_lines"
#: The largest table, by bytes and number of its files, rows and columns.
_BYTES, _FILES, _ROWS, _COLUMNS = 4 << 20, 16, 100_000, 50
#: The bytes of Arrow data of one query, of which Spark makes several copies, and the most that one table may have: a
#: small file may hold the same large value many times.
_QUERY, _MOST = 8 << 20, 64 << 20
_AT_ONCE = 1_000  # rows of a file that are read before their size is looked at
_TEXTS = "_cdc_text"


@dataclass(frozen=True, slots=True)
class _Cell:
    """The conversion of a column to bytes: its type in the lake, and an expression over `_cdc_cell`."""

    type: str
    sql: str


def figures(spark: SparkSession, access: LakeAccess, sides: Sequence[Side]) -> dict[int, Figures]:
    """Return the figures of the tables that can be read without a scan by Spark, by relid."""
    found: dict[int, Figures] = {}
    # The stage includes the queries: at its end, what they used returns to the system.
    with progress.stage("reading small tables of the lake", "tables", len(sides)) as stage:
        for counted in map(partial(_figures, spark), _jobs(access, sides, stage)):
            found |= counted
    return found


def _jobs(access: LakeAccess, sides: Sequence[Side], stage: Stage) -> Iterator[list[tuple[Side, pa.Table]]]:
    """Read small tables, as many at a time as one query takes."""
    job: list[tuple[Side, pa.Table]] = []
    size = 0
    for side in sides:
        stage.add()
        rows = _rows(access, side)
        if rows is None:
            continue
        job.append((side, rows))
        size += rows.nbytes
        if size > _QUERY:
            yield job
            job, size = [], 0
    if job:
        yield job


def _rows(access: LakeAccess, side: Side) -> pa.Table | None:
    """Read the compared columns of a table, in the order of the comparison; None if it is left to Spark."""
    import pyarrow as pa

    # An Arrow table without columns has no rows either.
    if side.snapshot_id is None or not 0 < len(side.plan.columns) <= _COLUMNS:
        return None
    name = side.table
    try:
        return _read(access, reads.metadata(access, name), side)
    except (Unusual, OSError, EOFError, ValueError, KeyError, pa.ArrowException) as error:
        _log.info("left to Spark", extra={"table": name, "reason": repr(error)[:300]})
        return None


def _read(access: LakeAccess, metadata: dict[str, Any] | None, side: Side) -> pa.Table | None:
    import pyarrow as pa

    if metadata is None or side.snapshot_id is None:
        return None
    snapshot = reads.snapshot(metadata, side.snapshot_id)
    if snapshot is None or not _small(snapshot):
        return None
    numbers = {field["name"]: field["id"] for field in schema_of(metadata, snapshot["schema-id"])["fields"]}
    names = lake_columns([(c.attnum, c.name) for c in side.plan.table.columns])
    wanted = [(numbers[names[c.attnum]], _arrow_type(spark_type(c))) for c in side.plan.columns]
    texts = numbers[_TEXTS]
    if any(type_ is None for _, type_ in wanted):
        return None
    properties = storage.file_properties(access)
    parts: list[pa.Table] = []
    for file in direct_scan.data_files(snapshot["manifest-list"], properties):
        most = _MOST - sum(part.nbytes for part in parts)
        part = _file(storage.read(file["file_path"], properties), wanted, texts, most)
        if part is None:
            return None
        parts.append(part)
    empty = pa.schema([(f"c{n}", type_) for n, (_, type_) in enumerate(wanted)]).empty_table()
    return pa.concat_tables(parts) if parts else empty


def _small(snapshot: Mapping[str, Any]) -> bool:
    """Return whether the summary of a table snapshot says that the table is small and without deleted rows."""
    summary = snapshot.get("summary") or {}
    limits = {"total-files-size": _BYTES, "total-data-files": _FILES, "total-records": _ROWS, "total-delete-files": 0}
    return all(name in summary and int(summary[name]) <= most for name, most in limits.items())


def _file(data: bytes, wanted: Sequence[tuple[int, Any]], texts: int, most: int = _MOST) -> pa.Table | None:
    """Read columns, given by field id and type, of a Parquet file.

    None if one is missing, a row keeps texts, or the rows have more than `most` bytes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(data))
    positions: dict[int, int] = {}
    for position, field in enumerate(file.schema_arrow):
        number = (field.metadata or {}).get(b"PARQUET:field_id")
        if number is not None:
            positions[int(number)] = position
    if texts not in positions or any(number not in positions for number, _ in wanted):
        return None
    batches: list[pa.RecordBatch] = []
    for batch in file.iter_batches(_AT_ONCE, use_threads=False):
        most -= batch.nbytes
        if most < 0:
            return None
        batches.append(batch)
    rows = pa.Table.from_batches(batches, file.schema_arrow)
    if rows.num_columns != len(file.schema_arrow) or rows.column(positions[texts]).null_count != rows.num_rows:
        return None
    columns = [_narrow(rows.column(positions[number])) for number, _ in wanted]
    if any(column.type != type_ for column, (_, type_) in zip(columns, wanted, strict=True)):
        return None  # written as another type, which Spark widens
    return pa.table({f"c{n}": column for n, column in enumerate(columns)})


def _narrow(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts with offsets of 32 bits, as Spark writes them. pyiceberg writes 64 bits."""
    import pyarrow as pa

    return column.cast({pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(column.type, column.type))


def _arrow_type(type_: str) -> Any:
    """Return the Arrow type in which a Parquet file holds a Spark type; None if cells of it are not simple."""
    import pyarrow as pa

    if type_.startswith("decimal"):
        precision, scale = map(int, type_[len("decimal(") : -1].split(","))
        return pa.decimal128(precision, scale)
    return {
        "boolean": pa.bool_(), "int": pa.int32(), "bigint": pa.int64(), "float": pa.float32(), "double": pa.float64(),
        "date": pa.date32(), "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ntz": pa.timestamp("us"),
        "binary": pa.binary(), "string": pa.string(),
    }.get(type_)  # fmt: skip


def _figures(spark: SparkSession, job: Sequence[tuple[Side, pa.Table]]) -> dict[int, Figures]:
    import pyarrow as pa

    found: dict[int, dict[int, Any]] = {side.plan.table.relid: {} for side, _ in job}
    cells = [_cells(side) for side, _ in job]
    groups = list(dict.fromkeys(cell for columns in cells for cell in columns))
    # As one chunk: Spark reads no batch after one without rows, which a table without rows would be.
    rows = pa.concat_tables(_packed(*one, own, groups) for one, own in zip(job, cells, strict=True)).combine_chunks()
    if not rows.num_rows:
        return dict(found)
    values = "".join(f", v{n} array<{group.type}>" for n, group in enumerate(groups))
    frame = create_frame(spark, rows, f"relid bigint, buckets bigint, number binary, places array<int>{values}")
    frame.createOrReplaceTempView(_VIEW)
    try:
        counted = row_lines.query(spark, row_lines.figures_sql(_lines_sql(groups))).collect()
    finally:
        spark.catalog.dropTempView(_VIEW)
    for relid, bucket, *figures in counted:
        found[relid][bucket] = row_lines.bucket(*figures)
    made = sum(total(figures) for figures in found.values())
    if made != rows.num_rows:
        raise LakeError(f"reading small tables of the lake: {made} of {rows.num_rows} rows were counted; run it again")
    return dict(found)


def _cells(side: Side) -> list[_Cell]:
    return [_cell(BareType.of(c), side.plan.natives.get(i)) for i, c in enumerate(side.plan.columns)]


@cache
def _cell(type_: BareType, native: Native | None) -> _Cell:
    return _Cell(spark_type(type_), row_lines.cell_sql("_cdc_cell", type_, native))


def _packed(side: Side, rows: pa.Table, cells: Sequence[_Cell], groups: Sequence[_Cell]) -> pa.Table:
    """Put the cells of a table into one array for each group, and say where each column is in all of them."""
    import numpy as np
    import pyarrow as pa

    count = rows.num_rows
    made: dict[str, Any] = {}
    places = [0] * len(cells)
    before = 0
    for number, group in enumerate(groups):
        mine = [n for n, cell in enumerate(cells) if cell == group]
        width = len(mine)
        for at, n in enumerate(mine):
            places[n] = before + at
        before += width
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * width)
        flat = pa.array([], _arrow_type(group.type))
        if width:
            row_wise = np.arange(count * width).reshape(width, count).T.ravel()
            chunks = [chunk for n in mine for chunk in rows.column(n).chunks]
            flat = pa.concat_arrays(chunks).take(pa.array(row_wise)) if chunks else flat
        made[f"v{number}"] = pa.ListArray.from_arrays(offsets, flat)
    same = pa.array(np.zeros(count, np.int32))
    whole = {
        "relid": pa.array([side.plan.table.relid], pa.int64()),
        "buckets": pa.array([side.plan.buckets], pa.int64()),
        "number": pa.array([len(cells).to_bytes(2, "big")], pa.binary()),
        "places": pa.array([places], pa.list_(pa.int32())),
    }
    return pa.table({**{name: value.take(same) for name, value in whole.items()}, **made})


def _lines_sql(groups: Sequence[_Cell]) -> str:
    """Write the query for the lines of all rows of the view."""
    cells = ", ".join(f"transform(v{n}, _cdc_cell -> {group.sql})" for n, group in enumerate(groups))
    sized = "concat(line, coalesce(cast(octet_length(cell) as binary), X'FFFFFFFF'), coalesce(cell, X''))"
    line = f"aggregate(transform(places, p -> get(cells, p)), number, (line, cell) -> {sized})"
    inner = f"SELECT relid, buckets, number, places, concat({cells}) AS cells FROM {_VIEW}"
    return f"SELECT relid, buckets, {line} AS line FROM ({inner})"

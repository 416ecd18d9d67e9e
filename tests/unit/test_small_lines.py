"""How much of a small file the driver reads."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolkit.lake import small_lines

pytestmark = pytest.mark.unit


def _field(number: int, name: str, type_: pa.DataType) -> pa.Field:
    return pa.field(name, type_, metadata={"PARQUET:field_id": str(number)})


@pytest.mark.parametrize(("width", "read"), [(20, True), (20_000, False)])
def test_a_small_file_of_much_data_is_left_to_spark(width: int, read: bool) -> None:
    """150 kB of a value that repeats were a gigabyte in the driver, and several in the JVM."""
    schema = pa.schema([_field(1, "t", pa.string()), _field(2, "_cdc_text", pa.map_(pa.string(), pa.string()))])
    values = [f"{n % 5}{'x' * width}" for n in range(1_000)]
    rows = pa.table([pa.array(values), pa.nulls(1_000, schema.field(1).type)], schema=schema)
    file = io.BytesIO()
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for _ in range(10):
            writer.write_table(rows)
    assert len(file.getvalue()) < small_lines._BYTES
    before = pa.total_allocated_bytes()
    found = small_lines._file(file.getvalue(), [(1, pa.string())], 2)
    assert (found is not None and found.num_rows == 10_000) == read
    assert pa.total_allocated_bytes() - before < small_lines._MOST

"""Bring Arrow batches of events from Spark's Python workers into a frame.

The half that reads runs in Spark's Python workers, so it uses nothing that needs Spark's driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from toolkit.lake.tables import spark_schema
from toolkit.rawlog.arrow import EVENT_SCHEMA
from toolkit.values.errors import DecodeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Part:
    """The input of one Spark task, in reading order."""

    tasks: tuple[Any, ...] = ()
    files: tuple[Path, ...] = ()
    inline: bytes = b""  # an Arrow stream of events that the driver made


def events_frame(spark: SparkSession, parts: Sequence[Part], decode: str) -> DataFrame:
    """Make a frame of `EVENT_SCHEMA` with one partition for each part.

    `decode` names the decoder as `module:function`, called with `(task.path, task)`.

    This is not a Python Data Source: each planning step of a data source keeps its own daemon and worker alive in every
    session. Those are five pairs, which need more memory than a batch and add a second to the first commit.
    """

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_part(parts[number], decode)

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, spark_schema())


def read_part(part: Part, decode: str) -> Iterator[pa.RecordBatch]:
    """Give the batches of `EVENT_SCHEMA` of a part. Runs in the worker."""
    module, _, name = decode.partition(":")
    function = getattr(import_module(module), name)
    for task in part.tasks:
        yield from map(_conform, function(task.path, task))
    for file in part.files:
        yield from map(_conform, read_file(file))
    if part.inline:
        with pa.ipc.open_stream(part.inline) as stream:
            yield from map(_conform, stream)


def read_file(path: Path) -> Iterator[pa.RecordBatch]:
    """Read batches of a Parquet file, an Arrow file or an Arrow stream; the first bytes identify the format."""
    with pa.OSFile(str(path), "rb") as file:
        magic = file.read(6)
        file.seek(0)
        if magic.startswith(b"PAR1"):
            import pyarrow.parquet as pq

            yield from pq.ParquetFile(file).iter_batches()
        elif magic == b"ARROW1":
            with pa.ipc.open_file(file) as reader:
                for index in range(reader.num_record_batches):
                    yield reader.get_batch(index)
        else:
            with pa.ipc.open_stream(file) as stream:
                yield from stream


def _conform(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Check the layout of a batch: the JVM reads columns by position and type and would not notice another layout."""
    if batch.schema.equals(EVENT_SCHEMA):
        return batch
    if batch.schema.names != EVENT_SCHEMA.names:
        raise DecodeError(f"a batch has columns {batch.schema.names}, expected {EVENT_SCHEMA.names}")
    return batch.cast(EVENT_SCHEMA)

"""Brings Arrow batches of events from Spark's Python workers into a frame.

Its reading half runs in Spark's Python workers, so it touches nothing that talks to Spark's driver.
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
    """What one Spark task reads, in this order."""

    tasks: tuple[Any, ...] = ()
    files: tuple[Path, ...] = ()
    inline: bytes = b""  # an Arrow stream of driver-made events


def events_frame(spark: SparkSession, parts: Sequence[Part], decode: str) -> DataFrame:
    """A frame of `EVENT_SCHEMA` with one partition a part; `decode` is `module:function` of `(task.path, task)`.

    Not a Python Data Source: each of its planning steps keeps a daemon and a worker of its own alive in every
    session, five pairs in all, which is more memory than a batch takes and a second of the first commit.
    """

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_part(parts[number], decode)

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, spark_schema())


def read_part(part: Part, decode: str) -> Iterator[pa.RecordBatch]:
    """Batches of `EVENT_SCHEMA`, made in the worker."""
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
    """Batches of a Parquet file, an Arrow file or an Arrow stream, told apart by their first bytes."""
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
    """The JVM reads columns by position and type and would not notice another layout."""
    if batch.schema.equals(EVENT_SCHEMA):
        return batch
    if batch.schema.names != EVENT_SCHEMA.names:
        raise DecodeError(f"a batch has columns {batch.schema.names}, expected {EVENT_SCHEMA.names}")
    return batch.cast(EVENT_SCHEMA)

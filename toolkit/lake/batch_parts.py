"""Decode a part of a batch and write its rows into a data file of `raw.events`.

This runs in Spark's Python workers or in the driver, so it uses nothing that needs Spark's driver.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from toolkit.lake.files import EventsFile, FileTarget
from toolkit.rawlog.arrow import EVENT_SCHEMA
from toolkit.rawlog.event import Kind
from toolkit.values.errors import DecodeError

if TYPE_CHECKING:
    from toolkit.lake.executors import Delivery


@dataclass(frozen=True, slots=True)
class Part:
    """The input of one file, in reading order."""

    tasks: tuple[Any, ...] = ()
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """The result for a part: a file, if there are row events, and the few other events as an Arrow stream."""

    place: str
    rows: int
    others: bytes


def write_part(part: Part, place: str, target: FileTarget, decode: str, delivery: Delivery | None = None) -> Written:
    """Decode a part and write its row events into a file at `place`, if there are any.

    On a cluster, the paths of tasks are places of the store, which `delivery` reads.

    Raises:
        DecodeError, OSError: no file remains.
        LakeError: the executor has other code than the driver; no file remains.
    """
    others: list[pa.RecordBatch] = []
    with ExitStack() as stack:
        file: EventsFile | None = None
        for batch in read_part(part, decode, delivery):
            of_rows = pc.equal(batch.column("kind"), Kind.ROW)
            if of_rows.false_count:  # truncates and gaps
                others.append(batch.filter(pc.invert(of_rows)))
            if of_rows.true_count:
                file = file or stack.enter_context(EventsFile(place, target))
                file.write(batch.filter(of_rows) if of_rows.false_count else batch)
    return Written(place, file.rows if file is not None else 0, _stream(others))


def read_part(part: Part, decode: str, delivery: Delivery | None = None) -> Iterator[pa.RecordBatch]:
    """Return the batches of `EVENT_SCHEMA` of a part."""
    if delivery is not None:
        delivery.require_same_code()
    module, _, name = decode.partition(":")
    function = getattr(import_module(module), name)
    for task in part.tasks:
        spool = task.path if delivery is None else delivery.fetched(task.path, task.span[1])
        yield from map(_conform, function(spool, task))
    for file in part.files:
        yield from map(_conform, read_file(file))


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
    """Check the layout of a batch: a file takes columns by their position and would not notice another order."""
    if batch.schema.equals(EVENT_SCHEMA):
        return batch
    if batch.schema.names != EVENT_SCHEMA.names:
        raise DecodeError(f"a batch has columns {batch.schema.names}, expected {EVENT_SCHEMA.names}")
    return batch.cast(EVENT_SCHEMA)


def _stream(batches: Sequence[pa.RecordBatch]) -> bytes:
    if not batches:
        return b""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, EVENT_SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()

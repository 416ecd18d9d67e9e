"""Stage one batch: write its rows to data files where they are decoded, then commit them with its ledger row.

A task decodes its part and writes one file. Spark runs many tasks; one task runs in this process, without a JVM. The
commit names the files, so what a task wrote and no commit took is no part of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from toolkit.lake import pandas_on_demand, reads
from toolkit.lake.batch_parts import Part, Written, write_part
from toolkit.lake.clock import require_clock
from toolkit.lake.executor_spool import delivered
from toolkit.lake.files import FileTarget
from toolkit.lake.ledger import Ledger, conflict
from toolkit.lake.spark_tasks import attempt_place, run_in_tasks, runs_once
from toolkit.lake.uncommitted import new_files
from toolkit.rawlog.arrow import Event
from toolkit.values.errors import CdcError, LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.rawlog.batch import BatchRecord
    from toolkit.values.capture_rules import CaptureRules
    from toolkit.values.lake_access import LakeAccess

DECODE = "toolkit.decode.rows:decode_rows"


def commit_batch(
    access: LakeAccess,
    record: BatchRecord,
    *,
    tasks: Sequence[Any],
    events: Sequence[Event],
    base_snapshot: int | None,
    arrow_files: Sequence[Path] = (),
    decode: str = DECODE,
    spark: SparkSession | None = None,
    rules: CaptureRules,
) -> int:
    """Commit a batch against the table snapshot at which the ledger was read. Return the new table snapshot id.

    Args:
        tasks: decode tasks; with `spark` each becomes a task of Spark, else all are decoded here, one after the other.
        events: further events of the batch.
        arrow_files: Arrow streams of events, which are read here.
        decode: the decoder as `module:function`, called with `(task.path, task)`.

    Raises:
        CommitConflict: another runner committed since `base_snapshot`; nothing was written.
        DecodeError: the stream is damaged; nothing was written.
        LakeError: any other failure; nothing was written, or the message says that this is unknown.
    """
    pandas_on_demand.settle_pyarrow()
    require_clock(access.names.events, *reads.commit_times(access, access.names.events))
    ledger = Ledger(access, rules=rules)
    if ledger.snapshot_id() != base_snapshot:
        raise conflict(record.batch_id)
    with new_files(access) as files:
        target = FileTarget(files.ids, files.properties)
        here = Part(() if spark else tuple(tasks), tuple(arrow_files))
        written = [_write_here(record, here, files.place(record.batch_id), target, decode)]
        if spark is not None:
            with delivered(access, tasks) as (readable, delivery):
                spread = [(Part((task,)), files.place(record.batch_id)) for task in readable]
                writer = partial(write_part, target=target, decode=decode, delivery=delivery)
                written += _write_by_spark(record, spark, spread, writer)
        others = [event for part in written for event in _events(part.others)]
        filled = [part.place for part in written if part.rows]
        with files.committing(filled):
            return ledger.append(record, [*events, *others], filled)


def _write_here(record: BatchRecord, part: Part, place: str, target: FileTarget, decode: str) -> Written:
    try:
        return write_part(part, place, target, decode)
    except CdcError as error:
        raise type(error)(f"committing batch {record.batch_id}: {error}") from None
    except OSError as error:
        raise LakeError(
            f"committing batch {record.batch_id}: writing its rows: {error.strerror or error}; correct that, and run"
            " it again"
        ) from None


def _write_by_spark(
    record: BatchRecord, spark: SparkSession, parts: Sequence[tuple[Part, str]], writer: Callable[[Part, str], Written]
) -> list[Written]:
    """Run one task of Spark for each part and its place."""
    once = runs_once(spark)

    def write(given: tuple[Part, str]) -> Written:
        part, place = given
        return writer(part, place if once else attempt_place(place))

    return run_in_tasks(spark, parts, write, f"committing batch {record.batch_id}")


def _events(stream: bytes) -> Iterator[Event]:
    if stream:
        with pa.ipc.open_stream(stream) as batches:
            for batch in batches:
                yield from (Event(**row) for row in batch.to_pylist())

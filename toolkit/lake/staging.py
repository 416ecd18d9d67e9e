"""Stage one batch: commit its rows and its ledger row in one Iceberg commit, or commit nothing."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from toolkit.lake import reads
from toolkit.lake.clock import require_clock
from toolkit.lake.frames import Part, events_frame
from toolkit.lake.lake_catalog import force
from toolkit.lake.ledger import SUMMARY_KEY, conflict
from toolkit.lake.tables import EVENTS
from toolkit.rawlog.arrow import EVENT_SCHEMA, Event, to_arrow
from toolkit.rawlog.batch import batch_events
from toolkit.values import errors
from toolkit.values.errors import CdcError, LakeError
from toolkit.values.names import quote_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.rawlog.batch import BatchRecord
    from toolkit.values.config import Config

DECODE = "toolkit.decode.rows:decode_rows"
_LOST_RACE = ("ValidationException", "CommitFailedException")


def commit_batch(
    spark: SparkSession,
    config: Config,
    record: BatchRecord,
    *,
    tasks: Sequence[Any],
    events: Sequence[Event],
    base_snapshot: int | None,
    arrow_files: Sequence[Path] = (),
    decode: str = DECODE,
) -> int:
    """Commit a batch against the table snapshot at which the ledger was read. Return the new table snapshot id.

    Every task and every file of `arrow_files` (Arrow or Parquet, of `EVENT_SCHEMA`) is one partition. If the table
    already has a batch with this number, it is replaced. `base_snapshot` is None if there was no `raw.events` yet.

    Raises:
        CommitConflict: another runner committed since `base_snapshot`; nothing was written.
        DecodeError: the stream is damaged; nothing was written.
        LakeError: any other failure; nothing was written, or the message says that this is unknown.
    """
    if base_snapshot is None:
        base_snapshot = _first_snapshot(config)
    require_clock(EVENTS, *reads.commit_times(config, EVENTS))
    driver_made = _stream(to_arrow(batch_events(record, events)))
    parts = [Part(tasks=(task,)) for task in tasks] + [Part(files=(file.resolve(),)) for file in arrow_files]
    # The few events that the driver made join the first task. A task of their own costs as much as thousands of rows.
    parts[:1] = [replace(parts[0] if parts else Part(), inline=driver_made)]

    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    writer = (
        events_frame(spark, parts, decode)
        .writeTo(f"{quote_spark(config.lake.catalog)}.{EVENTS}")
        .option("isolation-level", "serializable")
        .option("validate-from-snapshot-id", str(base_snapshot))
        .option(f"snapshot-property.{SUMMARY_KEY}", record.to_json())
    )
    try:
        writer.overwrite(F.col("batch_id") == F.lit(record.batch_id))
    except (Py4JError, PySparkException) as error:
        landed = _committed(config, record)  # the commit may have succeeded although its answer was lost
        if landed is None:
            raise _refusal(record, error) from None
    else:
        landed = _committed(config, record)
        if landed is None:
            raise LakeError(
                f"committing batch {record.batch_id}: Spark reports success, but {EVENTS} lacks it; run it again"
            )
    force(config, EVENTS, landed)
    return landed


def _first_snapshot(config: Config) -> int:
    """Give the empty table snapshot that `tables.ensure` made. The caller has seen no commit after it."""
    found = reads.metadata(config, EVENTS) or {}
    first = next((s for s in found.get("snapshots", ()) if s.get("parent-snapshot-id") is None), None)
    if first is None:
        raise LakeError(f"the lake has no {EVENTS} yet; run `cdc init` first")
    return int(first["snapshot-id"])


def _committed(config: Config, record: BatchRecord) -> int | None:
    """Find the table snapshot id of exactly this record, which carries its own time; None if it is missing."""
    text = record.to_json()
    for snapshot in reversed((reads.metadata(config, EVENTS) or {}).get("snapshots", [])):
        if (snapshot.get("summary") or {}).get(SUMMARY_KEY) == text:
            return int(snapshot["snapshot-id"])
    return None


def _stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, EVENT_SCHEMA) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _refusal(record: BatchRecord, error: Exception) -> CdcError:
    """Give one line for the failure in the JVM or in a worker."""
    text = f"{error}\n{getattr(error, 'java_exception', None) or ''}"
    # A worker's own error arrives as the last line of its traceback.
    own = re.search(r"^toolkit\.values\.errors\.(\w+): (.+)$", text, re.MULTILINE)
    if own is not None:
        kind: type[CdcError] = getattr(errors, own[1], LakeError)
        return kind(f"committing batch {record.batch_id}: {own[2]}")
    if any(name in text for name in _LOST_RACE):
        return conflict(record.batch_id)
    causes = re.findall(r"^(?:Caused by: )?((?:\w+\.)*\w*(?:Error|Exception)\b.*)$", text, re.MULTILINE)
    unknown = " (it is not known whether it landed; the next run finds out)" if "CommitStateUnknown" in text else ""
    reason = (causes[-1] if causes else next(iter(text.splitlines()), type(error).__name__))[:300]
    return LakeError(f"committing batch {record.batch_id}: {reason}{unknown}; run it again")

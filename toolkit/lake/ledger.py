"""Read and append the ledger without a JVM: `batch` events of the raw log, and other events that the driver needs.

A `Ledger` is one reading. All of its answers come from the table snapshot that it read first, so that a batch can be
committed against exactly what was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from toolkit.lake import log_layout, reads, scans
from toolkit.lake.direct_scan import Unusual, rows_of
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.table_layout import partition_values
from toolkit.rawlog import checkpoint, order
from toolkit.rawlog.arrow import Event, to_arrow
from toolkit.rawlog.batch import BatchRecord, batch_events
from toolkit.rawlog.event import BULK, Kind
from toolkit.rawlog.reading import LogReading
from toolkit.values.errors import CommitConflict, LakeError
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionKey
    from pyiceberg.table import Table

    from toolkit.lake.direct_scan import Terms, Where
    from toolkit.rawlog.reading import Made
    from toolkit.values.capture_rules import CaptureRules
    from toolkit.values.lake_access import LakeAccess

#: Kinds with a number of events that grows with the users' activity or with time. They are read only when needed.
_RECORDED = frozenset({Kind.DDL, Kind.MESSAGE, Kind.TRUNCATE, Kind.BATCH})
#: Snapshot summary property with the record of the batch that the snapshot committed. It is a copy of its `batch`
#: event.
SUMMARY_KEY = "cdc.batch"


def conflict(batch_id: int) -> CommitConflict:
    """Make the error for a batch when another runner has committed first."""
    return CommitConflict(
        f"committing batch {batch_id}: another runner committed to the log first; nothing was written, run it again"
    )


class Ledger(LogReading):
    """The ledger of a lake at the time of the first question. It is empty if there is no catalog or table."""

    def __init__(self, access: LakeAccess, *, rules: CaptureRules) -> None:
        self.access, self._rules = access, rules
        self._recorded: dict[str, list[dict[str, Any]]] = {}
        self._current_made: Made = {}

    @property
    def rules(self) -> CaptureRules:
        """Return what decides which tables are captured, and how."""
        return self._rules

    @cached_property
    def _snapshot(self) -> dict[str, Any] | None:
        found = reads.metadata(self.access, self.access.names.events)
        if found is None:
            reads.require_no_data(self.access, self.access.names.events)
        return reads.current_snapshot(found)

    def snapshot_id(self) -> int | None:
        """Return the table snapshot id of `raw.events` that this reading uses."""
        return None if self._snapshot is None else int(self._snapshot["snapshot-id"])

    def require(self) -> Ledger:
        """Return this reading if `cdc init` has set up the lake.

        Raises:
            LakeError: the lake has no ledger yet.
        """
        if self.last() is None:
            raise LakeError("the lake has no ledger yet; run `cdc init` first")
        return self

    def refresh(self) -> None:
        """Discard what was read; the next question reads again."""
        for name in ("_snapshot", "_last", "_events", "_made", "_current_events"):
            self.__dict__.pop(name, None)
        self._recorded.clear()
        self._current_made = {}  # readings from before keep theirs

    def last(self) -> BatchRecord | None:
        """Return the newest batch; None before the first. It is read from the snapshot's summary, or else the log."""
        return self._last

    @cached_property
    def _last(self) -> BatchRecord | None:
        if self._snapshot is None:
            return None
        summary = self._snapshot.get("summary") or {}
        stated = BatchRecord.from_json(summary[SUMMARY_KEY]) if SUMMARY_KEY in summary else None
        if stated is not None and summary.get("operation") == "append":
            return stated
        if summary.get("total-records") == "0":
            return None
        # Other writers make snapshots without this property. Maintenance repeats the record that it found, and another
        # runner may have committed a batch before the commit of the maintenance.
        later: Terms = [] if stated is None else [("batch_id", ">", stated.batch_id)]
        numbers = self._read([[("kind", "=", Kind.BATCH), *later]], ("batch_id",))
        newest = max((row["batch_id"] for row in numbers), default=None)
        if newest is None:
            return stated
        (row,) = self._read([[("kind", "=", Kind.BATCH), ("batch_id", "=", newest)]], ("payload",))
        return BatchRecord.from_json(row["payload"])

    def decides(self, batch_id: int, lsn: Lsn) -> bool:
        """Return whether any event that plans or states depend on is of a later batch, or at this LSN or later."""
        deciding = ("kind", "in", (*checkpoint.DECIDING, Kind.TRUNCATE))
        later = [[deciding, ("batch_id", ">", batch_id)], [deciding, ("commit_lsn", ">=", int(lsn))]]
        return bool(self._read(later, ("batch_id",)))

    def current(self) -> LogReading:
        """Return a reading of the present state, from the newest checkpoint on. Without one it is this reading."""
        last, events = self.last(), self._current_events
        if last is None or events is None:
            return self
        later = ("batch_id", ">", last.checkpoint)
        return checkpoint.CurrentReading(
            self, events, lambda: self._scan([[("kind", "=", Kind.DDL), later]]), self._current_made
        )

    @cached_property
    def _current_events(self) -> Mapping[str, Sequence[Mapping[str, Any]]] | None:
        """Read the events of the newest checkpoint and those since; None if no checkpoint serves.

        The reading of them is not kept, because it refers to this one: Python frees what refers to itself much later.
        """
        last = self.last()
        if last is None or last.checkpoint is None:
            return None
        made = self._read([[("kind", "=", Kind.CHECKPOINT), ("batch_id", "=", last.checkpoint)]], ("payload",))
        tail = self._scan([[("kind", "in", checkpoint.DECIDING), ("batch_id", ">", last.checkpoint)]])
        carried = checkpoint.from_json(made[0]["payload"]) if made else None
        return checkpoint.by_kind(carried, tail) if carried is not None and checkpoint.serves(carried, tail) else None

    @can_fail(Point.CHECKPOINT)
    def write_checkpoint(self) -> None:
        """Write a checkpoint if any event since the last one decides a state, and remove those before it."""
        last = self.last()
        if last is None or (last.checkpoint is not None and not self._undecided(last.checkpoint)):
            return
        rows = checkpoint.kept(self)
        if not rows:
            return
        number = last.batch_id + 1
        event = Event(
            batch_id=number, generation=last.generation, **order.made_at(last.complete_to)._asdict(),
            ordinal=order.CHECKPOINT, kind=Kind.CHECKPOINT, payload=checkpoint.to_json(rows),
        )  # fmt: skip
        record = last.next([event], checkpoint=number)
        self.append(record, [event])
        if last.checkpoint is not None:
            from pyiceberg.exceptions import CommitFailedException, ValidationException

            # Another runner may have removed it. If not, the next checkpoint removes this one too.
            with suppress(CommitFailedException, ValidationException):
                open_catalog(self.access).load_table(self.access.names.events).delete(
                    f"kind = '{Kind.CHECKPOINT}' and batch_id < {number}",
                    snapshot_properties={SUMMARY_KEY: record.to_json()},
                )
            self.refresh()

    def _undecided(self, batch_id: int) -> bool:
        deciding = ("kind", "in", (*checkpoint.DECIDING, Kind.DDL))
        return bool(self._read([[deciding, ("batch_id", ">", batch_id)]], ("batch_id",)))

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Return all events of a kind that is not in `BULK`, in log order."""
        if kind not in _RECORDED:
            return self._events.get(kind, [])
        if kind not in self._recorded:
            self._recorded[kind] = self._scan([[("kind", "=", kind)]])
        return self._recorded[kind]

    @cached_property
    def _events(self) -> dict[str, list[dict[str, Any]]]:
        """Read every event that decides the state of a table, by kind in log order. One scan serves all questions."""
        left_out = sorted({*BULK, *_RECORDED, Kind.CHECKPOINT})
        by_kind: dict[str, list[dict[str, Any]]] = {}
        for row in self._scan([[("kind", "not in", left_out)]]):
            by_kind.setdefault(row["kind"], []).append(row)
        return by_kind

    def _scan(self, where: Where) -> list[dict[str, Any]]:
        """Read whole events, in log order."""
        return sorted(self._read(where, checkpoint.COLUMNS), key=order.log_order)

    def _read(self, where: Where, columns: Sequence[str]) -> list[dict[str, Any]]:
        if self._snapshot is None:
            return []
        found = scans.scan_arrow(
            self.access, self.access.names.events, columns, where=where, snapshot=self.snapshot_id()
        )
        return [] if found is None else rows_of(found)

    def append_empty(self, record: BatchRecord, events: Sequence[Event] = ()) -> int:
        """Append a batch without files, as `append` does."""
        return self.append(record, events)

    def append(self, record: BatchRecord, events: Sequence[Event] = (), files: Sequence[str] = ()) -> int:
        """Commit a batch of a few events that the driver made, without a JVM. Return the new table snapshot id.

        `files` are the locations of Parquet files of row events (`lake.files.EventsFile`), in the folder of the table.

        Raises:
            CommitConflict: another process committed after this ledger was read; nothing was written.
            LakeError: there is no `raw.events`, or another program has altered it.
        """
        log_layout.require(self.access)
        all_events = batch_events(record, events)
        base = self.snapshot_id()
        if base is None:
            raise LakeError(
                f"committing batch {record.batch_id}: no {self.access.names.events} in the lake yet; run `cdc init`"
            )
        last = self.last()
        if last is not None and record.batch_id <= last.batch_id:
            raise CommitConflict(
                f"committing batch {record.batch_id}: the ledger is at batch {last.batch_id} already; run it again"
            )
        committed = self._append_directly(base, all_events, record, files)
        if committed is None:
            committed = self._append(base, all_events, record, files)
        self.refresh()
        return committed

    def _append_directly(
        self, base: int, events: Sequence[Event], record: BatchRecord, files: Sequence[str]
    ) -> int | None:
        """Commit without pyiceberg; None if the catalog or the table is not of the kind that allows it."""
        from toolkit.lake import direct_append

        try:
            committed = direct_append.append(
                self.access, self.access.names.events, base, events, files, {SUMMARY_KEY: record.to_json()}
            )
        except Unusual:
            return None
        if committed is None:
            raise conflict(record.batch_id)
        return committed

    def _append(self, base: int, events: Sequence[Event], record: BatchRecord, files: Sequence[str]) -> int:
        from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

        from toolkit.lake import files as data

        try:
            table = open_catalog(self.access).load_table(self.access.names.events)
            current = table.current_snapshot()
            if current is None or current.snapshot_id != base:
                raise conflict(record.batch_id)
            # pyiceberg would silently repeat a lost append after the other commit. The property is set in memory only.
            table.metadata.properties["commit.retry.num-retries"] = "0"
            key = partition(table, record.batch_id, "row")
            rows = [data.data_file(table, key, location) for location in files]
            with (
                table.transaction() as transaction,
                transaction.update_snapshot({SUMMARY_KEY: record.to_json()}).fast_append() as append,
            ):
                for file in (*rows, *_write(table, to_arrow(list(events)))):
                    append.append_data_file(file)
            committed = table.current_snapshot()
        except (CommitFailedException, NoSuchTableError):
            raise conflict(record.batch_id) from None
        assert committed is not None
        return committed.snapshot_id


def _write(table: Table, events: pa.Table) -> Iterable[DataFile]:
    """Write one data file for each partition.

    pyiceberg's own way needs a compiled extension for the truncate transform.
    """
    import uuid

    import pyarrow as pa
    import pyarrow.compute as pc
    from pyiceberg.io.pyarrow import schema_to_pyarrow, write_file
    from pyiceberg.table import WriteTask

    batch_id = events["batch_id"][0].as_py()
    for field in schema_to_pyarrow(table.schema()):
        if field.name not in events.column_names:  # a user has added it
            events = events.append_column(field.name, pa.nulls(events.num_rows, field.type))
    write_uuid = uuid.uuid4()
    tasks = []
    for number, kind in enumerate(events["kind"].unique().to_pylist()):
        rows = events.filter(pc.equal(events["kind"], kind)).to_batches()
        key = partition(table, batch_id, kind)
        tasks.append(WriteTask(write_uuid, number, table.schema(), rows, partition_key=key))
    return write_file(table.io, table.metadata, iter(tasks))


def partition(table: Table, batch_id: int, kind: str) -> PartitionKey:
    """Return the partition of `raw.events` that has the events of a kind of a batch."""
    from pyiceberg.partitioning import PartitionFieldValue, PartitionKey

    schema, spec = table.schema(), table.spec()
    values = partition_values(kind, batch_id)
    return PartitionKey(
        [PartitionFieldValue(f, values[schema.find_column_name(f.source_id) or ""]) for f in spec.fields], spec, schema
    )

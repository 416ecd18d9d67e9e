"""Keep a raw log in memory: commits and readings work as in a lake, without a lake."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from toolkit.rawlog import order
from toolkit.rawlog.arrow import EVENT_SCHEMA, Event
from toolkit.rawlog.batch import BatchRecord, batch_events
from toolkit.rawlog.checkpoint import CurrentReading, by_kind, from_json, kept, to_json
from toolkit.rawlog.event import BULK
from toolkit.rawlog.reading import LogReading
from toolkit.values.capture_rules import CaptureRules
from toolkit.values.errors import CommitConflict

_NAMES = tuple(field.name for field in fields(Event))


class MemoryLog:
    """A raw log whose events are a list in the order of their commits. `decode` gives the rows of a decode task."""

    def __init__(self, rules: CaptureRules, decode: Callable[[Any], Iterable[pa.RecordBatch]], *, partitions: int = 1):
        self.rules, self._decode, self._partitions = rules, decode, partitions
        self.events: list[dict[str, Any]] = []
        self.commits = 0

    def reading(self) -> MemoryReading:
        """Return the log as it is now."""
        return MemoryReading(self.rules, self.commits, self.events)

    def commit(
        self,
        record: BatchRecord,
        events: Sequence[Event],
        *,
        base: int | None,
        tasks: Sequence[Any] = (),
        arrow_files: Sequence[Path] = (),
        parquet_files: Sequence[str] = (),
    ) -> int:
        """Commit a batch as `toolkit.rawlog.store.RawLog` specifies.

        Raises:
            CommitConflict: `base` is not the newest commit, or the log has the batch.
        """
        if base != self.commits:
            raise CommitConflict(f"committing batch {record.batch_id}: another runner committed first; run it again")
        last = self.reading().last()
        if last is not None and record.batch_id <= last.batch_id:
            raise CommitConflict(
                f"committing batch {record.batch_id}: the ledger is at batch {last.batch_id} already; run it again"
            )
        made = [{name: getattr(event, name) for name in _NAMES} for event in batch_events(record, events)]
        for task in tasks:
            for part in self._decode(task):
                made += part.to_pylist()
        for path in arrow_files:
            with pa.ipc.open_stream(str(path)) as stream:
                made += stream.read_all().to_pylist()
        for place in parquet_files:
            made += pq.read_table(place).to_pylist()
        self.events = self.events + made
        self.commits += 1
        return self.commits

    def force(self, base: int | None) -> None:
        """Do nothing: memory has no disk."""

    def partitions(self, changes: int) -> int:
        """Return a fixed number of decode tasks."""
        return self._partitions

    @contextmanager
    def new_files(self) -> Iterator[_NewFiles]:
        """Keep files in a folder until the end of the block."""
        with tempfile.TemporaryDirectory(prefix="cdc-log-") as folder:
            yield _NewFiles(Path(folder))


class _NewFiles:
    """Files whose field ids are arbitrary numbers: no table has these columns."""

    def __init__(self, folder: Path) -> None:
        names = [name for field in EVENT_SCHEMA for name in (field.name, f"{field.name}.element")]
        self.ids: Mapping[str, int] = {name: number for number, name in enumerate(names, 1)}
        self.properties: Mapping[str, str] = {}
        self._folder = folder
        self._given = 0

    def place(self, batch_id: int) -> str:
        """Return the place of a new file."""
        self._given += 1
        return str(self._folder / f"{batch_id}-{self._given}.parquet")

    def committing(self, places: Sequence[str]) -> AbstractContextManager[None]:
        """Do nothing: a commit reads the files."""
        return nullcontext()


class MemoryReading(LogReading):
    """A `MemoryLog` at one commit."""

    def __init__(self, rules: CaptureRules, snapshot: int, events: Sequence[Mapping[str, Any]]) -> None:
        self._rules, self._snapshot, self._events = rules, snapshot, events

    @property
    def rules(self) -> CaptureRules:
        """Return what decides which tables are captured, and how."""
        return self._rules

    def snapshot_id(self) -> int:
        """Return the number of commits."""
        return self._snapshot

    def current(self) -> CurrentReading:
        """Return a reading as from a current checkpoint, so that what runs on this log tests checkpoints too."""
        return self._current

    def rows(self, kind: str) -> list[Mapping[str, Any]]:
        """Return all events of a kind, in log order."""
        return self._by_kind.get(kind, [])

    @cached_property
    def _current(self) -> CurrentReading:
        return CurrentReading(self, by_kind(from_json(to_json(kept(self))), ()), tuple)

    @cached_property
    def _by_kind(self) -> dict[str, list[Mapping[str, Any]]]:
        found: dict[str, list[Mapping[str, Any]]] = {}
        for event in sorted((e for e in self._events if e["kind"] not in BULK), key=order.log_order):
            found.setdefault(event["kind"], []).append(event)
        return found

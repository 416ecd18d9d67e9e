"""Answer questions about a raw log from its events that are not rows, regardless of where they are stored."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from toolkit.rawlog import erasure, order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.batch import BatchRecord
from toolkit.rawlog.event import (
    Baseline,
    Gap,
    Kind,
    Note,
    Origin,
    SchemaChange,
    StreamMessage,
    TableEvent,
    read_message,
)
from toolkit.rawlog.store import LogReader
from toolkit.values.capture_rules import CaptureRules
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn
from toolkit.values.table import SchemaVersion, TableVersion

_log = logger(__name__)
_P = TypeVar("_P")
_T = TypeVar("_T")
#: Objects that a reading has made of its events, by the kinds of these events.
Made = dict[tuple[str, ...], Any]


class LogReading(ABC):
    """One consistent reading of a raw log."""

    @property
    @abstractmethod
    def rules(self) -> CaptureRules:
        """Return what decides which tables are captured, and how."""

    @abstractmethod
    def snapshot_id(self) -> int | None:
        """Return the state of the log that is read: the base of the next commit."""

    @abstractmethod
    def rows(self, kind: str) -> Sequence[Mapping[str, Any]]:
        """Return all events of a kind that is not in `BULK`, in log order."""

    def current(self) -> LogReading:
        """Return a reading that answers what is so now: the newest versions, and the present states."""
        return self

    def last(self) -> BatchRecord | None:
        """Return the newest batch; None before the first."""
        return max(self.batches(), key=lambda record: record.batch_id, default=None)

    def batches(self) -> tuple[BatchRecord, ...]:
        """Return all batches, oldest first."""
        payloads = (BatchRecord.from_json(row["payload"]) for row in self.rows(Kind.BATCH))
        return tuple(sorted(payloads, key=lambda record: record.batch_id))

    def exact_at(self, lsn: Lsn) -> Lsn:
        """Return `lsn`, or, with a warning, the tick below it if this generation is exact only at ticks."""
        last = self.last()
        for record in self.batches():
            if last is None or record.generation != last.generation:
                continue
            if record.origin == Origin.CHANGE_LOG and record.tick and record.from_lsn < lsn < record.complete_to:
                _log.warning(
                    "the change log is exact at ticks only: as of the tick below",
                    extra={"asked_lsn": str(lsn), "lsn": str(record.from_lsn)},
                )
                return record.from_lsn
        return lsn

    def schema_versions(self) -> tuple[SchemaVersion, ...]:
        """Return all schema versions, in log order."""
        return self._made_of(_versions, Kind.SCHEMA)

    def latest_versions(self, at: Lsn | None = None) -> dict[int, SchemaVersion]:
        """Return the newest version of each relid in the current generation, or at an LSN, including dropped tables.

        OIDs of another incarnation of the source say nothing about this one.
        """
        last, reading = self.last(), self.current() if at is None else self
        generation = last.generation if last is not None else None
        return {
            v.table.relid: v
            for v in reading.schema_versions()
            if v.generation == generation and (at is None or v.commit_lsn < at)
        }

    def gaps(self) -> tuple[TableEvent[Gap], ...]:
        """Return all `gap` events, in log order."""
        return self._made_of(lambda gaps: _typed(gaps, Gap.from_json), Kind.GAP)

    def baselines(self) -> tuple[TableEvent[Baseline], ...]:
        """Return all `baseline` events that are not erased, in log order."""
        return self._made_of(_baselines, Kind.BASELINE, Kind.ERASED)

    def erasures(self) -> tuple[TableEvent[None], ...]:
        """Return all `erased` events, in log order."""
        return _typed(self.rows(Kind.ERASED), lambda _: None)

    def truncates(self) -> tuple[TableEvent[None], ...]:
        """Return all `truncate` events, in log order."""
        return _typed(self.rows(Kind.TRUNCATE), lambda _: None)

    def ddl_events(self) -> tuple[TableEvent[SchemaChange], ...]:
        """Return all `ddl` events, in log order."""
        return _typed(self.rows(Kind.DDL), SchemaChange.from_json)

    def messages(self) -> tuple[TableEvent[Note | StreamMessage], ...]:
        """Return all `message` events, in log order."""
        return _typed(self.rows(Kind.MESSAGE), read_message)

    @cached_property
    def _made(self) -> Made:
        return {}

    def _made_of(self, make: Callable[..., _T], *kinds: str) -> _T:
        """Return what `make` returns for the events of these kinds. It is called once, and its result is kept."""
        if kinds not in self._made:
            self._made[kinds] = make(*map(self.rows, kinds))
        found: _T = self._made[kinds]
        return found


class WithBatch(LogReading):
    """A reading together with the events of the next batch, which is not committed yet."""

    def __init__(self, reading: LogReader, events: Sequence[Event]) -> None:
        self._reading, self._events = reading, events

    @property
    def rules(self) -> CaptureRules:
        """Return what decides which tables are captured, and how."""
        return self._reading.rules

    def snapshot_id(self) -> int | None:
        """Return the state of the log without the batch."""
        return self._reading.snapshot_id()

    def current(self) -> LogReading:
        """Return a reading of what is so after the batch."""
        return WithBatch(self._reading.current(), self._events)

    def last(self) -> BatchRecord | None:
        """Return the newest committed batch."""
        return self._reading.last()

    def rows(self, kind: str) -> Sequence[Mapping[str, Any]]:
        """Return all events of a kind, including those of the batch, in log order."""
        added = ({name: getattr(e, name) for name in e.__slots__} for e in self._events if e.kind == kind)
        return sorted([*self._reading.rows(kind), *added], key=order.log_order)


def _versions(rows: Iterable[Mapping[str, Any]]) -> tuple[SchemaVersion, ...]:
    return tuple(
        SchemaVersion(
            schema_id=row["schema_id"],
            generation=row["generation"],
            commit_lsn=Lsn(row["commit_lsn"]),
            end_lsn=Lsn(row["end_lsn"]),
            ordinal=row["ordinal"],
            table=_table(row["payload"]),
            payload=row["payload"],
            xid=row["xid"],
        )
        for row in rows
    )


def _baselines(
    baselines: Sequence[Mapping[str, Any]], erasures: Sequence[Mapping[str, Any]]
) -> tuple[TableEvent[Baseline], ...]:
    return _typed(erasure.remaining(baselines, erasures), Baseline.from_json)


def _typed(rows: Iterable[Mapping[str, Any]], read: Callable[[str | None], _P]) -> tuple[TableEvent[_P], ...]:
    return tuple(
        TableEvent(
            relid=row["relid"],
            commit_lsn=Lsn(row["commit_lsn"]),
            ordinal=row["ordinal"],
            end_lsn=Lsn(row["end_lsn"]),
            batch_id=row["batch_id"],
            payload=read(row["payload"]),
            generation=row["generation"],
            schema_id=row["schema_id"],
            xid=row["xid"],
            committed_at=row["committed_at"],
        )
        for row in rows
    )


# Versions are asked for in one order, so with more of them than this, each reading would parse all of them.
@lru_cache(maxsize=1 << 15)
def _table(payload: str) -> TableVersion:
    return TableVersion.from_json(json.loads(payload))

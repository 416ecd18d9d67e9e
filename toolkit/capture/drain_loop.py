"""Run the loop of every drain: read, decode, commit once, and only then let the source discard what was read.

This order is the guarantee. A read consumes nothing, a batch is one commit that includes its ledger row, and the source
finally discards what that commit contains. After a kill at any point the lake has the old or the new batch, and the
next drain continues from the ledger. The reader decides what is read, and how the source discards it: a slot or ticks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from toolkit.capture import drift
from toolkit.rawlog.event import Kind
from toolkit.rawlog.reading import WithBatch
from toolkit.source.spooling import spool_directory
from toolkit.values import progress
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from toolkit.capture.drift import Observation
    from toolkit.decode.planned import PlanContext
    from toolkit.rawlog.arrow import Event
    from toolkit.rawlog.batch import BatchRecord
    from toolkit.rawlog.store import LogReader, RawLog
    from toolkit.values.source_access import SourceAccess
    from toolkit.values.table import SchemaVersion

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The result of one drain: `changes` counts committed rows and truncates, the LSNs are end LSNs."""

    batches: int
    changes: int
    from_lsn: Lsn
    committed_lsn: Lsn


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The position of a drain: the newest ledger row, and the schema versions after it."""

    last: BatchRecord
    versions: Mapping[int, SchemaVersion]
    next_schema_id: int

    @classmethod
    def of(cls, last: BatchRecord, versions: Mapping[int, SchemaVersion]) -> LogEnd:
        """Make the end of a log that ends with `last`."""
        return cls(last, versions, max((v.schema_id for v in versions.values()), default=0) + 1)

    def context(
        self, source: SourceAccess, signed: Callable[[bytes, bytes], bool], system_id: str, **more: Any
    ) -> PlanContext:
        """Return what decoding must know of the log."""
        from toolkit.decode.planned import PlanContext

        return PlanContext(
            generation=self.last.generation,
            batch_id=self.last.batch_id + 1,
            next_schema_id=self.next_schema_id,
            versions=self.versions,
            signed=signed,
            system_id=system_id,
            batch_changes=source.drain.batch_changes,
            now=datetime.now(UTC),
            slot=source.config.slot,
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBatch:
    """One batch as its reader returns it."""

    complete_to: Lsn
    events: Sequence[Event]
    rows: Mapping[str, int]  # number of events in tasks or files, per kind
    versions: Mapping[int, SchemaVersion]  # after the batch
    next_schema_id: int
    tasks: Callable[[int], Sequence[Any]] | None = None  # makes at most that many tasks that decode its rows
    files: Sequence[Path] = ()  # its rows, as Arrow streams


class Reader(Protocol):
    """The input of a drain: a slot or ticks."""

    logged: str  # the message after a read was committed and discarded

    @property
    def upto(self) -> Lsn:
        """Return the LSN at which the drain ends."""

    def has_more(self, last: BatchRecord) -> bool:
        """Return whether there is more to read after a batch."""

    def read(self, end: LogEnd, directory: Path) -> Sequence[ReadBatch]:
        """Read and decode the next batches; none if there were only messages outside of transactions."""

    def compares(self, batch: ReadBatch) -> bool:
        """Return whether a batch completes the log to the LSN at which the catalog was read."""

    def row(self, last: BatchRecord, batch: ReadBatch, changes: int) -> dict[str, Any]:
        """Return the fields of the ledger row that only the reader can set."""

    def forget(self, last: BatchRecord) -> dict[str, Any]:
        """Let the source discard what is committed; return fields for the log message."""


def run(
    source: SourceAccess,
    log: RawLog,
    ledger: LogReader,
    end: LogEnd,
    reader: Reader,
    seen: Observation | None,
) -> DrainResult:
    """Drain what a reader returns into the log.

    Args:
        ledger: the state of the ledger that the drain continues.
        end: the end of that state.
        seen: the catalog, which is compared with the log after the drain.
    """
    return _Run(source, log, ledger, end, seen).through(reader)


class _Run:
    """One drain in progress."""

    def __init__(
        self, source: SourceAccess, log: RawLog, ledger: LogReader, end: LogEnd, seen: Observation | None
    ) -> None:
        self.source, self.log, self.end, self.seen = source, log, end, seen
        self.base = ledger.snapshot_id()
        self.batches = self.changes = 0

    def through(self, reader: Reader) -> DrainResult:
        start = self.end.last.complete_to
        with progress.stage("draining", "bytes of WAL", max(0, reader.upto - start)) as stage:
            self._drain(reader, stage)
        return DrainResult(self.batches, self.changes, start, self.end.last.complete_to)

    def _drain(self, reader: Reader, stage: progress.Stage) -> None:
        while reader.has_more(self.end.last):
            started = time.monotonic()
            with spool_directory(self.source.spool_dir) as directory:
                batches = reader.read(self.end, directory)
                for batch in batches:
                    before = self.end.last.complete_to
                    self._commit(reader, batch)
                    stage.detail = f"{self.changes:,} changes"
                    stage.add(batch.complete_to - before)
            if not batches:
                continue
            last = self.end.last
            facts = reader.forget(last)
            seconds = round(time.monotonic() - started, 3)
            at = {"batch_id": last.batch_id, "upto_lsn": str(last.complete_to)}
            _log.info(reader.logged, extra={**at, **facts, "seconds": seconds})

    def _commit(self, reader: Reader, batch: ReadBatch) -> None:
        """Commit one batch with its ledger row, and the results of the catalog comparison if it completes the drain."""
        last, batch_id = self.end.last, self.end.last.batch_id + 1
        events = list(batch.events)
        compared_to, capture = last.compared_to, last.capture
        if self.seen is not None and reader.compares(batch):
            compared_to, capture = self.seen.lsn, self.seen.capture.state
            # The baselines and gaps of this batch are included: a gap before the creation of a table would have no
            # effect.
            ledger = WithBatch(self.log.reading(), batch.events)
            events += drift.against(
                ledger, last, self.seen, versions=batch.versions, batch_id=batch_id,
                next_schema_id=batch.next_schema_id, at=batch.complete_to,
            )  # fmt: skip
        rows = Counter(batch.rows)
        changes = rows[Kind.ROW] + rows[Kind.TRUNCATE] + sum(event.kind == Kind.TRUNCATE for event in events)
        record = last.next(
            events,
            rows=rows,
            changes=changes,
            complete_to=batch.complete_to,
            compared_to=compared_to,
            capture=capture,
            **reader.row(last, batch, changes),
        )
        tasks = batch.tasks(self.log.partitions(changes)) if batch.tasks is not None else ()
        self.base = self.log.commit(record, events, base=self.base, tasks=tasks, arrow_files=batch.files)
        self.end = LogEnd(record, dict(batch.versions), batch.next_schema_id)
        self.batches += 1
        self.changes += changes

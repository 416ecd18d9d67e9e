"""Define the protocol of a raw log: what rules may ask about it, whether it is stored in Iceberg or in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from toolkit.rawlog.arrow import Event
from toolkit.rawlog.batch import BatchRecord
from toolkit.rawlog.event import Baseline, Gap, SchemaChange, TableEvent
from toolkit.values.capture_rules import CaptureRules
from toolkit.values.lsn import Lsn
from toolkit.values.table import SchemaVersion


class LogReader(Protocol):
    """One consistent reading of a raw log."""

    @property
    def rules(self) -> CaptureRules:
        """Return the rules of capture: which tables are captured, and how."""

    def snapshot_id(self) -> int | None:
        """Return the state of the log that is read: the base of the next commit."""

    def current(self) -> LogReader:
        """Return a reading that answers what is so now. It does not grow with the log."""

    def rows(self, kind: str) -> Sequence[Mapping[str, Any]]:
        """Return all events of a kind that is not in `BULK`, in log order."""

    def last(self) -> BatchRecord | None:
        """Return the newest ledger row; None before the first batch."""

    def schema_versions(self) -> tuple[SchemaVersion, ...]:
        """Return all schema versions, in log order."""

    def latest_versions(self, at: Lsn | None = None) -> dict[int, SchemaVersion]:
        """Return the newest version of each relid in the current generation, or at an LSN."""

    def gaps(self) -> tuple[TableEvent[Gap], ...]:
        """Return all `gap` events, in log order."""

    def baselines(self) -> tuple[TableEvent[Baseline], ...]:
        """Return all `baseline` events that are not erased, in log order."""

    def erasures(self) -> tuple[TableEvent[None], ...]:
        """Return all `erased` events, in log order."""

    def truncates(self) -> tuple[TableEvent[None], ...]:
        """Return all `truncate` events, in log order."""

    def ddl_events(self) -> tuple[TableEvent[SchemaChange], ...]:
        """Return all `ddl` events, in log order."""


class NewFiles(Protocol):
    """The data files of rows that a run writes, before their batch is committed."""

    ids: Mapping[str, int]  # field ids that the files must have
    properties: Mapping[str, str]  # what opens their places; they may have secrets

    def place(self, batch_id: int) -> str:
        """Return the place of a new file of rows of a batch."""

    def committing(self, places: Sequence[str]) -> AbstractContextManager[None]:
        """Commit files inside the block. They stay, unless another runner committed first."""


class RawLog(Protocol):
    """A raw log that can be read and written."""

    def reading(self) -> LogReader:
        """Open a reading of the log as it is now."""

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
        """Commit a batch with its ledger row as a whole, or not at all, and return the base of the next commit.

        Args:
            record: the ledger row.
            events: the events that are not in tasks or files.
            base: the state of the log that the batch continues (`LogReader.snapshot_id`).
            tasks: decode tasks whose rows belong to the batch.
            arrow_files: Arrow streams of events.
            parquet_files: places of Parquet files of rows, which `new_files` gave.

        Raises:
            CommitConflict: another runner committed since `base`; nothing was written.
        """

    def force(self, base: int | None) -> None:
        """Force a state of the log to the disk that another process may have committed and not forced.

        Raises:
            LakeError: it cannot be, or is damaged; nothing must be forgotten for it.
        """

    def partitions(self, changes: int) -> int:
        """Return how many tasks the decoding of a number of changes needs."""

    def new_files(self) -> AbstractContextManager[NewFiles]:
        """Write and commit data files inside the block. What is not committed at its end is deleted."""

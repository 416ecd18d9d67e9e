"""Implement the protocol `toolkit.rawlog.store.RawLog` for the raw log of a lake."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.lake.lake_catalog import force
from toolkit.lake.ledger import Ledger, conflict
from toolkit.values.failpoints import Point, can_fail

if TYPE_CHECKING:
    from toolkit.rawlog.arrow import Event
    from toolkit.rawlog.batch import BatchRecord
    from toolkit.rawlog.store import NewFiles
    from toolkit.values.capture_rules import CaptureRules
    from toolkit.values.lake_access import LakeAccess

#: Changes from which on several tasks of Spark are faster than one in this process. To start Spark takes as long as to
#: decode a million changes.
_WORTH_SPARK, _WORTH_STARTING_SPARK = 20_000, 500_000
TASK_CHANGES = 125_000  # a task holds about 30 bytes for each change, besides the chunk that it decodes


class StoredLog:
    """The table of the log in a lake."""

    def __init__(self, access: LakeAccess, *, rules: CaptureRules) -> None:
        self.access, self.rules = access, rules

    def reading(self) -> Ledger:
        """Open a reading of the log as it is now."""
        return Ledger(self.access, rules=self.rules)

    @can_fail(Point.COMMIT)
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
        """Commit a batch. Spark decodes several tasks; one task is decoded in this process, without a JVM.

        Raises:
            CommitConflict: another runner committed since `base`; nothing was written.
            DecodeError, LakeError: as `toolkit.lake.staging.commit_batch`.
        """
        if tasks or arrow_files:
            from toolkit.lake import session, staging

            assert not parquet_files, "a batch has either Parquet files or rows that are still to be decoded"
            return staging.commit_batch(
                self.access, record, tasks=tasks, events=events, base_snapshot=base, arrow_files=arrow_files,
                spark=session.own_session(self.access) if len(tasks) > 1 else None, rules=self.rules,
            )  # fmt: skip
        ledger = self.reading()
        if ledger.snapshot_id() != base:
            raise conflict(record.batch_id)
        return ledger.append(record, events, parquet_files)

    def force(self, base: int | None) -> None:
        """Force a table snapshot to the disk that another process may have committed and not forced.

        Raises:
            LakeError: a file of it is missing or damaged, or cannot be forced to the disk.
        """
        if base is not None:
            force(self.access, self.access.names.events, base)

    def partitions(self, changes: int) -> int:
        """Return the number of tasks: one where Spark would cost more than it gives, else one a core or more.

        More of them bound a worker's memory.
        """
        from toolkit.lake import session

        if changes < (_WORTH_SPARK if session.running() else _WORTH_STARTING_SPARK):
            return 1
        cores = int(session.own_session(self.access).sparkContext.defaultParallelism)
        return max(cores, -(-changes // TASK_CHANGES))

    def new_files(self) -> AbstractContextManager[NewFiles]:
        """Write and commit data files inside the block. What is not committed at its end is deleted.

        Raises:
            LakeError: as `toolkit.lake.uncommitted.new_files`.
        """
        from toolkit.lake.uncommitted import new_files

        return new_files(self.access)

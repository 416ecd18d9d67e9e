"""The protocol of a raw log: what rules about it may ask, whether it is stored in Iceberg or in memory."""

from __future__ import annotations

from typing import Protocol

from toolkit.rawlog.batch import BatchRecord
from toolkit.rawlog.event import TableEvent
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn
from toolkit.values.table import SchemaVersion


class LogReader(Protocol):
    """One consistent reading of a raw log."""

    @property
    def config(self) -> Config:
        """The configuration of the lake that holds the log."""

    def last(self) -> BatchRecord | None:
        """Give the newest ledger row, or None before the first batch."""

    def schema_versions(self) -> list[SchemaVersion]:
        """Give all schema versions, in log order."""

    def latest_versions(self, at: Lsn | None = None) -> dict[int, SchemaVersion]:
        """Give the newest version of each relid in the current generation, or as of an LSN of it."""

    def gaps(self) -> tuple[TableEvent, ...]:
        """Give all `gap` events, in log order."""

    def baselines(self) -> tuple[TableEvent, ...]:
        """Give all `baseline` events, in log order."""

    def ddl_events(self) -> tuple[TableEvent, ...]:
        """Give all `ddl` events, in log order."""

"""Hold what the planner has learned from the messages read so far; each transaction reads and extends it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from toolkit.decode.layout import Layouts, logged_layout, logs
from toolkit.decode.planned import PlanContext
from toolkit.values.table import SchemaVersion


class PlanState(ABC):
    """Schema versions and layouts as read so far."""

    def __init__(self, context: PlanContext) -> None:
        self.context = context
        self.versions = dict(context.versions)
        self.former: dict[int, list[SchemaVersion]] = {}  # by relid, versions that are no longer the latest
        self.born: dict[int, int] = {}  # by relid, end LSN of the CREATE since which the log has the whole table
        self.next_schema_id = context.next_schema_id
        self.layouts = Layouts()
        self.batch_id = context.batch_id
        self.logs: set[int] = set()  # relids of the change log's parts
        self.images = [logged_layout(-1, v) for v in self.versions.values() if logs(v.table)]

    @abstractmethod
    def has_rows(self, relid: int, first: int, stop: int) -> bool:
        """Return whether messages [first, stop) have a row of the table, or may have one."""

    def next_relation(self, relid: int, index: int) -> int:
        """Return the message index of the next RELATION of a table after `index`, or of the end."""
        return index + 1

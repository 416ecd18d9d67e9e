"""Hold what the planner has learned from the messages read so far; each transaction reads and extends it."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from toolkit.decode.layout import Layouts, logged_layout, logs
from toolkit.decode.planned import PlanContext
from toolkit.decode.stream import ROW_BYTES, Ints, Stream
from toolkit.values.spool import Spool
from toolkit.values.table import SchemaVersion


class PlanState:
    """What is known of the stream so far: schema versions, layouts, xids, and an index of rows and RELATIONs."""

    def __init__(self, stream: Stream, spool: Spool, context: PlanContext) -> None:
        self.stream, self.spool, self.context = stream, spool, context
        self.versions = dict(context.versions)
        self.former: dict[int, list[SchemaVersion]] = {}  # by relid, versions that are no longer the latest
        self.born: dict[int, int] = {}  # by relid, end LSN of the CREATE from which on the log has the whole table
        self.next_schema_id = context.next_schema_id
        self.layouts = Layouts()
        self.batch_id = context.batch_id
        self.xids: list[tuple[int, int]] = []
        self.logs: set[int] = set()  # relids of the change log's parts
        self.images = [logged_layout(-1, v) for v in self.versions.values() if logs(v.table)]

    @cached_property
    def row_positions(self) -> tuple[Ints, Ints]:
        """Give (message indexes, relids) of all rows. Only needed for a spool with DDL."""
        rows = np.flatnonzero(np.isin(self.stream.types, ROW_BYTES))
        return rows, self.stream.relids(rows)

    @cached_property
    def relations(self) -> dict[int, list[int]]:
        """Give the message indexes of the RELATIONs of each table."""
        found: dict[int, list[int]] = {}
        indexes = np.flatnonzero(self.stream.types == ord("R"))
        for index, relid in zip(indexes.tolist(), self.stream.relids(indexes).tolist(), strict=True):
            found.setdefault(relid, []).append(index)
        return found

    def has_rows(self, relid: int, first: int, stop: int) -> bool:
        """Say whether messages [first, stop) have a row of the table."""
        rows, relids = self.row_positions
        low, high = np.searchsorted(rows, [first, stop])
        return bool((relids[low:high] == relid).any())

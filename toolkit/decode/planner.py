"""Plan a spool: its batches, the events that the driver makes, and the layouts that the workers need.

One vectorised pass finds transactions and ordinals. Only the few messages that are not rows are read one by one. They
are read in stream order, because the meaning of a RELATION depends on the schema version at its position.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from toolkit.decode.messages import NO_TIME, parse, timestamp
from toolkit.decode.plan_state import PlanState
from toolkit.decode.planned import Plan, PlanContext, PlannedBatch
from toolkit.decode.stream import ROW_BYTES, Ints, Stream, open_bytes, scan
from toolkit.decode.transaction import Frame, ReadMessage, Transaction
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Kind
from toolkit.values.modes import Capture
from toolkit.values.spool import Spool
from toolkit.values.visibility import full_xid

__all__ = ["Plan", "PlanContext", "PlannedBatch", "plan"]


def plan(spool: Spool, *, context: PlanContext) -> Plan:
    """Find a spool's transactions, fold its DDL into schema versions, and divide it into batches.

    Raises:
        DecodeError: the stream breaks the pgoutput protocol. Unknown or forged messages only become events.
    """
    stream = scan(open_bytes(spool.path), spool.offsets)
    return Plan(tuple(Planner(stream, spool, context).batches()))


class Planner(PlanState):
    """Read the messages that are not rows, in stream order."""

    def __init__(self, stream: Stream, spool: Spool, context: PlanContext) -> None:
        super().__init__(context)
        self.stream, self.spool = replace(stream, xids=full_xid(stream.xids, context.near_xid)), spool

    @cached_property
    def row_positions(self) -> tuple[Ints, Ints]:
        """Return (message indexes, relids) of all rows. Only a spool with DDL needs them."""
        rows = np.flatnonzero(np.isin(self.stream.types, ROW_BYTES))
        return rows, self.stream.relids(rows)

    @cached_property
    def relations(self) -> dict[int, list[int]]:
        """Return the message indexes of the RELATIONs of each table."""
        found: dict[int, list[int]] = {}
        indexes = np.flatnonzero(self.stream.types == ord("R"))
        for index, relid in zip(indexes.tolist(), self.stream.relids(indexes).tolist(), strict=True):
            found.setdefault(relid, []).append(index)
        return found

    def has_rows(self, relid: int, first: int, stop: int) -> bool:
        rows, relids = self.row_positions
        low, high = np.searchsorted(rows, [first, stop])
        known = self.versions.get(relid)
        # A row of the change log may be of any table that it captures.
        logs = self.logs if known is not None and known.table.capture == Capture.CHANGE_LOG else ()
        return bool(np.isin(relids[low:high], [relid, *logs]).any())

    def next_relation(self, relid: int, index: int) -> int:
        mine = self.relations.get(relid, [])
        at = bisect_right(mine, index)
        return mine[at] if at < len(mine) else len(self.stream)

    def batches(self) -> Iterator[PlannedBatch]:
        stream = self.stream
        ends = stream.commits + 1
        special = np.flatnonzero(np.isin(stream.types, np.frombuffer(b"RTM", np.uint8)))
        first_transaction, first = 0, 0
        while first_transaction < len(ends):
            fits = int(np.searchsorted(ends, first + self.context.batch_changes, "right"))
            stop_transaction = max(first_transaction + 1, fits)
            last = stop_transaction == len(ends)
            stop = len(stream) if last else int(ends[stop_transaction - 1])
            complete_to = int(stream.end_lsns[stop_transaction - 1])
            if last and self.spool.complete:
                # The upto LSN may be inside the last commit record, which is then read to its end.
                complete_to = max(complete_to, self.spool.upto_lsn)
            mine = special[np.searchsorted(special, first) : np.searchsorted(special, stop)]
            yield self._batch(first, stop, complete_to, mine)
            first_transaction, first = stop_transaction, stop
        if not len(ends) and self.spool.complete:
            yield self._batch(0, len(stream), self.spool.upto_lsn, special)

    def _batch(self, first: int, stop: int, complete_to: int, special: Ints) -> PlannedBatch:
        events: list[Event] = []
        beacons: list[str] = []
        owner = np.searchsorted(self.stream.begins, special, "right") - 1
        inside = (owner >= 0) & (special < np.append(self.stream.commits, 0)[owner]) & (
            (self.stream.types[special] != ord("M")) | (self.stream.weights[special] != 0)
        )  # fmt: skip
        special, owner = special[inside], owner[inside]
        for number in dict.fromkeys(owner.tolist()):  # np.unique imports numpy.ma, which takes a tenth of a second
            transaction = self._transaction(number, special[owner == number].tolist())
            transaction.walk()
            events += transaction.events
            beacons += transaction.beacons
        types = self.stream.types[first:stop]
        rows = int(np.isin(types, ROW_BYTES).sum())
        counts = Counter(event.kind for event in events)
        if rows:
            counts[Kind.ROW] = rows
        skipped = int(((types == ord("M")) & (self.stream.weights[first:stop] == 0)).sum())
        batch = PlannedBatch(
            batch_id=self.batch_id, first_msg=first, stop_msg=stop, complete_to=complete_to,
            changes=rows + counts[Kind.TRUNCATE], counts=dict(counts), events=tuple(events), beacons=tuple(beacons),
            versions=dict(self.versions), next_schema_id=self.next_schema_id, skipped=skipped,
            generation=self.context.generation, path=str(self.spool.path), stream=self.stream,
            bindings=self.layouts.before(stop), images=tuple(self.images) if self.logs else (),
        )  # fmt: skip
        self.batch_id += 1
        return batch

    def _transaction(self, number: int, indexes: list[int]) -> Transaction:
        stream = self.stream
        frame = Frame(
            begin=int(stream.begins[number]),
            commit=int(stream.commits[number]),
            xid=int(stream.xids[number]),
            commit_lsn=int(stream.commit_lsns[number]),
            end_lsn=int(stream.end_lsns[number]),
            committed_at=None if stream.times[number] == NO_TIME else timestamp(int(stream.times[number])),
        )
        read = {
            index: ReadMessage(parse(stream.message(index), index), int(stream.ordinals[index]), int(stream.lsn(index)))
            for index in indexes
        }
        return Transaction(self, frame, read)

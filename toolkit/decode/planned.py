"""Define a plan: batches of whole transactions, each with the driver's events and the workers' tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise

import numpy as np

from toolkit.decode.stream import Stream, run_of
from toolkit.decode.task import Binding, DecodeTask
from toolkit.rawlog.arrow import Event
from toolkit.values.lsn import Lsn
from toolkit.values.table import SchemaVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContext:
    """The state of the ledger before the spool is read, and the settings of the drain."""

    generation: int
    batch_id: int  # number of the first batch
    next_schema_id: int
    versions: Mapping[int, SchemaVersion]  # the latest version of each relid, including dropped tables
    signed: Callable[[bytes, bytes], bool]  # whether the source has signed a content: signature, content
    system_id: str
    near_xid: int  # a 64-bit transaction id close to those of the spool, which has only their low 32 bits
    batch_changes: int  # messages of one batch, in whole transactions
    now: datetime
    known_good: Callable[[int], Lsn] | None = (
        None  # gives the LSN at which the catalog, or a table itself, was last read
    )
    publications: frozenset[str] | None = None  # publications of the spool; None: everything is captured
    slot: str | None = None  # of this lake: DDL messages for the slots of other lakes have no meaning; None: read all


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBatch:
    """A run of whole transactions, committed together."""

    batch_id: int
    first_msg: int
    stop_msg: int
    complete_to: int
    changes: int  # rows and truncates
    counts: dict[str, int]  # events per kind, without the ledger row
    events: tuple[Event, ...]  # all events except rows and the ledger row
    beacons: tuple[str, ...]  # nonces found
    versions: dict[int, SchemaVersion]  # the versions after the batch
    next_schema_id: int
    skipped: int  # non-transactional messages, which have no place in the order of effects
    generation: int
    path: str
    stream: Stream = field(repr=False)  # the whole spool
    bindings: tuple[Binding, ...] = field(repr=False)  # start: index into the spool
    images: tuple[Binding, ...] = field(repr=False, default=())  # of tables in the change log; start: as in bindings

    def tasks(self, count: int) -> list[DecodeTask]:
        """Split the rows into at most `count` tasks of similar size; none for an empty batch.

        A large transaction is split too.
        """
        first, stop, offsets = self.first_msg, self.stop_msg, self.stream.offsets
        if not self.changes:
            return []
        low, high = offsets[[first, stop]].tolist()
        wanted = low + (high - low) * np.arange(1, max(count, 1), dtype=float) / max(count, 1)
        edges = sorted({first, *np.searchsorted(offsets, wanted).tolist(), stop})
        return [self._task(low, high) for low, high in pairwise(edges)]

    def _task(self, first: int, stop: int) -> DecodeTask:
        """Make the task for messages [first, stop), with the layouts that are valid there."""
        in_force: dict[int, Binding] = {}
        later = []
        for binding in self.bindings:
            if binding.start <= first:
                in_force[binding.relid] = binding
            elif binding.start < stop:
                later.append(binding)
        moved = tuple(replace(b, start=max(b.start - first, 0)) for b in [*in_force.values(), *later])
        # Message indexes alone select the layouts of logged images, so each task may have all of these layouts.
        images = tuple(replace(b, start=b.start - first) for b in self.images if b.start < stop)
        return DecodeTask(self.path, run_of(self.stream, first, stop), moved, self.batch_id, self.generation, images)


@dataclass(frozen=True, slots=True)
class Plan:
    """All batches of a spool. A complete spool without transactions is one empty batch that advances `complete_to`."""

    batches: tuple[PlannedBatch, ...]

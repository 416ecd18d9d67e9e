"""Keep the events that the present states of the tables need, so that a reading of them does not grow with the log.

A checkpoint is an event of the log: a copy of the events of all earlier batches that still decide something. A batch in
the log never changes, so a checkpoint is true for ever. The events themselves stay, for the history.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from toolkit.rawlog import order
from toolkit.rawlog.event import Captured, Gap, Kind
from toolkit.rawlog.reading import LogReading, Made

if TYPE_CHECKING:
    from toolkit.rawlog.batch import BatchRecord
    from toolkit.rawlog.event import TableEvent
    from toolkit.values.capture_rules import CaptureRules

_Row = Mapping[str, Any]
#: Kinds of which a reading of the present has every event that decides a state.
DECIDING = (Kind.SCHEMA, Kind.GAP, Kind.BASELINE, Kind.ERASED)
#: What a reading has of an event.
COLUMNS = (
    "batch_id", "generation", "commit_lsn", "ordinal", "end_lsn", "xid", "committed_at", "kind", "relid", "schema_id",
    "payload",
)  # fmt: skip


def kept(reading: LogReading) -> list[_Row]:
    """Return the events that decide the present states, in log order.

    These are the newest version of each table under each of its names, all baselines and erasures, the newest pause of
    capture, and those gaps between two baselines that a state shows.
    """
    newest = {
        (version.generation, version.table.relid, version.table.identifier): row
        for version, row in zip(reading.schema_versions(), reading.rows(Kind.SCHEMA), strict=True)
    }
    switched = (
        row
        for event, row in zip(reading.ddl_events(), reading.rows(Kind.DDL), strict=True)
        if event.payload.event in (Captured.PAUSED, Captured.RESUMED)
    )
    whole = (row for kind in (Kind.BASELINE, Kind.ERASED) for row in reading.rows(kind))
    return sorted([*newest.values(), *whole, *_gaps(reading), *list(switched)[-1:]], key=order.log_order)


def _gaps(reading: LogReading) -> Iterable[_Row]:
    """Return the first and the last gap between two baselines of a table, and the one that says what comes first."""
    ends: dict[tuple[int, int | None], list[order.Position]] = {}
    for event in reading.baselines():
        ends.setdefault((event.generation, event.relid), []).append(order.position(event))
    groups: dict[tuple[int, int | None, int], list[tuple[TableEvent[Gap], _Row]]] = {}
    for gap, row in zip(reading.gaps(), reading.rows(Kind.GAP), strict=True):
        table = (gap.generation, gap.relid)
        groups.setdefault((*table, bisect(ends.get(table, []), order.position(gap))), []).append((gap, row))
    for group in groups.values():
        found = [(gap.payload.until, n) for n, (gap, _) in enumerate(group) if gap.payload.until is not None]
        latest = max(found, key=lambda one: one[0], default=(None, 0))[1]
        for number in sorted({0, latest, len(group) - 1}):
            yield group[number][1]


def to_json(rows: Iterable[_Row]) -> str:
    """Return the payload text of a checkpoint."""
    return json.dumps([[_plain(row[name]) for name in COLUMNS] for row in rows])


def from_json(text: str) -> Sequence[_Row]:
    """Read the payload text of a checkpoint."""
    found: list[dict[str, Any]] = [dict(zip(COLUMNS, values, strict=True)) for values in json.loads(text)]
    for row in found:
        row["committed_at"] = None if row["committed_at"] is None else datetime.fromisoformat(row["committed_at"])
    return found


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def serves(carried: Iterable[_Row], later: Iterable[_Row]) -> bool:
    """Return whether a checkpoint serves before these later events.

    A late baseline, whose position is before a gap of its table, may divide gaps between two baselines. Only some of
    these gaps were kept.
    """
    last: dict[int, order.Position] = {}
    for row in carried:
        if row["kind"] == Kind.GAP:
            last[row["relid"]] = order.Position(row["commit_lsn"], row["ordinal"])
    return not any(
        row["relid"] in last and order.Position(row["commit_lsn"], row["ordinal"]) < last[row["relid"]]
        for row in later
        if row["kind"] == Kind.BASELINE
    )


def by_kind(carried: Iterable[_Row], later: Iterable[_Row]) -> Mapping[str, Sequence[_Row]]:
    """Return the events of a checkpoint and those since by kind, in log order, for a `CurrentReading`."""
    found: dict[str, list[_Row]] = {kind: [] for kind in (*DECIDING, Kind.DDL)}
    for row in sorted([*carried, *later], key=order.log_order):
        found[row["kind"]].append(row)
    return found


class CurrentReading(LogReading):
    """A reading of the present state. It has only the newest pause and the DDL events after a checkpoint.

    It reads all events of the other kinds. Questions about an earlier LSN need the reading of the whole log.
    """

    def __init__(
        self,
        whole: LogReading,
        events: Mapping[str, Sequence[_Row]],
        ddl: Callable[[], Sequence[_Row]],
        made: Made | None = None,
    ) -> None:
        """Read these events. Readings that get the same `made` share the objects that they make of them."""
        self._whole, self._events, self._ddl = whole, events, ddl
        if made is not None:
            self._made = made

    @property
    def rules(self) -> CaptureRules:
        """Return what decides which tables are captured, and how."""
        return self._whole.rules

    def snapshot_id(self) -> int | None:
        """Return the state of the log that is read."""
        return self._whole.snapshot_id()

    def last(self) -> BatchRecord | None:
        """Return the newest batch."""
        return self._whole.last()

    def rows(self, kind: str) -> Sequence[_Row]:
        """Return the events of a kind, in log order."""
        if kind not in self._events:
            return self._whole.rows(kind)
        return [*self._events[kind], *self._ddl()] if kind == Kind.DDL else self._events[kind]

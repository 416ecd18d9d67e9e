"""Fold the DDL messages that came through the change log.

Without a slot that can read logical messages from the WAL, the event triggers write the same signed text into the
change log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from toolkit.decode.ddl_message import DDL_PREFIX
from toolkit.decode.messages import LogicalMessage
from toolkit.decode.plan_state import PlanState
from toolkit.decode.planned import PlanContext
from toolkit.decode.transaction import Frame, ReadMessage, Transaction
from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Origin
from toolkit.values.lsn import Lsn
from toolkit.values.table import SchemaVersion


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """One DDL message of a tick. `place` is its ordinal among all rows of the tick."""

    place: int
    xid: int
    lsn: int
    content: str


@dataclass(frozen=True, slots=True)
class LoggedDdl:
    """The events of a tick's DDL messages, the versions of all tables after them, and the new versions in order."""

    events: tuple[Event, ...]
    versions: dict[int, SchemaVersion]
    changed: tuple[SchemaVersion, ...]
    next_schema_id: int


class _TickState(PlanState):
    """What the DDL messages of a tick say. All its other places have rows, of tables that are not known here."""

    def __init__(self, context: PlanContext, messages: Sequence[LoggedMessage]) -> None:
        super().__init__(context)
        self._places = sorted(message.place for message in messages)

    def has_rows(self, relid: int, first: int, stop: int) -> bool:
        """Return whether places [first, stop) may have a row of the table."""
        return stop - first > bisect_left(self._places, stop) - bisect_left(self._places, first)


def fold(messages: Sequence[LoggedMessage], *, at: Lsn, context: PlanContext) -> LoggedDdl:
    """Verify and fold the messages of the tick `at`. Their events are placed at `at`, each at its message's place."""
    state = _TickState(context, messages)
    # A transaction's messages stay together, because signatures are checked within it. If a transaction had to wait for
    # the lock that another one had on a table, its last message follows all messages of the other one.
    last = {m.xid: m.place for m in messages}
    events: list[Event] = []
    for xid, group in groupby(sorted(messages, key=lambda m: (last[m.xid], m.place)), key=lambda m: m.xid):
        mine = list(group)
        frame = Frame(
            begin=mine[0].place,
            commit=mine[-1].place,
            xid=xid,
            **order.made_at(at)._asdict(),
            committed_at=context.now,
            origin=Origin.CHANGE_LOG,
            birth=mine[0].place,
        )
        transaction = Transaction(state, frame, {message.place: _read(message) for message in mine})
        transaction.walk()
        events += transaction.events
    versions = [*state.versions.values(), *(v for former in state.former.values() for v in former)]
    changed = sorted((v for v in versions if v.schema_id >= context.next_schema_id), key=lambda v: v.schema_id)
    return LoggedDdl(tuple(events), state.versions, tuple(changed), state.next_schema_id)


def _read(message: LoggedMessage) -> ReadMessage:
    content = LogicalMessage(True, Lsn(message.lsn), DDL_PREFIX, message.content.encode())
    return ReadMessage(content, message.place, message.lsn)

"""List events that need an operator: refused messages, failed or skipped captures, changes without a captured event.

None of them is lost; all are in the log. An operator looks at each of them and adds a note to it. A note is also an
event of the log. It repairs nothing: a stale table stays stale until it is repaired.
"""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Captured, Kind, Note, StreamMessage
from toolkit.values.errors import ConfigError
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger
    from toolkit.rawlog.event import TableEvent


class UnhandledKind(StrEnum):
    """Reason for which an event needs an operator."""

    REFUSED_MESSAGE = "refused message"
    CAPTURE_FAILED = "capture failed"
    NOT_CAPTURED = "not captured"
    CAPTURE_PAUSED = "capture paused"
    WITHOUT_EVENT = "without an event"  # a change that only the comparison of the catalog found


_CAPTURE: dict[str, UnhandledKind] = {
    Captured.FAILED: UnhandledKind.CAPTURE_FAILED,
    Captured.SKIPPED: UnhandledKind.NOT_CAPTURED,
    Captured.PAUSED: UnhandledKind.CAPTURE_PAUSED,
}


@dataclass(frozen=True, slots=True)
class Unhandled:
    """One such event. `note` is None until an operator has added one."""

    id: str
    lsn: Lsn
    kind: UnhandledKind
    what: str
    table: str | None
    note: str | None
    resolved_by: str | None
    resolved_at: str | None


def unhandled(ledger: Ledger, *, resolved: bool = False) -> tuple[Unhandled, ...]:
    """List the events in log order; those with a note only if `resolved`.

    Raises:
        LakeError: there is no ledger yet.
    """
    ledger.require()
    notes = {e.payload.id: e.payload for e in ledger.messages() if isinstance(e.payload, Note)}
    found = sorted([*_messages(ledger), *_captures(ledger), *_gaps(ledger)], key=lambda one: (one.lsn, one.id))
    noted = (_noted(one, notes.get(one.id)) for one in found)
    return tuple(one for one in noted if resolved or one.note is None)


def resolve(ledger: Ledger, ident: str, note: str) -> Unhandled:
    """Add a note to one event, in the log.

    Raises:
        ConfigError: there is no such event, or the note is empty.
    """
    if not note.strip():
        raise ConfigError(f"resolving {ident}: the note is empty; say what was done about it")
    one = next((u for u in unhandled(ledger, resolved=True) if u.id == ident), None)
    if one is None:
        raise ConfigError(f"resolving {ident}: no unhandled event has that id; see cdc ddl list --unhandled")
    last = ledger.last()
    assert last is not None
    now = datetime.now(UTC).isoformat()
    noted = Note(ident, note, _account(), now)
    event = Event(
        batch_id=last.batch_id + 1, generation=last.generation, **order.made_at(last.complete_to)._asdict(),
        ordinal=order.NOTE, kind=Kind.MESSAGE, payload=noted.to_json(),
    )  # fmt: skip
    ledger.append_empty(last.next([event]), [event])
    return _noted(one, noted)


def _account() -> str:
    """Return the name of this account; its number where it has no name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _noted(one: Unhandled, note: Note | None) -> Unhandled:
    if note is None:
        return one
    return replace(one, note=note.note, resolved_by=note.by, resolved_at=note.at)


def _one(event: TableEvent[object], kind: UnhandledKind, what: str, table: str | None = None) -> Unhandled:
    ident = f"{event.batch_id}-{int(event.end_lsn):X}-{event.ordinal}"
    return Unhandled(ident, Lsn(event.end_lsn), kind, what, table, None, None, None)


def _messages(ledger: Ledger) -> list[Unhandled]:
    messages = ((e, e.payload) for e in ledger.messages())
    return [
        _one(
            event,
            UnhandledKind.REFUSED_MESSAGE,
            f"{message.prefix}: {message.refused}; {message.count} in its transaction",
        )
        for event, message in messages
        if isinstance(message, StreamMessage) and message.refused is not None
    ]


def _captures(ledger: Ledger) -> list[Unhandled]:
    found = []
    for event in ledger.ddl_events():
        change = event.payload
        kind = _CAPTURE.get(change.event)
        if kind is not None:
            said = change.error or change.sql or change.tag
            found.append(_one(event, kind, str(said), ", ".join(change.identities) or None))
    return found


def _gaps(ledger: Ledger) -> list[Unhandled]:
    """Return the gaps of the catalog comparison: changes that no event in the stream recorded."""
    versions = ledger.latest_versions()
    found = []
    for event in ledger.gaps():
        if event.xid is None and event.relid is not None:
            table = versions[event.relid].table.identifier if event.relid in versions else str(event.relid)
            found.append(_one(event, UnhandledKind.WITHOUT_EVENT, event.payload.reason, table))
    return found

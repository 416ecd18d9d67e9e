"""What capture could not take as it came: refused messages, failed or skipped captures, changes found past capture.

None of them is lost, all of them are in the log; a person looks at each and puts a note to it. A note is an event of
the log as well, and heals nothing: a stale table stays stale until it is repaired.
"""

from __future__ import annotations

import getpass
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.values.errors import ConfigError
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger
    from toolkit.rawlog.event import TableEvent

_RESOLVED = "cdc.resolved"
_CAPTURE = {"capture_failed": "capture failed", "capture_skipped": "not captured", "capture_paused": "capture paused"}


@dataclass(frozen=True, slots=True)
class Unhandled:
    """One such event. `note` is None until somebody resolved it."""

    id: str
    lsn: Lsn
    kind: str  # refused message, capture failed, not captured, capture paused, past capture
    what: str
    table: str | None
    note: str | None
    resolved_by: str | None
    resolved_at: str | None


def unhandled(ledger: Ledger, *, resolved: bool = False) -> tuple[Unhandled, ...]:
    """In log order; those with a note only if `resolved`.

    Raises:
        LakeError: there is no ledger yet.
    """
    ledger.require()
    notes = {e.payload["id"]: e.payload for e in ledger.messages() if _is_note(e)}
    found = sorted([*_messages(ledger), *_captures(ledger), *_gaps(ledger)], key=lambda one: (one.lsn, one.id))
    noted = (_noted(one, notes.get(one.id)) for one in found)
    return tuple(one for one in noted if resolved or one.note is None)


def resolve(ledger: Ledger, ident: str, note: str) -> Unhandled:
    """Put a note to one, in the log.

    Raises:
        ConfigError: no such event, or an empty note.
    """
    if not note.strip():
        raise ConfigError(f"resolving {ident}: the note is empty; say what was done about it")
    one = next((u for u in unhandled(ledger, resolved=True) if u.id == ident), None)
    if one is None:
        raise ConfigError(f"resolving {ident}: no unhandled event has that id; see cdc ddl list --unhandled")
    last = ledger.last()
    assert last is not None
    now = datetime.now(UTC).isoformat()
    payload = {"prefix": _RESOLVED, "id": ident, "note": note, "by": getpass.getuser(), "at": now}
    events = [_event(last.batch_id + 1, last.generation, last.complete_to, payload)]
    ledger.append_empty(last.next(events), events)
    return _noted(one, payload)


def _event(batch_id: int, generation: int, at: Lsn, payload: dict[str, Any]) -> Event:
    import json

    return Event(
        batch_id=batch_id, generation=generation, **order.made_at(at)._asdict(), ordinal=order.NOTE,
        kind="message", payload=json.dumps(payload, sort_keys=True),
    )  # fmt: skip


def _is_note(event: TableEvent) -> bool:
    # Messages of the stream that call themselves so carry the reason why they were refused.
    return event.payload.get("prefix") == _RESOLVED and "reason" not in event.payload


def _noted(one: Unhandled, payload: dict[str, Any] | None) -> Unhandled:
    if payload is None:
        return one
    return replace(one, note=payload["note"], resolved_by=payload["by"], resolved_at=payload["at"])


def _one(event: TableEvent, kind: str, what: str, table: str | None = None) -> Unhandled:
    ident = f"{event.batch_id}-{int(event.end_lsn):X}-{event.ordinal}"
    return Unhandled(ident, Lsn(event.end_lsn), kind, what, table, None, None, None)


def _messages(ledger: Ledger) -> list[Unhandled]:
    refused = [e for e in ledger.messages() if "reason" in e.payload]
    return [_one(e, "refused message", f"{e.payload['prefix']}: {e.payload['reason']}") for e in refused]


def _captures(ledger: Ledger) -> list[Unhandled]:
    found = []
    for event in ledger.ddl_events():
        kind = _CAPTURE.get(str(event.payload.get("event")))
        if kind is not None:
            names = ", ".join(str(o.get("identity")) for o in event.payload.get("objects") or ()) or None
            said = event.payload.get("error") or event.payload.get("sql") or event.payload.get("tag")
            found.append(_one(event, kind, str(said), names))
    return found


def _gaps(ledger: Ledger) -> list[Unhandled]:
    """Gaps of the catalog comparison: nobody in the stream told of them."""
    versions = ledger.latest_versions()
    found = []
    for event in ledger.gaps():
        if event.xid is None and event.relid is not None:
            table = versions[event.relid].table.identifier if event.relid in versions else str(event.relid)
            found.append(_one(event, "past capture", str(event.payload.get("reason")), table))
    return found

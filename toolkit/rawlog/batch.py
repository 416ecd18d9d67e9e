"""Define the ledger row: what one committed batch records about itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Kind
from toolkit.values.errors import LakeError
from toolkit.values.lsn import Lsn

#: Version of the event order. 2: rows of a copy follow its baseline, which covers everything before it.
FORMAT = 2


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The properties of the source that must stay the same for the log to be one history."""

    system_id: str
    timeline: int
    database_oid: int
    publications: dict[str, int]  # OID by name of the publications that the slot is read with; none without a slot


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One row of the ledger: the payload of the single `batch` event that every batch has.

    When this batch is committed, everything with `end_lsn <= complete_to` is in the log. `complete_to` equals
    `upto_lsn` if the message limit did not end the peek.
    """

    batch_id: int
    generation: int
    from_lsn: Lsn
    upto_lsn: Lsn
    complete_to: Lsn
    origin: str  # one of `Origin`
    slot: str
    identity: SourceIdentity
    changes: int  # rows and truncates
    counts: dict[str, int] = field(default_factory=dict)  # events per kind
    beacon: str | None = None  # nonce that the next drain must find again
    beacon_lsn: Lsn | None = None  # end LSN of the beacon's transaction
    committed_at: str = ""  # ISO 8601, UTC
    tick: str | None = None  # pg_snapshot at complete_to, if the change log is drained by ticks
    compared_to: Lsn | None = None  # LSN at which the catalog was last compared; hidden changes began later
    capture: str | None = None  # state of the event triggers at that time
    checkpoint: int | None = None  # the batch with the newest checkpoint
    format: int = FORMAT

    def require_format(self) -> None:
        """Refuse a log that this version would read incorrectly.

        Raises:
            LakeError: an older version wrote it.
        """
        if self.format != FORMAT:
            raise LakeError(
                f"the log up to batch {self.batch_id} is of format {self.format}, and this version orders events by"
                f" format {FORMAT}; start a new log with `cdc init --new-generation`"
            )

    def next(
        self,
        events: Sequence[Event] = (),
        *,
        rows: Mapping[str, int] | None = None,
        changes: int = 0,
        **fields: Any,
    ) -> BatchRecord:
        """Return the row of the batch that follows this one, committed now.

        Everything that is not given stays as in this row. A batch that drains nothing keeps `complete_to`, the tick and
        the pending beacon.

        Args:
            events: the events of the new batch that are not in tasks or files.
            rows: number of the other events, by kind.
            changes: rows and truncates of the source's own changes; a copy has none.
            fields: other fields of the row.
        """
        counts = Counter(rows or {})
        counts.update(event.kind for event in events)
        return replace(
            self,
            batch_id=self.batch_id + 1,
            from_lsn=self.complete_to,
            changes=changes,
            counts=dict(counts),
            committed_at=datetime.now(UTC).isoformat(),
            **fields,
        )

    def to_json(self) -> str:
        """Return the payload text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> BatchRecord:
        """Read a payload text."""
        data = json.loads(text)
        for key in ("from_lsn", "upto_lsn", "complete_to"):
            data[key] = Lsn(data[key])
        for key in ("beacon_lsn", "compared_to"):
            if data.get(key) is not None:
                data[key] = Lsn(data[key])
        data.setdefault("format", 1)
        data["identity"] = SourceIdentity(**data["identity"])
        return cls(**data)


def batch_event(record: BatchRecord) -> Event:
    """Return the `batch` event for a record."""
    return Event(
        batch_id=record.batch_id,
        generation=record.generation,
        **order.made_at(record.complete_to)._asdict(),
        ordinal=order.BATCH,
        origin=record.origin,
        kind=Kind.BATCH,
        payload=record.to_json(),
    )


def batch_events(record: BatchRecord, events: Sequence[Event]) -> list[Event]:
    """Return the events of one batch that the driver made, with their `batch` event at the end.

    Raises:
        LakeError: an event belongs to another batch.
    """
    for event in events:
        if event.batch_id != record.batch_id or event.kind == Kind.BATCH:
            raise LakeError(
                f"committing batch {record.batch_id}: a {event.kind} event of batch {event.batch_id}; run it again"
            )
    return [*events, batch_event(record)]

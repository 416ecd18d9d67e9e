"""Define the schema of the raw log: one Arrow schema for every event of every relation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import pyarrow as pa

#: Columns of `raw.events`, in order. Images are indexed by attnum - 1. Timestamps are UTC.
EVENT_SCHEMA = pa.schema(
    [
        pa.field("batch_id", pa.int64(), nullable=False),
        pa.field("generation", pa.int32(), nullable=False),
        pa.field("commit_lsn", pa.int64(), nullable=False),
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("end_lsn", pa.int64(), nullable=False),
        pa.field("lsn", pa.int64()),
        pa.field("xid", pa.int64()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),
        pa.field("origin", pa.string()),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("relid", pa.int64()),
        pa.field("schema_id", pa.int64()),
        pa.field("op", pa.string()),
        pa.field("old_kind", pa.string()),
        pa.field("new", pa.list_(pa.string())),
        pa.field("old", pa.list_(pa.string())),
        pa.field("unchanged", pa.list_(pa.int32())),
        pa.field("absent", pa.list_(pa.int32())),
        pa.field("payload", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event that the driver itself makes. Row images go through Arrow and never have this form."""

    batch_id: int
    generation: int
    commit_lsn: int
    ordinal: int
    end_lsn: int
    kind: str
    lsn: int | None = None
    xid: int | None = None
    committed_at: datetime | None = None
    origin: str | None = None
    relid: int | None = None
    schema_id: int | None = None
    op: str | None = None
    old_kind: str | None = None
    new: list[str | None] | None = None
    old: list[str | None] | None = None
    unchanged: list[int] | None = None
    absent: list[int] | None = None
    payload: str | None = None


def to_arrow(events: list[Event]) -> pa.Table:
    """Convert events to a table of `EVENT_SCHEMA`."""
    names = [f.name for f in fields(Event)]
    rows: list[dict[str, Any]] = [{name: getattr(event, name) for name in names} for event in events]
    return pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)

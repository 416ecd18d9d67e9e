"""DDL messages that came through the change log: planned as if the slot had sent them, then set to their places.

Where nobody can read logical messages from the WAL, the event triggers put the same signed text into the change log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from toolkit.decode.ddl import DDL_PREFIX
from toolkit.decode.planner import PlanContext, plan
from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Kind, Origin
from toolkit.values.lsn import Lsn
from toolkit.values.spool import Spool
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
    """What the messages of a tick amount to: events, all versions after them, and those that are new."""

    events: tuple[Event, ...]
    versions: dict[int, SchemaVersion]
    changed: tuple[SchemaVersion, ...]  # in order; `ordinal` is the place from which each is valid
    next_schema_id: int


def fold(messages: Sequence[LoggedMessage], *, at: Lsn, context: PlanContext, directory: Path) -> LoggedDdl:
    """Verify and fold the messages of the tick `at`; every event stands at `commit_lsn = at - 1`."""
    if not messages:
        return LoggedDdl((), dict(context.versions), (), context.next_schema_id)
    # A transaction's messages stay together: signatures are checked within it, and DDL locks keep tables in order.
    first = {m.xid: m.place for m in reversed(messages)}
    ordered = sorted(messages, key=lambda m: (first[m.xid], m.place))
    groups = [list(group) for _, group in groupby(ordered, key=lambda m: m.xid)]
    batches = plan(_spool(groups, directory / "ddl.spool"), context=replace(context, batch_changes=1 << 62)).batches
    events = []
    for event in batches[0].events:
        mine = groups[event.commit_lsn // 8 - 1]
        message = mine[max(event.ordinal, 0)]
        placed = replace(
            event, **order.made_at(at)._asdict(), ordinal=message.place, lsn=message.lsn,
            committed_at=context.now, origin=Origin.CHANGE_LOG,
        )  # fmt: skip
        events.append(placed)
    positions = {e.schema_id: e for e in events if e.kind == Kind.SCHEMA}
    versions = {}
    for relid, version in batches[0].versions.items():
        made = positions.get(version.schema_id)
        versions[relid] = version if made is None else _placed(version, made)
    changed = tuple(_version(e) for e in events if e.kind == Kind.SCHEMA)
    return LoggedDdl(tuple(events), versions, changed, batches[0].next_schema_id)


def _placed(version: SchemaVersion, event: Event) -> SchemaVersion:
    return replace(
        version, commit_lsn=Lsn(event.commit_lsn), end_lsn=Lsn(event.end_lsn), ordinal=event.ordinal
    )  # fmt: skip


def _version(event: Event) -> SchemaVersion:
    import json

    from toolkit.values.table import TableVersion

    assert event.schema_id is not None and event.payload is not None
    return SchemaVersion(
        schema_id=event.schema_id,
        generation=event.generation,
        commit_lsn=Lsn(event.commit_lsn),
        end_lsn=Lsn(event.end_lsn),
        ordinal=event.ordinal,
        table=TableVersion.from_json(json.loads(event.payload)),
        payload=event.payload,
        xid=event.xid,
    )


def _spool(groups: Sequence[Sequence[LoggedMessage]], path: Path) -> Spool:
    """The messages as pgoutput would send them. Transaction i has commit LSN 8 (i + 1)."""
    rows = [row for number, group in enumerate(groups) for row in _transaction(8 * (number + 1), group)]
    path.write_bytes(b"".join(rows))
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return Spool(path=path, offsets=offsets, upto_lsn=8 * (len(groups) + 1), complete=True)


def _transaction(commit_lsn: int, group: Sequence[LoggedMessage]) -> Iterator[bytes]:
    xid = group[0].xid & 0xFFFFFFFF
    yield _row(commit_lsn, xid, struct.pack(">cqqI", b"B", commit_lsn, 0, xid))
    for message in group:
        content = message.content.encode()
        head = struct.pack(">cbq", b"M", 1, message.lsn) + DDL_PREFIX.encode() + b"\0"
        yield _row(message.lsn, xid, head + struct.pack(">I", len(content)) + content)
    yield _row(commit_lsn, xid, struct.pack(">cbqqq", b"C", 0, commit_lsn, commit_lsn + 4, 0))


def _row(lsn: int, xid: int, data: bytes) -> bytes:
    """One row of COPY BINARY: lsn, xid, data."""
    return struct.pack(">hiqiIi", 3, 8, lsn, 4, xid, len(data)) + data


__all__ = ["LoggedDdl", "LoggedMessage", "fold"]

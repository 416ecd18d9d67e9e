"""Define the events of the raw log that are not rows: their deciding words, and their payloads with the JSON.

Each payload is written and read only here. Keys without a value are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from toolkit.values.lsn import Lsn


class Kind(StrEnum):
    """The kind of an event."""

    ROW = "row"
    TRUNCATE = "truncate"
    LOGGED = "logged"  # a row that the slot sends too, for evidence only
    SCHEMA = "schema"
    DDL = "ddl"
    MESSAGE = "message"
    GAP = "gap"
    BASELINE = "baseline"
    ERASED = "erased"  # the rows of the table before here do not count, and `cdc maintain` deletes them
    BATCH = "batch"
    CHECKPOINT = "checkpoint"


#: Kinds with as many events as there are changes. No reading gives them.
BULK = frozenset({Kind.ROW, Kind.LOGGED})


class Origin(StrEnum):
    """The way by which an event or a batch came."""

    SLOT = "slot"
    CHANGE_LOG = "change_log"
    SNAPSHOT = "snapshot"
    CHECK = "check"


class Covers(StrEnum):
    """The scope of a baseline. `CHECK` follows a copy of a part: a check found that the rest is right too."""

    ALL = "all"
    COLUMNS = "columns"
    PARTITION = "partition"
    ROWS = "rows"
    CHECK = "check"


class Captured(StrEnum):
    """The kind of record that the event triggers wrote. Other values are possible and decide nothing."""

    COMMAND_END = "ddl_command_end"
    REWRITE = "table_rewrite"
    TRUNCATE = "table_truncate"
    FAILED = "capture_failed"
    SKIPPED = "capture_skipped"
    PAUSED = "capture_paused"
    RESUMED = "capture_resumed"


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in values.items() if value is not None}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Gap:
    """The table is stale from here on. `reason` and `remedy` are for users."""

    reason: str
    remedy: str | None = None
    until: Lsn | None = None  # where the change was found; it happened between the gap and here
    first: str | None = None  # what capture needs before a repair can last
    detail: Mapping[str, Any] | None = None

    def to_json(self) -> str:
        """Return the payload text."""
        until = None if self.until is None else str(self.until)
        return _text(
            {"reason": self.reason, "remedy": self.remedy, "until": until, "first": self.first, "detail": self.detail}
        )

    @classmethod
    def from_json(cls, text: str | None) -> Gap:
        """Read a payload text."""
        data = json.loads(text or "{}")
        until = None if data.get("until") is None else Lsn.parse(data["until"])
        return cls(str(data.get("reason")), data.get("remedy"), until, data.get("first"), data.get("detail"))


@dataclass(frozen=True, slots=True)
class Baseline:
    """Everything that it covers is known from here on: by a copy, by a CREATE (no rows), or by a check."""

    lsn: Lsn | None
    rows: int | None = None
    scope: Covers = Covers.ALL
    columns: tuple[str, ...] = ()
    partition: str | None = None
    keys: int = 0  # number of single rows that were copied

    @property
    def whole(self) -> bool:
        """Return whether every row of the table is known from here on."""
        return self.scope in (Covers.ALL, Covers.CHECK)

    def to_json(self) -> str:
        """Return the payload text."""
        return _text(
            {
                "rows": self.rows, "scope": self.scope, "lsn": None if self.lsn is None else str(self.lsn),
                "columns": list(self.columns) or None, "partition": self.partition, "keys": self.keys or None,
            }
        )  # fmt: skip

    @classmethod
    def from_json(cls, text: str | None) -> Baseline:
        """Read a payload text."""
        data = json.loads(text or "{}")
        return cls(
            lsn=None if data.get("lsn") is None else Lsn.parse(data["lsn"]),
            rows=data.get("rows"),
            scope=Covers(data.get("scope", Covers.ALL)),
            columns=tuple(data.get("columns", ())),
            partition=data.get("partition"),
            keys=data.get("keys", 0),
        )


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """The parts of a `ddl` event that a reader of the log needs. The source writes and signs its text."""

    event: str  # usually one of `Captured`
    at: str | None
    role: str | None
    tag: str | None
    sql: str | None
    error: str | None
    created: tuple[int, ...]  # relids
    relids: tuple[int, ...]  # relids of all tables that the event names
    identities: tuple[str, ...]  # names of the objects

    @classmethod
    def from_json(cls, text: str | None) -> SchemaChange:
        """Read a payload text."""
        data = json.loads(text or "{}")
        objects = data.get("objects") or ()
        relids = {int(o["relid"]) for o in objects if o.get("relid")}
        relids |= {int(t["relid"]) for t in data.get("tables") or ()}
        relids |= {int(r) for r in data.get("dropped") or ()}
        return cls(
            event=data.get("event") or "",
            at=data.get("at"),
            role=data.get("role"),
            tag=data.get("tag"),
            sql=data.get("sql"),
            error=data.get("error"),
            created=tuple(int(relid) for relid in data.get("created") or ()),
            relids=tuple(sorted(relids)),
            identities=tuple(str(o.get("identity")) for o in objects),
        )


@dataclass(frozen=True, slots=True)
class Truncated:
    """The form of a TRUNCATE, if that is known."""

    cascade: bool | None = None
    restart_identity: bool | None = None

    def to_json(self) -> str:
        """Return the payload text."""
        return _text({"cascade": self.cascade, "restart_identity": self.restart_identity})


_RESOLVED = "cdc.resolved"


@dataclass(frozen=True, slots=True)
class Note:
    """The note of an operator about an unhandled event."""

    id: str
    note: str
    by: str
    at: str  # ISO 8601, UTC

    def to_json(self) -> str:
        """Return the payload text."""
        return _text({"prefix": _RESOLVED, "id": self.id, "note": self.note, "by": self.by, "at": self.at})


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """Logical messages of one transaction that the toolkit did not write or does not accept, and beacons."""

    prefix: str  # prefix of the first message
    refused: str | None = None  # why they are not accepted, if they claim to come from the toolkit
    count: int = 1
    sha256: str | None = None  # hash of what was read of them; an unsigned message is read as its hash

    def to_json(self) -> str:
        """Return the payload text."""
        return _text({"prefix": self.prefix, "reason": self.refused, "count": self.count, "sha256": self.sha256})


def read_message(text: str | None) -> Note | StreamMessage:
    """Read the payload text of a `message` event."""
    data = json.loads(text or "{}")
    # Messages of the stream with this prefix have the reason why they were refused.
    if data.get("prefix") == _RESOLVED and "reason" not in data:
        return Note(data["id"], data["note"], data["by"], data["at"])
    return StreamMessage(data.get("prefix", ""), data.get("reason"), data.get("count", 1), data.get("sha256"))


_P_co = TypeVar("_P_co", covariant=True)


@dataclass(frozen=True, slots=True)
class TableEvent(Generic[_P_co]):
    """One event of the log that is not a row. LSNs are as in the log: valid from `end_lsn`."""

    relid: int | None
    commit_lsn: Lsn
    ordinal: int
    end_lsn: Lsn
    batch_id: int
    payload: _P_co
    generation: int
    schema_id: int | None
    xid: int | None
    committed_at: datetime | None


@dataclass(slots=True)
class GapReasons:
    """Several reasons for one gap, before it is written."""

    remedy: str
    reasons: list[str] = field(default_factory=list)
    detail: dict[str, Any] = field(default_factory=dict)

    def add(self, reason: str, detail: Mapping[str, Any]) -> None:
        """Add a reason, once."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        self.detail |= detail

    @property
    def gap(self) -> Gap:
        """Return the gap."""
        return Gap("; ".join(self.reasons), self.remedy, detail=self.detail)

"""Read the messages of pgoutput protocol 1, except row images, which `rows` decodes by column.

The formats are those of PostgreSQL's chapter "Logical Replication Message Formats". All integers are big-endian. Times
are microseconds since 2000-01-01 UTC.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from toolkit.values.errors import DecodeError
from toolkit.values.lsn import Lsn

#: 2000-01-01 in microseconds since 1970-01-01.
POSTGRES_EPOCH_US = 946_684_800_000_000
#: The first and the last commit time, in microseconds since 2000: datetimes have it in every time zone. A session of a
#: replication origin may set any time, and infinity. Another one counts as the nearest of these.
TIMES = (-63_082_195_200_000_000, 252_455_529_600_000_000)
#: Stands for the commit time of a transaction if the stream does not have it.
NO_TIME = TIMES[0] - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BEGIN = struct.Struct(">cqqI")
_COMMIT = struct.Struct(">cBqqq")
_COLUMN = struct.Struct(">Ii")


@dataclass(frozen=True, slots=True)
class Begin:
    """B: start of a transaction. `final_lsn` is the start of its commit record."""

    final_lsn: Lsn
    committed_at: datetime
    xid: int  # 32 bit, as on the wire


@dataclass(frozen=True, slots=True)
class Commit:
    """C: end of a transaction. `end_lsn` is the position after its commit record."""

    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a RELATION. pgoutput sends no attnum."""

    name: str
    type_oid: int
    typmod: int
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """R: the columns of the following tuples of `relid`."""

    relid: int
    schema: str
    name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class TypeName:
    """Y: the name of a type that is not built in."""

    type_oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Origin:
    """O: the origin at which a replayed transaction was first committed."""

    lsn: Lsn
    name: str


@dataclass(frozen=True, slots=True)
class Truncate:
    """T: the tables that one TRUNCATE emptied."""

    relids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """M: a message written by `pg_logical_emit_message`."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class RowChange:
    """I, U or D: only the table; `rows` decodes the tuples."""

    op: str
    relid: int


Message = Begin | Commit | Relation | TypeName | Origin | Truncate | LogicalMessage | RowChange


def timestamp(microseconds: int) -> datetime:
    """Convert a commit time of the protocol to a UTC datetime."""
    first, last = TIMES
    return _EPOCH + timedelta(microseconds=min(max(microseconds, first), last) + POSTGRES_EPOCH_US)


class _Reader:
    """Read values from the front of one message."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def integer(self, size: int, *, signed: bool = False) -> int:
        part = self.bytes(size)
        return int.from_bytes(part, "big", signed=signed)

    def bytes(self, size: int) -> bytes:
        end = self.position + size
        if size < 0 or end > len(self.data):
            raise ValueError(f"{size} bytes wanted at {self.position} of {len(self.data)}")
        part = self.data[self.position : end]
        self.position = end
        return part

    def text(self) -> str:
        end = self.data.index(b"\0", self.position)
        part = self.data[self.position : end]
        self.position = end + 1
        return part.decode("utf-8")


def parse(data: bytes, index: int) -> Message:
    """Read one message. `index` is its place in the stream, for error messages.

    Raises:
        DecodeError: an unknown type byte, a message that is too short, or one with bytes left over.
    """
    kind = data[:1]
    try:
        match kind:
            case b"B":
                _, final_lsn, time, xid = _BEGIN.unpack(data)
                return Begin(Lsn(final_lsn), timestamp(time), xid)
            case b"C":
                _, _, commit_lsn, end_lsn, time = _COMMIT.unpack(data)
                return Commit(Lsn(commit_lsn), Lsn(end_lsn), timestamp(time))
            case b"I" | b"U" | b"D":
                return RowChange(kind.decode(), int.from_bytes(_Reader(data, 1).bytes(4), "big"))
        reader = _Reader(data, 1)
        message = _sparse(kind, reader)
        if message is not None:
            if reader.position != len(data):
                raise ValueError(f"{len(data) - reader.position} bytes left over")
            return message
    except (ValueError, struct.error) as error:
        raise DecodeError(f"message {index} of type {kind!r} is malformed: {error}") from None
    raise unknown(kind, index)


def unknown(kind: bytes, index: int) -> DecodeError:
    """Return the error for a type byte that protocol 1 does not have."""
    found = f"0x{kind.hex()} ({kind!r})" if kind else "an empty message"
    return DecodeError(f"message {index} is not pgoutput protocol 1: expected one of BCRYOMTIUD, found {found}")


def _sparse(kind: bytes, reader: _Reader) -> Message | None:
    match kind:
        case b"R":
            return _relation(reader)
        case b"Y":
            return TypeName(reader.integer(4), reader.text() or "pg_catalog", reader.text())
        case b"O":
            return Origin(Lsn(reader.integer(8, signed=True)), reader.text())
        case b"T":
            count, options = reader.integer(4), reader.integer(1)
            relids = tuple(reader.integer(4) for _ in range(count))
            return Truncate(relids, cascade=bool(options & 1), restart_identity=bool(options & 2))
        case b"M":
            flags, lsn, prefix = reader.integer(1), reader.integer(8, signed=True), reader.text()
            return LogicalMessage(bool(flags & 1), Lsn(lsn), prefix, reader.bytes(reader.integer(4)))
    return None


def _relation(reader: _Reader) -> Relation:
    relid, schema, name = reader.integer(4), reader.text() or "pg_catalog", reader.text()
    identity, count = reader.bytes(1).decode("ascii"), reader.integer(2)
    columns = []
    for _ in range(count):
        flags, column = reader.integer(1), reader.text()
        type_oid, typmod = _COLUMN.unpack(reader.bytes(_COLUMN.size))
        columns.append(RelationColumn(column, type_oid, typmod, key=bool(flags & 1)))
    return Relation(relid, schema, name, identity, tuple(columns))

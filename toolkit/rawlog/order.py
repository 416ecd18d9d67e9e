"""Order the events of the raw log. This is the only module that assigns or compares ordinals.

Events take effect in the order (generation, commit LSN, ordinal). Within a transaction, ordinals number its changes
from 0. An event that the toolkit makes at an LSN takes that LSN minus 1 as its commit LSN: WAL records start on 8-byte
boundaries, so it sorts after every transaction that is visible at the LSN and before every later one. At one commit
LSN, ordinals ascend in this order:

====================  =================================================================================
`BIRTH`               the first schema version and baseline of a table, before the rows of its own transaction
0 ...                 changes of the transaction, or of the tick
`found_version(n)`    schema versions that the catalog comparison found
`ERASURE`             the erasure of what a table has before it: before a copy, or after the table was dropped
`COPIED_VERSION`      the schema version that a copy read
`BASELINE`            a baseline: it covers everything before it, and the rows of its copy follow it
`COPY_GAP`            a gap that the copy itself leaves or records
`BATCH`               the ledger row; it shares the number of `COPY_GAP`, and has no relid
`copied_deletion(n)`  deletions of the keys that a copy of single rows read again
`copied_rows(...)`    rows of a copy, piece by piece
`LATE_GAP`            a gap for a change found later, within the transaction that found it
`found_gap(n)`        gaps that the catalog comparison found
`NOTE`                notes of operators
`CHECKPOINT`          a checkpoint; it has no effect
====================  =================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from toolkit.values.lsn import Lsn
    from toolkit.values.table import SchemaVersion

BIRTH = -1
_FOUND_VERSION = 1 << 39
ERASURE = (1 << 40) - 3
COPIED_VERSION = (1 << 40) - 2
BASELINE = (1 << 40) - 1
COPY_GAP = 1 << 40
BATCH = 1 << 40
_COPIED_DELETION = (1 << 40) + 1
_PIECE = 1 << 32
LATE_GAP = (1 << 41) - 1
_FOUND_GAP = 1 << 41
NOTE = 1 << 42
CHECKPOINT = (1 << 42) + 1


class Position(NamedTuple):
    """The place of an event in its generation. Positions compare in the order of effects."""

    commit_lsn: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Point:
    """A position of the log, and the LSN from which its event is visible."""

    commit: int
    ordinal: int
    end: int

    @property
    def position(self) -> Position:
        """Return the position."""
        return Position(self.commit, self.ordinal)


class Placed(Protocol):
    """Anything with a position: events, schema versions, DDL events."""

    @property
    def commit_lsn(self) -> int:
        """Return the commit LSN of the transaction, or the LSN before the one at which the toolkit made the event."""

    @property
    def ordinal(self) -> int:
        """Return the place within the transaction."""


class Visible(Placed, Protocol):
    """Anything with a position and the LSN from which it is visible."""

    @property
    def end_lsn(self) -> int:
        """Return the end LSN of the transaction, or the LSN at which the toolkit made the event."""


class Made(NamedTuple):
    """The LSNs of an event that the toolkit makes at an LSN."""

    commit_lsn: int
    end_lsn: int


def position(event: Placed) -> Position:
    """Return the position of an event."""
    return Position(int(event.commit_lsn), event.ordinal)


def point(event: Visible) -> Point:
    """Return the position of an event with its end LSN."""
    return Point(*position(event), int(event.end_lsn))


def start_of(lsn: Lsn | int) -> Position:
    """Return the position before every change of the transaction whose commit LSN is `lsn`."""
    return Position(int(lsn), BIRTH)


def version_order(version: SchemaVersion) -> tuple[int, Position, int]:
    """Return the sort key of schema versions. LSNs of different generations do not compare."""
    return version.generation, position(version), version.schema_id


def log_order(row: Mapping[str, Any]) -> tuple[int, Position, int]:
    """Return the sort key of an event, given as a row of the log, among all events."""
    return row["generation"], Position(row["commit_lsn"], row["ordinal"]), row["schema_id"] or 0


def made_at(lsn: Lsn | int) -> Made:
    """Return the LSNs of an event made at `lsn`. It is valid from `lsn` on and sorts before every later transaction."""
    return Made(int(lsn) - 1, int(lsn))


def made_after(lsn: Lsn | int) -> Made:
    """Return the LSNs of an event made right after `lsn`. It does not change what is valid at `lsn`."""
    return Made(int(lsn), int(lsn) + 1)


def found_version(number: int) -> int:
    """Return the ordinal of event number `number` of a catalog comparison, which is a schema version."""
    return _FOUND_VERSION + number


def found_gap(number: int) -> int:
    """Return the ordinal of event number `number` of a catalog comparison, which is a gap."""
    return _FOUND_GAP + number


def copied_deletion(number: int) -> int:
    """Return the ordinal of the deletion of key number `number` of a copy of single rows."""
    return _COPIED_DELETION + number


def copied_rows(piece: int, row: int) -> int:
    """Return the ordinal of row number `row`, from 0, in a piece of a copy. A piece has less than 2^32 rows."""
    return BASELINE + (piece + 1) * _PIECE + row


def is_copy_gap(event: Placed) -> bool:
    """Return whether a gap was made by a copy, not by a change."""
    return event.ordinal == COPY_GAP


def is_copied_version(version: Placed) -> bool:
    """Return whether a schema version was read by a copy, not captured with a change."""
    return version.ordinal == COPIED_VERSION


def next_place(ordinal: int, number: int) -> int:
    """Return the ordinal of event number `number` of one change; `ordinal` is the ordinal of its first event."""
    return ordinal + number


#: The columns of `raw.events` by which Spark SQL sorts the events of one generation.
COLUMNS = "commit_lsn, ordinal"


def after_sql(low: Position) -> str:
    """Render the condition in Spark SQL for the events after a position."""
    return _after(low.commit_lsn, low.ordinal)


def after_column_sql(low: str) -> str:
    """Render the condition in Spark SQL for the events after the position in a column with `Position`'s fields."""
    return _after(f"{low}.commit_lsn", f"{low}.ordinal")


def _after(commit_lsn: int | str, ordinal: int | str) -> str:
    return f"(commit_lsn > {commit_lsn} or commit_lsn = {commit_lsn} and ordinal > {ordinal})"


def between_sql(low: Position, high: Position | None) -> str:
    """Render the condition in Spark SQL for the events after `low` and before `high`."""
    return after_sql(low) if high is None else f"{after_sql(low)} and {before_sql(high)}"


def before_sql(high: Position) -> str:
    """Render the condition in Spark SQL for the events before a position."""
    return f"(commit_lsn < {high.commit_lsn} or commit_lsn = {high.commit_lsn} and ordinal < {high.ordinal})"


def first_after_sql(points: Sequence[Point]) -> str:
    """Render the end LSN of the first of `points`, in log order, after an event; NULL if there is none."""
    if not points:
        return "cast(null as bigint)"
    return f"get(filter({_array(points)}, t -> t.c > commit_lsn or t.c = commit_lsn and t.o > ordinal), 0).e"


def count_before_sql(points: Sequence[Point]) -> str:
    """Render the number of `points` that are not after an event."""
    if not points:
        return "0"
    return f"size(filter({_array(points)}, t -> t.c < commit_lsn or t.c = commit_lsn and t.o <= ordinal))"


def _array(points: Sequence[Point]) -> str:
    made = (f"named_struct('c', {p.commit}L, 'o', {p.ordinal}L, 'e', {p.end}L)" for p in points)
    return f"array({', '.join(made)})"

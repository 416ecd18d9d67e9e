"""Define the form in which source and lake compare a row: its line, the line's hash, and the sums of a bucket.

The line of a row has the binary format of COPY: the number of compared columns, and then for each of them, in attnum
order, its length and bytes, or -1 for NULL. Integers, booleans and timestamps use the bytes of their type if the lake
has the same type, so that neither side must print them. All other types use the text that the server prints. XXH64 of
the line with two keys gives two 60-bit numbers. The first one selects the bucket, and both are summed. Each process
draws new keys, so that a collision does not repeat in the next check.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from toolkit.values.table import Column, TableVersion

if TYPE_CHECKING:
    import numpy as np

#: Arguments of Spark's `xxhash64` before the line; the result for each argument is the seed for the next.
KEYS = (secrets.randbits(63), secrets.randbits(63))
_SPARK_SEED = 42
#: Tables with fewer rows use one bucket: reading them again costs less than computing buckets.
_ONE_BUCKET = 100_000
#: The epoch of PostgreSQL's timestamps.
_EPOCH = datetime(2000, 1, 1)
#: The range of the lake's timestamps, in microseconds since that epoch.
_STAMPS = range(-63_082_281_600_000_000, 252_455_616_000_000_000)
_WIDTHS = {"boolean": 1, "smallint": 2, "integer": 4, "bigint": 8, "timestamp": 8, "timestamptz": 8}
_HALF = 30  # bits; sums of halves stay exact in a double and in a bigint


@dataclass(frozen=True, slots=True)
class BucketFigures:
    """Count of the rows of a bucket, and the sums of both numbers of their hashes."""

    rows: int
    high: int
    low: int


#: Figures by bucket number; empty buckets are left out.
Figures = Mapping[int, BucketFigures]


@dataclass(frozen=True, slots=True)
class Native:
    """A type that a line holds in its binary form, for example `smallint` or `timestamp with time zone`."""

    kind: str
    width: int

    def text(self, value: bytes) -> str | None:
        """Return the text that the server prints; None if the bytes are a text and not a value of this type."""
        number = int.from_bytes(value, "big", signed=True)
        if len(value) != self.width or (self.kind.startswith("timestamp") and number not in _STAMPS):
            return None
        if self.kind == "boolean":
            return "t" if number else "f"
        if not self.kind.startswith("timestamp"):
            return str(number)
        text = (_EPOCH + timedelta(microseconds=number)).isoformat(" ")
        return (text.rstrip("0") if "." in text else text) + ("+00" if self.kind == "timestamptz" else "")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The plan for the comparison of one table."""

    table: TableVersion
    columns: tuple[Column, ...]  # in attnum order
    key: tuple[int, ...]  # indexes into `columns`; empty if the table has no key
    buckets: int
    #: Indexes into `columns` of the columns that a line holds in binary form.
    natives: Mapping[int, Native] = field(default_factory=dict, compare=False)


def comparison(table: TableVersion, buckets: int) -> Comparison:
    """Plan a comparison of the published columns.

    If a key column is not published, the table is compared without a key.
    """
    columns = tuple(c for c in table.columns if c.published)
    position = {c.attnum: i for i, c in enumerate(columns)}
    attnums = table.key_attnums if table.keyed else ()
    key = tuple(position[a] for a in attnums) if all(a in position for a in attnums) else ()
    return Comparison(table, columns, key, buckets, natives(columns))


def natives(columns: Sequence[Column]) -> dict[int, Native]:
    """Return the columns that a line holds in binary form, by index."""
    from toolkit.values.lake_types import kind

    found = {}
    for i, column in enumerate(columns):
        name = kind(column) if kind(column).startswith("timestamp") else column.base
        if kind(column) != "string" and name in _WIDTHS:
            found[i] = Native(name, _WIDTHS[name])
    return found


class Sums:
    """Add up lines, a few thousand at a time. Memory grows with the buckets, not with the rows."""

    def __init__(self, buckets: int) -> None:
        import numpy as np

        self._buckets = buckets
        self._rows: np.ndarray[Any, Any] = np.zeros(buckets, np.int64)
        # Sums of the upper and lower halves of both numbers.
        self._halves: np.ndarray[Any, Any] = np.zeros((4, buckets), np.int64)

    def add(self, lines: Sequence[bytes]) -> None:
        """Add lines to the sums."""
        import numpy as np

        if not lines:
            return
        numbers = _numbers(lines)
        bucket = numbers[0] % self._buckets
        self._rows += np.bincount(bucket, minlength=self._buckets)
        for i, number in enumerate(numbers):
            for j, half in enumerate((number >> _HALF, number & ((1 << _HALF) - 1))):
                # Exact: a few thousand summands of 30 bits, in doubles of 53 bits.
                self._halves[2 * i + j] += np.bincount(bucket, half, self._buckets).astype(np.int64)

    def figures(self) -> Figures:
        """Return the figures of every bucket that has rows."""
        found = {}
        for bucket in self._rows.nonzero()[0].tolist():
            parts = self._halves[:, bucket].tolist()
            found[bucket] = BucketFigures(int(self._rows[bucket]), *from_halves(*parts))
        return found


def from_halves(high_upper: int, high_lower: int, low_upper: int, low_lower: int) -> tuple[int, int]:
    """Compute both sums from the sums of the numbers' 30-bit halves."""
    return (high_upper << _HALF) + high_lower, (low_upper << _HALF) + low_lower


def _numbers(lines: Sequence[bytes]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the upper 60 bits of the lines' hashes under both keys."""
    import numpy as np
    from xxhash import xxh64_digest, xxh64_intdigest

    seeds = [xxh64_intdigest(key.to_bytes(8, "little"), _SPARK_SEED) for key in KEYS]
    high, low = (b"".join([xxh64_digest(line, seed) for line in lines]) for seed in seeds)
    return (np.frombuffer(high, ">u8") >> 4).astype(np.int64), (np.frombuffer(low, ">u8") >> 4).astype(np.int64)


def chosen(blocks: Iterable[Sequence[bytes]], buckets: int, wanted: Collection[int]) -> Iterator[bytes]:
    """Return the lines whose bucket is wanted."""
    import numpy as np

    numbers = np.fromiter(wanted, np.int64, len(wanted))
    for lines in blocks:
        if lines:
            for at in np.isin(_numbers(lines)[0] % buckets, numbers).nonzero()[0].tolist():
                yield lines[at]


def effective(plan: Comparison, source: Figures) -> tuple[Comparison, Figures]:
    """Return the comparison with as many buckets as the source's rows justify, and the source's figures in them."""
    if plan.buckets == 1 or total(source) >= _ONE_BUCKET:
        return plan, source
    all_of = source.values()
    whole = BucketFigures(total(source), sum(f.high for f in all_of), sum(f.low for f in all_of))
    return replace(plan, buckets=1), {0: whole} if whole.rows else {}


def differing(source: Figures, lake: Figures) -> tuple[int, ...]:
    """Return the buckets whose figures differ, in ascending order."""
    return tuple(sorted(b for b in source.keys() | lake.keys() if source.get(b) != lake.get(b)))


def total(figures: Figures) -> int:
    """Count the rows in all buckets."""
    return sum(f.rows for f in figures.values())


def cells(line: bytes) -> list[bytes | None]:
    """Return the bytes of a line's cells."""
    found: list[bytes | None] = []
    at = 2
    while at < len(line):
        size = int.from_bytes(line[at : at + 4], "big", signed=True)
        at += 4
        found.append(None if size < 0 else line[at : at + size])
        at += max(size, 0)
    return found


def fields(line: bytes, natives: Mapping[int, Native]) -> tuple[str | None, ...]:
    """Return the texts of a line, by the `natives` of its comparison; NULL is None."""
    found: list[str | None] = []
    for i, cell in enumerate(cells(line)):
        text = natives[i].text(cell) if cell is not None and i in natives else None
        # Bytes that no server sends may not be text: another program has written them into the lake.
        found.append(cell.decode(errors="backslashreplace") if text is None and cell is not None else text)
    return tuple(found)

"""Classify rows from the lines of both sides in bounded memory. Large input is first partitioned by key on disk."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from toolkit.quality.report import Classes, Difference, Row, Sample, cut
from toolkit.values.outcome import RowClass
from toolkit.values.row_line import Native, cells, fields

#: Function that receives every row that is not identical: its class, and its cells in the source and in the lake.
Every = Callable[[RowClass, Row | None, Row | None], None]
#: Lines of both sides together, and bytes of the lines of one side, that are held in memory without parts.
_PART, _PART_BYTES = 200_000, 64 << 20
_PARTS = 128  # files that are open at once
_SIZE = 4  # bytes of the length that is written before a line


def classify(
    source: Iterable[bytes],
    lake: Iterable[bytes],
    *,
    columns: Sequence[str],
    key: Sequence[int],
    samples: int,
    natives: Mapping[int, Native],
    expected: int = 0,
    directory: Path | None = None,
    every: Every | None = None,
) -> Classes:
    """Count rows by class and keep the first `samples` of each class that is not identical, by key.

    Equal rows cancel out, copy by copy. Of the rest, two rows with one key are one modified row. `key` has indexes into
    `columns`. Without a key, rows are only added or removed.

    Args:
        natives: the columns that lines hold in binary form, by index.
        expected: number of lines of both sides.
        directory: where lines are spooled if there are too many, or too long ones, for the memory.
        every: receives the rows as they are found, in no particular order.
    """
    found = _Found(tuple(columns), tuple(key), samples, natives, every)
    if directory is None:
        found.add(list(source), lake)
        return found.classes()
    ours, our_rest = _begun(source, expected)
    theirs, their_rest = _begun(lake, expected) if our_rest is None else ([], lake)
    if our_rest is None and their_rest is None:
        found.add(ours, theirs)
    else:
        for part in _apart(chain(ours, our_rest or ()), chain(theirs, their_rest or ()), key, directory):
            found.add(*part)
    return found.classes()


class Kept:
    """Lines that can be read more than once. Those that do not fit in memory are in a file."""

    def __init__(self, lines: Iterable[bytes], path: Path) -> None:
        self._first, rest = _begun(lines, 0)
        self._path = None if rest is None else path
        if rest is not None:
            with path.open("wb") as sink:
                for line in rest:
                    sink.write(len(line).to_bytes(_SIZE, "big") + line)

    @property
    def long(self) -> bool:
        """Return whether the lines do not fit in memory."""
        return self._path is not None

    def __iter__(self) -> Iterator[bytes]:
        """Return the lines in their order."""
        yield from self._first
        if self._path is not None:
            with self._path.open("rb") as kept:
                while size := kept.read(_SIZE):
                    yield kept.read(int.from_bytes(size, "big"))


def _begun(lines: Iterable[bytes], expected: int) -> tuple[list[bytes], Iterable[bytes] | None]:
    """Take lines while they fit in memory. Return them and all others; None instead if these are all."""
    rest, size = iter(lines), 0
    taken: list[bytes] = []
    if expected > _PART:
        return [], rest
    for line in rest:
        taken.append(line)
        size += len(line)
        if size > _PART_BYTES:
            return taken, rest
    return taken, None


def _apart(
    source: Iterable[bytes], lake: Iterable[bytes], key: Sequence[int], directory: Path
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Partition the lines of both sides; lines of one key go to the same part."""
    files = {}
    for side, lines in (("source", source), ("lake", lake)):
        files[side] = [directory / f"{side}-{n}.lines" for n in range(_PARTS)]
        with ExitStack() as stack:
            sinks = [stack.enter_context(path.open("wb")) for path in files[side]]
            for line in lines:
                row = cells(line) if key else []
                named = repr([row[i] for i in key]).encode() if key else line
                sinks[zlib.crc32(named) % _PARTS].write(len(line).to_bytes(_SIZE, "big") + line)
    for one, two in zip(files["source"], files["lake"], strict=True):
        yield _lines(one), _lines(two)
        one.unlink()
        two.unlink()


def _lines(path: Path) -> list[bytes]:
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        start = at + _SIZE
        at = start + int.from_bytes(data[at:start], "big")
        found.append(data[start:at])
    return found


@dataclass
class _Found:
    columns: tuple[str, ...]
    key: tuple[int, ...]
    most: int
    natives: Mapping[int, Native]
    every: Every | None
    identical: int = 0
    counts: Counter[RowClass] = field(default_factory=Counter)
    kept: dict[RowClass, list[Sample]] = field(default_factory=lambda: {kind: [] for kind in RowClass})

    def add(self, source: list[bytes], lake: Iterable[bytes]) -> None:
        ours, theirs = Counter(source), Counter(lake)
        self.identical += (ours & theirs).total()
        left, right = self._by_key(ours - theirs), self._by_key(theirs - ours)
        for name in sorted(left.keys() | right.keys(), key=_null_first):
            mine, other = left.get(name, []), right.get(name, [])
            for one, two in zip(mine, other, strict=False):
                self._note(RowClass.MODIFIED, self._fields(one), self._fields(two))
            for line in mine[len(other) :]:
                self._note(RowClass.REMOVED, self._fields(line), None, (ours[line], theirs[line]))
            for line in other[len(mine) :]:
                self._note(RowClass.ADDED, None, self._fields(line), (ours[line], theirs[line]))

    def _by_key(self, lines: Counter[bytes]) -> dict[Row, list[bytes]]:
        """Group lines by key; without a key, each line is its own key."""
        found: dict[Row, list[bytes]] = {}
        for line in sorted(lines.elements()):
            row = self._fields(line)
            found.setdefault(tuple(row[i] for i in self.key) if self.key else row, []).append(line)
        return found

    def _fields(self, line: bytes) -> Row:
        return fields(line, self.natives)

    def _note(
        self, kind: RowClass, source: Row | None, lake: Row | None, copies: tuple[int, int] | None = None
    ) -> None:
        self.counts[kind] += 1
        if self.every is not None:
            self.every(kind, source, lake)
        row = source if source is not None else lake
        if len(self.kept[kind]) >= self.most or row is None:
            return
        both = source is not None and lake is not None
        self.kept[kind].append(
            Sample(
                kind,
                key=tuple((self.columns[i], row[i]) for i in self.key or range(len(self.columns))),
                differences=_differences(self.columns, source, lake) if both else (),
                # For a row with a key, only if it occurs more than once, which is the fault itself.
                copies=copies if copies is not None and (not self.key or sum(copies) > 1) else None,
                source=source,
                lake=lake,
            )
        )

    def classes(self) -> Classes:
        n, kept = self.counts, self.kept
        samples = tuple(sample for kind in RowClass for sample in kept[kind])
        return Classes(self.identical, n[RowClass.MODIFIED], n[RowClass.ADDED], n[RowClass.REMOVED], samples)


def _null_first(row: Row) -> tuple[tuple[bool, str], ...]:
    return tuple((value is not None, value or "") for value in row)


def _differences(columns: Sequence[str], source: Row | None, lake: Row | None) -> tuple[Difference, ...]:
    return tuple(
        Difference(name, cut(one), cut(two))
        for name, one, two in zip(columns, source or (), lake or (), strict=True)
        if one != two
    )

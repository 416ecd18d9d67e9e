"""Row classes by merging two streams that are sorted by key hash. Pure, and as small in memory as one key's rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from toolkit.quality.report import Classes, Difference, Sample, SampleKind, cut


@dataclass(frozen=True, slots=True)
class HashedRow:
    """A row as the merge needs it. `fields` are in the order of the compared columns, as PostgreSQL text."""

    key_hash: str
    row_hash: str
    fields: tuple[str | None, ...]


def classify(
    source: Iterable[HashedRow],
    lake: Iterable[HashedRow],
    *,
    columns: Sequence[str],
    key: Sequence[int],
    samples: int,
) -> Classes:
    """Count rows by class and keep the first `samples` of each class that is not identical.

    Both sides are ascending by `key_hash`. `key` indexes `columns`; for a bag it is empty, the key hash is the row
    hash, and equal rows are matched copy by copy.
    """
    counts: Counter[str] = Counter()
    kept: dict[SampleKind, list[Sample]] = {"modified": [], "added": [], "removed": []}

    def note(kind: SampleKind, row: HashedRow, other: HashedRow | None = None) -> None:
        counts[kind] += 1
        if len(kept[kind]) >= samples:
            return
        shown = key or range(len(columns))
        differences = () if other is None else _differences(columns, row, other)
        kept[kind].append(Sample(kind, tuple((columns[i], cut(row.fields[i])) for i in shown), differences))

    for left, right in _pairs(source, lake):
        ours, theirs = _without_equals(left, right)
        counts["identical"] += len(left) - len(ours)
        for one, two in zip(ours, theirs, strict=False):
            note("modified", one, two)
        for row in ours[len(theirs) :]:
            note("removed", row)
        for row in theirs[len(ours) :]:
            note("added", row)
    return Classes(
        counts["identical"],
        counts["modified"],
        counts["added"],
        counts["removed"],
        (*kept["modified"], *kept["added"], *kept["removed"]),
    )


def _pairs(source: Iterable[HashedRow], lake: Iterable[HashedRow]) -> Iterator[tuple[list[HashedRow], list[HashedRow]]]:
    """The rows of both sides, one key hash at a time."""
    left = _groups(source)
    right = _groups(lake)
    ours, theirs = next(left, None), next(right, None)
    while ours is not None or theirs is not None:
        if theirs is None or (ours is not None and ours[0] < theirs[0]):
            assert ours is not None
            yield ours[1], []
            ours = next(left, None)
        elif ours is None or theirs[0] < ours[0]:
            yield [], theirs[1]
            theirs = next(right, None)
        else:
            yield ours[1], theirs[1]
            ours, theirs = next(left, None), next(right, None)


def _groups(rows: Iterable[HashedRow]) -> Iterator[tuple[str, list[HashedRow]]]:
    previous = ""
    for key_hash, group in groupby(rows, lambda row: row.key_hash):
        if key_hash < previous:
            # A merge of unsorted streams would report differences that are not there.
            raise ValueError(f"rows out of order: key hash {key_hash} after {previous}")
        previous = key_hash
        yield key_hash, list(group)


def _without_equals(ours: Sequence[HashedRow], theirs: Sequence[HashedRow]) -> tuple[list[HashedRow], list[HashedRow]]:
    """What is left on each side when equal rows are paired off, copy by copy."""
    common = Counter(r.row_hash for r in ours) & Counter(r.row_hash for r in theirs)

    def rest(rows: Sequence[HashedRow]) -> list[HashedRow]:
        owed = Counter(common)
        left = []
        for row in rows:
            if owed[row.row_hash]:
                owed[row.row_hash] -= 1
            else:
                left.append(row)
        return left

    return rest(ours), rest(theirs)


def _differences(columns: Sequence[str], source: HashedRow, lake: HashedRow) -> tuple[Difference, ...]:
    return tuple(
        Difference(name, cut(one), cut(two))
        for name, one, two in zip(columns, source.fields, lake.fields, strict=True)
        if one != two
    )

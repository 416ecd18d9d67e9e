"""What the source and the lake compute alike: the compared columns, the key, and the figures of a bucket.

A field is `~` for NULL, else its length in characters, a colon and its PostgreSQL text: no text can imitate NULL, and
no value can lean into its neighbour. A row's hash is the MD5 of its fields in attnum order, taken apart into two 60-bit
numbers that are summed over a bucket. The bucket is chosen by the hash of the key fields (of all fields for a bag).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.catalog import Column, TableVersion


@dataclass(frozen=True, slots=True)
class BucketFigures:
    """Rows of a bucket, and the sums of both parts of their hashes."""

    rows: int
    high: int
    low: int


#: Figures by bucket number; empty buckets are left out.
Figures = Mapping[int, BucketFigures]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one table is compared."""

    table: TableVersion
    columns: tuple[Column, ...]  # in attnum order
    key: tuple[int, ...]  # indexes into `columns`; empty for a bag
    buckets: int

    @property
    def bucket_fields(self) -> tuple[int, ...]:
        """Indexes of the fields whose hash chooses the bucket."""
        return self.key or tuple(range(len(self.columns)))


def comparison(table: TableVersion, buckets: int) -> Comparison:
    """Compare the published columns; a table whose key is not wholly published is compared as a bag."""
    columns = tuple(c for c in table.columns if c.published)
    position = {c.attnum: i for i, c in enumerate(columns)}
    attnums = table.key_attnums if table.keyed else ()
    key = tuple(position[a] for a in attnums) if all(a in position for a in attnums) else ()
    return Comparison(table, columns, key, buckets)


def differing(source: Figures, lake: Figures) -> tuple[int, ...]:
    """Buckets whose figures are not equal, ascending."""
    return tuple(sorted(b for b in source.keys() | lake.keys() if source.get(b) != lake.get(b)))


def total(figures: Figures) -> int:
    """Rows in all buckets."""
    return sum(f.rows for f in figures.values())

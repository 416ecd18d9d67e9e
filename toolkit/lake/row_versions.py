"""Read rows of `current` and `history` as PostgreSQL prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from toolkit.lake import reads
from toolkit.lake.applied import CHANGING, commits
from toolkit.rawlog.event import Origin
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from toolkit.values.lake_access import LakeAccess

FROM, TO = "_cdc_from_lsn", "_cdc_to_lsn"
#: Columns of a row version in addition to the table's own: its bounds, and whether it is unverified.
OF_VERSION = (FROM, TO, "_cdc_doubtful")


def read(
    spark: SparkSession,
    relation: str,
    fields: Mapping[str, str],
    key: Mapping[str, str] | None,
    as_of: Lsn | None,
    limit: int | None,
) -> Iterator[dict[str, str | None]]:
    """Read `fields` (the expression of each name) of the rows that are valid at `as_of` and have these texts.

    With a key, give every version with its columns `OF_VERSION`, oldest first. One partition is in memory at a time.
    """
    from pyspark.sql import functions as F

    frame = spark.table(relation)
    if as_of is not None:
        frame = _valid_at(frame, as_of)
    for column, value in (key or {}).items():
        frame = frame.where(F.expr(fields[column]) == F.lit(value))
    added = () if key is None else OF_VERSION
    if added:
        frame = frame.orderBy(F.col(FROM))
    if limit is not None:
        frame = frame.limit(limit)
    shown = [F.expr(text).alias(f"f{i}") for i, text in enumerate(fields.values())]
    chosen = frame.select(*shown, *map(F.col, added))
    for row in chosen.toLocalIterator():
        record: dict[str, str | None] = dict(zip(fields, row, strict=False))
        yield record | {name: as_text(row[name]) for name in added}


def as_text(value: int | None) -> str | None:
    """Return the text of a value of `OF_VERSION`."""
    if isinstance(value, bool):
        return "t" if value else "f"
    return None if value is None else str(Lsn(value))


def lacks_changes(spark: SparkSession, lake: LakeAccess, relation: str, relid: int, *, below: Lsn) -> bool:
    """Return whether the log has changes of a table below an LSN that no build has applied to `relation`."""
    # A killed build leaves a branch, whose table snapshots name a position that the table has not reached.
    made = commits(reads.metadata(lake, relation) or {})
    batch = next((commit.batch_id for commit in made if commit.batch_id is not None), -1)
    later = spark.table(lake.names.events).where(
        f"relid = {relid} and kind in {CHANGING} and batch_id > {batch} and commit_lsn < {int(below)}"
        f" and not (kind = 'baseline' and origin <=> '{Origin.CHECK}')"  # a proof that changes no row
    )
    return bool(later.limit(1).count())


def _valid_at(frame: DataFrame, as_of: Lsn) -> DataFrame:
    from pyspark.sql import functions as F

    open_ended = F.col(TO).isNull() | (F.col(TO) > F.lit(int(as_of)))
    return frame.where((F.col(FROM) <= F.lit(int(as_of))) & open_ended)

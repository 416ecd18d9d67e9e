"""Find the tables that have events after their last build, without reading all of the log at each run.

A table that never changes keeps the position of its first build, so each run would read the log from there on. Instead,
a file in the work folder keeps the newest event of each table that earlier runs have found, and a run reads only the
batches since. Without that file, or if it is of another log, the run reads from the oldest build on once more.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.lake import direct_scan, reads, storage
from toolkit.lake.applied import BUILT_FROM
from toolkit.lake.scans import unreadable
from toolkit.values.whole_file import write_whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.direct_scan import Where
    from toolkit.lake.ledger import Ledger
    from toolkit.values.lake_access import LakeAccess

#: The batch and the LSN up to which a table was built.
Place = tuple[int, int]
_COLUMNS = ("relid", "batch_id", "commit_lsn", "generation")


@dataclass(frozen=True, slots=True)
class News:
    """The highest batch and the highest commit LSN of each table's events, by relid, of those kinds that a build uses.

    Known are the events after the batch of `since`, and those at its LSN or later. `end` is the end of the log.
    """

    since: Place
    end: Place
    newest: Mapping[int, Place]

    def after(self, relid: int, place: Place) -> bool:
        """Return whether the log may have new events of a table that was built up to a place."""
        if place == self.end:
            return False
        if place[0] < self.since[0] or place[1] < self.since[1]:
            return True
        batch, lsn = self.newest.get(relid, (-1, -1))
        return batch > place[0] or lsn >= place[1]


def news(spark: SparkSession | None, log: Ledger, built: Collection[Place]) -> News:
    """Return what is new for tables that were built up to these places. The log must have a batch.

    Without Spark, events that an erasure has deleted may still count.

    Raises:
        LakeError: a file of the log is missing or damaged.
    """
    last = log.last()
    assert last is not None
    end = (last.batch_id, int(last.complete_to))
    older = [place for place in built if place != end]
    if not older:
        return News(end, end, {})
    since = (min(batch for batch, _ in older), min(lsn for _, lsn in older))
    known, newest = _known(log, last.generation), dict[int, Place]()
    later: Where = ((("batch_id", ">", since[0]),), (("commit_lsn", ">=", since[1]),))
    if known is not None and known.since[0] <= since[0] and known.since[1] <= since[1]:
        if known.end == end:
            return known
        since, newest, later = known.since, dict(known.newest), ((("batch_id", ">", known.end[0]),),)
    read = _by_files(log, last.generation, later) if spark is None else _by_spark(spark, log, last.generation, later)
    for relid, *place in read:
        batch, lsn = newest.get(relid, (-1, -1))
        newest[relid] = (max(batch, place[0]), max(lsn, place[1]))
    kept = {"snapshot": log.snapshot_id(), "generation": last.generation}
    with suppress(OSError):  # the next run reads more
        write_whole(_file(log.access), json.dumps(kept | {"since": since, "end": end, "newest": newest}))
    return News(since, end, newest)


def _by_spark(spark: SparkSession, log: Ledger, generation: int, later: Where) -> Iterable[tuple[int, int, int]]:
    """Return the highest batch and commit LSN of each table's events for which a condition holds."""
    rows = spark.sql(
        f"select relid, max(batch_id), max(commit_lsn) from {log.access.names.events}"
        f" version as of {log.snapshot_id()}"
        f" where kind in {BUILT_FROM} and generation = {generation} and ({direct_scan.text(later)}) group by relid"
    ).collect()
    return [tuple(row) for row in rows]


def _by_files(log: Ledger, generation: int, later: Where) -> Iterator[tuple[int, int, int]]:
    """Return the same without Spark, from all rows of the files that may have such events.

    A table comes once for each part of a file that has rows of it.
    """
    import numpy as np

    access = log.access
    metadata = reads.metadata(access, access.names.events) or {}
    snapshot = reads.snapshot(metadata, log.snapshot_id() or 0)
    properties = storage.file_properties(access)
    # The kind is a partition, so a file has events of one.
    where = [(("kind", "in", BUILT_FROM), ("generation", "=", generation), *terms) for terms in later]
    try:
        for file in direct_scan.all_files(snapshot["manifest-list"], properties, metadata, where) if snapshot else ():
            if file.get("content"):  # it deletes rows
                continue
            for rows in storage.row_groups(file["file_path"], _COLUMNS, properties):
                relid, batch, lsn, of = (column.to_numpy() for column in rows.select(_COLUMNS).columns)
                mine = np.flatnonzero(of == generation)
                if not len(mine):
                    continue
                order = mine[np.argsort(relid[mine], kind="stable")]
                starts = np.flatnonzero(np.diff(relid[order], prepend=-1))
                newest = (np.maximum.reduceat(values[order], starts) for values in (batch, lsn))
                yield from zip(*(values.tolist() for values in (relid[order[starts]], *newest)), strict=True)
    except (OSError, EOFError, ValueError) as error:
        raise unreadable(access, access.names.events, error) from None


def _known(log: Ledger, generation: int) -> News | None:
    """Return what an earlier run has found in a state of the log from which the present one comes; None otherwise.

    A log that was restored may have other events under the same batches.
    """
    try:
        kept = json.loads(_file(log.access).read_bytes())
        (batch, lsn), (last, upto), snapshot = kept["since"], kept["end"], kept["snapshot"]
        newest = {int(relid): (of[0], of[1]) for relid, of in kept["newest"].items()}
        found = News((batch, lsn), (last, upto), newest) if kept["generation"] == generation else None
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        return None
    metadata = reads.metadata(log.access, log.access.names.events) or {}
    parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in metadata.get("snapshots") or ()}
    at = log.snapshot_id()
    while at is not None and at != snapshot:
        at = parents.get(at)
    return None if at is None else found


def _file(access: LakeAccess) -> Path:
    return access.work_dir / "newest-events.json"

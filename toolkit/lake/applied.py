"""What the builds did to a table of `current`, from its table snapshots: read without a JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.lake import reads
from toolkit.lake.tables import EVENTS
from toolkit.lsn import Lsn
from toolkit.names import lake_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.catalog import TableVersion
    from toolkit.config import Config
    from toolkit.lake.ledger import Ledger

#: Kinds of events that change what a table holds or how it is built.
CHANGING = "('row', 'truncate', 'schema', 'baseline')"
_REWRITE = "replace"  # operation of a compaction: other files, the same rows


@dataclass(frozen=True, slots=True)
class Commit:
    """One table snapshot. `batch_id` and `lsn` are those that a build applied; None for a commit of anybody else."""

    snapshot_id: int
    batch_id: int | None
    lsn: Lsn | None
    tags: tuple[str, ...]
    rewrite: bool


@dataclass(frozen=True, slots=True)
class Applied:
    """The commits of one table, newest first; empty while it never held a row. `exists` says whether it is there."""

    exists: bool
    commits: tuple[Commit, ...]

    @property
    def snapshot_id(self) -> int | None:
        """The table snapshot that it stands at."""
        return self.commits[0].snapshot_id if self.commits else None

    @property
    def build(self) -> Commit | None:
        """The newest commit that a build made."""
        return next((c for c in self.commits if c.batch_id is not None), None)

    @property
    def foreign(self) -> tuple[Commit, ...]:
        """Commits after the last build that were not only compactions: somebody else wrote to the table."""
        found = []
        for commit in self.commits:
            if commit.rewrite:
                continue  # also one that carries the position on
            if commit.batch_id is not None:
                break
            found.append(commit)
        return tuple(found)

    def since(self, snapshot_id: int | None) -> tuple[Commit, ...] | None:
        """Commits after a table snapshot, newest first; None if that is not an ancestor of the present one."""
        for n, commit in enumerate(self.commits):
            if commit.snapshot_id == snapshot_id:
                return self.commits[:n]
        return None


def applied(config: Config, table: TableVersion) -> Applied:
    """Where the table stands and how it got there."""
    found = reads.metadata(config, f"current.{lake_table(table.schema, table.name)}")
    return Applied(found is not None, tuple(_commits(found)) if found is not None else ())


def _commits(metadata: dict[str, Any]) -> Iterator[Commit]:
    snapshots = {s["snapshot-id"]: s for s in metadata.get("snapshots") or ()}
    tags: dict[int, list[str]] = {}
    for name, ref in (metadata.get("refs") or {}).items():
        if ref["type"] == "tag":
            tags.setdefault(ref["snapshot-id"], []).append(name)
    current = reads.current_snapshot(metadata)
    while current is not None:
        summary = current.get("summary") or {}
        batch, lsn = summary.get("cdc.applied-batch"), summary.get("cdc.applied-lsn")
        yield Commit(
            snapshot_id=int(current["snapshot-id"]),
            batch_id=None if batch is None else int(batch),
            lsn=None if lsn is None else Lsn(lsn),
            tags=tuple(sorted(tags.get(current["snapshot-id"], ()))),
            rewrite=summary.get("operation") == _REWRITE,
        )
        current = snapshots.get(current.get("parent-snapshot-id"))


def behind(config: Config, spark: SparkSession, ledger: Ledger, tables: Sequence[TableVersion]) -> tuple[str, ...]:
    """Lake names of the tables that a build has anything to do for: not built yet, or with newer events."""
    found = {table.relid: applied(config, table) for table in tables}
    names = {table.relid: lake_table(table.schema, table.name) for table in tables}
    batches = {relid: state.build.batch_id if state.build else None for relid, state in found.items()}
    known = [batch for batch in batches.values() if batch is not None]
    newest = dict.fromkeys(batches, 0)
    last = ledger.last()
    if known and last is not None and last.batch_id > min(known):
        rows = spark.sql(
            f"SELECT relid, max(batch_id) FROM {EVENTS} VERSION AS OF {ledger.snapshot_id()}"
            f" WHERE batch_id > {min(known)} AND kind IN {CHANGING} GROUP BY relid"
        ).collect()
        newest |= {relid: batch for relid, batch in rows}
    return tuple(sorted(names[r] for r, batch in batches.items() if batch is None or newest[r] > batch))

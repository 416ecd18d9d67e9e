"""Read from table snapshots, without a JVM, what builds did to a table of `current` or `history`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.lake import reads
from toolkit.lake.table_layout import schema_of, spark_type_of
from toolkit.values.lake_types import spark_type
from toolkit.values.lsn import Lsn
from toolkit.values.names import META_PREFIX, lake_columns, lake_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.ledger import Ledger
    from toolkit.values.lake_access import LakeAccess
    from toolkit.values.table import TableVersion

#: Kinds of events that change what a table holds or how it is built.
CHANGING = ("row", "truncate", "schema", "baseline")
#: The same kinds, and those that change what `history` says about the rows.
BUILT_FROM = ("row", "truncate", "schema", "baseline", "gap", "erased")
_REWRITE = "replace"  # operation of a compaction: it writes other files with the same rows
_POSITION = "cdc."  # prefix of the keys of a commit's summary that name its position in the log


@dataclass(frozen=True, slots=True)
class Commit:
    """One table snapshot. `batch_id` and `lsn` are the position of a build; None if no build made the commit."""

    snapshot_id: int
    batch_id: int | None
    lsn: Lsn | None
    tags: tuple[str, ...]
    rewrite: bool
    columns: tuple[tuple[int, str, str], ...] = ()  # field id, name and Spark type at this commit
    generation: int | None = None  # of the log that the build read

    @property
    def place(self) -> tuple[int, int] | None:
        """Return the batch and the LSN of a build's commit; None if no build made it."""
        return None if self.batch_id is None or self.lsn is None else (self.batch_id, int(self.lsn))


@dataclass(frozen=True, slots=True)
class Foreign:
    """Commits between two builds that no build made, oldest first, and the table snapshot before them."""

    before: Commit
    commits: tuple[Commit, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """The commits of one table, newest first; empty if it never held a row. `exists` says whether the table exists."""

    exists: bool
    commits: tuple[Commit, ...]
    columns: tuple[tuple[int, str, str], ...] = ()  # the present ones, as in `Commit`

    @classmethod
    def of(cls, metadata: dict[str, Any] | None) -> Applied:
        """Read the commits from a table's metadata; None if there is no table."""
        return (
            cls(False, ()) if metadata is None else cls(True, tuple(commits(metadata)), _columns(schema_of(metadata)))
        )

    @property
    def snapshot_id(self) -> int | None:
        """Return the id of the table's newest snapshot."""
        return self.commits[0].snapshot_id if self.commits else None

    @property
    def build(self) -> Commit | None:
        """Return the newest commit that a build made."""
        return next((c for c in self.commits if c.batch_id is not None), None)

    @property
    def altered(self) -> bool:
        """Return whether another program has altered the columns since the newest build.

        That makes no commit of rows. A column that was dropped and added again has another field id, and no values. The
        order of columns does not matter. A compaction has the columns that it found, so the build before it decides.
        """
        builds = [commit for commit in self.commits if commit.batch_id is not None]
        made = next((commit for commit in builds if not commit.rewrite), builds[0] if builds else None)
        return made is not None and set(made.columns) != set(self.columns)

    @property
    def written(self) -> bool:
        """Return whether another program has committed rows since the table was last replaced, as far as is known."""
        return any(commit.batch_id is None and not commit.rewrite for commit in self.commits)

    def foreign(self, since: int | None) -> tuple[Foreign, ...]:
        """List the commits after a table snapshot that neither a build nor a compaction made, newest first.

        A commit is listed only if it has the table's present columns and the table snapshot before it is still known.
        """
        later = self.since(since)
        if later is None:
            later = self.commits
        found: list[Foreign] = []
        run: list[Commit] = []
        known: Commit | None = None
        for commit, before in zip(later, self.commits[1:], strict=False):
            if before.columns != self.commits[0].columns:
                break
            if commit.batch_id is None and not commit.rewrite:
                run.insert(0, commit)
                known = before
            elif run:
                found.append(Foreign(commit, tuple(run)))
                run = []
        return (*found, Foreign(known, tuple(run))) if run and known else tuple(found)

    def since(self, snapshot_id: int | None) -> tuple[Commit, ...] | None:
        """Return the commits after a table snapshot, newest first; None if it is not an ancestor of the present one."""
        for n, commit in enumerate(self.commits):
            if commit.snapshot_id == snapshot_id:
                return self.commits[:n]
        return None


def applied(access: LakeAccess, table: TableVersion) -> Applied:
    """Read the commits of a table in `current`, which show its position and how it was reached."""
    return Applied.of(reads.metadata(access, f"{access.names.current}.{lake_table(table.schema, table.name)}"))


def commits(metadata: dict[str, Any]) -> Iterator[Commit]:
    """Return the commits of a table from its metadata, newest first."""
    snapshots = {s["snapshot-id"]: s for s in metadata.get("snapshots") or ()}
    tags: dict[int, list[str]] = {}
    for name, ref in (metadata.get("refs") or {}).items():
        if ref["type"] == "tag":
            tags.setdefault(ref["snapshot-id"], []).append(name)
    shapes = {schema["schema-id"]: _columns(schema) for schema in metadata.get("schemas") or ()}
    current = reads.current_snapshot(metadata)
    while current is not None:
        stated = _position(current, snapshots)
        batch, lsn = stated.get("cdc.applied-batch"), stated.get("cdc.applied-lsn")
        yield Commit(
            snapshot_id=int(current["snapshot-id"]),
            batch_id=None if batch is None else int(batch),
            lsn=None if lsn is None else Lsn(lsn),
            tags=tuple(sorted(tags.get(current["snapshot-id"], ()))),
            rewrite=_is_rewrite(current),
            columns=shapes.get(current.get("schema-id"), ()),
            generation=int(stated["cdc.generation"]) if "cdc.generation" in stated else None,
        )
        current = snapshots.get(current.get("parent-snapshot-id"))


def newest_build(metadata: dict[str, Any]) -> Commit | None:
    """Return the newest commit of a table that a build made; None if there is none."""
    return next((commit for commit in commits(metadata) if commit.batch_id is not None), None)


def _columns(schema: Mapping[str, Any]) -> tuple[tuple[int, str, str], ...]:
    return tuple((field["id"], field["name"], spark_type_of(field["type"])) for field in schema["fields"])


def position(metadata: dict[str, Any]) -> dict[str, str]:
    """Return the position of a table in the log after its newest commit; empty if that says nothing of it.

    A compaction by another program says nothing and changes no row, so the commit before it decides.
    """
    current = reads.current_snapshot(metadata)
    snapshots = {s["snapshot-id"]: s for s in metadata.get("snapshots") or ()}
    while current is not None and _is_rewrite(current) and not _stated(current):
        current = snapshots.get(current.get("parent-snapshot-id"))
    return {} if current is None else _position(current, snapshots)


def repeats_position(metadata: dict[str, Any]) -> bool:
    """Return whether the newest table snapshot has its position itself, and needs no earlier one for it."""
    current = reads.current_snapshot(metadata)
    return current is None or _position(current, {}) == position(metadata)


def _position(snapshot: Mapping[str, Any], snapshots: Mapping[int, Mapping[str, Any]]) -> dict[str, str]:
    """Read the position of a table snapshot from its summary.

    A compaction repeats the position that it found. Another process may have built the table before the compaction's
    commit, so the commit before it decides, if it is still known. A compaction by another program states nothing.
    """
    stated = _stated(snapshot)
    while stated and _is_rewrite(snapshot):
        before = snapshots.get(snapshot.get("parent-snapshot-id") or 0)
        if before is None:
            break
        snapshot, stated = before, _stated(before)
    return stated


def _is_rewrite(snapshot: Mapping[str, Any]) -> bool:
    return (snapshot.get("summary") or {}).get("operation") == _REWRITE


def _stated(snapshot: Mapping[str, Any]) -> dict[str, str]:
    return {k: v for k, v in (snapshot.get("summary") or {}).items() if k.startswith(_POSITION)}


def misshapen(table: TableVersion, made: Applied) -> str | None:
    """Describe how the columns differ from every version of the table; None if they match or the table never had a row.

    A comparison of rows does not notice this: it reads only the columns that it knows, and casts a wider type to the
    same text.
    """
    if not made.commits:
        return None
    names = lake_columns([(c.attnum, c.name) for c in table.columns])
    wanted = {names[c.attnum]: spark_type(c) for c in table.columns if c.published}
    found = {name: kind for _, name, kind in made.columns if not name.startswith(META_PREFIX)}
    wrong = [f"{name} is of no column of the source" for name in found if name not in wanted]
    wrong += [
        f"{name} is {found[name]}, not {kind}" if name in found else f"{name} is missing"
        for name, kind in wanted.items()
        if found.get(name) != kind
    ]
    if made.altered and not wrong:
        return "another program has dropped one and added it again"
    return "; ".join(wrong[:3]) + f" (and {len(wrong) - 3} more)" * (len(wrong) > 3) if wrong else None


def rows_between(
    spark: SparkSession,
    ledger: Ledger,
    relid: int,
    *,
    commits: Sequence[int],
    batch: int,
    lsn: int,
) -> list[tuple[int, int]]:
    """Count the rows that a build will apply to a table: before each of `commits` (after the one before it), and in it.

    `batch` and `lsn` are the position of the built table. The list is empty if there is a truncate, a baseline or a
    late row.
    """
    figures, low = [], lsn
    for commit in commits:
        figures += [f"count_if(commit_lsn >= {low} and commit_lsn < {commit})", f"count_if(commit_lsn = {commit})"]
        low = commit + 1
    last = ledger.last()
    assert last is not None
    late = f"count_if(commit_lsn < {lsn} or kind <> 'row')"
    row = spark.sql(
        f"select {late}, {', '.join(figures)} from {ledger.access.names.events}"
        f" version as of {ledger.snapshot_id()} where relid = {relid}"
        f" and kind in ('row', 'truncate', 'baseline') and generation = {last.generation}"
        f" and batch_id <= {last.batch_id} and (batch_id > {batch} or commit_lsn >= {lsn})"
    ).first()
    assert row is not None
    return [] if row[0] else [(row[n], row[n + 1]) for n in range(1, 2 * len(commits), 2)]

"""Plan how the log of one table is folded into its rows. The macros of the dbt project render the plan as SQL.

A baseline covers the events before its position, and the rows of its copy follow it. The baseline of a new table is at
its CREATE. A baseline that was read from the source follows everything that the log may have before its LSN.

A segment is a part of the log in which rows are identified in the same way: by the same key columns, or, without a key,
not at all. Its events have the key of the schema version that is valid at the segment's start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Protocol, TypeVar

from toolkit.rawlog import order
from toolkit.rawlog.states import verdicts
from toolkit.values.json_types import to_json
from toolkit.values.modes import Capture
from toolkit.values.names import lake_columns
from toolkit.values.table import is_plain

if TYPE_CHECKING:
    from toolkit.rawlog.event import Baseline, TableEvent
    from toolkit.rawlog.order import Point
    from toolkit.rawlog.states import Doubt, Verdict
    from toolkit.rawlog.store import LogReader
    from toolkit.values.lsn import Lsn
    from toolkit.values.table import Column, SchemaVersion, TableVersion


class _Event(order.Visible, Protocol):
    """An event of the log or a schema version."""

    @property
    def generation(self) -> int: ...


_E = TypeVar("_E", bound=_Event)


class Layer(StrEnum):
    """The result of a plan: the rows at a position, or all row versions up to it."""

    CURRENT = "current"
    HISTORY = "history"


@dataclass(frozen=True, slots=True)
class Cell:
    """A column for the fold. If an image is too short for the column, it shows `missing`."""

    attnum: int
    has_missing: bool
    missing: str | None


@dataclass(frozen=True, slots=True)
class Era:
    """The enum labels to replace in rows that were written at `since` or later."""

    since: int
    labels: Mapping[str, str]  # new label by old label
    nested: bool = False  # labels are parts of the text


@dataclass(frozen=True, slots=True)
class PlannedColumn(Cell):
    """A published column of the last version, with its name in the lake."""

    lake: str
    type: str
    type_kind: str
    base_type: str | None
    relabel: tuple[Era, ...]  # latest first; empty if no label was renamed


@dataclass(frozen=True, slots=True)
class Segment:
    """Events after `low` and before `high`. `key` is empty if rows have no key.

    The last three fields are rendered for the macros, so that no macro compares positions itself.
    """

    low: Point
    high: Point | None
    key: tuple[int, ...]
    clears: tuple[Point, ...]  # no row from before one of these exists after it
    cells: tuple[Cell, ...]  # of the version that is valid at the end; empty for the last: the plan's own columns
    inside: str  # condition in Spark SQL for the segment's events
    cleared: str  # end LSN of the first of `clears` after an event, or NULL
    epoch: str  # how many of `clears` are before an event


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The plan of one table. For a dropped table, `CURRENT` has no columns and no segments."""

    relid: int
    layer: Layer
    dropped: bool
    schema_id: int
    version_commit: int  # commit LSN of the last schema version
    comment: str | None
    doubts: tuple[Doubt, ...]
    name: str = ""  # its name in the lake at the position
    incomplete: bool = False  # a gap is inside the segments, so the log may remove a row that it never inserted
    columns: tuple[PlannedColumn, ...] = ()
    segments: tuple[Segment, ...] = ()

    def to_json(self) -> str:
        """Return the JSON form that the macros read."""
        return to_json(self)


def plans(log: LogReader, upto: Lsn) -> Iterator[TablePlan]:
    """Plan both layers of every table of the current generation that was copied below `upto`, ordered by relid.

    `upto` includes all transactions with a commit LSN below it.
    """
    last = log.last()
    if last is None:
        return

    def by_relid(events: Iterable[_E], relid: Callable[[_E], int | None]) -> dict[int | None, list[_E]]:
        found: dict[int | None, list[_E]] = {}
        for event in events:
            if event.generation == last.generation and event.commit_lsn < upto:
                found.setdefault(relid(event), []).append(event)
        return {key: sorted(of_table, key=order.position) for key, of_table in found.items()}

    versions = by_relid(log.schema_versions(), lambda version: version.table.relid)
    judged = verdicts(log, upto)
    truncates = by_relid(log.truncates(), lambda event: event.relid)
    # A copy of a part is an update like any other: its rows replace only the rows that were read again.
    for relid in sorted(relid for relid, verdict in judged.items() if verdict.copies and relid in versions):
        for layer in Layer:
            yield _plan(layer, versions[relid], judged[relid], truncates.get(relid, []))


def _plan(
    layer: Layer,
    versions: Sequence[SchemaVersion],
    verdict: Verdict,
    truncates: Sequence[TableEvent[None]],
) -> TablePlan:
    """Plan a table with a complete copy from its events in log order."""
    complete = verdict.copies
    last, whole = versions[-1], layer == Layer.HISTORY
    table = last.table
    made = TablePlan(
        table.relid, layer, table.dropped, last.schema_id, int(last.commit_lsn), table.comment, verdict.doubts,
        last.history_name,
    )  # fmt: skip
    if table.dropped and not whole:
        return made
    start = complete[0] if whole else complete[-1]
    clears: list[_Event] = [*complete, *truncates]
    if table.dropped:
        clears.append(last)  # the rows of a dropped table end here, as by a TRUNCATE
    reach = order.position(start)
    points = sorted((order.point(c) for c in clears if order.position(c) >= reach), key=lambda p: p.position)
    base = points[0] if whole else points[-1]
    return replace(
        made,
        incomplete=any(order.position(gap) > base.position for gap in verdict.gaps),
        columns=_columns(versions, complete if whole else [start]),
        segments=_segments(versions, base, points),
    )


def _segments(versions: Sequence[SchemaVersion], base: Point, clears: Sequence[Point]) -> tuple[Segment, ...]:
    """Divide the log after `base` where the key changes."""
    missing = _missing(versions)
    starts: list[tuple[Point, SchemaVersion]] = []
    ends: list[SchemaVersion] = []  # the last version of each segment
    for version in versions:
        if order.position(version) <= base.position or not starts:
            starts, ends = [(base, version)], [version]
        elif _key(version.table) == _key(ends[-1].table):
            ends[-1] = version
        else:
            starts.append((order.point(version), version))
            ends.append(version)
    made = []
    for number, ((low, first), end) in enumerate(zip(starts, ends, strict=True)):
        high = starts[number + 1][0] if number + 1 < len(starts) else None
        end_at = None if high is None else high.position
        inside = tuple(c for c in clears if c.position > low.position and (end_at is None or c.position < end_at))
        cells = () if high is None else tuple(Cell(c.attnum, *missing(c)) for c in end.table.columns)
        events = order.between_sql(low.position, end_at)
        cleared, epoch = order.first_after_sql(inside), order.count_before_sql(inside)
        made.append(Segment(low, high, _key(first.table), inside, cells, events, cleared, epoch))
    return tuple(made)


def _key(table: TableVersion) -> tuple[int, ...]:
    """Return the columns that identify rows; none if a column list leaves one of them out of the images.

    The server then refuses UPDATE and DELETE, so that rows only come. A computed key that is not captured makes the
    table stale. A record of the change log has every column.
    """
    left_out = {c.attnum for c in table.columns if not c.published and not c.generated}
    sent = not table.published or table.capture == Capture.CHANGE_LOG or left_out.isdisjoint(table.key_attnums)
    return table.key_attnums if table.keyed and sent else ()


def _columns(versions: Sequence[SchemaVersion], baselines: Sequence[TableEvent[Baseline]]) -> tuple[PlannedColumn, ...]:
    columns = versions[-1].table.columns
    names, missing = lake_columns([(c.attnum, c.name) for c in columns]), _missing(versions)
    labelled = {c.attnum for version in versions for c in version.table.columns if c.labels}
    return tuple(
        PlannedColumn(
            c.attnum,
            *missing(c),
            lake=names[c.attnum],
            type=c.type,
            type_kind=c.type_kind,
            base_type=c.base_type,
            relabel=_relabel(c, versions, baselines) if c.attnum in labelled else (),
        )
        for c in columns
        if c.published
    )


def _missing(versions: Sequence[SchemaVersion]) -> Callable[[Column], tuple[bool, str | None]]:
    """Return `has_missing` and `missing` of a column by any version: a rewrite, and a copy after it, have lost it."""
    known = {c.attnum: c.missing for version in versions for c in version.table.columns if c.has_missing}
    return lambda column: (column.attnum in known, known.get(column.attnum))


@dataclass(frozen=True, slots=True)
class _Naming:
    """The enum values of the rows that were written at `since` or later, and the names that these rows show, by OID."""

    since: int
    nested: bool
    owners: Mapping[str, int]  # OID by any name that rows may have
    names: Mapping[int, str]


def labels_at(log: LogReader, built: TableVersion, at: Lsn) -> dict[int, Era]:
    """Return by attnum which labels of rows in `history`, built with a version, have other names at an LSN."""
    last, verdict = log.last(), verdicts(log).get(built.relid)
    generation = None if last is None else last.generation
    found = (v for v in log.schema_versions() if (v.generation, v.table.relid) == (generation, built.relid))
    versions = sorted(found, key=order.position)
    while versions and versions[-1].table != built:  # a table that left capture is not built any more
        versions.pop()
    then = next((v for v in reversed(versions) if v.commit_lsn < at), None)
    if verdict is None or then is None:
        return {}
    old, eras = {c.attnum: c for c in then.table.columns}, dict[int, Era]()
    for column in built.columns:
        if column.attnum in old and (labels := old[column.attnum].labels):
            named = next((n for n in _namings(column, versions, verdict.copies) if n.since <= at), None)
            names = {} if named is None else named.names
            renamed = {names[oid]: label for oid, label in labels if names.get(oid, label) != label}
            if named is not None and renamed:
                eras[column.attnum] = Era(int(at), renamed, named.nested)
    return eras


def _relabel(
    column: Column, versions: Sequence[SchemaVersion], baselines: Sequence[TableEvent[Baseline]]
) -> tuple[Era, ...]:
    """Return the labels to replace in the rows after each baseline, and after each change of the column's type."""
    eras = []
    for one in _namings(column, versions, baselines):
        renamed = {label: one.names[oid] for label, oid in one.owners.items() if one.names.get(oid, label) != label}
        eras.append(Era(one.since, renamed, one.nested))
    return tuple(eras) if any(era.labels for era in eras) else ()


def _namings(
    column: Column, versions: Sequence[SchemaVersion], baselines: Sequence[TableEvent[Baseline]]
) -> list[_Naming]:
    """Return the names of a column's enum values after each baseline and each change of its type, latest first.

    The OID identifies an enum value. A baseline was read with the names of its time. The versions after it have every
    name that a value has had since, the oldest first. Once a name means another value, the table is stale until it is
    copied, so a name is replaced as its first value demands. Values of a type that the column no longer has are shown
    by their last names.
    """
    now = dict(column.labels)
    namings: list[_Naming] = []
    for baseline, following in pairwise([*baselines, None]):
        assert baseline is not None
        known = (
            (int(version.end_lsn), other)
            for version in _of_era(versions, baseline, following)
            for other in version.table.columns
            if other.attnum == column.attnum
        )
        for number, (type_oid, group) in enumerate(groupby(known, key=lambda one: one[1].type_oid)):
            (begun, first), *rest = group
            since = begun if number else int(baseline.end_lsn)
            found = [first, *(other for _, other in rest)]
            # Inside an array, labels can be replaced as long as none may be quoted. The table is stale from then on.
            nested = any(one.nested for one in found)
            plain = [one for one in found if not nested or all(map(is_plain, _names(one)))]
            same = type_oid == column.type_oid
            as_now = same and plain == found and (not nested or all(map(is_plain, now.values())))
            owners: dict[str, int] = {}
            for oid, label in (*plain[-1].former_labels, *plain[-1].labels) if plain else ():
                owners.setdefault(label, oid)
            names = now if as_now else dict(plain[-1].labels) if plain else {}
            namings.insert(0, _Naming(since, nested, owners, names))
    return namings


def _of_era(
    versions: Sequence[SchemaVersion], baseline: TableEvent[Baseline], following: TableEvent[Baseline] | None
) -> Sequence[SchemaVersion]:
    """Return the version in which a baseline was read, and those after it up to the next baseline."""
    until = [v for v in versions if following is None or _is_before_copy(v, following)]
    since = [v for v in until if not _is_before_copy(v, baseline)]
    if since and _is_read_with(since[0], baseline):
        return since
    return until[max(0, len(until) - len(since) - 1) :]


def _names(column: Column) -> Iterator[str]:
    return (label for _, label in (*column.former_labels, *column.labels))


def _is_before_copy(version: SchemaVersion, baseline: TableEvent[Baseline]) -> bool:
    """Return whether a version is before a baseline and is not the one that was read together with it."""
    return order.position(version) < order.position(baseline) and not _is_read_with(version, baseline)


def _is_read_with(version: SchemaVersion, baseline: TableEvent[Baseline]) -> bool:
    return order.is_copied_version(version) and version.commit_lsn == baseline.commit_lsn

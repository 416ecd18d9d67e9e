"""Give the schema history: the shape of a table at any LSN, and which DDL by which role made it.

This is read from the raw log alone, without source or JVM. A column is its attnum. So a rename stays one column, and a
column dropped and added again under its old name is two columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING

from toolkit.history import effects
from toolkit.history.effects import EffectClass
from toolkit.rawlog import order
from toolkit.rawlog.event import SchemaChange, TableEvent
from toolkit.values.errors import ConfigError, UnknownTable
from toolkit.values.lsn import Lsn
from toolkit.values.names import meant, nearest
from toolkit.values.table import Column, SchemaVersion, TableVersion

if TYPE_CHECKING:
    import pandas as pd

    from toolkit.lake.ledger import Ledger


class ChangeKind(StrEnum):
    """Kind of a difference between two versions of a table or of a column."""

    CREATED = "created"
    DROPPED = "dropped"  # the table, or a column
    TABLE_RENAMED = "table renamed"
    KEY = "key"
    REPLICA_IDENTITY = "replica identity"
    ROW_FILTER = "row filter"
    PUBLICATIONS = "publications"  # in what they differ
    STRAYS = "partitions that are not sent"
    PUBLISHED = "published"
    PERSISTENCE = "persistence"
    PARTITIONING = "partitioning"
    COMMENT = "comment"
    ADDED = "added"
    RENAMED = "renamed"
    TYPE = "type"
    NULLABILITY = "nullability"
    DEFAULT = "default"
    IDENTITY = "identity"
    GENERATED = "generated"
    COLLATION = "collation"
    ENUM_LABELS = "enum labels"
    COMPOSITE = "composite"
    DOMAIN = "domain"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two versions of a table. `column` is None for a difference of the table itself."""

    kind: ChangeKind
    column: str | None
    attnum: int | None
    before: str | None
    after: str | None

    def __str__(self) -> str:
        subject = f"{self.kind} {self.column}" if self.column else self.kind
        if self.before is None and self.after is None:
            return subject
        if self.before is None:
            return f"{subject}: {self.after}"
        return f"{subject}: {self.before} -> {'none' if self.after is None else self.after}"


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """A captured DDL command, at the position where its effects begin."""

    commit_lsn: Lsn
    ordinal: int
    end_lsn: Lsn
    at: str | None  # ISO 8601, by the source's clock
    role: str | None
    tag: str | None  # command tag, for example ALTER TABLE
    sql: str | None  # the whole text that the client sent, which may hold several commands
    event: str  # ddl_command_end, sql_drop, table_rewrite or capture_failed
    relids: tuple[int, ...]
    error: str | None
    created: tuple[int, ...] = ()  # those of the relids that are tables which the command created
    effect: EffectClass = EffectClass.NONE  # its class, by `toolkit.history.effects`: the worst one of all tables
    generation: int = 1  # LSNs of different generations do not compare


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """One version of one table, valid at L when `valid_from <= L < valid_to` (None: still valid)."""

    relid: int
    schema_id: int
    valid_from: Lsn  # an end LSN
    valid_to: Lsn | None
    table: TableVersion
    ddl: DdlEvent | None  # for a change found late: it began between here and `valid_from`
    changes: tuple[Change, ...]
    since: Lsn | None = None  # found late: it may have been so from here on, and was by `valid_from`
    generation: int = 1

    @property
    def name(self) -> str:
        """Return `schema.table` in this version."""
        return self.table.identifier


def versions(ledger: Ledger, table: str) -> list[VersionInfo]:
    """List all versions of a table, oldest first. `table` may be any name that it ever had.

    Raises:
        UnknownTable: no captured table ever had that name.
    """
    return _versions(_Log.read(ledger), table, None)


def show(ledger: Ledger, table: str, as_of: Lsn | None = None) -> VersionInfo:
    """Return the version valid at `as_of` (the newest for None).

    Raises:
        UnknownTable: the name is unknown, or the table had no version yet at that LSN.
    """
    return _valid_at(_versions(_Log.read(ledger), table, as_of), table, as_of)


def diff(ledger: Ledger, table: str, start: Lsn, end: Lsn) -> tuple[Change, ...]:
    """List the differences between two LSNs, whatever happened in between.

    Raises:
        ConfigError: `end` is before `start`.
        UnknownTable: the name is unknown, or the table had no version yet at one of the LSNs.
    """
    if end < start:
        raise ConfigError(f"comparing {table} from {start} to {end}: the first LSN is the later one; exchange them")
    log = _Log.read(ledger)
    found = _versions(log, table, start)
    return changes(_valid_at(found, table, start).table, _valid_at(found, table, end).table)


def events(ledger: Ledger) -> list[DdlEvent]:
    """List all captured DDL commands, in the order of their effects."""
    return list(_Log.read(ledger).ddl)


def resolve(ledger: Ledger, table: str, as_of: Lsn | None = None) -> TableVersion:
    """Find the table that a name means: the live table of that name, or else the last one that had it.

    Raises:
        UnknownTable: no captured table ever had that name; close names are listed.
    """
    return newest(ledger, table, as_of).table


def newest(ledger: Ledger, table: str, as_of: Lsn | None = None) -> SchemaVersion:
    """Return the last schema version of the table that a name means."""
    log = _Log.read(ledger)
    relid = _resolve(log, table, as_of)
    return max((v for v in log.schemas if v.table.relid == relid), key=order.version_order)


def versions_frame(ledger: Ledger, table: str) -> pd.DataFrame:
    """Return the versions as a frame, for notebooks.

    Columns: schema_id, valid_from, valid_to (LSN text, None while valid), from_bytes, to_bytes (LSN as number), since
    (LSN text; where a change that was found late may have begun), table, tag, sql, role, at (UTC timestamp), changes
    (text, one line for each change).
    """
    import pandas as pd

    rows = [
        {
            "schema_id": v.schema_id,
            "valid_from": str(v.valid_from),
            "valid_to": None if v.valid_to is None else str(v.valid_to),
            "from_bytes": int(v.valid_from),
            "to_bytes": None if v.valid_to is None else int(v.valid_to),
            "since": None if v.since is None else str(v.since),
            "table": v.name,
            "tag": v.ddl.tag if v.ddl else None,
            "sql": v.ddl.sql if v.ddl else None,
            "role": v.ddl.role if v.ddl else None,
            "at": v.ddl.at if v.ddl else None,
            "changes": "\n".join(str(c) for c in v.changes),
        }
        for v in versions(ledger, table)
    ]
    frame = pd.DataFrame(rows).astype({"from_bytes": "int64", "to_bytes": "Int64"})
    frame["at"] = pd.to_datetime(frame["at"], utc=True, format="ISO8601")
    return frame


def shape_frame(ledger: Ledger, table: str, as_of: Lsn | None = None) -> pd.DataFrame:
    """Return the columns of a table at an LSN, for notebooks.

    Columns: attnum, name, type, not_null, default, key (position in the replica identity, from 1), published, comment,
    lake_name and lake_type (the column of the typed tables; None if it is not published).
    """
    import pandas as pd

    from toolkit.values.lake_types import spark_type
    from toolkit.values.names import lake_columns

    shape = show(ledger, table, as_of).table
    names = lake_columns([(c.attnum, c.name) for c in shape.columns])
    place = {attnum: i for i, attnum in enumerate(shape.key_attnums, 1)}
    rows = [
        {
            "attnum": c.attnum,
            "name": c.name,
            "type": c.type,
            "not_null": c.not_null,
            "default": c.default,
            "key": place.get(c.attnum),
            "published": c.published,
            "comment": c.comment,
            "lake_name": names[c.attnum] if c.published else None,
            "lake_type": spark_type(c) if c.published else None,
        }
        for c in shape.columns
    ]
    columns = ["attnum", "name", "type", "not_null", "default", "key", "published", "comment", "lake_name", "lake_type"]
    return pd.DataFrame(rows, columns=columns).astype({"key": "Int64"})


def changes(before: TableVersion | None, after: TableVersion) -> tuple[Change, ...]:
    """List the differences between two versions of one table; without `before` the table itself is new."""
    if before is None:
        return (Change(ChangeKind.CREATED, None, None, None, after.identifier),)
    if after.dropped:
        return (Change(ChangeKind.DROPPED, None, None, before.identifier, None),) if not before.dropped else ()
    found = [
        Change(kind, None, None, one, two)
        for kind, one, two in (
            (ChangeKind.TABLE_RENAMED, before.identifier, after.identifier),
            (ChangeKind.KEY, _key(before), _key(after)),
            (ChangeKind.REPLICA_IDENTITY, before.replica_identity, after.replica_identity),
            (ChangeKind.ROW_FILTER, before.row_filter, after.row_filter),
            (ChangeKind.PUBLICATIONS, before.conflict, after.conflict),
            (ChangeKind.STRAYS, _strays(before), _strays(after)),
            (ChangeKind.PUBLISHED, _yes(before.published), _yes(after.published)),
            (ChangeKind.PERSISTENCE, before.persistence, after.persistence),
            (ChangeKind.PARTITIONING, _parts(before), _parts(after)),
            (ChangeKind.COMMENT, before.comment, after.comment),
        )
        if one != two
    ]
    old = {c.attnum: c for c in before.columns}
    new = {c.attnum: c for c in after.columns}
    for attnum in sorted(old.keys() | new.keys()):
        found += column_changes(old.get(attnum), new.get(attnum))
    return tuple(found)


def column_changes(before: Column | None, after: Column | None) -> Iterator[Change]:
    """List the differences between two versions of one column; None means that the column does not exist."""
    if after is None:
        assert before is not None
        yield Change(ChangeKind.DROPPED, before.name, before.attnum, before.type, None)
        return
    if before is None:
        yield Change(ChangeKind.ADDED, after.name, after.attnum, None, _declaration(after))
        return
    for kind, one, two in (
        (ChangeKind.RENAMED, before.name, after.name),
        (ChangeKind.TYPE, before.type, after.type),
        (ChangeKind.NULLABILITY, _null(before), _null(after)),
        (ChangeKind.DEFAULT, before.default, after.default),
        (ChangeKind.IDENTITY, before.identity or None, after.identity or None),
        (ChangeKind.GENERATED, before.generated or None, after.generated or None),
        (ChangeKind.COLLATION, before.collation, after.collation),
        (ChangeKind.ENUM_LABELS, _labels(before), _labels(after)),
        (ChangeKind.COMPOSITE, _attributes(before), _attributes(after)),
        (ChangeKind.DOMAIN, before.base_type, after.base_type),
        (ChangeKind.PUBLISHED, _yes(before.published), _yes(after.published)),
        (ChangeKind.COMMENT, before.comment, after.comment),
    ):
        if one != two:
            yield Change(kind, after.name, after.attnum, one, two)


def _declaration(column: Column) -> str:
    parts = [column.type]
    if column.not_null:
        parts.append("NOT NULL")
    if column.default is not None:
        parts.append(f"{'GENERATED AS' if column.generated else 'DEFAULT'} {column.default}")
    return " ".join(parts)


def _null(column: Column) -> str:
    return "NOT NULL" if column.not_null else "NULL"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _labels(column: Column) -> str | None:
    return ", ".join(label for _, label in column.labels) or None


def _attributes(column: Column) -> str | None:
    return ", ".join(f"{name} {kind}" for name, kind in column.attributes) or None


def _parts(table: TableVersion) -> str | None:
    ends = [f"parents {', '.join(map(str, table.parents))}"] if table.parents else []
    ends += [f"children {', '.join(map(str, table.children))}"] if table.children else []
    return "; ".join(ends) or None


def _strays(table: TableVersion) -> str | None:
    return "; ".join(f"{stray.name} {stray.fault[0]}" for stray in table.strays) or None


def _key(table: TableVersion) -> str | None:
    # By attnum: a renamed key column stays the same key.
    return ", ".join(f"#{a}" for a in table.key_attnums) or None


@dataclass(frozen=True, slots=True)
class _Log:
    """The schema versions and DDL events of the log, ordered by position."""

    schemas: tuple[SchemaVersion, ...]
    ddl: tuple[DdlEvent, ...]
    late: Mapping[tuple[int, int, Lsn], Lsn] = field(
        default_factory=dict
    )  # by generation, relid and position at which a change was found: the position from which it may have begun

    @classmethod
    def read(cls, ledger: Ledger) -> _Log:
        schemas = tuple(sorted(ledger.schema_versions(), key=order.version_order))
        ddl = _classed((_ddl_event(e) for e in ledger.ddl_events()), effects.by_position(ledger))
        late: dict[tuple[int, int, Lsn], Lsn] = {}
        for gap in ledger.gaps():
            if gap.relid is not None and gap.payload.until is not None:
                found = (gap.generation, gap.relid, gap.payload.until)
                late[found] = min(gap.end_lsn, late.get(found, gap.end_lsn))
        return cls(schemas, tuple(ddl), late)


def _classed(events: Iterable[DdlEvent], found: Mapping[tuple[int, int, int, int], EffectClass]) -> Iterator[DdlEvent]:
    """Add the class to each event.

    The creation of a table is placed before all rows of its transaction. All other changes are at their event.
    """
    there: dict[tuple[int, int, int], list[EffectClass]] = {}
    for (generation, commit, ordinal, _), one in found.items():
        there.setdefault((generation, commit, ordinal), []).append(one)
    for event in events:
        at = (event.generation, int(event.commit_lsn))
        born = [found[*at, order.BIRTH, relid] for relid in event.created if (*at, order.BIRTH, relid) in found]
        yield replace(event, effect=effects.worst([*born, *there.get((*at, event.ordinal), ())]))


def _ddl_event(event: TableEvent[SchemaChange]) -> DdlEvent:
    found = event.payload
    return DdlEvent(
        commit_lsn=Lsn(event.commit_lsn),
        ordinal=event.ordinal,
        end_lsn=Lsn(event.end_lsn),
        at=found.at,
        role=found.role,
        tag=found.tag,
        sql=found.sql,
        event=found.event,
        relids=found.relids,
        error=found.error,
        created=found.created,
        generation=event.generation,
    )


def _versions(log: _Log, table: str, as_of: Lsn | None) -> list[VersionInfo]:
    relid = _resolve(log, table, as_of)
    chain = _chain(log, relid)
    ddl = {(e.generation, order.position(e)): e for e in log.ddl}
    found = []
    for i, version in enumerate(chain):
        following = chain[i + 1] if i + 1 < len(chain) else None
        found.append(
            VersionInfo(
                relid=relid,
                schema_id=version.schema_id,
                valid_from=version.end_lsn,
                valid_to=following.end_lsn if following else None,
                table=version.table,
                ddl=ddl.get((version.generation, order.position(version))),
                changes=changes(chain[i - 1].table if i else None, version.table),
                since=log.late.get((version.generation, relid, version.end_lsn)),
                generation=version.generation,
            )
        )
    return found


def _chain(log: _Log, relid: int) -> list[SchemaVersion]:
    """Return the versions of a table, oldest first, in its newest generation and in those that this one continues.

    Each generation begins with a copy. What an earlier one has after that LSN is another history. So is a table that
    had the same OID and another name at that LSN.
    """
    chain: list[SchemaVersion] = []
    mine = [v for v in log.schemas if v.table.relid == relid]
    for _, versions in groupby(reversed(mine), key=lambda version: version.generation):
        earlier = [v for v in reversed(list(versions)) if not chain or v.end_lsn <= chain[0].end_lsn]
        same = earlier and (not chain or _same_table(earlier[-1].table, chain[0].table))
        if not same:
            break
        chain = [*earlier, *chain]
    return chain


def _same_table(old: TableVersion, new: TableVersion) -> bool:
    return not old.dropped and old.identifier == new.identifier


def _valid_at(found: Sequence[VersionInfo], table: str, as_of: Lsn | None) -> VersionInfo:
    if as_of is None:
        return found[-1]
    # Several versions of one transaction share an end LSN; the last of them is the state after the transaction.
    valid = [v for v in found if v.valid_from <= as_of]
    if not valid:
        first = found[0].valid_from
        raise UnknownTable(f"{table} as of {as_of}: its schema history begins at {first}; give that LSN or a later one")
    return valid[-1]


def _resolve(log: _Log, table: str, as_of: Lsn | None) -> int:
    """Find the relid that a name means at an LSN, or else the last one that ever had it."""
    names = {v.table.identifier for v in log.schemas}
    name = meant(table, names)
    latest: dict[int, SchemaVersion] = {}
    for version in log.schemas:
        if as_of is None or version.end_lsn <= as_of:
            latest[version.table.relid] = version
    live = [v for v in latest.values() if v.table.identifier == name and not v.table.dropped]
    if live:
        return max(live, key=order.version_order).table.relid
    ever = [v for v in log.schemas if v.table.identifier == name]
    if ever:
        return max(ever, key=order.version_order).table.relid
    raise UnknownTable(f"no captured table is or was named {table!r}; {nearest(table, names)}")

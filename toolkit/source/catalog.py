"""Read the catalogs of the source: tables, publications, identity and the signing key.

Every function only reads, and returns small values.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from toolkit.rawlog.batch import SourceIdentity
from toolkit.source import drain_mode
from toolkit.source.connection import Connection
from toolkit.source.settings import read_setting
from toolkit.values import resources
from toolkit.values.capture_rules import CaptureRules, SourceConfig
from toolkit.values.errors import HistoryDiverged, PreflightFailed
from toolkit.values.names import qualified
from toolkit.values.table import ForeignKey, TableVersion


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation of the user by name and kind; `partition` means that it is part of a partitioned table.

    `by_all_columns` means that REPLICA IDENTITY FULL can identify its rows. From PostgreSQL 18 on, a generated column
    that no publication sends prevents that.
    """

    relid: int
    schema: str
    name: str
    kind: str  # pg_class.relkind
    persistence: str  # pg_class.relpersistence
    partition: bool
    by_all_columns: bool
    parents: tuple[int, ...]

    @property
    def identifier(self) -> str:
        """Return `schema.table`, quoted where needed."""
        return qualified(self.schema, self.name)

    @property
    def table(self) -> bool:
        """Return whether it is a table, partitioned or not."""
        return self.kind in "rp"

    @property
    def capturable(self) -> bool:
        """Return whether logical decoding sends its rows."""
        return self.table and self.persistence == "p"


@dataclass(frozen=True, slots=True)
class PublicationState:
    """A publication as it is declared."""

    oid: int
    name: str
    all_tables: bool
    via_root: bool
    publishes: frozenset[str]  # insert, update, delete, truncate
    relids: frozenset[int]  # tables that it names itself
    schemas: frozenset[str]  # FOR TABLES IN SCHEMA
    publishes_log: bool = False  # it contains the change log
    made: bool = False  # `cdc init` has created it

    @property
    def replaceable(self) -> bool:
        """Return whether `cdc init` may name the partitions of a partitioned table in its place."""
        return self.made and not self.via_root

    def holds(self, relation: Relation) -> bool:
        """Return whether it names the relation or its schema, or contains all tables."""
        return self.all_tables or relation.schema in self.schemas or relation.relid in self.relids


def relations(conn: Connection) -> tuple[Relation, ...]:
    """Read every relation of the user, including those that cannot be captured."""
    rows = _rows(conn, "introspect/relations", {})
    return tuple(Relation(**(row | {"parents": tuple(row["parents"])})) for row in rows)


def without_identity(conn: Connection) -> dict[int, str]:
    """Return, by relid, why UPDATE and DELETE of a table, or of its new partitions, fail once it is published."""
    reasons = {
        "none": "has no replica identity",
        "deferrable": "has a deferrable primary key, which is no replica identity",
        "index": "has lost the index that is its replica identity",
        "nothing": "has REPLICA IDENTITY NOTHING",
        "generated": "has a replica identity with a generated column, which the publication does not send",
        "partitions": "has no primary key, so its new partitions have no replica identity",
    }
    return {relid: reasons[why] for relid, why in conn.execute(resources.load("introspect/identity_missing"))}


def versions_of(conn: Connection, chosen: Sequence[Relation]) -> tuple[TableVersion, ...]:
    """Return the versions of these tables, published or not.

    Before `cdc init` the source has no snapshot function. The versions then contain names and kinds only.
    """
    if not installed(conn):
        return tuple(_outline(r) for r in chosen)
    found, relids = _snapshots(conn, published=False), {r.relid for r in chosen}
    return tuple(TableVersion.from_json(json.loads(text)) for relid, text in found.items() if relid in relids)


def published_tables(conn: Connection) -> tuple[TableVersion, ...]:
    """Return the versions of the tables in a publication, by relid."""
    return tuple(TableVersion.from_json(json.loads(text)) for text in snapshot_json(conn).values())


def with_partitions(conn: Connection, relids: set[int]) -> set[int]:
    """Add the partitions of these tables, at every depth."""
    found = conn.execute(
        "select t.relid::oid::int8 from pg_catalog.unnest(%s::oid[]) as r, pg_catalog.pg_partition_tree(r) as t",
        [list(relids)],
    )
    return relids | {relid for (relid,) in found}


def snapshot_json(conn: Connection) -> dict[int, str]:
    """Return the JSON that `cdc.table_snapshot` makes of each published table, by relid.

    Raises:
        PreflightFailed: the toolkit's objects are not on the source.
    """
    return _snapshots(conn, published=True)


def inherited(conn: Connection) -> dict[int, str]:
    """Return, by relid, which rows of children SELECT adds to those of a parent by inheritance.

    The lake has only the parent's own rows. The facts are those of the transaction's snapshot, so they are right at the
    LSN of a cut, whether DDL was captured or not.
    """
    found = conn.execute(resources.load("introspect/inheritors")).fetchall()
    own = "by inheritance; the lake has those of SELECT FROM ONLY"
    return {relid: f"SELECT also shows the rows of {', '.join(children)} {own}" for relid, children in found}


def snapshots_of(conn: Connection, relids: Sequence[int]) -> dict[int, str]:
    """Return the JSON of the given tables that exist, published or not."""
    if not relids:
        return {}
    found = conn.execute(
        "select s.relid::int8, s.snapshot::text from cdc.table_snapshots(%s::oid[]) as s order by s.relid", [relids]
    ).fetchall()
    return {relid: text for relid, text in found}


def installed(conn: Connection) -> bool:
    """Return whether `cdc init` has installed its functions on the source."""
    row = conn.execute(
        "select pg_catalog.to_regprocedure('cdc.table_snapshots(pg_catalog.oid[])') is not null"
    ).fetchone()
    return bool(row and row[0])


def begun(conn: Connection) -> bool:
    """Return whether the source has any object of the toolkit."""
    row = conn.execute("select pg_catalog.to_regnamespace('cdc') is not null").fetchone()
    return bool(row and row[0])


def read_by(conn: Connection) -> set[str]:
    """Return the publications that the functions on the source use to decide what is published."""
    names = read_setting(conn, "publications")
    return set(json.loads(names)) if names else set()


def printing(conn: Connection, relids: Sequence[int]) -> set[tuple[int, str]]:
    """Return what the texts of these tables are made of beside their rows, each fact with the table's relid.

    A later state that has all of these facts prints rows of this one alike: enum values may be added.
    """
    return set(conn.execute(resources.load("introspect/printing"), {"relids": list(relids)}).fetchall())


def is_superuser(conn: Connection) -> bool:
    """Return whether the role is a superuser, which may create event triggers."""
    row = conn.execute("select rolsuper from pg_catalog.pg_roles where rolname = current_user").fetchone()
    return bool(row and row[0])


def publications(conn: Connection, source: SourceConfig) -> tuple[PublicationState, ...]:
    """Read the configured publications that exist."""
    found = []
    try:
        oid = read_setting(conn, "made")
    except PreflightFailed:
        oid = None  # a role that may not read it changes no publication
    for row in _rows(conn, "introspect/publication", {"publications": list(source.publications)}):
        sets = {key: frozenset(row[key]) for key in ("publishes", "relids", "schemas")}
        found.append(PublicationState(**(row | sets), made=str(row["oid"]) == oid))
    return tuple(found)


def own_publication(conn: Connection, source: SourceConfig) -> PublicationState | None:
    """Return the publication that the toolkit maintains; None if it does not exist, or others maintain all."""
    return next((p for p in publications(conn, source) if p.name == source.own), None)


def missing_publications(conn: Connection, source: SourceConfig) -> tuple[str, ...]:
    """Return the configured publications that do not exist."""
    there = {p.name for p in publications(conn, source)}
    return tuple(name for name in source.publications if name not in there)


def read_identity(conn: Connection, rules: CaptureRules) -> SourceIdentity:
    """Read which incarnation of the source this is. Ticks need no publication.

    Raises:
        HistoryDiverged: a publication is gone, and what it would have published since is lost.
    """
    (row,) = _rows(conn, "introspect/identity", {"publications": list(rules.source.publications)})
    for name in rules.source.publications:
        if name not in row["publications"] and not drain_mode.by_ticks(conn, rules):
            raise HistoryDiverged(
                f"publication {name!r} does not exist on the source; run `cdc init`, or `cdc init --new-generation` if"
                " it was dropped after the log was started"
            )
    return SourceIdentity(**row)


def foreign_keys(conn: Connection) -> tuple[ForeignKey, ...]:
    """Read the foreign keys between tables, as the transaction's snapshot shows them."""
    found = conn.execute(resources.load("introspect/foreign_keys")).fetchall()
    return tuple(
        ForeignKey(name, relid, references, tuple(columns), tuple(referenced), exempt)
        for name, relid, references, columns, referenced, exempt in found
    )


def _snapshots(conn: Connection, *, published: bool) -> dict[int, str]:
    try:
        found = conn.execute(resources.load("introspect/snapshots"), {"published": published}).fetchall()
    except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName):
        raise PreflightFailed("reading the source's tables: schema cdc is not on the source; run `cdc init`") from None
    except psycopg.errors.InsufficientPrivilege:
        raise PreflightFailed(
            f"reading the source's tables: role {conn.info.user!r} may not use schema cdc;"
            " connect as the role that ran `cdc init`"
        ) from None
    return {relid: text for relid, text in found}


def _outline(relation: Relation) -> TableVersion:
    return TableVersion(
        relid=relation.relid,
        schema=relation.schema,
        name=relation.name,
        kind=relation.kind,
        persistence=relation.persistence,
        replica_identity="d",
        key_attnums=(),
        primary_key=(),
        columns=(),
        parents=relation.parents,
        children=(),
        published=False,
        row_filter=None,
        comment=None,
    )


def _rows(conn: Connection, name: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(resources.load(name), parameters).fetchall()

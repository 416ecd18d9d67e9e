"""What the source's catalogs say: tables, publication, identity and the signing key. All reads, small values out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from toolkit import queries
from toolkit.catalog import TableVersion
from toolkit.config import Config
from toolkit.errors import HistoryDiverged, PreflightFailed
from toolkit.ledger_row import SourceIdentity
from toolkit.names import qualified
from toolkit.source.connection import Connection

#: What initdb made has lower OIDs.
FIRST_USER_OID = 16384


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation of the user by name and kind; `partition` says that it is part of a partitioned table."""

    relid: int
    schema: str
    name: str
    kind: str  # pg_class.relkind
    persistence: str  # pg_class.relpersistence
    partition: bool
    parents: tuple[int, ...]

    @property
    def identifier(self) -> str:
        """`schema.table`, quoted where needed."""
        return qualified(self.schema, self.name)

    @property
    def capturable(self) -> bool:
        """Whether logical decoding carries its rows."""
        return self.kind in "rp" and self.persistence == "p"


@dataclass(frozen=True, slots=True)
class PublicationState:
    """The publication as declared."""

    oid: int
    name: str
    all_tables: bool
    via_root: bool
    publishes: frozenset[str]  # insert, update, delete, truncate
    relids: frozenset[int]  # tables it names itself
    schemas: frozenset[str]  # FOR TABLES IN SCHEMA
    publishes_log: bool = False  # the change log itself is in it


def relations(conn: Connection) -> tuple[Relation, ...]:
    """Every relation of the user, also those that cannot be captured."""
    return tuple(Relation(**(row | {"parents": tuple(row["parents"])})) for row in _rows(conn, "introspect/tables", {}))


def matching(conn: Connection, config: Config) -> tuple[Relation, ...]:
    """Relations that the configuration asks for: by name, or because they are in the publication of somebody else."""
    asked = tuple(r for r in relations(conn) if config.source.asks_for(r.schema, r.name))
    if config.source.scope == "tables":
        return asked
    state = publication_state(conn, config)
    if state is None:
        return ()
    members = {
        r.relid
        for r in asked
        if r.capturable and (state.all_tables or r.schema in state.schemas or r.relid in state.relids)
    }
    while below := {r.relid for r in asked if members.intersection(r.parents)} - members:
        members |= below
    return tuple(r for r in asked if r.relid in members)


def schema_only(conn: Connection, config: Config) -> tuple[int, ...]:
    """Relids of the tables of which only the versions of their shape are kept, published or not."""
    if not any(chosen.capture == "schema" for chosen in config.table.values()):
        return ()
    return tuple(
        r.relid for r in relations(conn) if r.kind in "rp" and config.capture_of(r.schema, r.name).capture == "schema"
    )


def selected_relations(conn: Connection, config: Config) -> tuple[Relation, ...]:
    """The matching relations that can be captured; works before anything is installed."""
    return tuple(r for r in matching(conn, config) if r.capturable)


def selected_tables(conn: Connection, config: Config) -> tuple[TableVersion, ...]:
    """Versions of the selected tables, published or not.

    Before `cdc init` there is no snapshot function on the source: the versions then carry names and kinds only.
    """
    chosen = {r.relid: r for r in selected_relations(conn, config)}
    if not installed(conn):
        return tuple(_outline(r) for r in chosen.values())
    found = _snapshots(conn, published=False)
    return tuple(TableVersion.from_json(json.loads(text)) for relid, text in found.items() if relid in chosen)


def published_tables(conn: Connection, config: Config) -> tuple[TableVersion, ...]:
    """Versions of the tables that are in the publication, by relid."""
    return tuple(TableVersion.from_json(json.loads(text)) for text in snapshot_json(conn, config).values())


def snapshot_json(conn: Connection, config: Config) -> dict[int, str]:
    """JSON of each published table as `cdc.table_snapshot` makes it, by relid.

    Raises:
        PreflightFailed: the toolkit's objects are not on the source.
    """
    return _snapshots(conn, published=True)


def snapshots_of(conn: Connection, relids: Sequence[int]) -> dict[int, str]:
    """JSON of the given tables that exist, published or not."""
    if not relids:
        return {}
    found = conn.execute(
        "select s.relid::int8, s.snapshot::text from cdc.table_snapshots(%s::oid[]) as s order by s.relid", [relids]
    ).fetchall()
    return {relid: text for relid, text in found}


def installed(conn: Connection) -> bool:
    """Whether `cdc init` has put its functions on the source."""
    row = conn.execute(
        "select pg_catalog.to_regprocedure('cdc.table_snapshots(pg_catalog.oid[])') is not null"
    ).fetchone()
    return bool(row and row[0])


def enum_labels(conn: Connection) -> dict[int, str]:
    """Labels of all enum values by OID, as the transaction's snapshot shows them."""
    return {oid: label for oid, label in conn.execute("select oid::int8, enumlabel::text from pg_catalog.pg_enum")}


def is_superuser(conn: Connection) -> bool:
    """Whether the role may create event triggers."""
    row = conn.execute("select rolsuper from pg_catalog.pg_roles where rolname = current_user").fetchone()
    return bool(row and row[0])


def publication_state(conn: Connection, config: Config) -> PublicationState | None:
    """The configured publication, or None."""
    for row in _rows(conn, "introspect/publication", {"publication": config.source.publication}):
        sets = {key: frozenset(row[key]) for key in ("publishes", "relids", "schemas")}
        return PublicationState(**(row | sets))
    return None


def read_identity(conn: Connection, config: Config) -> SourceIdentity:
    """Which incarnation of the source this is. Without a slot there is no publication: its OID is then 0.

    Raises:
        HistoryDiverged: the publication is gone; what it would have published since cannot be had again.
    """
    from toolkit.source import changelog

    (row,) = _rows(conn, "introspect/identity", {"publication": config.source.publication})
    if row["publication_oid"] is None and changelog.by_ticks(conn, config):
        row["publication_oid"] = 0
    if row["publication_oid"] is None:
        raise HistoryDiverged(
            f"publication {config.source.publication!r} does not exist on the source; run `cdc init`, or"
            " `cdc init --new-generation` if it was dropped after the log was started"
        )
    return SourceIdentity(**row)


def foreign_keys(conn: Connection) -> tuple[tuple[str, int, int], ...]:
    """Foreign keys as (name, relid of the referencing table, relid of the referenced one)."""
    return tuple(conn.execute(queries.load("introspect/foreign_keys")).fetchall())


def hmac_key(conn: Connection) -> bytes:
    """The key that signs DDL messages and beacons.

    Raises:
        PreflightFailed: not installed, or not readable by this role.
    """
    try:
        row = conn.execute("select value from cdc.settings where name = 'hmac_key'").fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        row = None
    except psycopg.errors.InsufficientPrivilege:
        raise PreflightFailed(
            f"reading the signing key: role {conn.info.user!r} may not read cdc.settings;"
            " connect as the role that ran `cdc init`"
        ) from None
    if row is None:
        raise PreflightFailed("reading the signing key: cdc.settings is not on the source; run `cdc init`")
    return bytes(row[0])


def _snapshots(conn: Connection, *, published: bool) -> dict[int, str]:
    try:
        found = conn.execute(queries.load("introspect/snapshots"), {"published": published}).fetchall()
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
        return cursor.execute(queries.load(name), parameters).fetchall()

"""Read the catalogs of the source: tables, publications, identity and the signing key.

Every function only reads, and returns small values.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
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
from toolkit.values.modes import Capture
from toolkit.values.names import command, qualified, quote_postgres
from toolkit.values.table import ForeignKey, TableVersion


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation of the user by name and kind; `partition` means that it is part of a partitioned table."""

    relid: int
    schema: str
    name: str
    kind: str  # pg_class.relkind
    persistence: str  # pg_class.relpersistence
    partition: bool
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

    def holds(self, relation: Relation) -> bool:
        """Return whether it names the relation or its schema, or contains all tables."""
        return self.all_tables or relation.schema in self.schemas or relation.relid in self.relids


#: What follows from each reason of `without_identity`.
WOULD_FAIL = "once published, the application's UPDATE and DELETE would fail"


def relations(conn: Connection) -> tuple[Relation, ...]:
    """Read every relation of the user, including those that cannot be captured."""
    rows = _rows(conn, "introspect/relations", {})
    return tuple(Relation(**(row | {"parents": tuple(row["parents"])})) for row in rows)


def matching(conn: Connection, source: SourceConfig) -> tuple[Relation, ...]:
    """Read the relations that the configuration selects: by name, or through a publication that others maintain."""
    return _matching(relations(conn), publications(conn, source), source)


def _matching(
    every: Sequence[Relation], held: Sequence[PublicationState], source: SourceConfig
) -> tuple[Relation, ...]:
    asked = tuple(r for r in every if source.asks_for(r.schema, r.name))
    kept = held_by(asked, [p for p in held if p.name in source.others])
    return tuple(r for r in asked if r.relid in kept or source.names(r.schema, r.name))


def members(conn: Connection, source: SourceConfig, asked: Sequence[Relation]) -> set[int]:
    """Return the relids of relations in publications that others maintain, partitions together with their roots.

    Unlogged tables are included: FOR ALL TABLES and TABLES IN SCHEMA contain them without sending their rows.
    """
    return held_by(asked, [p for p in publications(conn, source) if p.name in source.others])


def held_by(asked: Sequence[Relation], held: Sequence[PublicationState]) -> set[int]:
    """Return the relids of the tables that these publications have, with their partitions."""
    return _with_partitions(asked, {r.relid for r in asked if r.table and any(p.holds(r) for p in held)})


def _with_partitions(asked: Sequence[Relation], relids: set[int]) -> set[int]:
    found = set(relids)
    while below := {r.relid for r in asked if found.intersection(r.parents)} - found:
        found |= below
    return found


def sent_as_others(conn: Connection, source: SourceConfig) -> dict[int, str]:
    """Return, by relid, the partitions whose rows come as rows of a table that is not configured, with its name."""
    return _sent_as_others(relations(conn), publications(conn, source), source)


def _sent_as_others(
    every: Sequence[Relation], held: Sequence[PublicationState], source: SourceConfig
) -> dict[int, str]:
    via_root = [p for p in held if p.via_root]
    roots = [r for r in every if r.kind == "p" and any(p.holds(r) for p in via_root)]
    below = {root: _with_partitions(every, {root.relid}) - {root.relid} for root in roots}
    return {
        relid: root.identifier
        for root, relids in below.items()
        if not source.asks_for(root.schema, root.name) and not any(root.relid in others for others in below.values())
        for relid in relids
    }


def versions_only(conn: Connection, rules: CaptureRules) -> tuple[int, ...]:
    """Return the relids of tables whose schema versions are kept, whether they are published or not.

    These are the tables of `capture = "schema"`, and partitioned tables: their partitions may be the captured tables.
    """
    roots = conn.execute(resources.load("introspect/roots")).fetchall()
    found = [relid for relid, schema, name in roots if rules.source.asks_for(schema, name)]
    if any(chosen.capture == Capture.SCHEMA for chosen in rules.table.values()):
        shaped = (r for r in relations(conn) if r.table)
        found += [r.relid for r in shaped if rules.capture_of(r.schema, r.name).capture == Capture.SCHEMA]
    return tuple(found)


def without_identity(conn: Connection) -> dict[int, str]:
    """Return, by relid, why UPDATE and DELETE of a table, or of its new partitions, fail once it is published."""
    reasons = {
        "none": "has no replica identity",
        "deferrable": "has a deferrable primary key, which is no replica identity",
        "index": "has lost the index that is its replica identity",
        "nothing": "has REPLICA IDENTITY NOTHING",
        "partitions": "has no primary key, so its new partitions have no replica identity",
    }
    return {relid: reasons[why] for relid, why in conn.execute(resources.load("introspect/identity_missing"))}


def left_out(conn: Connection, rules: CaptureRules) -> dict[Relation, str]:
    """Return tables that are left out because publishing would break them, with the reason.

    They match a pattern, and no publication contains them yet. A table that `[source] tables` names in full is never
    left out, nor is a table of a schema that is published whole.
    """
    return _choose(relations(conn), publications(conn, rules.source), without_identity(conn), rules)[0]


def to_name(conn: Connection, rules: CaptureRules) -> frozenset[int]:
    """Return the relids of the tables that the toolkit's own publication names, outside of whole schemas.

    A partitioned table brings all of its partitions, and those that are created later. It is named itself if it may
    bring each of them, if `[source] tables` names it in full, or if the publication has it already. Otherwise its
    partitions are named.
    """
    return _choose(relations(conn), publications(conn, rules.source), without_identity(conn), rules)[1]


def unwanted_partitions(
    rules: CaptureRules, every: Sequence[Relation], reasons: Mapping[int, str]
) -> dict[Relation, str]:
    """Return the partitions that no root may bring into a publication, with the reason.

    `reasons` are those of `without_identity`. A partition whose changes are not in the WAL is none of them.
    """
    found = {}
    for part in every:
        capture = rules.capture_of(part.schema, part.name).capture
        if not part.partition or part.kind != "r" or part.persistence != "p":
            continue
        if rules.source.excludes(part.schema, part.name):
            found[part] = "is in [source] exclude"
        elif not rules.through_slot(part.schema, part.name):
            found[part] = f'has capture = "{capture}"'
        elif part.relid in reasons:
            found[part] = reasons[part.relid]
    return found


def ancestors(every: Sequence[Relation]) -> dict[int, frozenset[int]]:
    """Return the partitioned tables above each relation, at every height, by relid."""
    parents = {r.relid: r.parents for r in every}
    found: dict[int, frozenset[int]] = {}

    def above(relid: int) -> frozenset[int]:
        if relid not in found:
            direct = [parent for parent in parents.get(relid, ()) if parent in parents]
            found[relid] = frozenset(direct).union(*(above(parent) for parent in direct))
        return found[relid]

    return {relid: above(relid) for relid in parents}


def _choose(
    every: Sequence[Relation], held: Sequence[PublicationState], reasons: Mapping[int, str], rules: CaptureRules
) -> tuple[dict[Relation, str], frozenset[int]]:
    """Return what `left_out` and `to_name` return. `reasons` are those of `without_identity`."""
    source = rules.source
    reasons = {} if source.whole_schemas else {relid: f"{why}: {WOULD_FAIL}" for relid, why in reasons.items()}
    asked = [r for r in _matching(every, held, source) if r.capturable and rules.through_slot(r.schema, r.name)]
    own = [r for r in asked if source.names(r.schema, r.name)]
    kept = {r.relid for r in every if any(p.holds(r) for p in held)}
    kept |= {r.relid for r in asked if source.names_in_full(r.schema, r.name)}
    brought, above = _with_partitions(every, kept), ancestors(every)
    unwanted = {} if source.whole_schemas else unwanted_partitions(rules, every, reasons)
    apart = {
        root: f"its partition {part.identifier} {why}" for part, why in unwanted.items() for root in above[part.relid]
    }
    whole = {r.relid for r in own if r.kind == "p" and (r.relid in kept or r.relid not in {*apart, *reasons})}
    by_parts = frozenset[int]().union(*(above[r.relid] for r in asked)) | brought | whole

    left = {r: reasons[r.relid] for r in asked if r.kind == "r" and r.relid in reasons and r.relid not in brought}
    left |= {r: reasons.get(r.relid) or apart[r.relid] for r in own if r.kind == "p" and r.relid not in by_parts}
    named = [r for r in own if r not in left and (r.kind == "r" or r.relid in whole)]
    return left, frozenset(r.relid for r in named if not above[r.relid] & whole)


def not_captured(conn: Connection, rules: CaptureRules, *, ticks: bool, known: Collection[int] = ()) -> dict[str, str]:
    """Return configured tables without rows in the log, by name, with the reason and the remedy.

    `known` are the relids of the tables that the log has. Of one that only triggers capture, no publication says it.
    """
    every, held = relations(conn), publications(conn, rules.source)
    left, named = _choose(every, held, without_identity(conn), rules)
    found: dict[str, str] = {}
    matched = _matching(every, held, rules.source)
    asked = [r for r in matched if rules.capture_of(r.schema, r.name).capture != Capture.SCHEMA]
    inside, as_roots = held_by(asked, held), held_by(asked, [p for p in held if p.via_root])
    elsewhere = _sent_as_others(every, held, rules.source)
    by_triggers = {r.relid for r in asked if r.kind == "r" and rules.by_triggers_alone(r.schema, r.name)} - {*known}
    whole = _with_triggers(conn) if by_triggers else frozenset()
    for relation in asked:
        if relation.table and relation.persistence == "u":
            found[relation.identifier] = (
                f"is unlogged: its changes are not in the WAL; run: alter table {relation.identifier} set logged, then"
                " `cdc init`; or name it in [source] exclude"
            )
        elif relation in left:
            found[relation.identifier] = left[relation]
        elif relation.relid in by_triggers:
            remedy = command("repair", relation.identifier)
            found[relation.identifier] = (
                f"has its triggers since the last drain; run `cdc drain`, then `{remedy}`"
                if relation.relid in whole
                else "lacks triggers of the change log; run `cdc drain`, which creates them, or `cdc init`, which says"
                " why it cannot; or name it in [source] exclude"
            )
        elif relation.capturable and not ticks and rules.through_slot(relation.schema, relation.name):
            if relation.kind == "p" and relation.relid not in inside | named and rules.source.own is not None:
                continue  # its partitions are in the publication, or are listed
            if relation.relid not in inside:
                found[relation.identifier] = "is in no publication; run `cdc init`, or name it in [source] exclude"
            elif root := elsewhere.get(relation.relid):
                found[relation.identifier] = "; ".join(of_other(root))
            elif relation.kind == "p" and relation.relid not in as_roots:
                names = " or ".join(quote_postgres(p.name) for p in held if relation.relid in held_by(asked, [p]))
                found[relation.identifier] = (
                    "is partitioned: its partitions are captured, each as a table of its own; to capture it as one"
                    f" table, run: alter publication {names} set (publish_via_partition_root = true), then"
                    f" `{command('repair', relation.identifier)}`"
                )
    return found


def _with_triggers(conn: Connection) -> frozenset[int]:
    """Return the relids of the tables that have all triggers of the change log."""
    if not installed(conn):
        return frozenset()
    return frozenset(row[0] for row in conn.execute("select relid::int8 from cdc.logged_tables").fetchall())


def of_other(root: str) -> tuple[str, str]:
    """Return what is wrong with a partition of `sent_as_others`, and the remedy."""
    return (
        f"is a partition, and its rows are captured as those of {root}, which [source] does not name",
        f"name {root} in [source] tables, or the partition in [source] exclude",
    )


def selected_relations(conn: Connection, rules: CaptureRules) -> tuple[Relation, ...]:
    """Return the matching relations that can be captured; works before anything is installed."""
    left = left_out(conn, rules)
    return tuple(r for r in matching(conn, rules.source) if r.capturable and r not in left)


def selected_tables(conn: Connection, rules: CaptureRules) -> tuple[TableVersion, ...]:
    """Return the versions of the selected tables, published or not.

    Before `cdc init` the source has no snapshot function. The versions then contain names and kinds only.
    """
    chosen = {r.relid: r for r in selected_relations(conn, rules)}
    if not installed(conn):
        return tuple(_outline(r) for r in chosen.values())
    found = _snapshots(conn, published=False)
    return tuple(TableVersion.from_json(json.loads(text)) for relid, text in found.items() if relid in chosen)


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
    for row in _rows(conn, "introspect/publication", {"publications": list(source.publications)}):
        sets = {key: frozenset(row[key]) for key in ("publishes", "relids", "schemas")}
        found.append(PublicationState(**(row | sets)))
    return tuple(found)


def own_publication(conn: Connection, source: SourceConfig) -> PublicationState | None:
    """Return the publication that the toolkit maintains; None if it does not exist, or others maintain all."""
    return next((p for p in publications(conn, source) if p.name == source.own), None)


def made_publication(conn: Connection) -> int | None:
    """Return the OID of the publication that `cdc init` has created, if it has created one."""
    oid = read_setting(conn, "made")
    return int(oid) if oid else None


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

"""Find everything about the source that prevents capture or will cause trouble later, with its remedy. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.rows import dict_row

from toolkit.source import catalog, change_log, drain_mode, guard, own_publication, roles, selection, slot
from toolkit.source.connection import Connection
from toolkit.source.settings import read_setting
from toolkit.values import resources
from toolkit.values.capture_rules import CaptureRules, SourceConfig
from toolkit.values.config import DdlConfig
from toolkit.values.errors import CdcError, PreflightFailed, SlotError, SlotRefused, UnknownTable
from toolkit.values.modes import Capture, Selection
from toolkit.values.names import nearest, qualified, quote_postgres, section_of, selects, table_section
from toolkit.values.outcome import Level
from toolkit.values.table import OPERATIONS

OLDEST = 150000
_NOT_PUBLISHED = (
    "is named by [source] tables and not in the publication: nothing of it is captured",
    "run `cdc init` to add it, or name it in [source] exclude",
)
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


#: Encodings whose texts UTF-8 cannot show, or cannot tell apart.
_ENCODINGS = {
    "SQL_ASCII": ("bytes that are not UTF-8 stop the drain", "use a database with a real encoding"),
    "EUC_JP": (
        "two codes that are one in UTF-8 exist for some characters, and keys that differ only by them are one row",
        "use a database with encoding UTF8, or add a table that has such keys to [source] exclude",
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is or will be wrong. `require` raises `refusal` for an error; None lets it pass."""

    level: Level
    what: str
    found: str
    remedy: str
    refusal: type[CdcError] | None = PreflightFailed

    def __str__(self) -> str:
        return f"{self.what}: {self.found}; {self.remedy}"


def preflight(conn: Connection, rules: CaptureRules, *, ddl: DdlConfig, new_slot: bool = False) -> tuple[Finding, ...]:
    """Check server, role, slot, publication and every selected table. Errors come first.

    With `new_slot` a slot that is lost is no error, because it is replaced.
    """
    ticks = drain_mode.by_ticks(conn, rules)
    found = [*_server(conn, rules.source, ticks), *_tables(conn, rules, ticks), *_capture(conn, rules, ddl=ddl)]
    long = change_log.health(conn) if rules.uses_change_log else ()
    found += [Finding(Level.WARNING, what, seen, remedy) for what, seen, remedy in long]
    if not ticks:
        found += [*_slot(conn, rules.source, new_slot), *_publications(conn, rules)]
    return tuple(sorted(found, key=lambda f: f.level))


def require(conn: Connection, rules: CaptureRules, *, ddl: DdlConfig, new_slot: bool = False) -> None:
    """Refuse a source that cannot be captured.

    Raises:
        PreflightFailed, SlotError, UnknownTable: the first error.
    """
    for finding in preflight(conn, rules, ddl=ddl, new_slot=new_slot):
        if finding.level == Level.ERROR and finding.refusal is not None:
            raise finding.refusal(str(finding))


def keyless_remedy(relation: catalog.Relation) -> str:
    """Return the ways to capture a table without a usable replica identity, or to exclude it explicitly."""
    name = relation.identifier
    if relation.kind == "p":
        return "name its partitions in [source] tables, or add a primary key; or name it in [source] exclude"
    whole = f"run: alter table {name} replica identity full"
    logged = f'set capture = "change_log" in {table_section(relation.schema, relation.name)}'
    ways = f"add a primary key, or {whole}; or {logged}"
    if not relation.by_all_columns:  # triggers log such rows whole, and by no key with a generated column
        ways = f"add a primary key of other columns; or {whole}, and {logged}"
    return f"{ways}; or name it in [source] exclude"


def outside(conn: Connection) -> dict[str, int]:
    """Count the objects of this database that produce no event, by kind."""
    return {kind: count for kind, count in conn.execute(resources.load("introspect/outside")).fetchall()}


def _one(conn: Connection, name: str) -> dict[str, Any]:
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(resources.load(name)).fetchone()
    assert row is not None
    return row


def _server(conn: Connection, source: SourceConfig, ticks: bool) -> Iterator[Finding]:
    server = _one(conn, "introspect/server")
    if server["version"] < OLDEST:
        yield Finding(Level.ERROR, "server version", str(server["version"]), "PostgreSQL 15 or later is needed")
    if fills_with_null(server["version"]) and not ticks:
        yield Finding(
            Level.ERROR,
            "server version",
            f"{server['version']} sends NULL for the default of an added column in old images of REPLICA IDENTITY FULL",
            "upgrade to 15.6, 16.2 or later",
        )
    if server["standby"]:
        yield Finding(Level.ERROR, "server", "is a standby", "connect to the primary")
    if server["wal_level"] != "logical" and not ticks:
        yield Finding(
            Level.ERROR,
            "wal_level",
            server["wal_level"],
            "run: alter system set wal_level = logical, then restart the server, or set [source] capture ="
            ' "change_log"',
        )
    role = server["role"]
    replicates = server["superuser"] or server["replication"] or ticks or role == source.reader
    if not (replicates or roles.may_replicate(source)):
        yield Finding(
            Level.ERROR,
            f"role {role!r}",
            "has no REPLICATION right",
            f"run: alter role {quote_postgres(role)} replication",
        )
    for what, found, remedy in roles.faults(conn, source, ticks=ticks):
        yield Finding(Level.ERROR, what, found, remedy)
    if not server["creates"]:
        yield Finding(
            Level.ERROR,
            f"role {role!r}",
            f"may not create schema cdc in database {server['database']!r}",
            f"run: grant create on database {quote_postgres(server['database'])} to {quote_postgres(role)}",
        )
    if not server["superuser"] and not triggers_enabled(conn):
        yield Finding(
            Level.WARNING,
            f"role {role!r}",
            "may not be able to create event triggers: without them the catalog comparison finds DDL, and makes the"
            " table stale from the comparison before",
            "run `cdc init` as a superuser",
        )
    if server["senders_used"] >= server["senders"] and not ticks:
        yield Finding(
            Level.ERROR,
            "max_wal_senders",
            f"{server['senders_used']} of {server['senders']} in use",
            f"run: alter system set max_wal_senders = {server['senders'] + 10}, then restart the server",
        )
    if server["encoding"] in _ENCODINGS:
        what = f"database {server['database']!r}"
        found, remedy = _ENCODINGS[server["encoding"]]
        yield Finding(Level.WARNING, what, f"has encoding {server['encoding']}: {found}", remedy)


def fills_with_null(version: int) -> bool:
    """Return whether pgoutput of this version drops missing values from old images: 15.0 to 15.5, 16.0 and 16.1.

    `version` is server_version_num. The release notes of 15.6 and of 16.2 (both of 2024-02-08): "Ensure that column
    default values are correctly transmitted by the pgoutput logical replication plugin".
    """
    return 150000 <= version < 150006 or 160000 <= version < 160002


def triggers_enabled(conn: Connection) -> bool:
    """Return whether the toolkit's event triggers exist."""
    row = conn.execute(
        "select pg_catalog.count(*) = 3 from pg_catalog.pg_event_trigger where evtname like '\\_cdc\\_0\\_%'"
    ).fetchone()
    return bool(row and row[0])


def _slot(conn: Connection, source: SourceConfig, new_slot: bool) -> Iterator[Finding]:
    state = slot.read_slot(conn, source.slot)
    if state is None:
        server = _one(conn, "introspect/server")
        if server["slots_used"] >= server["slots"]:
            yield Finding(
                Level.ERROR,
                "max_replication_slots",
                f"{server['slots_used']} of {server['slots']} in use",
                "drop an unused slot, or run: alter system set max_replication_slots ="
                f" {server['slots'] + 10}, then restart the server",
                SlotError,
            )
        return
    try:
        slot.require_ours(state)
        if not (new_slot and state.lost):
            slot.require_usable(state)
    except SlotRefused as refused:
        yield Finding(Level.ERROR, f"slot {state.name!r}", refused.found, refused.remedy, SlotError)
        return
    row = conn.execute(
        "select setting::int8, unit from pg_catalog.pg_settings where name = 'idle_replication_slot_timeout'"
    ).fetchone()
    if row and row[0]:  # 18 and later
        yield Finding(
            Level.WARNING,
            f"slot {state.name!r}",
            f"is dropped by the server when it is not read for {row[0]} {row[1]} (idle_replication_slot_timeout)",
            "drain more often, or run: alter system set idle_replication_slot_timeout = 0; select pg_reload_conf()",
        )


def _publications(conn: Connection, rules: CaptureRules) -> Iterator[Finding]:
    source = rules.source
    for name in catalog.missing_publications(conn, rules.source):
        if name != source.own:
            yield Finding(
                Level.ERROR,
                f"publication {name!r}",
                "does not exist",
                f"create publication {quote_postgres(name)} with the tables that it is for, or take it out of [source]"
                " publication",
            )
        elif slot.read_slot(conn, source.slot) is not None:
            yield Finding(
                Level.WARNING,
                f"publication {name!r}",
                f"does not exist, but slot {source.slot!r} does",
                "run `cdc init`, then `cdc init --new-generation` if the log was started before",
            )
    there = catalog.publications(conn, rules.source)
    missing = OPERATIONS - frozenset().union(*(p.publishes for p in there))
    if there and missing:
        yield Finding(
            Level.ERROR,
            f"publication {', '.join(repr(p.name) for p in there)}",
            f"does not publish {', '.join(sorted(missing))}",
            f"run: alter publication {quote_postgres(there[0].name)} set (publish = '{', '.join(sorted(OPERATIONS))}')",
        )
    refused = own_publication.refused_by_publication(conn, source.publications)
    yield from (Finding(Level.WARNING, *fault) for fault in refused)
    if not there or not _readable(conn):
        return
    stated = catalog.read_by(conn)
    if stated != set(source.publications):
        yield Finding(
            Level.WARNING,
            "[source] publication",
            f"is {source.publication_names} now, and capture was installed for {', '.join(sorted(stated)) or 'none'}",
            "run `cdc init`, which switches to that",
        )
        return
    published = catalog.published_tables(conn)
    parts = {r.relid for r in catalog.relations(conn) if r.partition or r.kind == "p"}
    if len({p.via_root for p in there}) > 1 and any(t.relid in parts for t in published):
        leaf = next(p.name for p in there if not p.via_root)
        yield Finding(
            Level.WARNING,
            f"publication {', '.join(repr(p.name) for p in there)}",
            "differ in publish_via_partition_root: if one of them sends a partition as its root, all do",
            f"run: alter publication {quote_postgres(leaf)} set (publish_via_partition_root = true), or ignore this",
        )
    for table in published:
        if unsent := table.unsent(source.publications):
            yield Finding(Level.ERROR, f"table {table.identifier}", *unsent)
    yield from (Finding(*fault) for fault in own_publication.member_faults(conn, rules.source, published))
    chosen = {r.relid: r for r in selection.selected_relations(conn, rules)}
    tables = selection.selected_tables(conn, rules)
    below = {child for table in tables if table.published for child in table.children}
    elsewhere = selection.sent_as_others(conn, rules.source)
    for table in tables:
        out = [column.name for column in table.columns if not column.published and not column.generated]
        if table.published and out:
            yield Finding(
                Level.WARNING,
                f"table {table.identifier}",
                f"is published without {', '.join(out)}: the lake does not have them",
                f"add them to the column lists of publication {source.publication_names}, or ignore this",
            )
        elif rules.capture_of(table.schema, table.name).capture == Capture.SCHEMA:
            if table.published:
                yield Finding(
                    Level.WARNING,
                    f"table {table.identifier}",
                    'has capture = "schema" and is in the publication: its rows are captured all the same',
                    f"run `cdc init`, or take it out of publication {source.publication_names}",
                )
        elif (
            not table.published
            and table.kind == "r"
            and table.relid not in below
            and table.relid in chosen
            and rules.through_slot(table.schema, table.name)
        ):
            root = elsewhere.get(table.relid)
            found = selection.of_other(root) if root else _NOT_PUBLISHED
            yield Finding(Level.WARNING, f"table {table.identifier}", *found)


def _readable(conn: Connection) -> bool:
    """Return whether capture is installed and this role may read it; code that needs the signing key reports that."""
    row = conn.execute(
        "select pg_catalog.has_schema_privilege(c.relnamespace, 'usage')"
        " and pg_catalog.has_table_privilege(c.oid, 'select')"
        " from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace"
        " where n.nspname = 'cdc' and c.relname = 'known_settings'"
    ).fetchone()
    return bool(row and row[0]) and catalog.installed(conn)


def _capture(conn: Connection, rules: CaptureRules, *, ddl: DdlConfig) -> Iterator[Finding]:
    """Check the state of DDL capture."""
    if not _readable(conn):
        return
    state, (triggers, functions) = guard.capture_state(conn), guard.faults(conn)
    if guard.of_another_version(conn):
        yield Finding(Level.WARNING, "capture", "was installed by another version of the toolkit", "run `cdc init`")
    if state.paused:
        yield Finding(Level.WARNING, "DDL capture", "is paused: every table is stale meanwhile", "run `cdc ddl resume`")
    if not state.standing and not (state.absent and not roles.installed_by_superuser(conn)):
        for name, found in triggers or [("event_triggers", "is off for this session")]:
            yield Finding(Level.WARNING, name, f"{found}: DDL is not captured", "run `cdc init`, then `cdc repair`")
    if not state.intact:
        for name, found in functions or [("a function in schema cdc", "is another")]:
            yield Finding(
                Level.WARNING,
                name,
                f"{found}: it is not the one that `cdc init` has put there, and its messages cannot be relied on",
                "run `cdc init`, then `cdc repair`",
            )
    moving = change_log.moving(conn, rules)
    for table in moving:
        yield Finding(
            Level.WARNING,
            f"table {table}",
            "is captured on the source in another way than [source] capture or [table] says",
            "run `cdc init`, which moves it, or take the change out of cdc.toml",
        )
    for logged, found in change_log.faults(conn, rules):
        if logged not in moving:
            yield Finding(
                Level.WARNING,
                "change log" if logged is None else f"table {logged}",
                f"{found}: changes may be missed",
                "run `cdc init`, then `cdc repair`",
            )
    for key, wanted in (("ignored", ",".join(ddl.ignore)), ("sql", ddl.sql)):
        deployed = read_setting(conn, key)
        if deployed != wanted:
            yield Finding(
                Level.WARNING,
                "DDL capture",
                f"[ddl] {'ignore' if key == 'ignored' else key} is {wanted or 'empty'}, and on the source, where it has"
                f" effect, {deployed or 'empty'}",
                "run `cdc init`, or take the change out of cdc.toml",
            )
    if state.settings != "[]":
        yield Finding(
            Level.WARNING,
            "DDL capture",
            f"roles or databases have settings that switch it off: {state.settings}",
            "run: " + "; ".join(row[0] for row in conn.execute(resources.load("introspect/switched_off")).fetchall()),
        )
    for partition in guard.unguarded(conn):
        yield Finding(
            Level.WARNING,
            f"partition {qualified(partition.schema, partition.name)}",
            "has no truncate trigger yet: a TRUNCATE of it would not be captured",
            "run `cdc drain` as the role that ran `cdc init`, which makes it",
        )


def _patterns(conn: Connection, rules: CaptureRules) -> Iterator[Finding]:
    """Find patterns of the configuration that select nothing. A name in `exclude` with a typing error hides nothing."""
    there = catalog.relations(conn)
    for pattern in rules.source.tables if rules.source.own is not None else ():
        if fault := _selects_nothing(rules.source, pattern, there):
            yield Finding(Level.ERROR, f"[source] tables {pattern!r}", *fault, UnknownTable)
    for where, patterns in (("exclude", rules.source.exclude), ("table", tuple(rules.table))):
        for pattern in patterns:
            plain = not set("*?[") & set(pattern)  # what others match may be still to come
            if plain and not any(selects((pattern,), (), r.schema, r.name) for r in there):
                what = f"[source] exclude {pattern!r}" if where == "exclude" else section_of(pattern)
                yield Finding(Level.WARNING, what, "names no table of the source", _named_otherwise(pattern, there))


def _selects_nothing(source: SourceConfig, pattern: str, there: Sequence[catalog.Relation]) -> tuple[str, str] | None:
    """Explain why a pattern selects no table, with the remedy: it would publish nothing, without an error."""
    matched = [r for r in there if selects((pattern,), (), r.schema, r.name)]
    if not matched:
        return "matches no table", _named_otherwise(pattern, there)
    tables = [r for r in matched if r.kind in "rp"]
    if not tables:
        if any(source.names_in_full(r.schema, r.name) for r in matched):
            return None  # refused by its own name
        return "matches views and foreign tables only", "take it out, or name tables"
    if not any(source.names(r.schema, r.name) for r in tables):
        return "matches only tables that [source] exclude takes out", "change one of the two"
    return None


def _named_otherwise(pattern: str, there: Sequence[catalog.Relation]) -> str:
    names = (f"{r.schema}.{r.name}" for r in there)
    return f"correct it there, as schema.table with * and ?: {nearest(pattern, names)}"


def _hidden_rows(conn: Connection, rules: CaptureRules, relations: Sequence[catalog.Relation]) -> Iterator[Finding]:
    """Find tables whose row security may hide rows from the role that copies and compares them.

    The policies of a partitioned table hold only for who reads it, not for who reads its partitions.
    """
    role = rules.source.drainer or conn.info.user
    if role == rules.source.reader:  # which only looks; who reads rows is not known here
        return
    as_roots = selection.held_by(relations, [p for p in catalog.publications(conn, rules.source) if p.via_root])
    read = [r for r in relations if r.kind != "p" or r.relid in as_roots]
    chosen = {r.relid: r for r in read if rules.capture_of(r.schema, r.name).capture != Capture.SCHEMA}
    found = conn.execute(resources.load("introspect/row_security"), {"role": role, "relids": list(chosen)})
    for (relid,) in found:
        name = chosen[relid].identifier
        yield Finding(
            Level.ERROR,
            f"table {name}",
            f"has row security, which may hide rows from role {role!r}",
            f"run: alter role {quote_postgres(role)} bypassrls, or add {name} to [source] exclude",
        )


def _tables(conn: Connection, rules: CaptureRules, ticks: bool) -> Iterator[Finding]:
    relations = selection.matching(conn, rules.source)
    if rules.source.scope == Selection.PUBLISHED and rules.uses_change_log:
        yield Finding(
            Level.ERROR,
            "[source] scope",
            'is "published", and the change log would have to be added to that publication',
            'set scope = "tables", or capture = "slot"',
        )
    yield from _patterns(conn, rules)
    kept = set() if ticks else selection.members(conn, rules.source, relations)
    for relation in relations:
        if relation.relid in kept and rules.capture_of(relation.schema, relation.name).capture == Capture.CHANGE_LOG:
            yield Finding(
                Level.ERROR,
                f"table {relation.identifier}",
                'has capture = "change_log" and is in a publication of others: its rows come through the slot',
                f'set capture = "slot" for it in {table_section(relation.schema, relation.name)}, or "both"',
            )
    for name, found, remedy in change_log.refusals(conn, rules):
        yield Finding(Level.ERROR, f"table {name}", found, remedy)
    yield from _hidden_rows(conn, rules, relations)
    if not ticks:
        yield from (Finding(*fault) for fault in own_publication.root_faults(conn, rules))
    identities, left = catalog.without_identity(conn), selection.left_out(conn, rules)
    published = selection.held_by(catalog.relations(conn), catalog.publications(conn, rules.source))
    inherited = catalog.inherited(conn)
    for relation in relations:
        named = rules.source.names_in_full(relation.schema, relation.name)
        by_slot = rules.through_slot(relation.schema, relation.name)
        if relation.kind in _KINDS:
            if named or relation.kind == "f":
                yield Finding(
                    Level.ERROR if named else Level.WARNING,
                    f"table {relation.identifier}",
                    f"is {_KINDS[relation.kind]}, which logical decoding does not carry",
                    "add it to [source] exclude" if not named else "take it out of [source] tables",
                )
        elif relation.kind in "rp" and rules.capture_of(relation.schema, relation.name).capture == Capture.SCHEMA:
            continue
        elif relation.persistence != "p":
            yield Finding(
                Level.ERROR if named else Level.WARNING,
                f"table {relation.identifier}",
                "is unlogged: its changes are not in the WAL",
                f"run: alter table {relation.identifier} set logged, or exclude it",
            )
        elif ticks and by_slot:
            yield Finding(
                Level.ERROR,
                f"table {relation.identifier}",
                "is to be captured by the slot, and this source is drained by ticks",
                f'set capture = "change_log" for it in {table_section(relation.schema, relation.name)}, or exclude it',
            )
        elif relation in left:
            yield Finding(Level.WARNING, f"table {relation.identifier}", left[relation], keyless_remedy(relation))
        elif relation.kind == "r" and relation.relid in identities and by_slot:
            why = f"{identities[relation.relid]}: {selection.WOULD_FAIL}"
            refusal = None if relation.relid in published else PreflightFailed  # nothing gets worse
            yield Finding(Level.ERROR, f"table {relation.identifier}", why, keyless_remedy(relation), refusal)
        elif relation.relid in inherited:
            yield Finding(
                Level.WARNING,
                f"table {relation.identifier}",
                inherited[relation.relid],
                "read the children in the lake too, or make it a partitioned table",
            )

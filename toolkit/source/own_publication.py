"""Keep the toolkit's own publication: what `cdc init` adds to it, and what is wrong with what it has."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence

from toolkit.source import catalog, change_log, selection
from toolkit.source.connection import Connection
from toolkit.values import resources
from toolkit.values.capture_rules import CaptureRules, SourceConfig
from toolkit.values.errors import ConfigError
from toolkit.values.modes import NewTables
from toolkit.values.names import qualified, quote_postgres
from toolkit.values.outcome import Level
from toolkit.values.table import TableVersion

_FAIL = "UPDATE and DELETE fail on the source"


def publication_sql(conn: Connection, rules: CaptureRules, *, ticks: bool) -> list[str]:
    """Return statements that add the selected tables to the toolkit's own publication, or create it with them.

    Tables that `[source] exclude` names leave one that `cdc init` has made. So does a partitioned table that must not
    bring each of its partitions: those that it may bring are named instead. Other tables stay in it. ONLY keeps out the
    children of a table by inheritance, which are tables of their own. The partitions of a partitioned table come with
    it all the same.

    Raises:
        ConfigError: a table is to be kept out of a schema that is published whole.
    """
    source, state = rules.source, catalog.own_publication(conn, rules.source)
    if source.own is None or ticks:
        return []
    tables = [r for r in selection.selected_relations(conn, rules) if source.names(r.schema, r.name)]
    chosen = _schemas(source, tables)
    schemas = chosen if source.whole_schemas else []
    for table in tables:
        capture = rules.capture_of(table.schema, table.name).capture
        if not rules.through_slot(table.schema, table.name) and table.schema in schemas:
            raise ConfigError(
                f'[table] {table.identifier} has capture = "{capture}", which cannot be kept with'
                ' new_tables = "schemas": a schema is published whole; use new_tables = "publish"'
            )
    named = selection.to_name(conn, rules)
    tables = [r for r in tables if r.relid in named and r.schema not in schemas]
    if state is not None:
        if state.all_tables:
            return []
        # In one transaction with their tables, of which no change is missed.
        every = catalog.relations(conn)
        replaced, parts = _replaced(conn, rules, state, every)
        brought = selection.ancestors(every)
        tables += [part for part in parts if not named & {part.relid, *brought[part.relid]}]
        left = {*replaced, *(r for r in every if state.made and source.excludes(r.schema, r.name))}
        leaving = state.schemas.intersection(chosen if state.made else ()).difference(schemas)
        _require_kept_out(source, state.name, state.schemas - leaving)
        schemas = [s for s in schemas if s not in state.schemas]
        tables = [r for r in tables if r.relid not in state.relids and r.schema not in state.schemas - leaving]
        verb, clause, out = "alter", "add ", [r for r in left if r.relid in state.relids]
    else:
        verb, clause, leaving, out = "create", "for ", frozenset(), []
    names = _qualified_names(tables)
    if rules.uses_change_log and not (state and state.publishes_log):
        names.append(f"{quote_postgres('cdc')}.{quote_postgres(change_log.LOG)}")
    entries = [_alone(names)] if names else []
    entries += [_in_schemas(schemas)] if schemas else []
    head = f"{verb} publication {quote_postgres(source.own)}"
    changed = [f"{head} {clause}{', '.join(entries)}"] if entries else []
    changed += [f"{head} drop {_in_schemas(sorted(leaving))}"] if leaving else []
    changed += [f"{head} drop {_alone(_qualified_names(out))}"] if out else []
    return changed if state is not None else [*(changed or [head]), _made(source.own, source.slot)]


def _replaced(
    conn: Connection, rules: CaptureRules, state: catalog.PublicationState, every: Sequence[catalog.Relation]
) -> tuple[list[catalog.Relation], list[catalog.Relation]]:
    """Return the partitioned tables that leave the publication, and their partitions that stay in it."""
    source, above = rules.source, selection.ancestors(every)
    leaving = selection.replaced_roots(rules, every, catalog.without_identity(conn))
    roots = [r for r in every if r.relid in leaving & state.relids and _by_init(source, state, r)]
    relids = {r.relid for r in roots}
    below = (r for r in every if r.kind == "r" and r.persistence == "p" and above[r.relid] & relids)
    stay = (r for r in below if not source.excludes(r.schema, r.name) and rules.through_slot(r.schema, r.name))
    return roots, [*stay]


def root_faults(conn: Connection, rules: CaptureRules) -> Iterator[tuple[Level, str, str, str]]:
    """Find what naming a partitioned table brings along and must not, as level, table, what was found, and remedy."""
    source, state = rules.source, catalog.own_publication(conn, rules.source)
    if source.own is None or source.whole_schemas:
        return
    every, reasons = catalog.relations(conn), catalog.without_identity(conn)
    above, unwanted = selection.ancestors(every), selection.unwanted_partitions(rules, every, reasons)
    for root in every:
        there = state is not None and root.relid in state.relids
        asked = source.names(root.schema, root.name) and rules.through_slot(root.schema, root.name)
        if root.kind != "p" or not asked or not (there or source.names_in_full(root.schema, root.name)):
            continue
        what = f"table {root.identifier}"
        for part in (part for part in unwanted if root.relid in above[part.relid]):
            if unwanted[part] == reasons.get(part.relid):
                if not source.asks_for(part.schema, part.name):  # or it is found by its own name
                    level, follows = (Level.WARNING, _FAIL) if there else (Level.ERROR, selection.WOULD_FAIL)
                    remedy = f"add a primary key, or run: alter table {part.identifier} replica identity full"
                    yield level, f"table {part.identifier}", f"{unwanted[part]}: {follows}", remedy
                continue
            brings = f"its partition {part.identifier}, which {unwanted[part]}, into publication {source.own!r}"
            if there:
                drop = f"run: alter publication {quote_postgres(source.own)} drop table {root.identifier}, then "
                remedy = "run `cdc init`" if _by_init(source, state, root) else f"{drop}`cdc init` and `cdc repair`"
                yield Level.WARNING, what, f"brings {brings}: it is captured all the same", remedy
            else:
                remedy = "name its other partitions there instead, by a pattern"
                yield Level.ERROR, what, f"is named by [source] tables, and would bring {brings}", remedy
        if root.relid in reasons:
            yield Level.WARNING, what, f"{reasons[root.relid]}: {_FAIL}", _key_of_root(source, state, root)


def _by_init(source: SourceConfig, state: catalog.PublicationState | None, root: catalog.Relation) -> bool:
    """Return whether `cdc init` can name the partitions of a partitioned table in its place."""
    return state is not None and state.replaceable and not source.names_in_full(root.schema, root.name)


def _key_of_root(source: SourceConfig, state: catalog.PublicationState | None, root: catalog.Relation) -> str:
    """Return what to do about a partitioned table in the publication that has no primary key."""
    key = "add a primary key"
    if _by_init(source, state, root):
        return f"{key}, or run `cdc init`, which publishes its partitions in its place"
    return f"{key}, or set REPLICA IDENTITY FULL of each partition in the transaction that creates it"


def member_faults(
    conn: Connection, source: SourceConfig, published: Sequence[TableVersion]
) -> Iterator[tuple[Level, str, str, str]]:
    """Find tables in the toolkit's own publication that [source] does not name, or that have a row filter.

    Each is a level, the table, what was found, and the remedy.
    """
    own = catalog.own_publication(conn, source)
    for table in published if own is not None else ():
        assert own is not None
        what = f"table {table.identifier}"
        if table.relid in own.relids and not source.asks_for(table.schema, table.name):
            found = f"is in publication {own.name!r}, and [source] does not name it: it is captured all the same"
            drop = f"run: alter publication {quote_postgres(own.name)} drop table only {table.identifier}"
            init = own.made and source.excludes(table.schema, table.name)
            yield Level.WARNING, what, found, "run `cdc init`" if init else f"{drop}, or name it in [source] tables"
        if table.row_filter is not None and not source.others:
            found = f"is published where {table.row_filter} only: the lake does not have its other rows"
            yield Level.WARNING, what, found, f"take the filter out of publication {own.name!r}, or ignore this"


def refused_writes(conn: Connection, source: SourceConfig) -> Iterator[tuple[str, str, str]]:
    """Find tables in the toolkit's own publication of which UPDATE and DELETE fail on the source, or will.

    Each is the table, what was found, and the remedy.
    """
    own = catalog.own_publication(conn, source)
    if own is None or own.publishes.isdisjoint(("update", "delete")):
        return
    every, reasons = catalog.relations(conn), catalog.without_identity(conn)
    held = selection.held_by(every, [own])
    for table in every:
        if table.kind == "r" and table.persistence == "p" and table.relid in held & reasons.keys():
            remedy = f"add a primary key, or run: alter table {table.identifier} replica identity full"
            yield f"table {table.identifier}", f"{reasons[table.relid]}: {_FAIL}", remedy
        elif table.relid in own.relids & reasons.keys() and table.kind == "p" and _by_init(source, own, table):
            # One that [source] names in full may have partitions that all get REPLICA IDENTITY FULL.
            yield f"table {table.identifier}", f"{reasons[table.relid]}: {_FAIL}", _key_of_root(source, own, table)
    yield from refused_by_publication(conn, (own.name,))


def refused_by_publication(conn: Connection, publications: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Find tables whose UPDATE and DELETE fail because of a row filter or a column list, as `refused_writes` does."""
    query = resources.load("introspect/writes_refused")
    for schema, name, publication, what, columns in conn.execute(query, {"publications": list(publications)}):
        those = ", ".join(columns)
        found, remedy = {
            "filter": (f"by a row filter on {those}", "filter by columns of its replica identity alone"),
            "list": (f"without {those}", "name them in its column list too"),
            "whole": (f"with the columns {those} and replica identity full", "give it a replica identity by an index"),
        }[what]
        yield f"table {qualified(schema, name)}", f"is in publication {publication!r} {found}: {_FAIL}", remedy


def _require_kept_out(source: SourceConfig, publication: str, schemas: Iterable[str]) -> None:
    """Refuse to exclude tables of a schema that the publication contains whole: it would publish them anyway."""
    for pattern in source.exclude if source.new_tables == NewTables.PUBLISH else ():
        for schema in sorted(schemas):
            if fnmatch.fnmatchcase(schema, pattern.rpartition(".")[0]):
                raise ConfigError(
                    f"[source] exclude {pattern!r} cannot be kept: publication {publication!r} has schema {schema}"
                    f" whole; run: alter publication {quote_postgres(publication)} drop tables in schema"
                    f" {quote_postgres(schema)}, then `cdc init`, which copies its tables again"
                )


def _made(publication: str, slot: str) -> str:
    """Return a statement that records that `cdc init` created this publication; only such a one is dropped."""
    name = publication.replace("'", "''")
    return (
        f"insert into cdc.settings (slot, name, value) select '{slot}', 'made',"
        " pg_catalog.convert_to(p.oid::text, 'UTF8')"
        f" from pg_catalog.pg_publication as p where p.pubname = '{name}'"
        " on conflict (slot, name) do update set value = excluded.value"
    )


def _schemas(source: SourceConfig, tables: Sequence[catalog.Relation]) -> list[str]:
    """Return the schemas that a pattern selects whole; for one like `*.*`, those that have a selected table."""
    whole = [pattern.removesuffix(".*") for pattern in source.tables if pattern.endswith(".*")]
    named = {name for name in whole if not set(name) & set("*?[.")}
    return sorted(named | {t.schema for t in tables if any(fnmatch.fnmatchcase(t.schema, name) for name in whole)})


def _in_schemas(schemas: Sequence[str]) -> str:
    return f"tables in schema {', '.join(quote_postgres(schema) for schema in schemas)}"


def _alone(names: Sequence[str]) -> str:
    return f"table only {', only '.join(names)}"


def _qualified_names(tables: Iterable[catalog.Relation]) -> list[str]:
    return sorted(f"{quote_postgres(table.schema)}.{quote_postgres(table.name)}" for table in tables)

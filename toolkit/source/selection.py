"""Decide which relations the configuration selects, and which of them the toolkit's own publication names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

from toolkit.source import catalog
from toolkit.source.catalog import PublicationState, Relation
from toolkit.source.connection import Connection
from toolkit.values import resources
from toolkit.values.capture_rules import CaptureRules, SourceConfig
from toolkit.values.modes import Capture
from toolkit.values.names import command, quote_postgres
from toolkit.values.table import TableVersion

#: What follows from each reason of `without_identity`.
WOULD_FAIL = "once published, the application's UPDATE and DELETE would fail"


def matching(conn: Connection, source: SourceConfig) -> tuple[Relation, ...]:
    """Read the relations that the configuration selects: by name, or through a publication that others maintain."""
    return _matching(catalog.relations(conn), catalog.publications(conn, source), source)


def selected_relations(conn: Connection, rules: CaptureRules) -> tuple[Relation, ...]:
    """Return the matching relations that can be captured; works before anything is installed."""
    left = left_out(conn, rules)
    return tuple(r for r in matching(conn, rules.source) if r.capturable and r not in left)


def selected_tables(conn: Connection, rules: CaptureRules) -> tuple[TableVersion, ...]:
    """Return the versions of the selected tables, published or not."""
    return catalog.versions_of(conn, selected_relations(conn, rules))


def members(conn: Connection, source: SourceConfig, asked: Sequence[Relation]) -> set[int]:
    """Return the relids of relations in publications that others maintain, partitions together with their roots.

    Unlogged tables are included: FOR ALL TABLES and TABLES IN SCHEMA contain them without sending their rows.
    """
    return held_by(asked, [p for p in catalog.publications(conn, source) if p.name in source.others])


def held_by(asked: Sequence[Relation], held: Sequence[PublicationState]) -> set[int]:
    """Return the relids of the tables that these publications have, with their partitions."""
    return _with_partitions(asked, {r.relid for r in asked if r.table and any(p.holds(r) for p in held)})


def sent_as_others(conn: Connection, source: SourceConfig) -> dict[int, str]:
    """Return, by relid, the partitions whose rows come as rows of a table that is not configured, with its name."""
    return _sent_as_others(catalog.relations(conn), catalog.publications(conn, source), source)


def of_other(root: str) -> tuple[str, str]:
    """Return what is wrong with a partition of `sent_as_others`, and the remedy."""
    return (
        f"is a partition, and its rows are captured as those of {root}, which [source] does not name",
        f"name {root} in [source] tables, or the partition in [source] exclude",
    )


def versions_only(conn: Connection, rules: CaptureRules) -> tuple[int, ...]:
    """Return the relids of tables whose schema versions are kept, whether they are published or not.

    These are the tables of `capture = "schema"`, and partitioned tables: their partitions may be the captured tables.
    """
    roots = conn.execute(resources.load("introspect/roots")).fetchall()
    found = [relid for relid, schema, name in roots if rules.source.asks_for(schema, name)]
    if any(chosen.capture == Capture.SCHEMA for chosen in rules.table.values()):
        shaped = (r for r in catalog.relations(conn) if r.table)
        found += [r.relid for r in shaped if rules.capture_of(r.schema, r.name).capture == Capture.SCHEMA]
    return tuple(found)


def left_out(conn: Connection, rules: CaptureRules) -> dict[Relation, str]:
    """Return tables that are left out because publishing would break them, with the reason.

    They match a pattern, and no publication contains them yet. A table that `[source] tables` names in full is never
    left out, nor is a table of a schema that is published whole.
    """
    return _choice(conn, rules)[0]


def to_name(conn: Connection, rules: CaptureRules) -> frozenset[int]:
    """Return the relids of the tables that the toolkit's own publication names, outside of whole schemas.

    A partitioned table brings all of its partitions, and those that are created later. It is named itself if it may
    bring each of them, if `[source] tables` names it in full, or if a publication has it that `cdc init` has not made.
    Otherwise its partitions are named.
    """
    return _choice(conn, rules)[1]


def replaced_roots(rules: CaptureRules, every: Sequence[Relation], reasons: Mapping[int, str]) -> Set[int]:
    """Return the relids of partitioned tables of which the toolkit's publication must name the partitions instead.

    `reasons` are those of `without_identity`. A partition that lost its replica identity while it was published is no
    reason to replace its root: its UPDATE and DELETE would fail under its own name, too.
    """
    roots = {r.relid for r in every if r.kind == "p"}
    return named_by_parts(rules, every, {relid: why for relid, why in reasons.items() if relid in roots}).keys()


def named_by_parts(rules: CaptureRules, every: Sequence[Relation], reasons: Mapping[int, str]) -> dict[int, str]:
    """Return, by relid, why a partitioned table must not be named itself. `reasons` are those of `without_identity`."""
    if rules.source.whole_schemas:
        return {}
    above = ancestors(every)
    found = {
        root: f"its partition {part.identifier} {why}"
        for part, why in unwanted_partitions(rules, every, reasons).items()
        for root in above[part.relid]
    }
    return found | {r.relid: reasons[r.relid] for r in every if r.kind == "p" and r.relid in reasons}


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


def not_captured(conn: Connection, rules: CaptureRules, *, ticks: bool, known: Collection[int] = ()) -> dict[str, str]:
    """Return configured tables without rows in the log, by name, with the reason and the remedy.

    `known` are the relids of the tables that the log has. Of one that only triggers capture, no publication says it.
    """
    every, held = catalog.relations(conn), catalog.publications(conn, rules.source)
    left, named = _choose(every, held, catalog.without_identity(conn), rules)
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


def _choice(conn: Connection, rules: CaptureRules) -> tuple[dict[Relation, str], frozenset[int]]:
    held, reasons = catalog.publications(conn, rules.source), catalog.without_identity(conn)
    return _choose(catalog.relations(conn), held, reasons, rules)


def _choose(
    every: Sequence[Relation], held: Sequence[PublicationState], reasons: Mapping[int, str], rules: CaptureRules
) -> tuple[dict[Relation, str], frozenset[int]]:
    """Return what `left_out` and `to_name` return. `reasons` are those of `without_identity`."""
    source = rules.source
    reasons = {} if source.whole_schemas else {relid: f"{why}: {WOULD_FAIL}" for relid, why in reasons.items()}
    asked = [r for r in _matching(every, held, source) if r.capturable and rules.through_slot(r.schema, r.name)]
    own = [r for r in asked if source.names(r.schema, r.name)]
    in_full = {r.relid for r in asked if source.names_in_full(r.schema, r.name)}
    kept = in_full | {r.relid for r in every if any(p.holds(r) for p in held)}
    leaving = replaced_roots(rules, every, reasons)
    stays = {r.relid for r in every if any(p.holds(r) for p in held if not (p.replaceable and r.relid in leaving))}
    brought, above = _with_partitions(every, kept), ancestors(every)
    apart = named_by_parts(rules, every, reasons)
    whole = {r.relid for r in own if r.kind == "p" and (r.relid in in_full | stays or r.relid not in apart)}
    by_parts = frozenset[int]().union(*(above[r.relid] for r in asked)) | brought | whole

    left = {r: reasons[r.relid] for r in asked if r.kind == "r" and r.relid in reasons and r.relid not in brought}
    left |= {r: apart[r.relid] for r in own if r.kind == "p" and r.relid not in by_parts}
    named = [r for r in own if r not in left and (r.kind == "r" or r.relid in whole)]
    return left, frozenset(r.relid for r in named if not above[r.relid] & whole)


def _matching(
    every: Sequence[Relation], held: Sequence[PublicationState], source: SourceConfig
) -> tuple[Relation, ...]:
    asked = tuple(r for r in every if source.asks_for(r.schema, r.name))
    kept = held_by(asked, [p for p in held if p.name in source.others])
    return tuple(r for r in asked if r.relid in kept or source.names(r.schema, r.name))


def _with_partitions(asked: Sequence[Relation], relids: set[int]) -> set[int]:
    found = set(relids)
    while below := {r.relid for r in asked if found.intersection(r.parents)} - found:
        found |= below
    return found


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


def _with_triggers(conn: Connection) -> frozenset[int]:
    """Return the relids of the tables that have all triggers of the change log."""
    if not catalog.installed(conn):
        return frozenset()
    return frozenset(row[0] for row in conn.execute("select relid::int8 from cdc.logged_tables").fetchall())

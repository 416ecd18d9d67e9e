"""Manage the change log on the source: the tables that it captures, its triggers, and what prevents them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import psycopg
from psycopg.rows import dict_row

from toolkit.source import catalog, locks, selection
from toolkit.source.connection import Connection, one_line
from toolkit.source.drain_mode import by_ticks
from toolkit.values import resources
from toolkit.values.capture_rules import CaptureRules
from toolkit.values.errors import PreflightFailed
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.log_setup import logger
from toolkit.values.modes import Capture, Triggers
from toolkit.values.names import quote_postgres, table_section
from toolkit.values.table import TableVersion

#: Name of the table, and start of the names of its parts, in schema `cdc`.
LOG = "change_log"
_LOCK_SECONDS = 1.0
_LARGE_LOG = 1 << 30  # bytes
_LONG_SECONDS = 600
#: Server CPU of one logged change, in microseconds: in a bulk update, and if each change is a statement of its own
#: (tests/benchmarks/capture.py). The server does not count statements.
_MICROSECONDS = {Triggers.ROW: (12, 60), Triggers.STATEMENT: (5, 75)}
_log = logger(__name__)


def logged(rules: CaptureRules, table: TableVersion | catalog.Relation) -> bool:
    """Return whether triggers capture the table."""
    return rules.capture_of(table.schema, table.name).capture in (Capture.CHANGE_LOG, Capture.BOTH)


def install_sql(rules: CaptureRules, *, ticks: bool) -> list[str]:
    """Return the statements that create the log, without the triggers of any table.

    DDL messages also go into the log if no process can read them from the WAL.
    """
    if not rules.uses_change_log:
        return []
    # It stays on here: a log that is still drained by ticks needs the messages until the handover.
    uses = ["logs", "ddl_to_log"] if ticks else ["logs"]
    flags = [
        "insert into cdc.settings (slot, name, value)"
        f" values (pg_catalog.current_setting('cdc.slot'), '{name}', '') on conflict (slot, name) do nothing;\n"
        for name in uses
    ]
    return [resources.load("changelog/10_log"), *flags]


def trigger_sql(rules: CaptureRules, tables: Sequence[TableVersion]) -> dict[str, str]:
    """Return, for each table in the order to run, the SQL that adds its triggers; roots first.

    Run each in its own transaction: a session that holds one table while it waits for another could deadlock with
    writers. A table whose triggers are complete is not locked at all.
    """
    chosen = sorted((t for t in tables if logged(rules, t)), key=lambda t: (t.kind != "p", t.schema, t.name))
    return {t.identifier: f"{_log_table(rules, t)};\n" for t in chosen}


def _log_table(rules: CaptureRules, table: TableVersion | catalog.Relation) -> str:
    name = f"{_quoted(table.schema)}.{_quoted(table.name)}".replace("'", "''")
    by_statement = rules.capture_of(table.schema, table.name).triggers == Triggers.STATEMENT
    return f"select cdc.log_table('{name}'::pg_catalog.regclass, {str(by_statement).lower()})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def moving(conn: Connection, rules: CaptureRules) -> tuple[str, ...]:
    """Return published tables whose way of capture `init` will change; they then need a baseline.

    `init` takes excluded tables out of capture instead.
    """
    if not catalog.installed(conn) or by_ticks(conn, rules):
        return ()

    def moves(table: TableVersion) -> bool:
        if rules.source.excludes(table.schema, table.name):
            return False
        wanted = rules.capture_of(table.schema, table.name).capture
        by_slot = (Capture.SLOT, Capture.BOTH)
        return wanted in by_slot if table.capture == Capture.CHANGE_LOG else wanted == Capture.CHANGE_LOG

    return tuple(table.identifier for table in catalog.published_tables(conn) if moves(table))


@can_fail(Point.SETTLE)
def settle(conn: Connection, rules: CaptureRules, *, lock_seconds: float) -> None:
    """Remove capture and draining that is no longer configured; what is configured already exists.

    A table that `[source] exclude` names loses its triggers, and so does one that the slot should capture and that
    `init` must not publish. One that no pattern selects any more keeps them.
    """
    if not by_ticks(conn, rules):  # the slot reads DDL messages from the WAL
        conn.execute(
            "delete from cdc.settings where slot = pg_catalog.current_setting('cdc.slot') and name = 'ddl_to_log'"
        )
    state = catalog.own_publication(conn, rules.source)
    named = state.relids if state is not None and not by_ticks(conn, rules) else frozenset()
    others = conn.execute(
        "select exists (select from cdc.settings as s"
        " where s.name = 'logs' and s.slot <> pg_catalog.current_setting('cdc.slot'))"
    ).fetchone()
    triggers = set() if others == (True,) else triggered(conn)
    for relation in selection.matching(conn, rules.source):
        name = f"{_quoted(relation.schema)}.{_quoted(relation.name)}"
        if relation.relid in named and not rules.through_slot(relation.schema, relation.name):
            assert state is not None
            conn.execute(f"alter publication {_quoted(state.name)} drop table only {name}")
        if relation.relid in triggers and not logged(rules, relation):
            release(conn, relation.relid, lock_seconds=lock_seconds)
    for relation in catalog.relations(conn) if triggers else ():
        if relation.relid in triggers and rules.source.excludes(relation.schema, relation.name):
            release(conn, relation.relid, lock_seconds=lock_seconds)
    if not rules.uses_change_log:
        conn.execute("delete from cdc.settings where slot = pg_catalog.current_setting('cdc.slot') and name = 'logs'")


def triggered(conn: Connection) -> set[int]:
    """Return the tables with a trigger of the change log, complete or not, by relid."""
    found = conn.execute("select tgrelid::int8 from pg_catalog.pg_trigger where tgname like '!cdc\\_%'")
    return {row[0] for row in found.fetchall()}


def release(conn: Connection, relid: int, *, lock_seconds: float) -> None:
    """Drop the triggers of the change log from a table.

    Raises:
        LockTimeout: another session held a lock on it for too long.
    """
    row = conn.execute("select %s::pg_catalog.regclass::text", [relid]).fetchone()
    change = partial(conn.execute, "select cdc.unlog_table(%s::oid)", [relid])
    what, seconds = f"releasing {row[0] if row else relid}", lock_seconds
    locks.insist(conn, what, change, seconds=seconds)


def recheck(conn: Connection, rules: CaptureRules) -> tuple[str, ...]:
    """Restore triggers that a DETACH, a new partition or a user left missing, and return the repaired tables.

    The catalog comparison saw them missing before, or sees the table added afterwards: changes in between become a gap.
    A table that REASSIGN OWNED gave to another role, which fires no event trigger, can then be read for its new owner.
    A table that `cdc init` refuses gets none. No wait for a lock lasts longer than a second; a table that is busy is
    left to the next drain.
    """
    if not rules.uses_change_log:
        return ()
    whole = {row[0] for row in conn.execute(resources.load("changelog/whole")).fetchall()}
    lacking = [r for r in selection.selected_relations(conn, rules) if r.relid not in whole and logged(rules, r)]
    refused = {name for name, _, _ in refusals(conn, rules)} if lacking else ()
    repaired = []
    for relation in (r for r in lacking if r.identifier not in refused):
        try:
            with (
                locks.waiting(conn, f"repairing the triggers of {relation.identifier}", seconds=_LOCK_SECONDS),
                conn.transaction(),
            ):
                row = conn.execute(_log_table(rules, relation)).fetchone()
        except (locks.LockTimeout, psycopg.Error) as error:
            _log.warning("triggers not repaired", extra={"table": relation.identifier, "reason": one_line(error)})
            continue
        if row and row[0]:
            repaired.append(relation.identifier)
    return tuple(repaired)


def faults(conn: Connection, rules: CaptureRules) -> Iterator[tuple[str | None, str]]:
    """Find triggers that differ from the configured ones, as `(table, what was found)`; None: the log itself."""
    if not rules.uses_change_log:
        return
    if conn.execute("select pg_catalog.to_regclass('cdc.change_log')").fetchone() == (None,):
        yield None, "is configured and not on the source"
        return
    whole = {row[0] for row in conn.execute("select relid::int8 from cdc.logged_tables").fetchall()}
    for relation in selection.selected_relations(conn, rules):
        if not logged(rules, relation):
            continue
        by_statement = rules.capture_of(relation.schema, relation.name).triggers == Triggers.STATEMENT
        lacks = conn.execute(
            "select name, enabled::text, keep from cdc.log_lacks(%s::oid, %s)", [relation.relid, by_statement]
        ).fetchall()
        stated = [
            f"trigger {name} {'is not asked for' if not keep else 'is disabled' if enabled else 'is missing'}"
            for name, enabled, keep in lacks
        ]
        if not stated and relation.relid not in whole:
            stated = ["its triggers do not log every row" if is_read(conn) else "the change log is not read"]
        if stated:
            yield relation.identifier, "; ".join(stated)


def refusals(conn: Connection, rules: CaptureRules) -> Iterator[tuple[str, str, str]]:
    """Find tables that triggers cannot capture, as `(table, what was found, what to do)`."""
    if not rules.uses_change_log:
        return
    with conn.cursor(row_factory=dict_row) as cursor:
        facts: dict[int, dict[str, Any]] = {
            row["relid"]: row for row in cursor.execute(resources.load("changelog/trigger_facts"), {}).fetchall()
        }
    role = conn.info.user
    for relation in selection.selected_relations(conn, rules):
        name = relation.identifier
        if not logged(rules, relation) or relation.relid not in facts:  # it was created just now
            continue
        about = facts[relation.relid]
        chosen = rules.capture_of(relation.schema, relation.name)
        if not about["owned"]:
            yield (
                name,
                f"belongs to {about['owner']!r}, and role {role!r} may not put triggers on it",
                f"run: grant {quote_postgres(about['owner'])} to {quote_postgres(role)}",
            )
        if about["method"]:
            yield (
                name,
                f"is kept by access method {about['method']!r}, whose rows do not say which command wrote them",
                f"run: alter table {name} set access method heap, or take it out of the change log",
            )
        if about["unstable_keys"]:
            column = about["unstable_keys"][0].rpartition(" ")
            stable = "oid[]" if column[2].endswith("[]") else "oid"
            yield (
                name,
                f"has key column {column[0]} of type {column[2]}, whose text depends on other objects",
                f"run: alter table {name} alter column {column[0]} type {stable}, or take it out of the change log",
            )
        if chosen.triggers == Triggers.STATEMENT and chosen.capture == Capture.BOTH:
            yield (
                name,
                'has capture = "both" with statement triggers, which log an update as two rows',
                f'set triggers = "row" for it in {table_section(relation.schema, relation.name)}',
            )
        if chosen.triggers == Triggers.STATEMENT and about["subscribed"]:
            yield (
                name,
                "receives rows from a subscription, which fire no statement triggers",
                f'set triggers = "row" for it in {table_section(relation.schema, relation.name)}',
            )
        if chosen.triggers == Triggers.STATEMENT and about["family"]:
            yield (
                name,
                "is partitioned, a partition or part of an inheritance tree: statement triggers do not show whose rows"
                " they see",
                f'set triggers = "row" for it in {table_section(relation.schema, relation.name)}',
            )


def health(conn: Connection) -> Iterator[tuple[str, str, str]]:
    """Find a log that grows and long transactions, as `(what, what was found, what to do)`.

    The changes of a transaction cannot be read before it ends.
    """
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(resources.load("changelog/health")).fetchone()
    assert row is not None
    if row["bytes"] is not None and row["bytes"] > _LARGE_LOG:
        yield (
            "change log",
            f"holds {row['bytes'] >> 20:,} MB on the source",
            "run `cdc drain` more often: it empties the parts that earlier ones left, but those of open writers",
        )
    if row["seconds"] is not None and row["seconds"] > _LONG_SECONDS:
        yield (
            f"transaction of {row['name']} ({row['role']})",
            f"is open for {row['seconds']} s: its changes come when it ends, and what it wrote into cannot be purged",
            "end it, if no one waits for it",
        )


def predicted(conn: Connection, rules: CaptureRules) -> list[str]:
    """Predict what capture costs the writers, one line per logged table, from the counts of the server."""
    load = {row[0]: (row[1], row[2]) for row in conn.execute(resources.load("changelog/load")).fetchall()}
    lines = []
    for relation in selection.selected_relations(conn, rules):
        if not logged(rules, relation) or relation.relid not in load:
            continue
        triggers = rules.capture_of(relation.schema, relation.name).triggers
        changes, seconds = load[relation.relid]
        if seconds is None:
            said = (f"{changes:,} changes counted, since when is not known", "")
        else:
            changes = changes * 86400 // seconds
            said = (f"about {changes:,} changes a day", " a day")
        bulk, single = (f"{changes * cost / 1e6:,.0f} s" for cost in _MICROSECONDS[triggers])
        cost = f"{bulk} of the server's CPU{said[1]} if they come in bulk, up to {single} if one by one"
        lines.append(f"{relation.identifier}: {said[0]}; {triggers} triggers take about {cost}")
    return lines


def begin(conn: Connection, rules: CaptureRules, *, lock_seconds: float) -> None:
    """Prepare the log of a new history: delete ticks, and rows of another cluster that came with a dump.

    Every session sees those rows, although no snapshot shows their transactions yet. They would be drained once the
    server reaches their xids. All other rows are drained or purged as usual.
    """
    if not rules.uses_change_log:  # it may be that of another lake
        return
    found = conn.execute("select relid::pg_catalog.regclass::text from cdc.log_parts where relkind = 'r'").fetchall()
    alien = "select exists (select from {} where not pg_visible_in_snapshot(xid, pg_current_snapshot()))"
    parts = [part for (part,) in found if conn.execute(alien.format(part)).fetchone() == (True,)]
    if found:
        conn.execute("delete from cdc.tick")  # first: after a tick, removed rows are recorded as lost
    if parts:
        clear = partial(conn.execute, f"truncate table {', '.join(parts)}")
        what, seconds = "emptying the change log of another server", lock_seconds
        locks.insist(conn, what, clear, seconds=seconds)


def is_read(conn: Connection) -> bool:
    """Return whether all rows of the log get to the lake; false if it left the publication, or is gone."""
    row = conn.execute("select cdc.log_is_read()").fetchone()
    return bool(row and row[0])


@can_fail(Point.PURGE)
def purge(conn: Connection, snapshot: str) -> tuple[int, ...]:
    """Empty the parts of the log whose rows are all visible in `snapshot`, whose changes are all in the lake.

    The part that is written to is left for the next call. A log that is not whole is not purged at all. No session is
    waited for. Return the numbers of the parts.

    Raises:
        PreflightFailed: this role may not purge the log.
    """
    try:
        row = conn.execute(
            "select cdc.purge_log(%s::pg_catalog.pg_snapshot) where cdc.log_is_read()", [snapshot]
        ).fetchone()
    except psycopg.errors.InsufficientPrivilege as error:
        raise PreflightFailed(
            f"purging the change log: {one_line(error)}; connect as the role that ran `cdc init`"
        ) from None
    return tuple(row[0]) if row else ()

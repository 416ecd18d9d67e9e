"""Install the toolkit's objects on the source: schema `cdc`, event triggers and its own publication."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

import psycopg

from toolkit.source import catalog, change_log, drain_mode, guard, locks, roles, selection
from toolkit.source.claim import Claim, other_lakes, require_apart, require_unclaimed, write_claim
from toolkit.source.connection import Connection, one_line
from toolkit.source.own_publication import publication_sql
from toolkit.source.settings import read_setting
from toolkit.values import progress, resources
from toolkit.values.capture_rules import CaptureRules, SourceConfig
from toolkit.values.config import DdlConfig
from toolkit.values.errors import CdcError, PreflightFailed
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.log_setup import logger
from toolkit.values.modes import Capture, NewTables
from toolkit.values.names import postgres_regex, quote_postgres
from toolkit.values.table import TableVersion

_log = logger(__name__)
_EVENT_TRIGGERS = "40_event_triggers"
_FILES = (
    "10_schema", "12_key", "20_table_snapshot", "30_capture", "32_partitions", "35_switch", _EVENT_TRIGGERS,
    "41_fingerprint",
)  # fmt: skip


def install_sql(
    rules: CaptureRules,
    tables: Sequence[TableVersion],
    publication: Sequence[str] = (),
    *,
    ticks: bool = False,
    event_triggers: bool = True,
    ddl: DdlConfig,
) -> str:
    """Return everything that `cdc init` runs on the source, as one script: objects, then triggers by table.

    Args:
        rules: have the names of publications and tables.
        tables: the selected ones (`selection.selected_tables`).
        publication: the statements of `publication_sql`.
        ticks: there is no slot, so there is no publication either; the change log contains the DDL messages too.
        event_triggers: whether the role may create them; without them only the catalog comparison finds DDL.
    """
    triggers = change_log.trigger_sql(rules, tables).values()
    objects = objects_sql(rules, tables, publication, ticks=ticks, event_triggers=event_triggers, ddl=ddl)
    # As in the toolkit's own sessions: an operator of another role could fit better than one of pg_catalog.
    return "\n".join(["set search_path = '';", objects, *triggers])


def objects_sql(
    rules: CaptureRules,
    tables: Sequence[TableVersion],
    publication: Sequence[str],
    *,
    ticks: bool,
    event_triggers: bool,
    ddl: DdlConfig,
) -> str:
    """Return what `install_sql` runs first, in one transaction: schema `cdc`, event triggers, publication."""
    names = "'" + json.dumps(rules.source.publications).replace("'", "''") + "'"
    files = [file for file in _FILES if event_triggers or file != _EVENT_TRIGGERS]
    values = {
        "slot": f"'{rules.source.slot}'",
        "publications": names,
        "ignored": "'" + ",".join(ddl.ignore) + "'",
        "sql": f"'{ddl.sql}'",
    }
    parts = [resources.load(f"install/{file}") for file in files]
    parts[0] = parts[0].replace(":foreign_objects", resources.load("introspect/foreign_objects"))
    for key, value in values.items():
        parts = [part.replace(f":'{key}'", value) for part in parts]
    parts += change_log.install_sql(rules, ticks=ticks)
    parts += [f"{statement};\n" for statement in publication]
    parts.append(_new_tables_sql(rules, ticks=ticks))
    parts.append(_version_sql())
    parts += [roles.grants_sql(rules, tables), resources.load("install/43_owner")]
    parts.append(resources.load("install/45_seal"))  # covers all functions, including those of the change log
    return "\n".join(parts)


@can_fail(Point.INSTALL)
def install(
    conn: Connection, rules: CaptureRules, claim: Claim | None = None, *, ddl: DdlConfig, lock_seconds: float
) -> None:
    """Create or update all objects. Idempotent: the key and the tables of the user stay.

    The objects are created in one transaction. Triggers of the change log follow table by table, so no session waits
    for two tables at once. If a table cannot have its triggers, everything that this call created on the source is
    removed again. `claim` names the lake that captures the source from now on.

    Raises:
        PreflightFailed: the role lacks the rights, the publications would not send all of a table, or another lake
            captures the source.
        LockTimeout: another session held a table for too long.
    """
    tables = selection.selected_tables(conn, rules)
    ticks = drain_mode.by_ticks(conn, rules)
    publication = publication_sql(conn, rules, ticks=ticks)
    fresh = not catalog.read_by(conn)  # this lake captures nothing yet
    before = change_log.triggered(conn)

    def script(event_triggers: bool) -> str:
        return objects_sql(rules, tables, publication, ticks=ticks, event_triggers=event_triggers, ddl=ddl)

    def whole() -> None:
        # In the same transaction: of two first inits the second waits here for the settings of the first.
        if claim is not None:
            require_unclaimed(conn, rules.source, claim.lake)
            write_claim(conn, claim, rules.source.publications)
        require_apart(conn, rules.source)
        for table in () if ticks else catalog.published_tables(conn):
            if unsent := table.unsent(rules.source.publications):
                found, remedy = unsent
                raise PreflightFailed(f"table {table.identifier}: {found}; {remedy}; nothing was changed on the source")

    try:
        try:
            _locked(conn, "installing capture", script(True), whole, lock_seconds=lock_seconds)
        except psycopg.errors.InsufficientPrivilege:
            if catalog.is_superuser(conn):
                raise
            # Some services let roles without superuser rights create event triggers, so they are tried first.
            _locked(conn, "installing capture", script(False), whole, lock_seconds=lock_seconds)
            _log.warning(
                "this role may not create event triggers: DDL is found by comparing the catalog after each drain, and"
                " makes the table stale"
            )
        guard.guard(conn, drains=False)
    except psycopg.errors.InsufficientPrivilege as error:
        raise PreflightFailed(
            f"installing capture: {one_line(error)}; `cdc init` needs a superuser, or at least a role that owns the"
            " tables, or is a member of their owners, and may create in the database, or name tables of others in"
            " [source] exclude"
        ) from None
    except psycopg.Error as error:
        raise PreflightFailed(f"installing capture: {one_line(error)}; nothing was changed on the source") from None
    try:
        for table, statement in change_log.trigger_sql(rules, tables).items():
            _locked(conn, f"putting triggers on {table}", statement, lock_seconds=lock_seconds)
    except (CdcError, psycopg.Error) as error:
        _take_back(
            conn,
            rules.source,
            (t.relid for t in tables if t.relid not in before),
            whole=fresh,
            lock_seconds=lock_seconds,
        )
        if isinstance(error, CdcError):
            raise
        raise PreflightFailed(
            f"putting triggers on {table}: {one_line(error)}; those of other tables were removed again"
        ) from None


@can_fail(Point.UNINSTALL)
def uninstall(conn: Connection, source: SourceConfig, *, lock_seconds: float, has_read: bool = False) -> None:
    """Remove slot, publication, event triggers and schema. A missing object is no error.

    What serves other lakes of the database too stays: event triggers, schema, and the triggers of a change log that one
    of them has. A publication that existed before `cdc init` stays, with the tables that were added to it.

    Raises:
        SlotError: the slot is in use, or is not one of this toolkit.
        PreflightFailed: schema `cdc` has a table, a sequence or a type of the user; nothing was removed.
    """
    from toolkit.source import claim, slot

    _require_no_guests(conn, source)
    state = slot.read_slot(conn, source.slot)
    if state is not None and not claim.has_slot(conn, source, has_read=has_read):
        _log.warning("the slot stays: `cdc init` has not created it", extra={"slot": source.slot})
    elif state is not None:
        slot.require_ours(state)
        slot.drop_slot(conn, source.slot)
    _remove(conn, source, lock_seconds=lock_seconds)


def _require_no_guests(conn: Connection, source: SourceConfig) -> None:
    """Refuse to drop schema `cdc` with what the user has in it."""
    found = None if other_lakes(conn, source) else conn.execute(resources.load("introspect/guests")).fetchone()
    if found is not None:
        raise PreflightFailed(
            f"removing capture: {found[0]} is not one of the toolkit's, and would be dropped with schema cdc; run:"
            f" alter {found[0]} set schema public"
        )


def _remove(conn: Connection, source: SourceConfig, *, lock_seconds: float) -> None:
    others = other_lakes(conn, source)
    if others and guard.of_another_version(conn):
        raise PreflightFailed(
            f"removing capture: the lake in {others[0].warehouse} uses it too, and another version of the toolkit has"
            " installed it; run `cdc init` first"
        )
    logs = read_setting(conn, "logs") is not None
    names = "%" if not others else "!cdc\\_%" if logs else ""
    found = conn.execute(resources.load("uninstall/05_triggers").replace(":'names'", f"'{names}'").encode()).fetchall()
    for table, statement in progress.each("taking the triggers off", "tables", found):
        _locked(conn, f"taking the triggers off {table}", statement, lock_seconds=lock_seconds)
    script = resources.load("uninstall/20_one_lake" if others else "uninstall/10_objects")
    own = catalog.own_publication(conn, source)
    if own is not None and own.made:
        script += f";\ndrop publication {quote_postgres(own.name)}"
    _locked(conn, "removing capture", script, lock_seconds=lock_seconds)


def _take_back(
    conn: Connection, source: SourceConfig, relids: Iterable[int], *, whole: bool, lock_seconds: float
) -> None:
    """Drop the triggers of these tables again, and everything else if it did not exist before."""
    try:
        if whole:
            _require_no_guests(conn, source)
            _remove(conn, source, lock_seconds=lock_seconds)
        for relid in () if whole else change_log.triggered(conn).intersection(relids):
            change_log.release(conn, relid, lock_seconds=lock_seconds)
    except (CdcError, psycopg.Error) as error:
        _log.warning("some triggers were not removed; run `cdc uninstall`", extra={"reason": one_line(error)})


def _locked(
    conn: Connection, what: str, script: str, then: Callable[[], None] | None = None, *, lock_seconds: float
) -> None:
    """Run DDL, and a check of its result, in one transaction that locks at most one table.

    Raises:
        LockTimeout: the locks were not free within `[snapshot] lock_seconds`; names the sessions that held them.
    """

    def change() -> None:
        conn.execute("set local client_min_messages = warning")
        conn.execute(script)
        if then is not None:
            then()

    locks.insist(conn, what, change, seconds=lock_seconds)


def _new_tables_sql(rules: CaptureRules, *, ticks: bool) -> str:
    """Return the statement that records which new tables `cdc.publish_new` publishes at their CREATE."""
    source = rules.source
    if source.new_tables == NewTables.PROPOSE or source.own is None or source.capture != Capture.SLOT or ticks:
        return f"delete from cdc.settings where slot = '{source.slot}' and name = 'new_tables';\n"
    exclude, earlier = [*map(postgres_regex, source.exclude)], ""
    for name, table in rules.table.items():  # the first pattern that matches decides
        if table.capture in (Capture.CHANGE_LOG, Capture.SCHEMA):
            exclude.append(earlier + postgres_regex(name))
        else:
            earlier += f"(?!{postgres_regex(name)})"
    chosen = {"publication": source.own, "tables": [*map(postgres_regex, source.tables)], "exclude": exclude}
    return (
        "insert into cdc.settings (slot, name, value)"
        f" values ('{source.slot}', 'new_tables', pg_catalog.convert_to($cdc${json.dumps(chosen)}$cdc$, 'UTF8'))"
        " on conflict (slot, name) do update set value = excluded.value;\n"
    )


def _version_sql() -> str:
    """Return the statement that records the version, so a later command knows whether its own was installed."""
    return (
        f"insert into cdc.settings (name, value) values ('version', pg_catalog.convert_to('{guard.version()}', 'UTF8'))"
        " on conflict (slot, name) do update set value = excluded.value"
        " where settings.value is distinct from excluded.value;\n"
    )

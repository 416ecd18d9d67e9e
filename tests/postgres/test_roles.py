"""Three roles: one installs capture, one drains with REPLICATION and SELECT only, and one only looks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack

import psycopg
import pytest

from tests import commands
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from tests.support_postgres import mostly_one_server
from tests.support_roles import Roles, installed, roles
from toolkit.ops import diagnosis, status_report
from toolkit.rawlog.states import State
from toolkit.source import catalog, connection, ddl_switch, exact_cut, owners_code, preflight, row_lines, slot
from toolkit.source.opened import open_source
from toolkit.values.config import Config
from toolkit.values.errors import CdcError, PreflightFailed
from toolkit.values.outcome import Level
from toolkit.values.row_line import comparison

pytestmark = pytest.mark.postgres
__all__ = ["installed", "plain_lake", "roles"]


def _findings(conn: connection.Connection, config: Config) -> list[str]:
    return [str(f) for f in preflight.preflight(conn, config.capture_rules, ddl=config.ddl)]


def _notes(config: Config) -> list[str]:
    return sorted(event["new"][1] for event in rows_in_log(config) if event["new"] is not None)


def test_row_6_the_drainer_drains_checks_and_repairs_without_another_right(installed: Roles) -> None:
    installed.sql(
        "insert into shop.orders values (3, 'three')",
        "alter table shop.orders add column c int",
        "update shop.orders set c = 1 where id = 1",
        "truncate shop.events_1",
        "insert into shop.events values (2, 'again')",
    )
    done = commands.drain(installed.drainer)
    assert done.changes == 4
    assert _notes(installed.drainer) == ["again", "begun", "one", "one", "three", "two"]
    found = status_report.status(installed.drainer)
    assert found.problem is None and {t.state for t in found.tables} == {State.OK}
    with connection.connect(installed.drainer.source) as conn:
        assert _findings(conn, installed.drainer) == []
    assert [d for d in diagnosis.doctor(installed.drainer) if "shop" in str(d) or "role" in str(d)] == []
    with open_source(installed.drainer.source_access) as opened, ExitStack() as stack:
        tables = {t.identifier: t for t in catalog.published_tables(opened.conn)}
        reached = ledger_of(installed.drainer).last()
        assert reached is not None
        at = exact_cut.without_slot(opened, stack, drained=reached.complete_to, unseen=lambda _: ())
        assert at >= reached.complete_to
        with row_lines.lines(opened.conn, comparison(tables["shop.orders"], 1)) as blocks:
            assert sum(map(len, blocks)) == 3
    again = commands.repair(installed.drainer, ["shop.orders", "shop.events_1"])
    assert again.rows == {"shop.orders": 3, "shop.events_1": 1} and not again.left_out
    assert commands.drain(installed.drainer).changes == 0


@pytest.mark.parametrize("drain", ["tick", "slot"])
def test_row_6_the_drainer_drains_the_change_log_and_rotates_it(roles: Roles, drain: str) -> None:
    roles = roles.capturing(capture="change_log", change_log_drain=drain, tables=("shop.orders",), exclude=())
    assert commands.init(roles.installer).rows == {"shop.orders": 2}
    for number in range(3, 6):
        roles.sql(f"insert into shop.orders values ({number}, 'n{number}')")
        roles.sql(f"alter table shop.orders add column c{number} int")
        assert commands.drain(roles.drainer).changes == 1
    assert _notes(roles.drainer) == ["n3", "n4", "n5", "one", "two"]
    assert {t.state for t in status_report.status(roles.drainer).tables} == {State.OK}
    assert roles.admin.execute("select count(*) < 3 from cdc.change_log where op = 'I'").fetchone() == (True,)
    with connection.connect(roles.drainer.source) as conn:
        assert _findings(conn, roles.drainer) == []


#: Statements, each with what the refusal names. Row security and the tables behind a function would refuse some later.
_FORBIDDEN = {
    "makes an object in cdc": ("create table cdc.mine (id int)", "schema cdc"),
    "makes a function in cdc": ("create function cdc.mine() returns int language sql as 'select 1'", "schema cdc"),
    "replaces a function": (
        "create or replace function cdc.sign(content bytea) returns text language sql return ''", "schema cdc",
    ),
    "reads the key": ("select * from cdc.signing_key", "table signing_key"),
    "signs": ("select cdc.sign('x')", "function sign"),
    "emits": ("select cdc.emit('ddl_command_end', '{}')", "function emit"),
    "changes a setting": ("update cdc.settings set value = '' where name = 'functions'", "table settings"),
    "adds a setting": ("insert into cdc.settings values ('paused', '')", "table settings"),
    "adds a tick": ("insert into cdc.tick values ('0/1', '1:1:')", "table tick"),
    "writes the change log": (
        "insert into cdc.change_log (part, lsn, relid, op) values (0, '0/0', 0, 'F')", "table change_log",
    ),
    "empties the change log": ("truncate cdc.change_log", "table change_log"),
    "pauses capture": ("select cdc.pause()", "function pause"),
    "resumes capture": ("select cdc.resume()", "function resume"),
    "captures another table": (
        "select cdc.log_table(oid, false) from pg_class where relname = 'secret'", "function log_table",
    ),
    "releases a table": ("select cdc.unlog_table(oid) from pg_class where relname = 'orders'", "function unlog_table"),
    "runs DDL that is not captured": ("select cdc.run_uncaptured('drop table shop.orders')", "function run_uncaptured"),
    "adds to the publication": ("alter publication cdc add table shop.secret", "publication cdc"),
    "drops the publication": ("drop publication cdc", "publication cdc"),
    "switches an event trigger off": ("alter event trigger _cdc_0_command disable", "event trigger _cdc_0_command"),
    "switches event triggers off": ("set session_replication_role = replica", '"session_replication_role"'),
    "reads a table outside the selection": ("select * from shop.secret", "(table secret|schema shop)"),
    "writes a captured table": ("insert into shop.orders values (9, 'x')", "(table orders|schema shop)"),
    "becomes the installer": ("set role INSTALLER", 'role "INSTALLER"'),
    "reads a file of the server": ("select pg_read_file('PG_VERSION')", "function pg_read_file"),
}  # fmt: skip


def test_row_6_what_neither_the_drainer_nor_the_reader_can_do(roles: Roles) -> None:
    roles = roles.capturing(capture="change_log", tables=("shop.orders",), exclude=())
    commands.init(roles.installer)
    for what, given in _FORBIDDEN.items():
        written, named = (text.replace("INSTALLER", str(roles.admin.info.user)) for text in given)
        statement = written.encode()
        for config in (roles.drainer, roles.reader):
            with connection.connect(config.source) as conn:
                conn.execute("set row_security = on")  # else its refusal would come first
                try:
                    conn.execute(statement)
                except psycopg.errors.InsufficientPrivilege as error:
                    refusal = rf"(permission denied|must be owner)\b.* {named}$"
                    assert re.search(refusal, str(error.diag.message_primary))
                    continue
            raise AssertionError(f"{config.source.conninfo}: {what}")
        try:
            with roles.admin.transaction(force_rollback=True):  # the statement itself is right
                roles.admin.execute(statement)
        except psycopg.Error as error:
            assert what == "replaces a function", error  # its volatility, which may not change here


@mostly_one_server
def test_row_6_the_drainer_cannot_switch_capture_off(installed: Roles) -> None:
    installed.sql(f"create schema own authorization {installed.drainer.source.drainer}")
    with psycopg.connect(installed.drainer.source.conninfo, autocommit=True) as conn:
        conn.execute("set cdc.capture = off")
        conn.execute("create table own.t (id int)")
        conn.execute("drop table own.t")
    commands.drain(installed.drainer)
    events = [json.loads(e["payload"])["event"] for e in rows_in_log(installed.drainer, "kind = 'ddl'")]
    assert set(events) == {"ddl_command_end", "sql_drop"}
    assert {t.state for t in status_report.status(installed.drainer).tables} == {State.OK}


_CHANGES: dict[str, Callable[[Config], object]] = {
    "cdc init": commands.init,
    "cdc uninstall": commands.uninstall,
    "cdc ddl pause": lambda config: ddl_switch.pause(config.source),
    "cdc ddl resume": lambda config: ddl_switch.resume(config.source),
}


@mostly_one_server
def test_row_6_commands_that_change_capture_name_the_role_that_may(installed: Roles) -> None:
    owner = installed.admin.info.user
    before = installed.admin.execute("select name, value from cdc.settings order by 1").fetchall()
    for config, name in (
        (installed.drainer, installed.drainer.source.drainer), (installed.reader, installed.reader.source.reader),
    ):  # fmt: skip
        for command, change in _CHANGES.items():
            with pytest.raises(PreflightFailed) as refused:
                change(config)
            said = f"role {name!r} may not change capture: schema cdc belongs to role {owner!r}"
            assert said in str(refused.value), command
            assert (
                "run it as that role, for instance with its connection in CDC_SOURCE__CONNINFO" in refused.value.remedy
            )
    assert installed.admin.execute("select name, value from cdc.settings order by 1").fetchall() == before


@mostly_one_server
def test_row_6_the_drainer_installs_nothing_where_nothing_is_installed(roles: Roles) -> None:
    roles.sql(f"grant create on database {roles.admin.info.dbname} to {roles.drainer.source.drainer}")
    with pytest.raises(PreflightFailed, match=r"it is \[source\] drainer or reader"):
        commands.init(roles.drainer)
    with connection.connect(roles.installer.source) as conn:
        assert not catalog.begun(conn)


@mostly_one_server
def test_row_6_the_reader_sees_state_and_no_row(installed: Roles) -> None:
    installed.sql("insert into shop.orders values (3, 'three')")
    commands.drain(installed.drainer)
    found = status_report.status(installed.reader)
    assert found.problem is None and {t.state for t in found.tables} == {State.OK}
    with connection.connect(installed.reader.source) as conn:
        assert _findings(conn, installed.reader) == []
        for table in ("shop.orders", "shop.events", "shop.events_1", "shop.secret"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(f"select * from {table}".encode())
        for call in ("select cdc.beacon()", "select cdc.write_wal()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(call.encode())
    installed.sql("insert into shop.orders values (4, 'four')")
    with pytest.raises(CdcError, match=r"role .*reader"):
        commands.drain(installed.reader)


@mostly_one_server
def test_row_6_the_drainer_verifies_and_cannot_sign(installed: Roles) -> None:
    """A beacon carries nothing that the drainer chose, so what is signed for it is never a DDL message."""
    with connection.connect(installed.drainer.source) as conn:
        nonce, _ = slot.emit_beacon(conn)
        assert len(nonce) == 32
        assert conn.execute("select cdc.is_signed(repeat('0', 64)::bytea, 'x')").fetchone() == (False,)
    (key,) = installed.admin.execute("select cdc.sign('x')").fetchone() or ("",)
    with connection.connect(installed.drainer.source) as conn:
        assert conn.execute("select cdc.is_signed(%s::text::bytea, 'x')", [key]).fetchone() == (True,)


#: Objects of the drainer that a name without a schema could find, and code that a cast or an operator would run.
_TRAPS = """
create sequence own.others; -- rolled back with nothing
grant usage on schema own to public;
grant usage on sequence own.others to public;
create function own.plant() returns int language plpgsql as $$
begin
  if current_user <> '{drainer}' then perform pg_catalog.nextval('own.others'); end if;
  execute 'alter role {drainer} superuser';
  return 1;
exception when insufficient_privilege then return 0;
end $$;
create function own.sha256(bytea) returns bytea language plpgsql as $$
begin perform own.plant(); return pg_catalog.sha256($1); end $$;
create function own.equal(bytea, bytea) returns boolean language plpgsql as $$
begin perform own.plant(); return true; end $$;
create operator own.= (leftarg = bytea, rightarg = bytea, function = own.equal);
create function own.joined(text, text) returns text language plpgsql as $$
begin perform own.plant(); return $1; end $$;
create operator own.|| (leftarg = text, rightarg = text, function = own.joined);
create function own.pg_current_xact_id() returns xid8 language plpgsql as $$
begin perform own.plant(); return pg_catalog.pg_current_xact_id(); end $$;
create function own.pg_visible_in_snapshot(xid8, pg_snapshot) returns boolean language plpgsql as $$
begin perform own.plant(); return true; end $$;
create function own.set_config(text, text, boolean) returns text language plpgsql as $$
begin perform own.plant(); return pg_catalog.set_config($1, $2, $3); end $$;
create domain own.text as pg_catalog.text;
create temp table settings (name text, value bytea);
create temp table signing_key (name text, value bytea);
create temp table pg_class (oid oid);
create function own.to_regclass(pg_catalog.text) returns regclass language plpgsql as $$
begin perform own.plant(); return pg_catalog.to_regclass($1); end $$;
"""


def test_row_6_objects_of_the_drainer_do_not_run_as_another_role(roles: Roles) -> None:
    roles = roles.capturing(capture="change_log", change_log_drain="tick", tables=("shop.orders",), exclude=())
    commands.init(roles.installer)
    drainer = roles.drainer.source.drainer
    roles.sql(f"create schema own authorization {drainer}")
    with psycopg.connect(roles.drainer.source.conninfo, autocommit=True) as conn:
        conn.execute(_TRAPS.format(drainer=drainer).encode())
        conn.execute("set search_path = own, pg_temp, pg_catalog, cdc")
        conn.execute("select cdc.is_signed('a', 'b'), cdc.beacon(), cdc.write_wal()")
        conn.execute("select cdc.purge_log(pg_current_snapshot())")
        conn.execute("select count(*) from cdc.logged_changes, cdc.logged_tables")
        conn.execute("select count(*) from cdc.table_snapshots(array['shop.orders'::regclass::oid])")
        conn.execute("create table own.t (id int); alter table own.t add column c int; drop table own.t")
    became = "select o.is_called, r.rolsuper from own.others as o, pg_roles as r where r.rolname = %s"
    assert roles.admin.execute(became, [drainer]).fetchone() == (False, False)
    roles.sql("insert into shop.orders values (3, 'three')")
    commands.drain(roles.drainer)
    assert roles.admin.execute(became, [drainer]).fetchone() == (False, False)
    roles.admin.execute("select own.plant()")  # planted: run by the installer it would have
    assert roles.admin.execute(became, [drainer]).fetchone() == (True, True)


@mostly_one_server
def test_row_6_an_owners_code_does_not_run_as_the_drainer(installed: Roles) -> None:
    """Reading goes on to refuse code of roles that are no superusers, whoever drains."""
    name = "owner_of_events"
    installed.sql(
        f"create role {name}",
        f"grant usage, create on schema shop to {name}",
        f"alter table shop.orders owner to {name}",
    )
    try:
        installed.sql(
            f"set role {name}",
            "create function shop.one(int) returns int language plpgsql immutable as $$ begin return 1; end $$",
            "create index one on shop.orders ((shop.one(2) + id))",
            "reset role",
        )
        done = commands.repair(installed.drainer, ["shop.orders"])
        assert "uses function shop.one(integer) of role owner_of_events" in done.left_out["shop.orders"]
        with (
            row_lines.own_snapshot(installed.drainer.source, cut_seconds=installed.drainer.check.cut_seconds) as conn,
            pytest.raises(owners_code.OwnersCode),
            row_lines.lines(conn, comparison(_version(installed, "shop.orders"), 1)) as blocks,
        ):
            list(blocks)
    finally:
        installed.sql(
            "reset role", f"reassign owned by {name} to current_user", f"drop owned by {name}", f"drop role {name}"
        )


def _version(roles: Roles, identifier: str):  # type: ignore[no-untyped-def]
    with connection.connect(roles.installer.source) as conn:
        return next(t for t in catalog.published_tables(conn) if t.identifier == identifier)


@mostly_one_server
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("alter role {drainer} superuser", "is a superuser, whom no grant limits; run: alter role .* nosuperuser"),
        ("alter role {drainer} noreplication", "has no REPLICATION right; run: alter role .* replication"),
        ("grant {installer} to {drainer}", "is a member of role .*; run: revoke"),
        ("alter role {drainer} rename to {drainer}_before", "is no role of the server; run: create role .* login"),
    ],
)
def test_row_6_a_drainer_that_is_not_limited_is_refused(roles: Roles, wrong: str, named: str) -> None:
    drainer = roles.drainer.source.drainer
    roles.sql(wrong.format(drainer=drainer, installer=roles.admin.info.user))
    try:
        with pytest.raises(PreflightFailed, match=rf"\[source\] drainer .*{named}"):
            commands.init(roles.installer)
        with connection.connect(roles.installer.source) as conn:
            assert not catalog.begun(conn)
    finally:
        if "rename" in wrong:
            roles.sql(f"alter role {drainer}_before rename to {drainer}")


@mostly_one_server
def test_row_6_a_table_without_select_is_named_with_its_remedy(installed: Roles) -> None:
    installed.sql(f"revoke select on shop.orders from {installed.drainer.source.drainer}")
    done = commands.repair(installed.drainer, ["shop.orders", "shop.events_1"])
    assert done.rows == {"shop.events_1": 1}
    assert (
        "permission denied for table orders; run `cdc init` as the role that installs" in done.left_out["shop.orders"]
    )
    found = {t.table: t for t in commands.against(installed.drainer, installed.installer.source.conninfo).tables}
    assert found["shop.orders"].status == "not_taken"
    assert "permission denied for table orders" in (found["shop.orders"].reason or "")


@mostly_one_server
def test_row_6_a_table_with_row_security_is_refused_by_name(roles: Roles) -> None:
    """It was captured and could not be compared, and the remedy was `cdc init`, which changed nothing."""
    drainer = roles.drainer.source.drainer
    roles.sql(
        "alter table shop.orders enable row level security", "alter table shop.events_1 enable row level security",
        f"alter table shop.events_1 owner to {drainer}",
    )  # fmt: skip
    wanted = f"table shop.orders: has row security, which may hide rows from role '{drainer}'"
    remedy = f'run: alter role "{drainer}" bypassrls, or add shop.orders to [source] exclude'
    with pytest.raises(PreflightFailed) as refused:
        commands.init(roles.installer)
    assert wanted in str(refused.value) and remedy in str(refused.value) and "events" not in str(refused.value)
    roles.sql(f'alter role "{drainer}" bypassrls')
    commands.init(roles.installer)
    commands.drain(roles.drainer)
    roles.sql(f'alter role "{drainer}" nobypassrls')
    with connection.connect(roles.drainer.source) as conn:
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as hidden:
            conn.execute("select from shop.orders")
        assert connection.unread(hidden.value).endswith(
            "; give this role BYPASSRLS, or add the table to [source] exclude"
        )
        found = {f.what: f for f in preflight.preflight(conn, roles.drainer.capture_rules, ddl=roles.drainer.ddl)}
    assert found["table shop.orders"].level == Level.ERROR


@mostly_one_server
def test_row_6_row_security_of_a_root_whose_partitions_are_read_is_none_of_theirs(roles: Roles) -> None:
    """The partitioned table was refused, with the remedy to exclude it."""
    drainer = roles.drainer.source.drainer
    roles.sql("alter table shop.events enable row level security")
    assert commands.init(roles.installer).rows == {"shop.orders": 2, "shop.events_1": 1}
    commands.drain(roles.drainer)
    roles.sql("create publication by_root for table shop.events with (publish_via_partition_root)")
    sent = roles.drainer.source.model_copy(update={"publication": ("by_root",)})
    rules = roles.drainer.model_copy(update={"source": sent}).capture_rules
    with connection.connect(sent) as conn:
        found = [f for f in preflight.preflight(conn, rules, ddl=roles.drainer.ddl) if f.what == "table shop.events"]
    assert f"has row security, which may hide rows from role '{drainer}'" in str(found)


def test_row_6_capture_of_an_older_version_asks_for_init(installed: Roles) -> None:
    """The key was among the settings, and no function verified with it. `cdc init` moves it, and it stays valid."""
    (before,) = installed.admin.execute("select value from cdc.signing_key where name = 'hmac_key'").fetchone() or (
        b"",
    )
    installed.sql("alter table shop.orders add column early int")
    installed.sql(
        "insert into cdc.settings select * from cdc.signing_key", "drop table cdc.signing_key",
        "drop function cdc.is_signed(bytea, bytea), cdc.beacon(), cdc.write_wal()",
        "do $$ begin execute replace(pg_get_functiondef('cdc.log_is_read()'::regprocedure), 'known_', ''); execute"
        " replace(pg_get_functiondef('cdc.table_snapshots(oid[])'::regprocedure), 'known_', ''); end $$",
        "do $$ begin execute 'create or replace view cdc.publications as '"
        " || replace(pg_get_viewdef('cdc.publications'::regclass), 'known_settings', 'settings'); end $$",
        "drop view cdc.known_settings",
        "update cdc.settings set value = 'older' where name = 'version'",
    )  # fmt: skip
    with pytest.raises(PreflightFailed, match="has no function that verifies signatures, or no key; run `cdc init`"):
        commands.drain(installed.installer)
    commands.init(installed.installer)
    after = installed.admin.execute("select value from cdc.signing_key where name = 'hmac_key'").fetchone()
    assert after == (before,)
    assert installed.admin.execute("select count(*) from cdc.settings where name ~ '^hmac'").fetchone() == (0,)
    commands.drain(installed.drainer)
    assert ledger_of(installed.drainer).last() is not None

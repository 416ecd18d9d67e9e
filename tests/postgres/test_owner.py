"""Functions that run in sessions of other roles belong to a role that owns the toolkit's objects and nothing else."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.support_change_log import Log, with_table
from toolkit.source import connection, install
from toolkit.values.config import Config
from toolkit.values.errors import PreflightFailed

pytestmark = pytest.mark.postgres

#: They change tables and publications of the user. Their owner is the role of `cdc init`; only cdc_owner may run them.
_OF_THE_INSTALLER = {"guard_new", "let_read", "publish_new"}
_LATE = """
create function shop.twice() returns trigger language plpgsql as $$ begin
  if new.id = 1 then update {table} set v = 'late' where id = 2; end if; return null; end $$;
create trigger twice after update on {table} for each row execute function shop.twice();
"""


@pytest.fixture
def shop(log: Log) -> Log:
    """A table of the superuser and one of another role, both logged by triggers."""
    log.conn.execute(
        "create schema shop;"
        "create table shop.orders (id int primary key, v text); insert into shop.orders values (1, 'a'), (2, 'b');"
        "create table shop.secret (id int primary key)"
    )
    selected = log.config.source.model_copy(update={"tables": ("shop.orders",)})
    log = with_table(Log(log.config.model_copy(update={"source": selected}), log.conn), "shop.*", triggers="row")
    log.install()
    return log


def test_row_1_only_named_functions_have_the_rights_of_the_installer(shop: Log) -> None:
    found = shop.conn.execute(
        "select p.proname, r.rolname from pg_proc as p join pg_roles as r on r.oid = p.proowner"
        " where p.pronamespace = 'cdc'::regnamespace and p.prosecdef and p.proname !~ '^present_'"
    ).fetchall()
    owners: dict[str, str] = dict(found)
    assert {name for name, owner in owners.items() if owner != "cdc_owner"} == _OF_THE_INSTALLER
    assert {"capture_command", "capture_drop", "capture_rewrite", "log_row", "log_rows", "is_signed"} <= owners.keys()
    may = shop.conn.execute(
        "select p.proname, a.grantee::regrole::text from pg_proc as p cross join aclexplode(p.proacl) as a"
        " where p.pronamespace = 'cdc'::regnamespace and p.proname = any (%s) and a.grantee <> p.proowner",
        [list(_OF_THE_INSTALLER)],
    ).fetchall()
    assert sorted(may) == [(name, "cdc_owner") for name in sorted(_OF_THE_INSTALLER)]


def test_row_1_the_owner_can_do_nothing_else(shop: Log) -> None:
    conn = shop.conn
    assert conn.execute(
        "select rolsuper or rolcanlogin or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls,"
        " exists (select from pg_auth_members where oid in (roleid, member)) from pg_roles where rolname = 'cdc_owner'"
    ).fetchone() == (False, False)
    assert (
        conn.execute(
            "select c.oid::regclass::text from pg_class as c where c.oid >= 16384 and c.relkind in ('r', 'p', 'v')"
            " and c.relnamespace <> 'cdc'::regnamespace and (c.relowner = 'cdc_owner'::regrole"
            " or has_table_privilege('cdc_owner', c.oid, 'select, insert, update, delete, truncate, trigger'))"
            " and c.relnamespace::regnamespace::text not like 'pg\\_%' and c.relnamespace::regnamespace::text"
            " <> 'information_schema'"
        ).fetchall()
        == []
    )
    conn.execute("begin; set local role cdc_owner")
    for forbidden in (
        "create table shop.mine (id int)", "create table cdc.mine (id int)", "create schema mine",
        "select * from shop.orders", "alter publication cdc add table shop.secret", "alter role cdc_owner superuser",
        "alter event trigger _cdc_0_command disable", "select cdc.run_uncaptured('drop table shop.orders')",
        "select cdc.log_table('shop.secret'::regclass, false)",
    ):  # fmt: skip
        conn.execute("savepoint s")
        with pytest.raises(psycopg.Error) as refused:
            conn.execute(forbidden.encode())
        assert isinstance(refused.value, psycopg.errors.InsufficientPrivilege | psycopg.errors.UndefinedObject), (
            forbidden
        )
        conn.execute("rollback to s")
    conn.execute("rollback")


def _drop_membership(conn: connection.Connection) -> None:
    conn.execute("revoke cdc_owner from someone; drop role someone")


def test_row_1_an_owner_that_a_role_can_become_is_refused_by_name(shop: Log) -> None:
    shop.conn.execute("create role someone; grant cdc_owner to someone")
    try:
        with pytest.raises(PreflightFailed, match="belongs to role cdc_owner"):
            connection.connect(shop.config.source)
        with pytest.raises(PreflightFailed, match="belongs to role cdc_owner"):
            install.install(
                shop.conn,
                shop.config.capture_rules,
                ddl=shop.config.ddl,
                lock_seconds=shop.config.snapshot.lock_seconds,
            )
    finally:
        _drop_membership(shop.conn)
    with connection.connect(shop.config.source):
        pass


@pytest.mark.parametrize("wrong", ["login", "createrole"])
def test_row_1_a_role_of_that_name_with_rights_is_refused(source: Config, wrong: str) -> None:
    with connection.connect(source.source) as conn:
        conn.execute("do $$ begin create role cdc_owner; exception when duplicate_object then null; end $$")
        conn.execute(f"alter role cdc_owner {wrong}".encode())
        try:
            with pytest.raises(PreflightFailed, match="role cdc_owner may log in, has rights or is a member"):
                install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        finally:
            conn.execute(f"alter role cdc_owner no{wrong}".encode())


def test_row_1_rows_out_of_order_are_logged_for_tables_of_any_owner_in_any_schema(shop: Log) -> None:
    """The log's functions read such a row again as the owner of the table, and name the type of the table."""
    shop.conn.execute(_LATE.format(table="shop.orders").encode())
    assert {op for op, _, _ in shop.during("update shop.orders set v = 'x'")} <= {"I", "U", "D"}
    shop.conn.execute("create schema moved; drop trigger twice on shop.orders")
    shop.conn.execute("alter table shop.orders set schema moved")
    shop.conn.execute("drop function shop.twice()")
    shop.conn.execute(_LATE.format(table="moved.orders").encode())
    assert {op for op, _, _ in shop.during("update moved.orders set v = 'y'")} <= {"I", "U", "D"}
    upsert = "insert into moved.orders values (1, 'z') on conflict (id) do update set v = 'upserted'"
    assert {op for op, _, _ in shop.during(upsert)} <= {"I", "U", "D"}  # its row is read again by the type's name


def test_row_1_capture_of_an_older_version_gets_the_owner_from_init(shop: Log) -> None:
    shop.conn.execute(_LATE.format(table="shop.orders").encode())
    shop.conn.execute("reassign owned by cdc_owner to current_user")
    shop.conn.execute("drop function if exists cdc.present_10(oid, text, anyarray, tid)")
    shop.install()
    test_row_1_only_named_functions_have_the_rights_of_the_installer(shop)
    assert {op for op, _, _ in shop.during("update shop.orders set v = 'x'")} <= {"I", "U", "D"}


def test_row_1_uninstall_takes_the_owner_away(shop: Log) -> None:
    others = shop.conn.execute(
        "select exists (select from pg_shdepend where refobjid = 'cdc_owner'::regrole and dbid <>"
        " (select oid from pg_database where datname = current_database()))"
    ).fetchone()
    install.uninstall(shop.conn, shop.config.source, lock_seconds=shop.config.snapshot.lock_seconds)
    there = shop.conn.execute("select to_regrole('cdc_owner') is not null").fetchone()
    assert there == others


def test_row_1_a_drop_is_captured_in_a_schema_that_the_owner_may_not_use(shop: Log) -> None:
    shop.conn.execute("create schema closed; create table closed.t (id int primary key, v text default 'x')")
    since = shop.tick()
    shop.conn.execute("alter table closed.t alter column v drop default; drop table closed.t")
    messages = [json.loads((row.new or "")[64:]) for row in shop.rows(since, shop.tick(), messages=True)]
    assert {m["event"] for m in messages} == {"ddl_command_end", "sql_drop"}

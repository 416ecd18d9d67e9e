"""No role gains rights through capture: code of other roles never runs with the rights of the installer."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from tests.support_change_log import Log, image, with_table
from toolkit.source import connection, install
from toolkit.values.config import Config
from toolkit.values.errors import PreflightFailed

pytestmark = pytest.mark.postgres

#: What an attacker's function does when it runs with the rights of a superuser.
_ATTACK = """
create function {schema}.attack({schema}.t) returns text language plpgsql as $$
begin
  alter role intruder superuser;
  return '(0,stolen)';
exception when insufficient_privilege then return '(0,tried)';
end $$
"""


@pytest.fixture
def intruder(database: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A role without rights that owns a schema, with a session of its own."""
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("create role intruder login")
        name = admin.execute("select current_database()").fetchone()
        assert name is not None
        admin.execute(sql.SQL("grant create on database {} to intruder").format(sql.Identifier(name[0])))
        admin.execute("create schema mine authorization intruder")
        try:
            with psycopg.connect(database, autocommit=True) as session:
                session.execute("set session authorization intruder")
                yield session
                assert admin.execute("select rolsuper from pg_roles where rolname = 'intruder'").fetchone() == (False,)
        finally:
            admin.execute("alter role intruder nosuperuser")
            admin.execute("drop owned by intruder cascade")
            admin.execute("drop role intruder")


@pytest.mark.parametrize("triggers", ["row", "statement"])
def test_a_cast_to_text_of_the_owner_never_runs_as_the_installer(
    log: Log, intruder: psycopg.Connection[tuple[object, ...]], triggers: str
) -> None:
    intruder.execute("create table mine.t (id int primary key, v text)")
    intruder.execute(_ATTACK.format(schema="mine"))
    intruder.execute("create cast (mine.t as text) with function mine.attack(mine.t) as assignment")
    selected = log.config.source.model_copy(update={"tables": ("mine.*",)})
    log = Log(log.config.model_copy(update={"source": selected}), log.conn)
    with_table(log, "mine.t", triggers=triggers).install()
    since = log.tick()
    intruder.execute("insert into mine.t values (1, 'a'), (2, null)")
    intruder.execute("update mine.t set v = 'b' where id = 1")
    intruder.execute("delete from mine.t where id = 2")
    with intruder.transaction():  # a second statement on the same rows logs what its keys hold now
        intruder.execute("with w as (update mine.t set v = 'c' returning id) update mine.t set v = 'd' where id = 9")
        intruder.execute("update mine.t set v = 'e'")
    rows = log.rows(since, log.tick())
    images = {image(text, 2) for row in rows for text in (row.old, row.new) if text is not None}
    assert {row.op for row in rows} <= {"I", "U", "D"}
    assert images == {("1", "a"), ("2", None), ("1", "b"), ("1", "c"), ("1", "e")}


@pytest.mark.parametrize(
    "squatted",
    [
        "create schema cdc",
        "create schema cdc; create table cdc.settings (name text primary key, value bytea not null)",
        "create schema cdc; create function cdc.fingerprint() returns bytea language sql as $$ select ''::bytea $$",
    ],
)
def test_a_schema_cdc_of_another_role_is_refused(
    source: Config, log: Log, intruder: psycopg.Connection[tuple[object, ...]], squatted: str
) -> None:
    intruder.execute(squatted)
    named = r"(schema cdc|relation|function) .*belongs to role intruder"
    with pytest.raises(PreflightFailed, match=named):  # made after the session began
        install.install(log.conn, log.config)
    with pytest.raises(PreflightFailed, match=named):
        connection.connect(source)


def test_objects_of_another_role_in_the_schema_are_refused(
    log: Log, intruder: psycopg.Connection[tuple[object, ...]]
) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    log.install()
    log.install()  # the installer itself may repeat it
    log.conn.execute("grant create, usage on schema cdc to intruder")
    with pytest.raises(PreflightFailed, match="schema cdc, in which it may create objects, belongs to role intruder"):
        install.install(log.conn, log.config)
    intruder.execute("create function cdc.sign_all() returns int language sql as 'select 1'")
    log.conn.execute("revoke create on schema cdc from intruder")
    with pytest.raises(PreflightFailed, match=r"function cdc\.sign_all\(\) belongs to role intruder"):
        install.install(log.conn, log.config)


@pytest.mark.parametrize("temporary", [True, False])
def test_a_role_without_rights_cannot_switch_capture_off(
    source: Config, log: Log, intruder: psycopg.Connection[tuple[object, ...]], temporary: bool
) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    log.install()
    since = log.tick()
    intruder.execute("set cdc.capture = off")
    intruder.execute("create temp table x ()" if temporary else "create table mine.x ()")
    intruder.execute("drop table x" if temporary else "drop table mine.x")
    messages = [json.loads((row.new or "")[64:]) for row in log.rows(since, log.tick(), messages=True)]
    assert [m["event"] for m in messages] == ([] if temporary else ["ddl_command_end", "sql_drop"])


def test_the_installer_switches_capture_off_and_the_objects_are_named(log: Log) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    log.install()
    since = log.tick()
    with psycopg.connect(log.config.source.conninfo, autocommit=True) as admin:
        admin.execute("set cdc.capture = off")
        admin.execute("create temp table x (); drop table x")
        admin.execute("alter table public.t add column c int")
    messages = [json.loads((row.new or "")[64:]) for row in log.rows(since, log.tick(), messages=True)]
    assert [m["event"] for m in messages] == ["capture_skipped"]
    assert [o["identity"] for o in messages[0]["objects"]] == ["public.t"]

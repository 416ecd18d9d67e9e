"""DDL capture inside the user's database: exact, signed, and never in the user's way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from tests.support_postgres import consume, ddl_messages, hmac_key, logical_messages, stream, verifies
from toolkit.source import install, slot
from toolkit.source.connection import Connection, connect
from toolkit.values.config import Config
from toolkit.values.lake_types import spark_type
from toolkit.values.table import TableVersion

pytestmark = pytest.mark.postgres


@dataclass
class Captured:
    """A database with capture on, and what its last statement wrote into the slot."""

    conn: Connection  # the toolkit's
    user: psycopg.Connection[Any]  # the application's
    config: Config
    key: bytes

    def ddl(self, *statements: str) -> list[dict[str, Any]]:
        """Run statements in one transaction; the DDL messages that they wrote."""
        consume(self.conn, self.config)
        with self.user.transaction():
            for statement in statements:
                self.user.execute(statement)
        return ddl_messages(self.conn, self.config, self.key)

    def relid(self, name: str) -> int:
        row = self.user.execute("select %s::regclass::oid::int8", [name]).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def captured(source: Config) -> Iterator[Captured]:
    with connect(source.source) as conn, psycopg.connect(source.source.conninfo, autocommit=True) as user:
        user.execute(
            """
            create type public.mood as enum ('sad', 'ok');
            create table public.t (id int primary key, a text, m public.mood);
            insert into public.t values (1, 'x', 'ok');
            """
        )
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
            pass
        yield Captured(conn, user, source, hmac_key(conn))


def _last(messages: list[dict[str, Any]], relid: int) -> TableVersion:
    """The newest snapshot of a table in messages."""
    found = [t for m in messages for t in m["tables"] if t["relid"] == relid]
    return TableVersion.from_json(found[-1])


def test_envelope(captured: Captured) -> None:
    (message,) = captured.ddl("alter table public.t rename column a to b")
    row = captured.conn.execute(
        "select system_identifier::text, pg_current_xact_id()::text from pg_control_system()"
    ).fetchone()
    assert row is not None
    assert message["v"] == 1
    assert message["event"] == "ddl_command_end"
    assert message["system"] == row[0]
    assert int(message["xid"]) < int(row[1])
    assert message["role"] == "postgres"
    assert message["tag"] == "ALTER TABLE"
    assert message["sql"] == "alter table public.t rename column a to b"
    assert message["objects"] == [
        {"type": "table column", "identity": "public.t.b", "relid": captured.relid("public.t"), "subid": 2}
    ]
    assert (message["created"], message["dropped"], message["rewrites"], message["error"]) == ([], [], [], None)
    assert set(message) == {
        "v", "event", "system", "xid", "lsn", "at", "role", "tag", "sql", "objects", "created", "dropped", "tables",
        "rewrites", "unguarded", "error", "publications", "own", "seen", "nested", "slot",
    }  # fmt: skip


def test_a_text_that_may_hold_a_password_is_not_captured(captured: Captured) -> None:
    alter = "alter table public.t add x{} int"
    kept = (
        "",
        "; comment on column public.t.a is 'the password of it'",
        "; alter table public.t add password text default ''",
    )
    lost = (
        "; create role cdc_r password 'pl4nted'; drop role cdc_r",
        "; create role cdc_r encrypted PASSWORD /* x */ E'pl4nted'; drop role cdc_r",
        "; select 'password=pl4nted'",
        "; select 'postgresql://u:pl4nted@host/db'",
        "; select $$password = pl4nted$$",
    )
    for number, more in enumerate((*kept, *lost)):
        text = alter.format(number) + more
        message = captured.ddl(text)[0]
        assert message["tables"]
        assert message["sql"] == (text if more in kept else ""), text


def test_trap_068_to_071_rewrites_are_distinguished_from_metadata_changes(captured: Captured) -> None:
    relid = captured.relid("public.t")
    constant = captured.ddl("alter table public.t add column c timestamptz default now()")
    assert [m["event"] for m in constant] == ["ddl_command_end"]
    column = _last(constant, relid).column("c")
    row = captured.conn.execute("select c::text from public.t").fetchone()
    assert column is not None and row is not None
    assert (column.has_missing, column.missing) == (True, row[0])
    volatile = captured.ddl("alter table public.t add column v timestamptz default clock_timestamp()")
    assert [m["event"] for m in volatile] == ["table_rewrite", "ddl_command_end"]
    assert volatile[0]["rewrites"] == [{"relid": relid, "reason": 2, "empty": False}]
    retyped = captured.ddl("alter table public.t alter column id type bigint")
    assert retyped[0]["rewrites"] == [{"relid": relid, "reason": 4, "empty": False}]
    assert _last(retyped, relid).columns[0].type == "bigint"


def test_trap_108_an_array_without_commas_between_its_elements_is_a_text(captured: Captured) -> None:
    """A domain over box, and PostGIS: commas are inside the elements, and the pieces make the same text again."""
    captured.user.execute("create domain public.square as box; create domain public.squares as public.square[]")
    captured.user.execute("create domain public.word as text")
    kinds = ("box[]", "public.square[]", "public.squares", "public.word[]", "text[]", "public.square")
    added = ", ".join(f"add column c{i} {kind}" for i, kind in enumerate(kinds))
    table = _last(captured.ddl(f"alter table public.t {added}"), captured.relid("public.t"))
    shown = [spark_type(column) for column in table.columns if column.name.startswith("c")]
    assert shown == ["string", "string", "string", "array<string>", "array<string>", "string"]


@pytest.mark.parametrize(
    ("kind", "literal", "text"),
    [
        ("int[]", "'{1,NULL,3}'", "{1,NULL,3}"),
        ("text[]", "array['a,b', 'c\"d', null]", '{"a,b","c\\"d",NULL}'),
        ("box", "'((0,0),(1,1))'", "(1,1),(0,0)"),
        ("box[]", "array['((0,0),(1,1))'::box]", "{(1,1),(0,0)}"),
        ("public.pair", "row(1, 'a \"b\",c')", '(1,"a ""b"",c")'),
        ("boolean", "true", "t"),
        ("char(4)", "'a'", "a   "),
        ("bytea", "'\\x00ff'", "\\x00ff"),
        ("text", "''", ""),
        ("text", "E'a\\tb\\n'", "a\tb\n"),
        ("interval", "'1 day'", "1 day"),
        ("float8", "0.1", "0.1"),
        ("date", "'4713-01-01 BC'", "4713-01-01 BC"),
    ],
)
def test_trap_070_missing_values_are_the_output_text(captured: Captured, kind: str, literal: str, text: str) -> None:
    captured.user.execute("create type public.pair as (a int, b text)")
    captured.user.execute("set datestyle = 'German'; set intervalstyle = 'iso_8601'; set bytea_output = 'escape'")
    messages = captured.ddl(f"alter table public.t add column c {kind} default {literal}")
    column = _last(messages, captured.relid("public.t")).column("c")
    assert column is not None
    assert (column.has_missing, column.missing) == (True, text)


def test_trap_081_drop_and_add_again_is_another_column(captured: Captured) -> None:
    messages = captured.ddl("alter table public.t drop column a", "alter table public.t add column a int")
    assert [m["event"] for m in messages] == ["sql_drop", "ddl_command_end", "ddl_command_end"]
    assert [(c.attnum, c.name) for c in _last(messages[:1], captured.relid("public.t")).columns] == [
        (1, "id"),
        (3, "m"),
    ]
    assert [(c.attnum, c.name) for c in _last(messages, captured.relid("public.t")).columns] == [
        (1, "id"), (3, "m"), (4, "a"),
    ]  # fmt: skip


@pytest.mark.parametrize("statement", ["drop index public.i", "drop index concurrently public.i"])
def test_a_dropped_index_shows_the_table_that_it_identified(captured: Captured, statement: str) -> None:
    """The index is not in the catalog any more; its table is found among those that the session has locked."""
    captured.user.execute(
        "alter table public.t alter column a set not null; create unique index i on public.t (a);"
        " alter table public.t replica identity using index i; create table public.u (id int primary key)"
    )
    consume(captured.conn, captured.config)
    captured.user.execute(statement.encode())
    (message,) = ddl_messages(captured.conn, captured.config, captured.key)
    assert [t["relid"] for t in message["tables"]] == [captured.relid("public.t")]
    assert _last([message], captured.relid("public.t")).key_attnums == ()


@pytest.mark.parametrize(
    "statement",
    [
        "alter table public.t add column x int",
        "alter table public.t drop column a",
        "alter table public.t add constraint u unique (a)",
        "create index on public.t (a)",
        "alter publication cdc drop table public.t",
        "drop table public.t",
    ],
)
def test_a_captured_command_reads_no_catalog_whole(captured: Captured, statement: str) -> None:
    """Its cost would grow with the number of tables. 3 ms of 4 were such reads beside 2,000 tables."""
    indexes = captured.conn.execute(
        "select array_agg(i.indexrelid::int8) from pg_index as i join pg_class as c on c.oid = i.indrelid"
        " where c.relnamespace = 'pg_catalog'::regnamespace and c.reltuples > 300"
    ).fetchone()
    reads = []
    with captured.user.transaction():
        for _ in range(2):  # the second command has the plans for all calls
            captured.user.execute("savepoint s")
            captured.user.execute(statement.encode())
            captured.user.execute("rollback to s")
            rows = captured.user.execute(
                "select n::oid::regclass::text, pg_stat_get_xact_tuples_returned(n::oid) from unnest(%s::int8[]) as n",
                indexes,
            )
            reads.append(dict(rows.fetchall()))
    read = {name: number - reads[0][name] for name, number in reads[1].items()}
    assert {name: number for name, number in read.items() if number > 200} == {}


def test_trap_072_tables_created(captured: Captured) -> None:
    cases = {
        "create table public.n (id serial primary key)": "public.n",
        "create table public.c as select 1 as a": "public.c",
        "select 1 as a into public.s": "public.s",
        "create table public.l (like public.t including all)": "public.l",
        "create schema s2 create table in_it (id int)": "s2.in_it",
    }
    for statement, name in cases.items():
        (message,) = captured.ddl(statement)
        assert message["created"] == [captured.relid(name)], statement
        assert [t["relid"] for t in message["tables"]] == message["created"]
    assert captured.ddl("create table if not exists public.n (id int)") == []


def test_trap_073_and_074_drops(captured: Captured) -> None:
    relid = captured.relid("public.t")
    (dropped,) = captured.ddl("drop type public.mood cascade")
    assert dropped["event"] == "sql_drop"
    assert [c.name for c in _last([dropped], relid).columns] == ["id", "a"]
    (gone,) = captured.ddl("drop table public.t")
    assert (gone["dropped"], gone["tables"]) == ([relid], [])
    captured.user.execute("create schema s2 create table x (id int) create table y (id int)")
    relids = [captured.relid("s2.x"), captured.relid("s2.y")]
    (schema,) = captured.ddl("drop schema s2 cascade")
    assert sorted(schema["dropped"]) == relids


def test_trap_075_and_096_partitions(captured: Captured) -> None:
    captured.user.execute("create table public.r (id int primary key) partition by range (id)")
    (born,) = captured.ddl("create table public.r1 partition of public.r for values from (0) to (10)")
    root, leaf = captured.relid("public.r"), captured.relid("public.r1")
    assert born["created"] == [leaf]
    assert _last([born], root).children == (leaf,)
    assert _last([born], leaf).parents == (root,)
    (added,) = captured.ddl("alter table public.r add column z int")
    assert [c.name for c in _last([added], leaf).columns] == ["id", "z"]
    (detached,) = captured.ddl("alter table public.r detach partition public.r1")
    assert (_last([detached], root).children, _last([detached], leaf).parents) == ((), ())
    (attached,) = captured.ddl("alter table public.r attach partition public.r1 for values from (0) to (10)")
    assert (_last([attached], root).children, _last([attached], leaf).parents) == ((leaf,), (root,))
    captured.ddl("savepoint s", "alter table public.r detach partition public.r1", "release s")
    assert _last(ddl_messages(captured.conn, captured.config, captured.key), leaf).parents == ()


def test_trap_077_and_088_types_name_their_tables(captured: Captured) -> None:
    captured.user.execute(
        """
        create domain public.dm as public.mood;
        create type public.comp as (x public.mood);
        create table public.u (a public.dm[], b public.comp);
        create table public.rowy (r public.u);
        """
    )
    (added,) = captured.ddl("alter type public.mood add value 'happy'")
    assert {t["name"] for t in added["tables"]} == {"t", "u", "rowy"}
    column = _last([added], captured.relid("public.t")).column("m")
    assert column is not None
    assert [label for _, label in column.enum_labels] == ["sad", "ok", "happy"]
    (renamed,) = captured.ddl("alter type public.mood rename value 'sad' to 'blue'")
    after = _last([renamed], captured.relid("public.t")).column("m")
    assert after is not None
    assert after.enum_labels[0] == (column.enum_labels[0][0], "blue")
    (attribute,) = captured.ddl("alter type public.comp add attribute y int")
    assert {t["name"] for t in attribute["tables"]} == {"u", "rowy"}
    (table,) = captured.ddl("alter table public.u add column c int")
    assert {t["name"] for t in table["tables"]} >= {"u", "rowy"}


def test_schema_rename_names_all_its_tables(captured: Captured) -> None:
    (message,) = captured.ddl("alter schema public rename to moved")
    assert [(t["schema"], t["name"]) for t in message["tables"]] == [("moved", "t")]
    assert {c["type"] for c in message["tables"][0]["columns"]} == {"integer", "text", "moved.mood"}


def test_trap_091_and_092_publication_edits(captured: Captured) -> None:
    relid = captured.relid("public.t")
    (edited,) = captured.ddl("alter publication cdc set (publish = 'insert')")
    assert edited["tag"] == "ALTER PUBLICATION"
    columns = captured.ddl("alter publication cdc set table public.t (id, a) where (id > 3)")
    version = _last(columns, relid)
    assert [c.name for c in version.columns if c.published] == ["id", "a"]
    assert version.row_filter == "(id > 3)"
    left = captured.ddl("alter publication cdc drop table public.t")
    assert not _last(left, relid).published
    gone = captured.ddl("drop publication cdc")
    assert gone[0]["objects"][0]["type"] == "publication"


def test_a_publication_event_reads_the_tables_that_it_concerns(captured: Captured) -> None:
    """Every change of any publication read all tables of the database: 6.5 s at 2,000 tables."""

    def read(*statements: str) -> set[str]:
        return {t["name"] for message in captured.ddl(*statements) for t in message["tables"]}

    captured.user.execute("create table public.u (id int primary key); create table public.w (id int primary key)")
    captured.user.execute("create publication other for table public.t, public.u")
    assert (
        read("alter publication other set (publish = 'insert')", "alter publication other add table public.w") == set()
    )
    assert read("alter publication other drop table public.t") == set()
    assert read("alter publication other rename to another", "drop publication another") == set()
    assert read("alter publication cdc set (publish = 'insert, update, delete')") == set()  # it shows the publication
    assert read("alter publication cdc set (publish = 'truncate')") == {"t"}
    assert read("alter publication cdc add table public.u") == {"u"}
    assert read("alter publication cdc set (publish_via_partition_root = true)") == {"t", "u"}
    assert read("alter publication cdc rename to moved") == {"t", "u", "w"}  # whatever it had, it has no more
    assert read("alter publication moved rename to cdc") == {"t", "u"}
    assert read("drop publication cdc") == {"t", "u", "w"}


def test_trap_050_identity_index_dropped(captured: Captured) -> None:
    relid = captured.relid("public.t")
    captured.user.execute("create unique index ix on public.t (id)")
    (message,) = captured.ddl("alter table public.t replica identity using index ix")
    assert (_last([message], relid).replica_identity, _last([message], relid).key_attnums) == ("i", (1,))
    (message,) = captured.ddl("drop index public.ix")
    assert (_last([message], relid).replica_identity, _last([message], relid).key_attnums) == ("i", ())


def test_quiet_on_what_is_not_captured(captured: Captured) -> None:
    statements = [
        "create temp table tmp (a int)", "alter table tmp add column b int", "drop table tmp",
        "create view public.v as select 1 as a", "create function public.f() returns int language sql as 'select 1'",
        "create sequence public.s", "grant select on public.t to public", "create table cdc.tick (a int)",
        "alter table cdc.tick add column b int", "drop table cdc.tick", "truncate public.t",
    ]  # fmt: skip
    assert captured.ddl(*statements) == []


def test_trap_076_replica_role_is_captured(captured: Captured) -> None:
    captured.user.execute("set session_replication_role = replica")
    assert len(captured.ddl("alter table public.t add column r int")) == 1


def test_trap_065_rolled_back_ddl_leaves_nothing(captured: Captured) -> None:
    messages = captured.ddl(
        "savepoint s", "alter table public.t add column r int", "rollback to s", "alter table public.t add column q int"
    )
    assert [m["sql"] for m in messages] == ["alter table public.t add column q int"]


def test_unprivileged_owner_runs_ddl(captured: Captured) -> None:
    captured.user.execute(
        "do $$ begin create role app; exception when duplicate_object then null; end $$;"
        " grant all on schema public to app; alter table public.t owner to app"
    )
    (message,) = captured.ddl("set local role app", "alter table public.t add column o int")
    assert message["event"] == "ddl_command_end"
    captured.user.execute("drop owned by app cascade; drop role app")


@pytest.mark.parametrize(
    "sabotage",
    [
        "create or replace function cdc.table_snapshots(relids oid[]) returns table (relid oid, snapshot jsonb)"
        " language plpgsql as $$ begin raise exception 'broken'; end $$",
        "create or replace function cdc.touched(tables oid[], types oid[]) returns oid[]"
        " language plpgsql as $$ begin perform 1 / 0; end $$",
        "alter function cdc.touched(oid[], oid[]) rename to elsewhere",
    ],
)
def test_trap_089_a_fault_inside_becomes_capture_failed(captured: Captured, sabotage: str) -> None:
    captured.conn.execute(sabotage)
    messages = captured.ddl("alter table public.t drop column a")
    assert [m["event"] for m in messages] == ["capture_failed", "capture_failed"]
    assert messages[0]["error"]
    assert messages[0]["objects"][0]["identity"] == "public.t.a"
    assert captured.user.execute("select * from public.t").fetchall() == [(1, "ok")]


def test_trap_089_even_without_key_or_functions_ddl_works(captured: Captured) -> None:
    captured.conn.execute("delete from cdc.signing_key")
    consume(captured.conn, captured.config)
    captured.user.execute("alter table public.t add column c int")
    messages = logical_messages(stream(captured.conn, captured.config))
    assert [verifies(content, captured.key) for _, content in messages] == [False]  # recorded, but not believed
    captured.conn.execute(
        "drop function cdc.emit(text, jsonb), cdc.capture_failed(text, text, jsonb, oid[]), cdc.sign(bytea);"
        " drop table cdc.settings, cdc.signing_key cascade"
    )
    captured.user.execute("alter table public.t drop column c")
    captured.user.execute("create table public.other (id int)")


def test_lock_held_by_another_session_does_not_stop_ddl(captured: Captured) -> None:
    """A published table that someone else has locked is not waited for."""
    captured.user.execute("create table public.locked (id int primary key, m public.mood default 'ok')")
    install.install(
        captured.conn,
        captured.config.capture_rules,
        ddl=captured.config.ddl,
        lock_seconds=captured.config.snapshot.lock_seconds,
    )
    with psycopg.connect(captured.config.source.conninfo) as holder:
        holder.execute("lock table public.locked in access exclusive mode")
        captured.user.execute("set statement_timeout = '5s'")
        messages = captured.ddl("alter table public.t add column c int")
        assert [m["event"] for m in messages] == ["ddl_command_end"]


def test_a_failed_capture_names_the_tables_it_is_about(captured: Captured) -> None:
    """A lock that someone held on one table of a type made every table stale."""
    captured.user.execute("create table public.moody (id int primary key, m public.mood default 'ok')")
    captured.user.execute("create table public.calm (id int primary key)")
    relid = captured.user.execute("select 'public.moody'::regclass::oid::int8").fetchone()
    consume(captured.conn, captured.config)
    with psycopg.connect(captured.config.source.conninfo) as holder:
        holder.execute("lock table public.moody in access exclusive mode")
        captured.user.execute("set statement_timeout = '5s'")
        (message,) = captured.ddl("alter type public.mood add value 'tired'")
    assert message["event"] == "capture_failed"
    assert "lock" in message["error"]
    assert relid is not None and relid[0] in message["touched"]
    calm = captured.user.execute("select 'public.calm'::regclass::oid::int8").fetchone()
    assert calm is not None and calm[0] not in message["touched"]


def test_trap_147_lastval_is_the_users(captured: Captured) -> None:
    captured.user.execute("create sequence public.s start 41")
    captured.user.execute("select nextval('public.s')")
    captured.ddl("alter table public.t add column c int")
    assert captured.user.execute("select lastval()").fetchone() == (41,)


def test_forgery_by_an_ordinary_role(captured: Captured) -> None:
    captured.user.execute("do $$ begin create role mallory; exception when duplicate_object then null; end $$")
    (honest,) = captured.ddl("alter table public.t add column c int")
    (_, replay) = logical_messages(stream(captured.conn, captured.config))[0]
    consume(captured.conn, captured.config)
    with psycopg.connect(captured.config.source.conninfo, autocommit=True) as conn:
        conn.execute("set role mallory")
        for attempt in (
            "select value from cdc.signing_key",
            "select value from cdc.settings",
            "select cdc.is_signed('', '')",
            "select cdc.beacon()",
            "select cdc.write_wal()",
            "select cdc.sign('x')",
            "select cdc.emit('ddl_command_end', '{}')",
            "select cdc.capture_failed('x', 'y', null, null)",
            "select * from cdc.table_snapshots('{}')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(attempt)
        forged = b"0" * 64 + replay[64:]
        changed = replay.replace(b'"public.t"', b'"public.x"')
        for content in (forged, changed, replay):
            conn.execute("select pg_logical_emit_message(true, 'cdc.ddl', %s::text)", [content.decode()])
        xids = conn.execute("select pg_current_xact_id()::text").fetchone()
    contents = [content for _, content in logical_messages(stream(captured.conn, captured.config))]
    assert [verifies(content, captured.key) for content in contents] == [False, False, True]
    # The replay carries a good signature over another transaction's xid: its own is not in it.
    assert xids is not None
    assert int(honest["xid"]) < int(xids[0]) - 2
    captured.user.execute("drop role mallory")


def test_ddl_is_captured_under_any_setting_of_string_literals(captured: Captured) -> None:
    """Without its own setting a function reads `like 'pg\\_%'` as `like 'pg_%'`, and leaves out schema pgboss."""
    captured.user.execute("set standard_conforming_strings = off; set escape_string_warning = off")
    messages = captured.ddl("create schema pgboss", "create table pgboss.job (id int primary key)")
    assert _last(messages, captured.relid("pgboss.job")).identifier == "pgboss.job"
    messages = captured.ddl("alter table pgboss.job alter id type bigint")
    assert [m["event"] for m in messages] == ["table_rewrite", "ddl_command_end"]


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_a_constraint_that_is_not_valid_does_not_say_that_rows_have_no_null(captured: Captured) -> None:
    """PostgreSQL 18 sets attnotnull for it too. The dbt rule `not_null` of the table failed on rows of the source."""
    relid = captured.relid("public.t")
    captured.user.execute("insert into public.t values (2, null, 'ok')")
    added = _last(captured.ddl("alter table public.t add constraint a_there not null a not valid"), relid)
    captured.user.execute("update public.t set a = 'y' where id = 2")
    valid = _last(captured.ddl("alter table public.t validate constraint a_there"), relid)
    assert [c.not_null for table in (added, valid) for c in table.columns if c.name == "a"] == [False, True]

"""Traps of capture as a guest in the user's database: what its triggers, settings and functions see and do to it."""

from __future__ import annotations

import re

import psycopg
import pytest

from tests.trap_world import PAIR, ROOT, World
from toolkit.quality import source_rows
from toolkit.rawlog.states import states_at, table_states
from toolkit.source import row_lines
from toolkit.source.connection import connect
from toolkit.source.opened import Source
from toolkit.values.errors import CdcError
from toolkit.values.lsn import Lsn
from toolkit.values.row_line import comparison

pytestmark = pytest.mark.postgres


def test_trap_148_capture_runs_no_ddl_of_its_own(world: World) -> None:
    log = world.start(
        *PAIR,
        "create table seen_tags (tag text)",
        "create function hear() returns event_trigger language plpgsql as "
        " $$ begin insert into public.seen_tags values (tg_tag); end $$",
        "create event trigger zz on ddl_command_end execute function hear()",
    )
    world.sql("truncate seen_tags", "alter table t add column c int", "create index on t (c)")
    log.drain()
    log.drain()
    assert world.user.execute("select array_agg(tag) from seen_tags").fetchone() == (["ALTER TABLE", "CREATE INDEX"],)


def test_trap_148_who_records_the_trigger_on_a_partition(world: World) -> None:
    """The DDL of the guard: an ordinary event trigger never does, one that is enabled always only before 17."""
    log = world.start(
        *ROOT,
        "create table seen_tags (who text, tag text)",
        "create function hear() returns event_trigger language plpgsql as "
        " $$ begin insert into public.seen_tags values ('plain', tg_tag); end $$",
        "create function hear_always() returns event_trigger language plpgsql as "
        " $$ begin insert into public.seen_tags values ('always', tg_tag); end $$",
        "create event trigger zz on ddl_command_end execute function hear()",
        "create event trigger zzz on ddl_command_end execute function hear_always()",
        "alter event trigger zzz enable always",
    )
    world.sql("truncate seen_tags", "create table r3 partition of r for values from (20) to (30)")
    world.sql("insert into r values (21, 'c')", "truncate r3")
    assert log.conn.info.server_version < 170000 or world.user.execute("show event_triggers").fetchone() == ("on",)
    log.drain()
    captured = world.user.execute("select who, tag from seen_tags order by 1, 2").fetchall()
    ours = [("always", "ALTER TABLE"), ("always", "CREATE TRIGGER")] if log.conn.info.server_version < 170000 else []
    assert captured == sorted([*ours, ("always", "CREATE TABLE"), ("plain", "CREATE TABLE")])
    assert "truncated" in world.stale()["public.r"]


def test_trap_149_a_cancel_is_the_users_own(world: World) -> None:
    log = world.start(*PAIR)
    log.drain()
    log.conn.execute(
        "create or replace function cdc.published_by(publications oid[]) returns oid[] language plpgsql as"
        " $$ begin perform pg_sleep(60); return '{}'; end $$;"
        "update cdc.settings set value = cdc.fingerprint() where name = 'functions'"
    )
    world.sql("set statement_timeout = '200ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        world.sql("alter publication cdc set (publish = 'truncate')")
    world.sql("reset statement_timeout", "insert into t values (3, 'z')")
    log.drain()
    world.exact("t")


#: Functions that call one by its bare name, and what calls them: an index and a generated column.
_UNNAMED = (
    "create function helper(text) returns text language sql immutable as 'select upper($1)'",
    "create function indexed(text) returns text language sql immutable as 'select public.helper($1)'",
    "create table t (id int primary key, v text, g text generated always as (indexed(v)) stored)",
    "create index on t (indexed(v))",
    "insert into t values (1, 'x'), (2, 'y')",
    "create or replace function indexed(text) returns text language sql immutable as 'select helper($1)'",
)
_MENDED = "alter function indexed(text) set search_path = public"


def test_trap_150_an_index_expression_that_needs_a_search_path_is_named(world: World) -> None:
    """To plan a SELECT of other columns the server reads the expression, under a search_path that names no schema."""
    with pytest.raises(CdcError, match=r"copying public\.t: function helper.* set its search_path by ALTER FUNCTION"):
        world.start(*_UNNAMED)
    with connect(world.config.source) as conn, pytest.raises(psycopg.errors.UndefinedFunction):
        conn.execute("select id from public.t")
    world.sql(_MENDED, f"select pg_drop_replication_slot('{world.config.source.slot}')")
    log = world.start()
    world.sql("insert into t values (3, 'z')", "update t set v = 'w' where id = 1")
    log.drain()
    world.exact("t")


def test_trap_150_the_stream_needs_no_search_path_and_a_check_names_the_function(world: World) -> None:
    """The check said only `cdc check again`, which would have found the same for ever."""
    setup, made = _UNNAMED[:-1], _UNNAMED[-1]
    log = world.start(*setup)
    world.sql(made, "insert into t values (3, 'z')", "update t set v = 'w' where id = 1", "delete from t where id = 2")
    log.drain()
    version = log.version(world.relid("t"), log.complete_to)
    assert version is not None
    unread = source_rows.Taken(comparison(version, 16), None)
    with connect(world.config.source) as conn, connect(world.config.source) as other:
        with row_lines.inside_snapshot(conn, None, seconds=5):
            taken = source_rows.read_whole(Source(world.config.source_access, conn), other, unread)
        assert taken.figures is None
        assert taken.reason is not None
        assert re.fullmatch(
            r"function helper\(text\) does not exist; name its schema .* set its search_path by ALTER FUNCTION",
            taken.reason,
        )
        world.sql(_MENDED)
        with row_lines.inside_snapshot(conn, None, seconds=5):
            assert source_rows.read_whole(Source(world.config.source_access, conn), other, unread).figures is not None
    world.exact("t")


def test_trap_151_a_type_without_a_send_function(world: World) -> None:
    log = world.start("create table t (id int primary key, a aclitem)")
    world.sql("insert into t values (1, 'postgres=r/postgres')", "update t set id = 2")
    log.drain()
    world.exact("t")
    assert log.rows(world.relid("t"), Lsn(log.complete_to))[1]


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_trap_105_text_that_changes_with_another_object(world: World) -> None:
    """No event says so, and roles have none at all: green only where the text was read, or a check has proven it."""
    log = world.start(
        "create table u (id int primary key)", "create domain class as regclass",
        "create type pair as (x int, c class[])",
        "create table t (id int primary key, c regclass)", "create table a (id int primary key, c class[])",
        "create table p (id int primary key, c pair[])", "create table o (id int primary key, c oid, v text[])",
        "insert into t values (1, 'u')", "insert into a values (1, '{u}')",
        """insert into p values (1, '{"(1,{u})"}')""", "insert into o values (1, 'u'::regclass, '{u}')",
    )  # fmt: skip
    assert {s.state for s in log.states().values()} == {"ok"}
    since = log.complete_to
    world.sql("alter table u rename to w", "insert into o values (2, 0, '{}')")
    log.drain()
    doubt = "changes with the objects it names, without an event"
    red = {name: s for name, s in log.states().items() if s.state != "ok"}
    assert set(red) == {"public.t", "public.a", "public.p"}
    for state in red.values():
        assert state.reason is not None and doubt in state.reason
        assert state.from_lsn == since
        assert state.comparable and "cdc check" in (state.remedy or "")
        assert log.rows(state.relid, log.complete_to) != log.select(state.relid)
    proven = {s.relid: log.complete_to for s in red.values()}
    assert {s.state for s in table_states(log.reading(), proven)} == {"ok"}
    # A check that found rows to differ has the better remedy: it lists them.
    differing = table_states(log.reading(), {}, dict.fromkeys(proven, (since, log.complete_to)))
    shown = [f"{s.reason}: {s.remedy}" for s in differing if s.relid in proven]
    assert all("a check found" in text and "report" in text for text in shown) and len(shown) == 3
    known = {version.table.identifier: s.state for version, s in states_at(log.reading(), log.complete_to, {})}
    assert known == {name: "stale" if name in red else "ok" for name in known}

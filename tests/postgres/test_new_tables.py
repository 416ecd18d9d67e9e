"""`new_tables = "publish"`: new tables are in the publication before their first row, those to be left out never."""

from __future__ import annotations

import fnmatch

import psycopg
import pytest

from tests.trap_world import PAIR, World
from toolkit.source import install, preflight, selection
from toolkit.source.connection import connect
from toolkit.values.config import SourceConfig, TableConfig
from toolkit.values.modes import Capture
from toolkit.values.names import postgres_regex

pytestmark = pytest.mark.postgres

_ALL = {"tables": ("*.*",), "exclude": ("*.tmp_*", "secret.*"), "new_tables": "publish"}


def _held(world: World) -> set[str]:
    with psycopg.connect(world.config.source.conninfo) as conn:
        found = conn.execute("select schemaname || '.' || tablename from pg_publication_tables where pubname = 'cdc'")
        return {name for (name,) in found}


def test_one_line_captures_tables_and_schemas_of_the_future_but_those_left_out(world: World) -> None:
    world.sql(*PAIR, "create table tmp_a (id int primary key)", "create schema secret", "create table bag (v int)")
    log = world.start(**_ALL)
    assert set(log.states()) == {"public.t"}
    world.sql(
        "begin", "create table born (id int primary key, v text)", "insert into born values (1, 'first')",
        "update born set v = 'second'", "commit",
        "create schema sales create table orders (id int primary key) create table tmp_x (id int primary key)",
        "insert into sales.orders values (1)",
        "create role new_tables_dev", "grant create on schema public to new_tables_dev", "set role new_tables_dev",
        "create table theirs (id int primary key)", "insert into theirs values (1)", "reset role",
        "reassign owned by new_tables_dev to current_user", "drop owned by new_tables_dev", "drop role new_tables_dev",
        "create table secret.s (id int primary key)", "create table tmp_b (id int primary key)",
        "create unlogged table quick (id int primary key)",
        "create table keyless (v int)", "insert into keyless values (1)", "update keyless set v = 2",
        "create table copied as select 1 as v", "delete from copied",
        "create table root (id int primary key) partition by range (id)",
        "create table leaf partition of root for values from (0) to (9)", "insert into root values (1)",
    )  # fmt: skip
    log.drain()
    assert _held(world) == {"public.t", "public.born", "sales.orders", "public.theirs", "public.leaf"}
    shown = {*_held(world), "public.root"}  # as a view over its leaf
    assert {name: s.state for name, s in log.states().items()} == dict.fromkeys(shown, "ok")
    for name in ("t", "born", "theirs", "leaf"):
        world.exact(name)
    missing = selection.not_captured(log.conn, world.config.capture_rules, ticks=False)
    assert {name: reason.split(";")[0].split(":")[0] for name, reason in missing.items()} == {
        "public.bag": "has no replica identity", "public.copied": "has no replica identity",
        "public.keyless": "has no replica identity", "public.quick": "is unlogged", "public.root": "is partitioned",
    }  # fmt: skip
    preflight.require(log.conn, world.config.capture_rules, ddl=world.config.ddl)


def test_the_first_pattern_that_matches_a_new_table_decides(world: World) -> None:
    """A later pattern with triggers kept a table out of the publication that an earlier one gives to the slot."""
    patterns = {"public.b?": Capture.SLOT, "public.bo*": Capture.SCHEMA, "public.b*": Capture.SLOT}
    chosen = {pattern: TableConfig(capture=capture) for pattern, capture in patterns.items()}
    world.config = world.config.model_copy(update={"table": chosen})
    world.start(*PAIR, **_ALL)
    world.sql(*(f"create table {name} (id int primary key)" for name in ("bo", "born", "best")))
    assert _held(world) == {"public.t", "public.bo", "public.best"}


def test_a_new_table_without_a_key_is_left_out_without_exclude_too(world: World) -> None:
    """Whole schemas were published then: UPDATE and DELETE of the application failed."""
    world.start(*PAIR, new_tables="publish")
    world.sql(
        "create table born (id int primary key)", "insert into born values (1)",
        "create table keyless (v int)", "insert into keyless values (1)", "update keyless set v = 2",
    )  # fmt: skip
    world.log.drain()
    world.exact("t", "born")
    assert _held(world) == {"public.t", "public.born"}


def test_schemas_that_were_published_whole_are_published_table_by_table_from_the_next_init_on(world: World) -> None:
    """The configuration has said `publish` before and after. Nothing is missed: rows are not copied again."""
    world.sql("create schema s create table v (id int primary key)")
    log = world.start(*PAIR, "create table gone (id int primary key)", tables=("public.*", "s.v"), new_tables="schemas")
    world.sql("create table born (id int primary key)", "insert into born values (1)", "insert into t values (3, 'z')")
    by_table = world.config.source.model_copy(update={"new_tables": "publish", "exclude": ("public.gone",)})
    world.config = world.config.model_copy(update={"source": by_table})
    log.config = world.config
    with connect(by_table) as conn:
        install.install(conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=3)
    assert _held(world) == {"public.t", "public.born", "s.v"}
    assert world.user.execute("select count(*) from pg_publication_namespace").fetchone() == (0,)
    world.sql(
        "insert into t values (4, 'later')", "insert into born values (2)",
        "create table keyless (v int)", "insert into keyless values (1)", "update keyless set v = 2",
        "create table next (id int primary key)", "insert into next values (1)",
    )  # fmt: skip
    log.drain()
    assert {name: s.state for name, s in log.states().items()} == dict.fromkeys(_held(world), "ok")
    world.exact("t", "born", "next")


def test_of_a_table_in_a_published_schema_only_a_move_to_another_one_is_a_doubt(world: World) -> None:
    world.sql("create role new_tables_owner", "create schema far")
    log = world.start(*PAIR, "create table moved (id int primary key)", new_tables="schemas")
    world.sql(
        "alter table t rename to v", "insert into v values (3, 'z')", "alter table v rename to t",
        "alter table t owner to new_tables_owner", "grant select on t to new_tables_owner", "update t set v = 'y'",
    )  # fmt: skip
    log.drain()
    world.sql("reassign owned by new_tables_owner to current_user", "drop owned by new_tables_owner")
    world.sql("alter table moved set schema far", "alter table far.moved set schema public", "drop schema far")
    world.sql("drop role new_tables_owner")
    log.drain()
    assert {name: s.state for name, s in log.states().items()} == {"public.t": "ok", "public.moved": "stale"}
    world.exact("t")


def test_a_table_that_could_not_be_added_is_listed_and_its_transaction_goes_on(world: World) -> None:
    world.sql(*PAIR)
    world.config = world.config.model_copy(update={"table": {"public.shape": TableConfig(capture=Capture.SCHEMA)}})
    log = world.start(**_ALL)
    with psycopg.connect(world.config.source.conninfo) as other:
        other.execute("create table first (id int primary key)")  # and holds the publication
        world.sql("create table second (id int primary key)", "insert into second values (1)")
        other.commit()
    world.sql("create table shape (id int primary key)")
    assert _held(world) == {"public.t", "public.first"}
    log.drain()
    assert selection.not_captured(log.conn, world.config.capture_rules, ticks=False) == {
        "public.second": "is in no publication; run `cdc init`, or name it in [source] exclude"
    }


def test_what_a_publication_for_all_tables_does_not_send_is_listed(world: World) -> None:
    world.sql(
        *PAIR, "create publication cdc for all tables", "create unlogged table quick (id int primary key)",
        "create table root (id int primary key) partition by range (id)",
        "create table leaf partition of root for values from (0) to (9)",
    )  # fmt: skip
    config = world.config.model_copy(update={"source": SourceConfig(conninfo=world.config.source.conninfo)})
    with connect(config.source) as conn:
        listed = selection.not_captured(conn, config.capture_rules, ticks=False)
        assert set(listed) == {"public.quick", "public.root"}
        assert "alter table public.quick set logged" in listed["public.quick"]
        world.sql("alter publication cdc set (publish_via_partition_root = true)")
        assert set(selection.not_captured(conn, config.capture_rules, ticks=False)) == {"public.quick"}


def test_the_server_matches_what_the_configuration_does(world: World) -> None:
    names = ["a.b", "a.bb", "a.c", "a.cx", "a.z", "a.]", "a.[", "a.b+(c)$", "q\n.x_1", "A.b", "a.^", "ab"]
    for pattern in ("*.*", "a.b?", "a.[bc]*", "a.[!b-y]", "a.[]]", "a.[", "a.b+(c)$", "*.x_*", "a.[^b]"):
        found = world.user.execute(
            "select n from unnest(%s::text[]) as n where n ~ %s", [names, postgres_regex(pattern)]
        ).fetchall()
        assert [name for (name,) in found] == [name for name in names if fnmatch.fnmatchcase(name, pattern)], pattern

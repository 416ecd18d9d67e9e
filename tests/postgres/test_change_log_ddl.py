"""DDL between the install of the change log and its first cut, and between two drains: exact, or red by name."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.support_postgres import fresh_database
from tests.trap_world import World, world
from toolkit.demo.server import EmbeddedServer
from toolkit.source import change_log, install
from toolkit.values.config import TableConfig
from toolkit.values.modes import Capture, Triggers

__all__ = ["world"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg18"], indirect=True)]

_TABLE = """
create table public.{0} (id int primary key, v text default 'd', n numeric(6, 2) default 1.5, k int default 7,
  e varchar(9) default 'e');
insert into public.{0} (id) values (1), (2), (3);
"""
_WRITES = "insert into {0} (id) values ({1}); update {0} set k = k where id = 1; update {0} set id = {2} where id = {1}"
#: What is done to a table between two writes of it, and whether its rows are known afterwards.
_DDL: dict[str, tuple[str, bool]] = {
    "no_rewrite": ("alter table {0} alter e type text", True),
    "wider": ("alter table {0} alter k type bigint", True),
    "other_text": ("alter table {0} alter n type numeric(8, 3)", False),
    "other_type": ("alter table {0} alter n type float8 using n / 3", False),
    "using": ("alter table {0} alter v type varchar(3) using v || '!'", False),
    "added": ("alter table {0} add column c int default 5", True),
    "added_by_row": ("alter table {0} add column c float8 default random()", False),
    "dropped": ("alter table {0} drop column v", True),
    "dropped_and_added": ("alter table {0} drop column v, add column v int default 3", True),
    "swapped": (
        "alter table {0} rename v to x; alter table {0} rename e to v; alter table {0} rename x to e;"
        "update {0} set v = 'v', e = 'e' where id = 2",
        True,
    ),
    "another_key": ("alter table {0} drop constraint {0}_pkey, add unique (id), alter n set not null,"
                    " add primary key (id, n)", True),
    "rolled_back": (
        "begin; insert into {0} (id) values (50); savepoint s; alter table {0} add c int default 4, drop column v;"
        " insert into {0} (id, c) values (51, 6); rollback to s; update {0} set v = 'kept' where id = 50; commit",
        True,
    ),
    "within": (
        "begin; insert into {0} (id) values (60); alter table {0} add c int default 4, drop column v;"
        " insert into {0} (id, c) values (61, 6); alter table {0} alter k type bigint;"
        " update {0} set k = 9 where id = 60; commit",
        True,
    ),
}  # fmt: skip


def _begin(world: World) -> dict[str, bool]:
    """A table for each case and kind of trigger, and whether its rows are known behind the DDL."""
    names = {f"{case}_{how[0]}": known for case, (_, known) in _DDL.items() for how in ("row", "statement")}
    for name in names:
        world.sql(_TABLE.format(name))
    by_statement = TableConfig(capture=Capture.CHANGE_LOG, triggers=Triggers.STATEMENT)
    table = {"public.*": TableConfig(capture=Capture.CHANGE_LOG), "public.*_s": by_statement}
    world.config = world.config.model_copy(update={"table": table})
    return names


def _live(world: World, names: Iterable[str], first: int) -> None:
    for name in names:
        ddl, _ = _DDL[name[:-2]]
        world.sql(_WRITES.format(name, first, first + 1))
        for statement in ddl.split(";"):
            world.sql(statement.format(name))
        world.sql(_WRITES.format(name, first + 2, first + 3))


def _settings(ticks: bool) -> dict[str, Any]:
    return {"capture": "change_log", "change_log_drain": "tick"} if ticks else {}


@pytest.mark.parametrize("ticks", [False, True], ids=["slot", "ticks"])
def test_ddl_between_the_install_and_the_first_cut(world: World, monkeypatch: pytest.MonkeyPatch, ticks: bool) -> None:
    names = _begin(world)
    begin = change_log.begin

    def between(*arguments: Any, **more: Any) -> None:
        begin(*arguments, **more)
        _live(world, names, 10)

    monkeypatch.setattr(change_log, "begin", between)
    log = world.start(**_settings(ticks))
    for name in names:
        world.sql(_WRITES.format(name, 30, 31))
    log.drain()
    assert world.stale() == {}
    world.exact(*names)


@pytest.mark.parametrize("ticks", [False, True], ids=["slot", "ticks"])
def test_the_other_kind_of_triggers_misses_no_row(world: World, ticks: bool) -> None:
    """The event of the first trigger that was dropped showed a table that is not captured: it was stale."""
    log = world.start(_TABLE.format("a"), _TABLE.format("b"), **{"capture": "change_log"} | _settings(ticks))
    triggers = {"a": Triggers.ROW, "b": Triggers.ROW}
    for number, changed in enumerate(("b", "a", "b"), 2):
        triggers[changed] = Triggers.STATEMENT if triggers[changed] == Triggers.ROW else Triggers.ROW
        table = {f"public.{name}": TableConfig(triggers=how) for name, how in triggers.items()}
        world.config = log.config = world.config.model_copy(update={"table": table})
        world.sql(*(_WRITES.format(name, 10 * number, 10 * number + 1) for name in triggers))
        install.install(log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=3)
        world.sql(*(_WRITES.format(name, 10 * number + 2, 10 * number + 3) for name in triggers))
        if number > 2:
            log.drain()
    assert world.stale() == {}
    world.exact(*triggers)


@pytest.mark.parametrize("ticks", [False, True], ids=["slot", "ticks"])
def test_ddl_between_two_drains(world: World, ticks: bool) -> None:
    names = _begin(world)
    log = world.start(**_settings(ticks))
    log.drain()
    _live(world, names, 10)
    log.drain()
    assert {name: f"public.{name}" not in world.stale() for name in names} == names
    world.exact(*(name for name, known in names.items() if known))
    log.repair(*world.stale())
    assert world.stale() == {}
    world.exact(*names)


def test_why_a_key_identifies_no_row_is_said_once(world: World) -> None:
    """The log and the state of capture have the same reason, and both were shown."""
    log = world.start(
        "create domain named regclass", "create table t (id named primary key)", **{"capture": "change_log"}
    )
    log.drain()
    said = "rows are identified by column id, whose text changes with names of other objects"
    assert log.states()["public.t"].reason == said


@pytest.mark.parametrize("ticks", [False, True], ids=["slot", "ticks"])
def test_a_new_partition_is_rewritten_after_its_first_row(world: World, ticks: bool) -> None:
    """Its rows are not among the messages of the slot under its own OID: the table counted as empty, and stayed ok."""
    names = ("part_filled", "part_empty")
    root = "create table public.{0} (id int primary key, v text) partition by range (id)"
    world.sql(*(root.format(name) for name in names))
    if not ticks:
        table = {"public.*": TableConfig(capture=Capture.CHANGE_LOG)}
        world.config = world.config.model_copy(update={"table": table})
    log = world.start(**_settings(ticks))
    log.drain()
    for name in names:
        world.sql("begin", f"create table {name}_1 partition of {name} for values from (0) to (9)")
        if name == "part_filled":
            world.sql("insert into part_filled values (1, 'a')")
        world.sql(
            f"alter table {name} alter v type text using v || '!', add column u float8 default random()", "commit"
        )
    log.drain()
    assert {table for table in world.stale() if table.endswith("_1")} == {"public.part_filled_1"}
    world.exact("part_empty_1")
    log.repair("public.part_filled_1")
    world.exact("part_filled_1")


@pytest.mark.parametrize("ticks", [False, True], ids=["slot", "ticks"])
def test_ddl_of_transactions_that_overlap(world: World, ticks: bool) -> None:
    """The DDL of the transaction that began first counted as the earlier one, of each of its tables."""
    log = world.start(_TABLE.format("a"), _TABLE.format("b"), **{"capture": "change_log"} | _settings(ticks))
    with psycopg.connect(world.config.source.conninfo) as first:
        first.execute("alter table a add column c int default 5")
        world.sql(
            "insert into b (id) values (4)", "alter table b rename v to x",
            "alter table b add column c int default 7, drop column e", "insert into b (id, x, c) values (5, 'x', 6)",
        )  # fmt: skip
        first.execute("insert into b (id, x) values (6, 'y')")
        first.execute("alter table b rename x to v")
        first.execute("alter table b drop column k")
        first.execute("insert into b (id, c) values (7, 8)")
    log.drain()
    assert world.stale() == {}
    world.exact("a", "b")


def _wait_for(world: World, question: str) -> None:
    for _ in range(600):
        if world.user.execute(question.encode()).fetchone() == (True,):
            return
        time.sleep(0.05)
    raise AssertionError(question)


@contextmanager
def _subscribed(world: World, pg: EmbeddedServer, tables: str) -> Iterator[psycopg.Connection[Any]]:
    """Subscribe to all tables of another database while the `with` lasts."""
    with fresh_database(pg) as upstream, psycopg.connect(upstream, autocommit=True) as publisher:
        publisher.execute(tables.encode())
        publisher.execute("create publication p for all tables")
        publisher.execute("select pg_create_logical_replication_slot('cdc_up', 'pgoutput')")
        world.sql(
            f"create subscription s connection '{upstream}' publication p"
            " with (create_slot = false, slot_name = 'cdc_up')"
        )
        try:
            _wait_for(world, "select count(*) > 0 and bool_and(srsubstate = 'r') from pg_subscription_rel")
            yield publisher
        finally:
            world.sql("alter subscription s disable", "alter subscription s set (slot_name = none)")
            _wait_for(
                world, "select not exists (select from pg_replication_slots where slot_name = 'cdc_up' and active)"
            )
            world.sql("drop subscription s")
            publisher.execute("select pg_drop_replication_slot('cdc_up')")


@pytest.mark.parametrize("ticks", [False, True], ids=["slot", "ticks"])
def test_a_subscription_between_two_drains(world: World, pg: EmbeddedServer, ticks: bool) -> None:
    """Its rows fire no statement triggers. When it was dropped before a drain, its table stayed ok without them."""
    table = {
        f"public.{name}": TableConfig(triggers=how) for name, how in (("a", Triggers.ROW), ("b", Triggers.STATEMENT))
    }
    world.config = world.config.model_copy(update={"table": table})
    log = world.start(_TABLE.format("a"), _TABLE.format("b"), **{"capture": "change_log"} | _settings(ticks))
    with _subscribed(world, pg, _TABLE.format("a") + _TABLE.format("b") + "delete from a; delete from b") as publisher:
        publisher.execute("insert into a (id) values (7); insert into b (id) values (7)")
        _wait_for(world, "select count(*) = 2 from (select from a where id = 7 union all select from b where id = 7)")
    log.drain()
    assert set(world.stale()) == {"public.b"}
    world.exact("a")
    log.repair("public.b")
    world.exact("b")


@pytest.mark.parametrize("ticks", [False, True], ids=["slot", "ticks"])
def test_a_subscription_brings_the_change_log_of_its_publisher(world: World, pg: EmbeddedServer, ticks: bool) -> None:
    """As one to all tables of a server does. A physical copy has the same relids, and each row was logged twice."""
    tables = "create table a (id int, v text); create table k (id int primary key, v text);"
    log = world.start(tables, **{"capture": "change_log"} | _settings(ticks))
    part = (
        "create schema cdc; create table cdc.change_log_0 (part smallint, xid xid8 default pg_current_xact_id(),"
        ' lsn pg_lsn default pg_current_wal_insert_lsn(), relid oid, op "char", old text, new text)'
    )
    logged = "insert into cdc.change_log_0 (part, relid, op, old, new) values (0, "
    a, k = world.relid("a"), world.relid("k")
    with _subscribed(world, pg, tables + part) as publisher:
        for n in range(3):
            publisher.execute(
                f"begin; insert into a values ({n}, 'x'); {logged}{a}, 'I', null, '({n},x)');"
                f" insert into k values ({n}, 'x'); {logged}{k}, 'I', null, '({n},x)'); commit"
            )
        publisher.execute(f"{logged}{k}, 'F', null, 'of the publisher'); {logged}{k}, 'O', null, '7')")
        publisher.execute(f"begin; update k set v = 'y' where id = 1; {logged}{k}, 'U', '(1,x)', '(1,y)'); commit")
        _wait_for(world, "select exists (select from k where v = 'y')")
    log.drain()
    assert world.stale() == {}
    world.exact("a", "k")


@pytest.mark.parametrize("ticks", [False, True], ids=["slot", "ticks"])
def test_a_row_of_an_event_trigger_that_fires_before_capture(world: World, ticks: bool) -> None:
    """It has the columns after the command, and as many as before: its values were those of other columns."""
    log = world.start(_TABLE.format("a"), **{"capture": "change_log"} | _settings(ticks))
    world.sql(
        "create function early() returns event_trigger language plpgsql as $$ begin"
        " insert into public.a (id, e) values (9, '9'); end $$",
        'create event trigger "A" on sql_drop execute function early()',
        "alter table a drop column v, add column w text",
        'drop event trigger "A"',
    )
    log.drain()
    assert set(world.stale()) == {"public.a"}
    log.repair("public.a")
    world.exact("a")


@pytest.mark.parametrize("ticks", [False, True], ids=["slot", "ticks"])
def test_a_trigger_that_was_disabled_uncaptured_before_a_captured_command(world: World, ticks: bool) -> None:
    """The event of that command shows the trigger as it is now, and the comparison of the catalogs found no change."""
    names = ("disabled", "replaced", "altered")
    again = 'create trigger "!cdc_truncate" after truncate on replaced for each statement execute function'
    log = world.start(*map(_TABLE.format, names), **{"capture": "change_log"} | _settings(ticks))
    world.sql("set event_triggers = off")
    world.sql(
        'alter table disabled disable trigger "!cdc_row"', "insert into disabled (id) values (9)",
        'alter table disabled enable always trigger "!cdc_row"',
        'drop trigger "!cdc_truncate" on replaced', "truncate replaced", f"{again} cdc.log_truncate()",
        'alter table replaced enable always trigger "!cdc_truncate"',
    )  # fmt: skip
    world.sql("set event_triggers = on")
    world.sql(*(f"alter table {name} alter v set statistics 5" for name in names))
    log.drain()
    assert set(world.stale()) == {"public.disabled", "public.replaced"}
    log.repair(*world.stale())
    world.sql(*(f"alter table {name} add column c int default 3" for name in names))
    log.drain()
    world.exact(*names)


@pytest.mark.parametrize("ticks", [False, True], ids=["slot", "ticks"])
def test_a_table_that_had_no_key_for_a_while(world: World, ticks: bool) -> None:
    """Two rows had one key, and one of them was deleted. The fold by the key kept neither, and the table stayed ok."""
    names = ("compared", "commanded", "captured", "same")
    log = world.start(*map(_TABLE.format, names), **{"capture": "change_log"} | _settings(ticks))
    without = (
        "alter table {0} drop constraint {0}_pkey", "insert into {0} (id, v) values (1, 'twice')",
        "delete from {0} where v = 'twice'", "alter table {0} add primary key (id)",
    )  # fmt: skip
    world.sql("set event_triggers = off")
    world.sql(*(statement.format(name) for name in ("compared", "commanded") for statement in without))
    world.sql("alter index same_pkey rename to of_same", "reindex index concurrently of_same")
    world.sql("set event_triggers = on", "alter table commanded alter v set statistics 5")
    world.sql("alter table captured drop constraint captured_pkey, add primary key (id)")
    log.drain()
    assert set(world.stale()) == {"public.compared", "public.commanded"}
    log.repair(*world.stale())
    world.sql(*(f"alter table {name} add column c int default 3" for name in names))
    log.drain()
    world.exact(*names)


_LATE = """
create function late() returns trigger language plpgsql as $$ begin
  if new.id = 1 and new.k < 100 then
    execute format('update public.%I set k = 1000 where id in (2, 3)', tg_table_name);
  end if; return new; end $$;
"""
_LATE_TRIGGER = "create trigger late after update on {0} for each row execute function late()"


@pytest.mark.parametrize("how", Triggers)
@pytest.mark.parametrize("ticks", [False, True], ids=["slot", "ticks"])
def test_rows_that_were_logged_out_of_order_for_another_identity(world: World, ticks: bool, how: Triggers) -> None:
    """With a key, the log has the rows as they are then, and without one their images: each is wrong for the other."""
    names = ("keyed", "whole", "captured", "same", "twice")
    world.config = world.config.model_copy(update={"table": {"public.*": TableConfig(triggers=how)}})
    log = world.start(
        _LATE, *map(_TABLE.format, names), *map(_LATE_TRIGGER.format, names), "alter table whole replica identity full",
        **{"capture": "change_log"} | _settings(ticks),
    )  # fmt: skip
    late, identity = "update {0} set k = k + 1", "alter table {0} replica identity {1}"
    world.sql("set event_triggers = off", identity.format("keyed", "full"), identity.format("whole", "default"))
    world.sql(late.format("keyed"), late.format("whole"))
    world.sql(identity.format("keyed", "default"), identity.format("whole", "full"), "set event_triggers = on")
    world.sql(identity.format("captured", "nothing"), late.format("captured"), late.format("same"))
    world.sql("begin", identity.format("twice", "full"), late.format("twice"), identity.format("twice", "default"))
    world.sql(late.format("twice"), "commit")
    log.drain()
    assert set(world.stale()) == {"public.keyed", "public.whole"}
    log.repair(*world.stale())
    world.sql(*(f"alter table {name} add column c int default 3" for name in names))
    log.drain()
    world.exact("keyed", "whole", "same")

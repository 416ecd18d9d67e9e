"""DDL without a captured event: it was bypassed, or the role may not create event triggers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support_postgres import waiting_for_a_standby
from tests.trap_world import PAIR, ROOT, World
from toolkit.capture import initialise
from toolkit.demo.server import EmbeddedServer
from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Kind
from toolkit.source import install, slot
from toolkit.values.config import TableConfig
from toolkit.values.modes import Capture, LogDrain, NewTables

pytestmark = pytest.mark.postgres

_UNSENT = "its place in a publication was altered without a captured event, if only for a while"


def _catalog_edit(world: World) -> None:
    world.sql(
        "set allow_system_table_mods = on",
        "update pg_attribute set attname = 'w' where attrelid = 't'::regclass and attnum = 2",
    )


def _switched_off(world: World) -> None:
    world.sql("set event_triggers = off", "alter table t drop column v", "set event_triggers = on")


def _rewritten(world: World) -> None:
    world.sql("set event_triggers = off", "alter table t alter v type text using upper(v)", "set event_triggers = on")


def _captured_later(world: World) -> None:
    _rewritten(world)
    world.sql("insert into t values (4, 'w')", "alter table t add column c int default 5")


def _unpublished_for_a_while(world: World) -> None:
    world.sql(
        "set event_triggers = off", "alter publication cdc drop table t", "insert into t values (5, 'unsent')",
        "alter publication cdc add table t", "set event_triggers = on",
    )  # fmt: skip


def _published_less_for_a_while(world: World) -> None:
    world.sql(
        "set event_triggers = off", "alter publication cdc set (publish = 'insert')", "update t set v = 'unsent'",
        "alter publication cdc set (publish = 'insert, update, delete, truncate')", "set event_triggers = on",
    )  # fmt: skip


@pytest.mark.parametrize(
    "bypass",
    [
        _catalog_edit, World.bypass, _switched_off, _rewritten, _captured_later, _unpublished_for_a_while,
        _published_less_for_a_while,
    ],
)  # fmt: skip
def test_trap_076_a_bypass_is_found_by_comparison(
    world: World, bypass: Callable[[World], None], pg: EmbeddedServer
) -> None:
    if bypass not in (_catalog_edit, World.bypass) and pg.major < 17:
        pytest.skip("event_triggers came with PostgreSQL 17")
    log = world.start(*PAIR)
    log.drain()
    before = log.complete_to
    world.sql("insert into t values (3, 'z')")
    bypass(world)
    log.drain()
    assert log.states()["public.t"].state == "stale"
    world.repaired_from("t", before, "without a captured event")  # from the last comparison, not from this one


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)  # event_triggers came with PostgreSQL 17
def test_trap_076_a_bypass_in_a_later_step_of_the_drain_that_found_the_table(world: World) -> None:
    """The log is right from the creation of the table on, which is later than the last comparison of the catalog."""
    log = world.start(new_tables=NewTables.SCHEMAS)
    log.drain()
    world.sql(*PAIR)
    _captured_later(world)
    sizes = log.config.drain.model_copy(update={"max_changes": 1})  # each transaction is read for itself
    log.config = log.config.model_copy(update={"drain": sizes})
    log.drain()
    assert world.stale() == {"public.t": "rewritten without a captured event"}
    log.repair("public.t")
    log.drain()
    world.exact("t")


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)  # event_triggers came with PostgreSQL 17
def test_trap_076_a_bypass_in_a_new_generation_at_lower_lsns(world: World) -> None:
    """A repair of the lost history is at an LSN that this one has not reached: it says nothing about the table now."""
    log = world.start(*PAIR)
    log.drain()
    ahead, relid = order.made_at(log.complete_to + (1 << 40)), world.relid("t")
    of: dict[str, Any] = {"relid": relid, "schema_id": log.versions[relid].schema_id, "kind": Kind.BASELINE}
    of |= {"batch_id": log.newest.batch_id + 1, "generation": 1, "payload": "{}"}
    log.commit(Event(**ahead._asdict(), ordinal=order.BASELINE, **of))
    with slot.create_slot(log.config.source, cut_seconds=20.0) as cut:
        initialise.start(log.store, log.config.source, log.conn, log.identity, 2, log.newest.batch_id + 1, cut.lsn)
        log.copy(cut)
    _captured_later(world)
    log.drain()
    assert log.unverified(relid, log.complete_to) == "rewritten without a captured event"
    log.repair("public.t")
    log.drain()
    world.exact("t")


def test_trap_029_captured_ddl_that_no_session_sees_yet_is_no_bypass(world: World) -> None:
    """DDL that waits for a standby may be in the stream over many drains before the catalog shows it."""
    log = world.start(*PAIR)
    log.drain()
    alter = (
        "do $$ begin execute format('alter table t add column c%s int', (select count(*) from pg_attribute"
        " where attrelid = 't'::regclass)); end $$"
    )
    with waiting_for_a_standby(world.config.source.conninfo, alter):
        for _ in range(3):
            log.drain()
            assert world.stale() == {}
    log.drain()
    assert world.stale() == {}
    world.exact("t")


def test_trap_076_a_silent_rewrite_behind_a_disabled_trigger(world: World) -> None:
    """What else is unexplained cannot be known: every table is stale, by the event trigger's own row."""
    log = world.start(*PAIR, "create table other (id int primary key)")
    log.drain()
    world.sql(
        "alter event trigger _cdc_0_command disable", "alter event trigger _cdc_0_rewrite disable",
        "alter table t alter v type text using v || '!'",
        "alter event trigger _cdc_0_command enable always", "alter event trigger _cdc_0_rewrite enable always",
    )  # fmt: skip
    log.drain()
    assert world.stale() == {
        "public.t": "rewritten without a captured event",
        "public.other": "DDL capture was altered",
    }
    log.repair("public.t", "public.other")
    log.drain()
    world.exact("t", "other")
    # As long as one is off nothing stays green, not even after a repair.
    world.sql("alter event trigger _cdc_0_rewrite disable")
    log.drain()
    log.repair("public.t", "public.other")
    log.drain()
    assert set(world.stale()) == {"public.t", "public.other"}
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )  # puts it right, and cannot know what went unexplained
    log.drain()
    assert set(world.stale()) == {"public.t", "public.other"}
    log.repair("public.t", "public.other")
    log.drain()
    world.exact("t", "other")


def test_trap_076_a_capture_function_of_another_role(world: World) -> None:
    """Nothing else records it: the event triggers stand, and are served by a function that keeps silent."""
    log = world.start(*PAIR)
    log.drain()
    assert "DDL" not in world.findings()
    world.sql(
        "create or replace function cdc.capture_rewrite() returns event_trigger language plpgsql as $$ begin end $$",
        "alter table t alter v type text using v || '!'",
    )
    log.drain()
    assert world.stale() == {"public.t": "rewritten without a captured event"}
    assert "is not the one that `cdc init` has put there" in world.findings()
    log.repair("public.t")
    log.drain()
    assert "public.t" in world.stale()  # as long as it is there
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    assert "DDL" not in world.findings()
    log.drain()
    log.repair("public.t")
    log.drain()
    world.exact("t")


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
@pytest.mark.parametrize(
    "made",
    [
        "create event trigger _cdc_0_command on ddl_command_end execute function silent()",
        "create event trigger _cdc_0_command on ddl_command_end when tag in ('GRANT') execute function"
        " cdc.capture_command()",
    ],
)
def test_trap_076_an_event_trigger_of_our_name_that_is_another(world: World, made: str) -> None:
    """It exists, is enabled and captures nothing: it was reported once, and green from the next repair on."""
    log = world.start(*PAIR)
    world.sql(
        "create function silent() returns event_trigger language plpgsql as $$ begin end $$",
        "drop event trigger _cdc_0_command", made, "alter event trigger _cdc_0_command enable always",
    )  # fmt: skip
    log.drain()
    log.repair("public.t")
    log.drain()
    assert set(world.stale()) == {"public.t"}  # as long as it is there
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    log.drain()
    log.repair("public.t")
    world.sql("alter table t add column captured int")
    log.drain()
    world.exact("t")


def _put_right(world: World) -> None:
    """Its own functions again; the drain that sees them makes the table stale once more, and a repair lasts then."""
    install.install(
        world.log.conn,
        world.config.capture_rules,
        ddl=world.config.ddl,
        lock_seconds=world.config.snapshot.lock_seconds,
    )
    for _ in range(2):
        world.log.repair("public.t")
        world.log.drain()
    world.exact("t")


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_trap_076_a_function_of_the_change_log_of_another_role(world: World) -> None:
    log = world.start(*PAIR, capture="change_log")
    log.drain()
    world.sql("insert into t values (3, 'captured')")
    log.drain()
    world.exact("t")
    for sabotage in (
        "create or replace function cdc.log_row() returns trigger language plpgsql as $$ begin return null; end $$",
        "alter function cdc.is_gone(oid, tid) reset all",
        "create or replace function cdc.log_emptied() returns trigger language plpgsql as $$ begin return null; end $$",
    ):
        world.sql(sabotage)
        log.drain()
        assert world.stale() == {"public.t": "DDL capture is off"}, sabotage
        _put_right(world)
    # It was another one for a while.
    own = world.user.execute("select pg_get_functiondef('cdc.log_row()'::regprocedure)").fetchone()
    assert own
    world.sql(
        "create or replace function cdc.log_row() returns trigger language plpgsql as $$ begin return null; end $$",
        "insert into t values (5, 'unexplained')", own[0],
    )  # fmt: skip
    log.drain()
    assert world.stale() == {"public.t": "DDL capture is off"}
    _put_right(world)
    # `cdc init` puts it right before a drain has seen it.
    world.sql(
        "create or replace function cdc.log_row() returns trigger language plpgsql as $$ begin return null; end $$",
        "insert into t values (4, 'unexplained')",
    )
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    log.drain()
    assert world.stale() == {"public.t": "DDL capture was altered"}


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_trap_076_a_root_is_rewritten_with_event_triggers_off(world: World) -> None:
    log = world.start(*ROOT)
    log.drain()
    world.sql("vacuum full r1", "analyze r")
    log.drain()
    world.exact("r")
    world.sql("set event_triggers = off", "alter table r alter v type text using upper(v)", "reset event_triggers")
    log.drain()
    assert world.stale() == {"public.r": "rewritten without a captured event"}
    log.repair("public.r")
    log.drain()
    world.exact("r")


def test_without_event_triggers_the_comparison_finds_ddl(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The ladder: a role that owns the tables and may not create event triggers."""
    name = world.user.info.dbname
    keeper = f"keeper_{name}"
    world.sql(
        f"create role {keeper} login replication", f"grant create on database {name} to {keeper}",
        f"grant all on schema public to {keeper}", f"set role {keeper}", *PAIR,
        "create table other (id int primary key, v text)", "insert into other values (1, 'o')",
    )  # fmt: skip
    try:
        conninfo = psycopg.conninfo.make_conninfo(world.config.source.conninfo, user=keeper)
        log = world.start(conninfo=conninfo)
        assert "the catalog comparison finds DDL" in world.findings()
        assert caplog.messages.count(
            "this role may not create event triggers: DDL is found by comparing the catalog after each drain, and makes"
            " the table stale"
        ) == 1  # fmt: skip
        log.drain()
        before = log.complete_to
        world.sql("insert into t values (3, 'z')", "truncate other", "insert into other values (2, 'p')")
        log.drain()
        world.exact("t", "other")  # the TRUNCATE recorded the new file
        since = log.compared_to
        world.sql(
            "alter table t add column c int default 7",
            "insert into t values (4, 'w', 1)",
            "update t set c = 2 where id = 1",
        )
        log.drain()
        state = log.states()["public.t"]
        assert "columns" in (state.reason or "") or "schema version" in (state.reason or "")
        assert state.from_lsn is not None and before < state.from_lsn <= log.complete_to
        assert min(g["end_lsn"] for g in log.of("gap", world.relid("t"))) <= since
        log.repair("public.t")
        log.drain()
        world.exact("t", "other")
        world.sql("alter table t alter v type text using v || '!'")  # the catalog shows nothing else than a file
        log.drain()
        assert world.stale() == {"public.t": "rewritten without a captured event"}
        log.repair("public.t")
        world.sql("insert into t values (5, 'q', 1)")
        log.drain()
        world.exact("t", "other")
        world.sql(
            "alter publication cdc drop table t", "delete from t where id = 5", "alter publication cdc add table t"
        )
        log.drain()
        assert world.stale() == {"public.t": _UNSENT}
        log.repair("public.t")
        log.drain()
        world.exact("t", "other")
        install.uninstall(log.conn, world.config.source, lock_seconds=world.config.snapshot.lock_seconds)
        log = world.start(conninfo=conninfo, capture="change_log")
        world.sql("create table m (id int primary key) partition by range (id)", "insert into t values (6, 'r', 1)")
        log.drain()
        world.exact("t", "other")
        world.sql(
            "alter publication cdc drop table cdc.change_log", "delete from t where id = 6",
            "alter publication cdc add table cdc.change_log",
        )  # fmt: skip
        log.drain()
        assert world.stale() == {"public.t": _UNSENT, "public.other": _UNSENT}
        log.repair("public.t", "public.other")
        log.drain()
        world.exact("t", "other")
        # No one records that a trigger was off for a while, or is another one.
        world.sql(
            'alter table t disable trigger "!cdc_row"', "insert into t values (7, 's', 1)",
            'alter table t enable always trigger "!cdc_row"', 'drop trigger "!cdc_truncate" on other',
            "truncate other",
            "create trigger \"!cdc_truncate\" after truncate on other execute function cdc.log_truncate()",
            'alter table other enable always trigger "!cdc_truncate"',
        )  # fmt: skip
        log.drain()
        assert {name: "triggers" in reason for name, reason in world.stale().items()} == {
            "public.t": True, "public.other": True
        }  # fmt: skip
        install.uninstall(log.conn, world.config.source, lock_seconds=world.config.snapshot.lock_seconds)
    finally:
        world.sql("reset role")
        world.stack.close()
        with psycopg.connect(world.config.source.conninfo.replace(keeper, "postgres"), autocommit=True) as admin:
            admin.execute(f"drop owned by {keeper} cascade; drop role {keeper}")


@pytest.mark.parametrize(
    "again",
    [
        'create trigger "!cdc_row" after insert or update or delete on t for each row execute function cdc.log_row();'
        'alter table t enable always trigger "!cdc_row"',
        "cdc init",
    ],
    ids=["by hand", "by init"],
)
@pytest.mark.parametrize("drain", [LogDrain.SLOT, LogDrain.TICK])
def test_trap_076_a_trigger_of_the_change_log_that_was_dropped_and_made_again(
    world: World, drain: LogDrain, again: str
) -> None:
    """The table stayed ok without the rows of the time between: no drain saw that the trigger was missing."""
    world.config = world.config.model_copy(update={"table": {"public.t": TableConfig(capture=Capture.CHANGE_LOG)}})
    log = world.start(*PAIR, change_log_drain=drain)
    log.drain()
    world.sql('drop trigger "!cdc_row" on t', "insert into t values (3, 'lost')")
    if again == "cdc init":
        install.install(log.conn, log.config.capture_rules, ddl=log.config.ddl, lock_seconds=3)
    else:
        world.sql(again)
    log.drain()
    assert list(world.stale()) == ["public.t"]
    log.repair("public.t")
    log.drain()
    # A condition is one more way to miss rows.
    kept = 'create or replace trigger "!cdc_row" after insert or update or delete on t for each row'
    world.sql(
        f"{kept} when (false) execute function cdc.log_row()", "insert into t values (4, 'lost')",
        f"{kept} execute function cdc.log_row()", 'alter table t enable always trigger "!cdc_row"',
    )  # fmt: skip
    log.drain()
    assert list(world.stale()) == ["public.t"]
    log.repair("public.t")
    log.drain()
    world.exact("t")


@pytest.mark.parametrize("removal", ["delete from {}", "truncate {}"])
def test_trap_076_rows_of_the_change_log_removed_while_its_trigger_was_off(world: World, removal: str) -> None:
    """The table stayed ok without them: a tick saw only that the trigger was on again."""
    world.config = world.config.model_copy(update={"table": {"public.t": TableConfig(capture=Capture.CHANGE_LOG)}})
    log = world.start(*PAIR, change_log_drain=LogDrain.TICK)
    log.drain()
    world.sql("insert into t values (3, 'lost')")
    row = world.user.execute("select tableoid::regclass::text from cdc.change_log where op = 'I'").fetchone()
    assert row is not None
    before = log.complete_to
    world.sql(
        f"alter table {row[0]} disable trigger all", removal.format(row[0]),
        f"alter table {row[0]} enable always trigger kept",
    )  # fmt: skip
    log.drain()
    world.repaired_from("t", before, "removed rows of the change log")
    world.sql("insert into t values (4, 'kept')")
    log.drain()
    log.drain()  # a purge alters no trigger
    world.exact("t")


@pytest.mark.parametrize("given", ["alter table t owner to {}", "reassign owned by former_{0} to {0}"])
def test_trap_076_a_logged_table_with_a_new_owner(world: World, given: str) -> None:
    """Each upsert made it stale until the next `cdc init`: no function read it for the new owner."""
    world.config = world.config.model_copy(update={"table": {"public.t": TableConfig(capture=Capture.CHANGE_LOG)}})
    owner = f"owner_of_{world.user.info.dbname}"
    both = f"{owner}, former_{owner}"
    world.sql(f"create role {owner}", f"create role former_{owner}", f"grant all on schema public to {both}")
    try:
        log = world.start(*PAIR, f"alter table t owner to former_{owner}")
        world.sql(given.format(owner))
        if given.startswith("reassign"):  # fires no event trigger, and left a function that no command accepted
            log.drain()
        world.sql(
            "insert into t values (1, 'b') on conflict (id) do update set v = excluded.v",
        )
        log.drain()
        assert world.stale() == {}
        world.exact("t")
        install.install(log.conn, log.config.capture_rules, ddl=log.config.ddl, lock_seconds=3)
        copies = world.user.execute("select proname from pg_proc where proname ~ '^present_[0-9]+$'").fetchall()
        names = world.user.execute("select 'present_' || oid from pg_roles where rolname = %s", [owner]).fetchall()
        assert copies == names
    finally:
        world.sql(f"drop owned by {both} cascade", f"drop role {both}")

"""Traps of publications, and of roots that publish the rows of their partitions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
import pytest

from tests.support_log import Log
from tests.trap_world import PAIR, ROOT, World
from toolkit.capture import same_history
from toolkit.demo.server import EmbeddedServer
from toolkit.rawlog.batch import BatchRecord
from toolkit.source import catalog, install, preflight, selection, slot
from toolkit.source.connection import connect
from toolkit.values.errors import HistoryDiverged, PreflightFailed

pytestmark = pytest.mark.postgres


# -- what publishing does to the application


@pytest.mark.parametrize(
    ("number", "table", "found"),
    [
        (51, "create table t (id int)", "no replica identity"),
        (52, "create table t (id int primary key deferrable)", "deferrable primary key"),
    ],
)
def test_trap_051_and_052_publishing_must_not_break_the_application(
    world: World, number: int, table: str, found: str
) -> None:
    world.sql(table, "insert into t values (1)")
    named = world.config.model_copy(update={"source": world.config.source.model_copy(update={"tables": ("public.t",)})})
    with connect(named.source) as conn, pytest.raises(PreflightFailed, match=found):
        preflight.require(conn, named.capture_rules, ddl=named.ddl)
    with connect(world.config.source) as conn:
        assert [
            (r.identifier, found in why) for r, why in selection.left_out(conn, world.config.capture_rules).items()
        ] == [("public.t", True)]
        install.install(
            conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
        )
    world.sql("update t set id = 2")  # it was not published, so it still works


# -- publications


def test_trap_082_a_new_table_under_a_captured_name_is_red(world: World) -> None:
    log = world.start(*PAIR)  # FOR TABLE t
    world.sql("insert into t values (3, 'z')", "drop table t", *PAIR)
    log.drain()
    assert world.stale() == {"public.t": "a new table under the name of a captured one, not in the publication"}
    assert log.states()["public.t"].remedy == "cdc init"
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    log.drain()
    log.repair("public.t")
    world.exact("t")
    world.sql("drop table t", "create table t (id int)", "insert into t values (4)")  # `cdc init` would leave it out
    log.drain()
    assert log.states()["public.t"].remedy == "alter table public.t replica identity full, then cdc init"


def test_trap_083_a_shadow_swap_leaves_the_new_table_red(world: World) -> None:
    log = world.start(*PAIR)
    world.sql(
        "create table shadow (id bigint primary key, v text)", "begin", "alter table t rename to t_old",
        "alter table shadow rename to t", "commit", "insert into t values (9, 'unexplained')",
    )  # fmt: skip
    log.drain()
    assert set(world.stale()) == {"public.t"}
    world.exact("t_old")


def test_trap_090_a_publication_younger_than_the_slot(world: World, pg: EmbeddedServer) -> None:
    world.sql(*PAIR)
    with slot.create_slot(world.config.source, world.config.source.slot, cut_seconds=world.config.check.cut_seconds):
        pass
    world.sql("insert into t values (3, 'before the publication')")
    with connect(world.config.source) as conn:
        assert any(
            "does not exist, but slot" in str(f)
            for f in preflight.preflight(conn, world.config.capture_rules, ddl=world.config.ddl)
        )
        install.install(
            conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
        )
        log = Log(conn, world.config, world.directory)
        log.begin(slot.require_slot(conn, world.config.source).confirmed_flush_lsn)
        if pg.major >= 18:
            log.drain()  # skipped with a warning in the server's log; tables begin with their baseline anyway
        else:
            with pytest.raises(PreflightFailed, match="--new-generation"):
                log.drain()


def test_trap_091_a_publication_dropped_and_made_again_is_another_history(world: World) -> None:
    log = world.start(*PAIR)
    world.sql("drop publication cdc")
    with pytest.raises(HistoryDiverged, match="does not exist"):
        catalog.read_identity(log.conn, world.config.capture_rules)
    world.sql("insert into t values (3, 'lost')", "create publication cdc for table t")
    now = catalog.read_identity(log.conn, world.config.capture_rules)
    at = log.complete_to
    last = BatchRecord(1, 1, at, at, at, "slot", world.config.source.slot, log.identity, 0)
    with pytest.raises(HistoryDiverged, match="publication 'cdc'"):
        same_history.require_same_history(world.config.source, last, now, at, slot.flush_lsn(log.conn))


def test_trap_092_a_publish_list_is_red_as_long_as_it_lacks_anything(world: World) -> None:
    log = world.start(*PAIR)
    world.sql("alter publication cdc set (publish = 'insert')", "update t set v = 'unexplained'")
    log.drain()
    assert "sends insert only" in world.stale()["public.t"]
    assert "alter publication" in (log.states()["public.t"].remedy or "")
    log.repair("public.t")  # the rows are right, and the next UPDATE would not come
    assert "no publication sends delete, truncate, update of it" in world.stale()["public.t"]
    world.sql("alter publication cdc set (publish = 'insert, update, delete, truncate')")
    log.drain()
    assert "public.t" in world.stale()
    log.repair("public.t")
    world.sql("update t set v = 'captured'")
    log.drain()
    world.exact("t")


def test_trap_092_a_table_that_left_the_publication_stays_red(world: World) -> None:
    log = world.start(*PAIR, "create table other (id int primary key)")
    world.sql("alter publication cdc drop table t", "insert into t values (3, 'unexplained')")
    log.drain()
    assert world.stale() == {"public.t": "it left the publication"}
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    log.drain()
    assert "public.t" in world.stale()
    log.repair("public.t")
    world.exact("t", "other")
    # Whoever takes it out of the configuration as well wants it so.
    world.sql("alter publication cdc drop table t")
    log.config = world.config.model_copy(
        update={"source": world.config.source.model_copy(update={"exclude": ("public.t",)})}
    )
    log.drain()
    assert world.stale() == {}


def test_trap_092_a_table_that_its_extension_moves_out_of_the_published_schema_and_back(world: World) -> None:
    """ALTER EXTENSION SET SCHEMA names the extension only: what was written there was lost, and the table stayed ok."""
    found = world.user.execute("select name from pg_available_extensions where name in ('citext', 'vector')").fetchone()
    assert found is not None
    name = str(found[0])
    world.sql(*PAIR, "create schema aside", f"create extension {name} schema public", f"create table u (v {name})")
    world.sql(f"alter extension {name} add table t", "alter table u replica identity full")
    world.start(new_tables="schemas")
    world.sql(f"alter extension {name} set schema aside", "insert into aside.t values (3, 'aside')")
    world.sql(f"alter extension {name} set schema public")
    world.log.drain()
    assert "left the publication" in world.stale()["public.t"]
    assert world.log.states()["public.u"].comparable  # the name of its type is all that was altered
    world.log.repair("public.t")
    world.exact("t")


def test_trap_093_column_list(world: World) -> None:
    log = world.start(
        "create table t (id int primary key, v text, secret text)", "insert into t values (1, 'x', 's')",
        "create publication cdc for table t (id, v)",
    )  # fmt: skip
    world.sql(
        "alter table t add column later int default 5", "insert into t values (2, 'y', 's', 6)", "update t set v = 'z'"
    )
    log.drain()
    world.exact("t")
    assert log.rows(world.relid("t"), log.complete_to)[0] == (1, 2)
    world.sql("alter publication cdc set table t (id, v, later)")
    log.drain()
    assert "column later: joined the publication" in world.stale()["public.t"]
    log.repair("public.t")
    world.exact("t")


def test_trap_094_row_filter(world: World) -> None:
    log = world.start(
        "create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 20), (3, 30)",
        "alter table t replica identity full", "create publication cdc for table t where (n > 10)",
    )  # fmt: skip
    world.sql(
        "update t set n = 100 where id = 1", "update t set n = 5 where id = 2", "update t set n = 31 where id = 3",
        "update t set n = 6 where id = 2", "insert into t values (4, 7)",
    )  # fmt: skip
    log.drain()
    world.exact("t")
    # Its text names the column otherwise then, and lets the same rows through.
    world.sql('alter table t rename column n to "N m"', 'update t set "N m" = 50 where id = 2')
    log.drain()
    assert world.stale() == {}
    world.exact("t")
    world.sql("alter table t rename column id to n", "alter table t rename column n to id")
    world.sql('do $$ begin alter table t rename "N m" to x; alter table t rename id to n; end $$')
    world.sql("insert into t values (60, 60), (5, 5)")
    log.drain()
    assert world.stale() == {}
    world.exact("t")
    world.sql("alter publication cdc set table t where (n > 10)")  # the former text, of another column
    log.drain()
    assert "row filter" in world.stale()["public.t"]
    log.repair("public.t")
    world.sql("alter publication cdc set table t where (x > 30)")
    log.drain()
    assert "row filter" in world.stale()["public.t"]
    log.repair("public.t")
    world.exact("t")


# -- partitions under a root that publishes their rows


def test_trap_095_rows_of_partitions_come_under_the_root(world: World) -> None:
    log = world.start(*ROOT)
    world.sql(
        "insert into r values (2, 'c')", "update r set id = 12 where id = 1", "insert into r2 values (13, 'd')",
        "alter table r add column w int default 3", "create table r3 partition of r for values from (20) to (30)",
        "insert into r values (21, 'e', 4)", "delete from r1 where id = 2",
    )  # fmt: skip
    log.drain()
    world.exact("r")
    assert set(log.states()) == {"public.r"}


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("alter table r attach partition alone for values from (20) to (30)", "attached or detached"),
        ("alter table r detach partition r2", "attached or detached"),
        ("drop table r2", "r2 was dropped"),
        ("alter table r2 alter v type text using v || '!'", ""),
    ],
)  # fmt: skip
def test_trap_096_partitions_that_come_or_go_take_their_rows_along(world: World, statement: str, reason: str) -> None:
    log = world.start(*ROOT, "create table alone (id int primary key, v text)", "insert into alone values (25, 'c')")
    if not reason:
        with pytest.raises(psycopg.Error):  # a partition's column is its root's
            world.sql(statement)
        world.sql("alter table r alter v type text using v || '!'")
        reason = "rewritten"
    else:
        world.sql(statement)
    world.sql("insert into r values (3, 'later')")
    log.drain()
    assert reason in world.stale()["public.r"]
    log.repair("public.r")
    world.exact("r")


def test_trap_097_truncate_of_a_partition_is_captured(world: World) -> None:
    log = world.start(*ROOT)
    world.sql("begin", "truncate r", "insert into r values (5, 'after'), (15, 'after')", "commit")
    log.drain()
    world.exact("r")  # the root's own TRUNCATE empties all
    world.sql("truncate r2")
    log.drain()
    assert "partition public.r2 was truncated" in world.stale()["public.r"]
    log.repair("public.r")
    world.exact("r")


_BORN = {
    "created": ("create table r3 partition of r for values from (20) to (30)", "insert into r values (25, 'c')"),
    "created in parts": (
        "create table r3 partition of r for values from (20) to (30) partition by range (id)",
        "create table r30 partition of r3 for values from (20) to (25)", "insert into r values (21, 'c')",
        "savepoint a", "create table r31 partition of r3 for values from (25) to (30)",
        "insert into r values (26, 'd')", "release a",
    ),
    "attached": (
        "create table r3 (like r including all)", "insert into r3 values (25, 'c')",
        "alter table r attach partition r3 for values from (20) to (30)", "insert into r values (26, 'd')",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "chosen",
    [{"tables": ("public.r1",)}, {"tables": ("public.r*",), "exclude": ("public.r", "public.r2")}],
    ids=["a partition", "all but the root"],
)
def test_trap_096_a_partition_that_comes_as_its_root_is_listed(
    world: World, chosen: dict[str, tuple[str, ...]]
) -> None:
    """`cdc status` did not list it, and the remedy of `cdc doctor` changed nothing."""
    log = world.start(*ROOT, **chosen)
    world.sql("insert into r values (3, 'comes as a row of r')")
    log.drain()
    assert set(log.states()) == {"public.r"}
    listed = selection.not_captured(log.conn, log.config.capture_rules, ticks=False)
    assert list(listed) == ["public.r1"] and "rows are captured as those of public.r," in listed["public.r1"]
    assert f"table public.r1: {listed['public.r1']}" in world.findings()
    log.config = world.config.model_copy(
        update={"source": world.config.source.model_copy(update={"tables": ("public.r*",), "exclude": ()})}
    )
    assert selection.not_captured(log.conn, log.config.capture_rules, ticks=False) == {}


@pytest.mark.parametrize("how", _BORN)
def test_trap_097_truncate_in_the_transaction_that_made_the_partition(world: World, how: str) -> None:
    log = world.start(*ROOT)
    world.sql("begin", *_BORN[how], "truncate r3", "insert into r values (27, 'e')", "commit")
    log.drain()
    assert "public.r3" in world.stale()["public.r"] and "truncated" in world.stale()["public.r"]
    log.repair("public.r")
    log.drain()
    world.exact("r")
    world.sql("begin", "truncate r", "insert into r values (5, 'after'), (25, 'after')", "commit")
    log.drain()
    world.exact("r")  # the root's own TRUNCATE empties all, of the new partition too
    assert {e["payload"]["tag"] for e in log.of("ddl")}.isdisjoint({"CREATE TRIGGER"})
    assert len([e for e in log.of("ddl") if e["payload"]["tag"] == "ALTER TABLE"]) == (how == "attached")


def test_trap_097_a_root_made_later_is_captured_from_birth(world: World) -> None:
    log = world.start(*ROOT)
    world.sql(
        "begin", "create table q (id int primary key) partition by range (id)",
        "create table q1 partition of q for values from (0) to (10)", "insert into q values (1)", "truncate q",
        "insert into q values (2)", "commit",
    )  # fmt: skip
    log.drain()
    world.exact("q", "r")
    world.sql("truncate q1")
    log.drain()
    assert "public.q1 was truncated" in world.stale()["public.q"]


def test_trap_097_what_could_not_be_guarded_is_red_if_it_may_matter(world: World) -> None:
    log = world.start(*ROOT)
    log.conn.execute(
        "create or replace function cdc.guard(relid oid) returns void language plpgsql as"
        " $$ begin raise exception 'broken'; end $$;"
        "update cdc.settings set value = cdc.fingerprint() where name = 'functions'"
    )
    world.sql("create table r3 partition of r for values from (20) to (30)", "insert into r values (25, 'c')")
    log.drain()
    world.exact("r")
    world.sql(
        "begin", "create table r4 partition of r for values from (30) to (40)", "insert into r values (35, 'd')",
        "truncate r4", "commit",
    )  # fmt: skip
    log.drain()
    assert "public.r4 may have been truncated before its trigger stood" in world.stale()["public.r"]


def test_trap_097_the_guard_blocks_no_session(world: World, pg: EmbeddedServer) -> None:
    """Owners without rights, others' event triggers and locks, a dump restored beside: none of them meets it."""
    owner = f"owner_{world.user.info.dbname}"
    log = world.start(
        *ROOT, f"create role {owner}", f"grant all on schema public to {owner}",
        *(f"alter table {table} owner to {owner}" for table in ("r", "r1", "r2")),
        "create table seen_tags (tag text)", f"grant all on seen_tags to {owner}",
        "create function hear() returns event_trigger language plpgsql as"
        " $$ begin insert into public.seen_tags values (tg_tag); end $$",
        "create event trigger zz on ddl_command_end execute function hear()",
        "create table s (id int primary key) partition by range (id)",
        "create table s1 partition of s for values from (0) to (10)",
    )  # fmt: skip
    world.sql("truncate seen_tags", f"set role {owner}", "set cdc.guarding = 'forged'")
    world.sql("create table r3 partition of r for values from (20) to (30)")
    world.sql("begin", "create table r4 partition of r for values from (30) to (40)", "insert into r values (35, 'd')")
    world.sql("truncate r4", "commit", "reset role", "reset cdc.guarding")
    log.drain()
    log.drain()
    assert world.user.execute("select array_agg(tag) from seen_tags").fetchone() == (["CREATE TABLE", "CREATE TABLE"],)
    assert "public.r4 was truncated" in world.stale()["public.r"]
    assert len([e for e in log.of("ddl") if e["payload"]["tag"] == "CREATE TABLE"]) == 2
    world.sql(f"drop trigger _cdc_truncate_{world.relid('s1')} on s1")
    with psycopg.connect(world.config.source.conninfo) as other:
        other.execute("lock table s1 in row exclusive mode")
        world.sql("set statement_timeout = '2s'", "alter publication cdc set (publish = 'truncate')")
    dumped = subprocess.run(
        [pg.program("pg_dump"), "-t", "r*", world.config.source.conninfo], capture_output=True, text=True, check=True
    ).stdout
    world.sql("reset statement_timeout", "drop table r", "set check_function_bodies = off")
    plain = "\n".join(line for line in dumped.splitlines() if not line.startswith(("COPY", "\\")) and "\t" not in line)
    world.sql("begin", plain, "truncate public.r4", "commit", "reset all")
    log.drain()
    assert "public.r4 was truncated" in str([e["payload"]["reason"] for e in log.of("gap", world.relid("public.r"))])
    world.sql(f"drop owned by {owner} cascade", f"drop role {owner}")


def test_trap_097_truncate_before_the_trigger_stands(world: World) -> None:
    log = world.start(*ROOT)
    world.sql(
        "create table r3 partition of r for values from (20) to (30)", "insert into r values (25, 'c')",
        f"drop trigger _cdc_truncate_{world.relid('public.r1')} on r1", "truncate r1",
    )  # fmt: skip
    before = log.complete_to
    log.drain()
    world.repaired_from("r", before, "public.r1 may have been truncated before its trigger stood")
    install.uninstall(log.conn, world.config.source, lock_seconds=world.config.snapshot.lock_seconds)
    assert world.user.execute("select count(*) from pg_trigger where tgname like '\\_cdc\\_%'").fetchone() == (0,)


@pytest.mark.parametrize("off", ["drop trigger {} on r1", "alter table r1 disable trigger all"])
def test_trap_097_init_leaves_a_partition_whose_trigger_was_off_to_the_drain(world: World, off: str) -> None:
    """It made the trigger again, so the drain took the partition for one that was never without."""
    log = world.start(*ROOT)
    log.drain()
    world.sql(off.format(f"_cdc_truncate_{world.relid('r1')}"), "truncate r1")
    install.install(log.conn, log.config.capture_rules, ddl=log.config.ddl, lock_seconds=3)
    log.drain()
    assert "public.r1 may have been truncated before its trigger stood" in world.stale()["public.r"]
    log.repair("public.r")
    log.drain()
    world.exact("r")
    world.sql("truncate r1")
    log.drain()
    assert "public.r1 was truncated" in world.stale()["public.r"]


_GUARD = "create trigger {0} before truncate on r1 for each statement {1} execute function cdc.capture_truncate()"


@pytest.mark.parametrize(
    ("off", "back"),
    [
        ("drop trigger {0} on r1", f"{_GUARD}; alter table r1 enable always trigger {{0}}"),
        ("alter table r1 disable trigger all", "alter table r1 enable always trigger {0}"),
        ("alter table r1 enable replica trigger {0}", "begin; alter table r1 enable always trigger {0}; commit"),
        (
            f"drop trigger {{0}} on r1; {_GUARD.replace('{1}', 'when (false)')};"
            " alter table r1 enable always trigger {0}",
            "select",
        ),
    ],
    ids=["dropped", "disabled", "for replicas", "with a condition"],
)
def test_trap_097_a_partition_whose_trigger_is_back_before_the_drain(world: World, off: str, back: str) -> None:
    """A hand that put the trigger back left the root ok with the rows of the truncated partition."""
    log = world.start(*ROOT)
    log.drain()
    trigger = f"_cdc_truncate_{world.relid('r1')}"
    world.sql(*off.format(trigger, "").split("; "), "truncate r1", back.format(trigger, ""))
    before = log.complete_to
    log.drain()
    world.repaired_from("r", before, "may have been truncated")
    world.sql("alter table r1 disable trigger all", "insert into r values (2, 'c')")
    world.sql(f"alter table r1 enable always trigger {trigger}")
    log.drain()
    world.exact("r")  # the file of the partition proves that it was not truncated
    world.sql("truncate r1")
    log.drain()
    assert "public.r1 was truncated" in world.stale()["public.r"]
    log.repair("public.r")
    log.drain()
    world.exact("r")


def test_trap_097_each_lake_learns_of_a_partition_whose_trigger_was_off(world: World, tmp_path: Path) -> None:
    """The drain of one lake made the trigger again, and the root stayed ok in the other lake."""
    log = world.start(*ROOT)
    world.sql("create publication second for tables in schema public with (publish_via_partition_root = true)")
    changed = {"slot": f"{world.config.source.slot}_2", "publication": "second"}
    other = world.config.model_copy(update={"source": world.config.source.model_copy(update=changed)})
    with Log.started(other, tmp_path / "other") as second:
        try:
            for one in (log, second):
                one.drain()
            before = second.complete_to
            world.sql(f"drop trigger _cdc_truncate_{world.relid('r1')} on r1", "truncate r1")
            for one in (log, second):
                one.drain()
                state = one.states()["public.r"]
                assert "public.r1 may have been truncated before its trigger stood" in (state.reason or "")
                assert state.from_lsn is not None and state.from_lsn <= before
                one.repair("public.r")
                one.drain()
                assert one.states()["public.r"].comparable
                assert one.rows(world.relid("r"), one.complete_to) == one.select(world.relid("r"))
        finally:
            slot.drop_slot(log.conn, other.source.slot)

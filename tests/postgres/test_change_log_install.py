"""What prevents capture by triggers is reported by name, and nothing is installed."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests import commands
from tests.support_change_log import PARTITIONED, Log, with_table
from tests.support_postgres import fresh_database
from toolkit.demo.server import EmbeddedServer
from toolkit.source import catalog, change_log, connection, install, locks, preflight
from toolkit.values.errors import PreflightFailed
from toolkit.values.modes import Triggers

pytestmark = pytest.mark.postgres
_STATEMENT = {"triggers": "statement"}
_OTHER_METHOD = (
    "create function public.other(internal) returns table_am_handler language internal as 'heap_tableam_handler';"
    "create access method other type table handler public.other"
)


@pytest.mark.parametrize(
    ("ddl", "settings", "found"),
    [
        ("create table public.t (id regclass primary key)", {}, "key column id of type regclass.*column id type oid"),
        ("create table public.t (id regclass[] primary key)", {}, r"column id of type regclass\[\].*id type oid\[\]"),
        ("create unlogged table public.t (id int primary key)", {}, "is unlogged.*alter table public.t set logged"),
        (PARTITIONED.replace("public.m", "public.t"), _STATEMENT, 'is partitioned.*triggers = "row"'),
        ("create table public.t (id int); create table public.t2 () inherits (public.t)", _STATEMENT, "tree"),
        ("create view public.t as select 1 as id", {}, "is a view"),
        (
            f"{_OTHER_METHOD}; create table public.t (id int) using other",
            {}, "access method 'other'.*set access method heap",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_refused_by_name_before_anything_is_installed(log: Log, ddl: str, settings: dict[str, str], found: str) -> None:
    log.conn.execute(ddl)
    tables = "public.t" if "view" in ddl or "unlogged" in ddl else "public.t*"  # those are errors if named
    chosen = log.config.source.model_copy(update={"tables": (tables,)})
    log = Log(log.config.model_copy(update={"source": chosen}), log.conn)
    log = with_table(log, "public.*", capture="change_log", **settings)
    with pytest.raises(PreflightFailed, match=r"table public\.t\d?:? .*" + found):
        log.install()
    assert not catalog.installed(log.conn)


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_an_access_method_that_is_heap_in_all_but_name_is_captured(log: Log) -> None:
    log.conn.execute("create access method h2 type table handler heap_tableam_handler")
    log.conn.execute("create table public.t (id int primary key) using h2")
    log.install()
    assert log.during("insert into t values (1)", "delete from t") == [("I", None, "(1)"), ("D", "(1)", None)]
    log.conn.execute(f"{_OTHER_METHOD}; alter table public.t set access method other")
    assert log.conn.execute("select count(*) from cdc.logged_tables").fetchone() == (0,), "what the comparison sees"


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_a_role_that_does_not_own_the_table_learns_which_grant_it_needs(log: Log, database: str) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    log.conn.execute("create role keeper login; create role owning; grant create on database {} to keeper".format(
        re.search(r"dbname=(\w+)", database)[1]  # type: ignore[index]
    ))  # fmt: skip
    try:
        log.conn.execute("alter table public.t owner to owning")
        chosen = log.config.source.model_copy(update={"conninfo": re.sub(r"user=\w+", "user=keeper", database)})
        config = log.config.model_copy(update={"source": chosen})
        with (
            connection.connect(config.source) as conn,
            pytest.raises(PreflightFailed, match='grant "owning" to "keeper"'),
        ):
            preflight.require(conn, config.capture_rules, ddl=config.ddl)
    finally:
        log.conn.execute("drop owned by owning, keeper; drop role owning; drop role keeper")


def test_uninstall_leaves_nothing_of_the_change_log(log: Log) -> None:
    """psycopack's defect (c): functions and a registry row stayed, and the other strategy was refused for ever."""
    log.conn.execute(PARTITIONED)
    log.install()
    install.uninstall(log.conn, log.config.source, lock_seconds=log.config.snapshot.lock_seconds)
    assert log.conn.execute("select count(*) from pg_trigger where tgname like '!cdc%'").fetchone() == (0,)
    left = "select (select count(*) from pg_proc where proname ~ '^(log_|is_gone|key_index)'), to_regnamespace('cdc')"
    assert log.conn.execute(left).fetchone() == (0, None)
    log.conn.execute("insert into public.m values (9, 9, 'z')")
    by_slot = log.config.model_copy(update={"source": log.config.source.model_copy(update={"capture": "slot"})})
    install.install(log.conn, by_slot.capture_rules, ddl=by_slot.ddl, lock_seconds=by_slot.snapshot.lock_seconds)
    assert catalog.installed(log.conn)
    install.uninstall(log.conn, by_slot.source, lock_seconds=by_slot.snapshot.lock_seconds)


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_trap_124_a_long_transaction_and_a_large_log_are_alarms(
    log: Log, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    log.install()
    assert list(change_log.health(log.conn)) == []
    with psycopg.connect(database) as idle:
        idle.execute("insert into t values (1)")
        monkeypatch.setattr(change_log, "_LONG_SECONDS", -1)
        monkeypatch.setattr(change_log, "_LARGE_LOG", 0)
        pid = idle.info.backend_pid
        found = [
            str(f)
            for f in preflight.preflight(log.conn, log.config.capture_rules, ddl=log.config.ddl)
            if f.level == "warning"
        ]
    assert any("change log: holds" in text for text in found)
    assert any(f"transaction of pid {pid}" in text and "is open for" in text for text in found)


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_the_cost_of_capture_is_predicted_before_anything_is_installed(log: Log) -> None:
    log.conn.execute("create table public.t (id int primary key); create table public.u (id int primary key)")
    log = with_table(log, "public.u", triggers="statement")

    def predicted(changes: str) -> dict[str, tuple[str, int, int, int]]:
        log.conn.execute(changes)
        log.conn.execute("select pg_stat_force_next_flush()")
        log.conn.execute("select 1")
        text = commands.plan_sql(log.config)
        found = re.findall(
            r"^-- (\S+): about ([\d,]+) changes a day; (\w+) triggers take about ([\d,]+) s of the server's CPU a day"
            r" if they come in bulk, up to ([\d,]+) s if one by one$",
            text, re.MULTILINE,
        )  # fmt: skip
        return {t: (how, *(int(number.replace(",", "")) for number in (n, *cost))) for t, n, how, *cost in found}

    assert predicted("insert into public.t values (0)") == {}, "there is no rate over an unknown time"
    assert "public.t: 1 changes counted, since when is not known; row" in commands.plan_sql(log.config)
    log.conn.execute("select pg_stat_reset()")  # from here on the server counts
    few = predicted("insert into public.t select generate_series(1, 100000)")
    assert (few["public.t"][0], few["public.u"][:2]) == ("row", ("statement", 0))
    more = predicted("insert into public.u select generate_series(1, 100000); update public.t set id = -id")
    assert (more["public.t"][1], more["public.u"][1]) > (100_000, 100_000)
    assert more["public.t"][1] == pytest.approx(2 * more["public.u"][1], rel=0.01), "in proportion to the changes"
    for how, changes, bulk, single in more.values():
        for seconds, cost in zip((bulk, single), change_log._MICROSECONDS[Triggers(how)], strict=True):
            assert seconds == pytest.approx(changes * cost / 1e6, rel=0.01)
    assert not catalog.installed(log.conn)


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
@pytest.mark.parametrize("change", ["install", "uninstall"])
def test_who_waits_for_a_table_holds_no_other(log: Log, database: str, change: str) -> None:
    """With both locks in one transaction, writers that take the tables in another order kept it out for 30 s (CI)."""
    for table in "abc":
        log.conn.execute(f"create table public.{table} (id int primary key)")
    work = log.install
    if change == "uninstall":
        log.install()
        work = lambda: install.uninstall(log.conn, log.config.source, lock_seconds=log.config.snapshot.lock_seconds)  # noqa: E731
    awaited = "select count(*) from pg_locks where relation = 'public.b'::regclass and not granted"
    with (
        psycopg.connect(database) as holder, psycopg.connect(database, autocommit=True) as other,
        ThreadPoolExecutor(1) as pool,
    ):  # fmt: skip
        holder.execute("insert into b values (1)")
        changing = pool.submit(work)
        while other.execute(awaited).fetchone() != (1,):
            assert not changing.done(), changing.result()
        other.execute("set lock_timeout = '200ms'")  # less than one wait of ours
        for table in "ac":
            other.execute(f"insert into {table} values (1)")
        holder.commit()
        changing.result()
    whole = log.conn.execute("select count(*) from pg_trigger where tgname = '!cdc_row'").fetchone()
    assert whole == (3 if change == "install" else 0,)


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
@pytest.mark.parametrize("before", ["nothing", "b"])
def test_a_table_that_cannot_be_had_leaves_no_half_of_an_install(log: Log, database: str, before: str) -> None:
    for table in "abc":
        log.conn.execute(f"create table public.{table} (id int primary key)")
    alone = log.config.source.model_copy(update={"tables": ("public.b",)})
    if before == "b":
        install.install(
            log.conn,
            log.config.model_copy(update={"source": alone}).capture_rules,
            ddl=log.config.model_copy(update={"source": alone}).ddl,
            lock_seconds=log.config.model_copy(update={"source": alone}).snapshot.lock_seconds,
        )
    logged = "select coalesce(array_agg(tgrelid::regclass::text), '{}') from pg_trigger where tgname = '!cdc_row'"
    quick = log.config.model_copy(update={"snapshot": log.config.snapshot.model_copy(update={"lock_seconds": 1})})
    with psycopg.connect(database) as holder:
        holder.execute("insert into c values (1)")
        with pytest.raises(locks.LockTimeout, match=r"putting triggers on public\.c: waited 1 s"):
            install.install(log.conn, quick.capture_rules, ddl=quick.ddl, lock_seconds=quick.snapshot.lock_seconds)
    assert log.conn.execute(logged).fetchone() == ([] if before == "nothing" else ["public.b"],)
    assert catalog.begun(log.conn) == (before == "b")
    log.install()
    found = log.conn.execute(logged).fetchone()
    assert found and sorted(found[0]) == ["public.a", "public.b", "public.c"]


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_an_autovacuum_gives_way_to_install(log: Log, database: str) -> None:
    """It does so only once a waiter has looked for deadlocks, which takes longer than one of our waits."""
    log.conn.execute("create table public.t (id int primary key) with (autovacuum_enabled = off)")
    log.conn.execute("insert into public.t select generate_series(1, 100000); delete from public.t where id % 2 = 0")
    vacuums = "select count(*) from pg_stat_progress_vacuum where relid = 'public.t'::regclass"
    log.conn.execute("alter system set autovacuum_naptime = 1")
    log.conn.execute("select pg_reload_conf()")
    try:
        log.conn.execute(
            "alter table public.t set (autovacuum_enabled, autovacuum_vacuum_threshold = 1,"
            " autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1)"
        )
        while log.conn.execute(vacuums).fetchone() == (0,):
            pass
        quick = log.config.model_copy(update={"snapshot": log.config.snapshot.model_copy(update={"lock_seconds": 3})})
        install.install(log.conn, quick.capture_rules, ddl=quick.ddl, lock_seconds=quick.snapshot.lock_seconds)
    finally:
        log.conn.execute("alter system reset autovacuum_naptime")
        log.conn.execute("select pg_reload_conf()")
    assert log.conn.execute("select count(*) from cdc.logged_tables").fetchone() == (1,)


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_rows_of_a_subscription_fire_row_triggers_only(log: Log, database: str, pg: EmbeddedServer) -> None:
    """Its apply worker is a replica and fires no statement triggers: such a table is refused, or no longer captured."""
    log.conn.execute("create table public.t (id int primary key)")
    statement = with_table(log, "public.t", triggers="statement")
    statement.install()
    captured = "select count(*) from cdc.logged_tables"
    assert log.conn.execute(captured).fetchone() == (1,)
    with fresh_database(pg) as upstream, psycopg.connect(upstream, autocommit=True) as publisher:
        publisher.execute("create table public.t (id int primary key); create publication p for table public.t")
        publisher.execute("select pg_create_logical_replication_slot('cdc_up', 'pgoutput')")
        log.conn.execute(
            f"create subscription s connection '{upstream}' publication p"
            " with (create_slot = false, slot_name = 'cdc_up')"
        )
        try:
            assert log.conn.execute(captured).fetchone() == (0,), "the catalog comparison sees it and turns it red"
            with pytest.raises(PreflightFailed, match=r'table public\.t: receives rows from a subscription.*"row"'):
                preflight.require(log.conn, statement.config.capture_rules, ddl=statement.config.ddl)
            log.install()
            assert log.conn.execute(captured).fetchone() == (1,)
            since = log.tick()
            publisher.execute("insert into public.t values (7)")
            while log.conn.execute("select count(*) from public.t").fetchone() == (0,):
                pass
            assert log.ops(since, log.tick()) == [("I", None, "(7)")]
        finally:
            log.conn.execute("alter subscription s disable; alter subscription s set (slot_name = none)")
            log.conn.execute("drop subscription s")
            worker = (
                "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots where slot_name = 'cdc_up'"
            )
            publisher.execute(worker)


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_the_plan_runs_no_statement_of_a_tables_name(log: Log) -> None:
    """The owner of a table may write a line break into its name, and the plan has the name in a comment."""
    log.conn.execute('create table public."a\ncreate table public.stolen (); --" (id int primary key)')
    log = with_table(log, "public.*", capture="change_log")
    log.conn.execute("select pg_catalog.pg_stat_reset()")
    plan = commands.plan_sql(log.config)
    assert "changes a day" in plan
    log.conn.execute(plan)
    assert log.conn.execute("select pg_catalog.to_regclass('public.stolen')").fetchone() == (None,)


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
@pytest.mark.parametrize("kept", ["insert or update of id or delete on t for each row", "{all} when (false)"])
def test_init_replaces_a_trigger_that_does_not_fire_for_every_row(log: Log, kept: str) -> None:
    """It stayed, although `cdc doctor` said to run `cdc init`."""
    log.conn.execute("create table public.t (id int primary key, v text)")
    log.install()
    clause = kept.format(all="insert or update or delete on t for each row")
    other = f'create or replace trigger "!cdc_row" after {clause} execute function cdc.log_row()'
    assert log.during(other, "insert into t values (1)", "update t set v = 'x'")[1:] == []
    assert [table for table, _ in change_log.faults(log.conn, log.config.capture_rules)] == ["public.t"]
    log.install()
    assert list(change_log.faults(log.conn, log.config.capture_rules)) == []
    assert log.during("update t set v = 'y'") == [("U", "(1,x)", "(1,y)")]

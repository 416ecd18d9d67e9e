"""Capture by triggers and ticks on real servers; no lake. Trap rows 33 to 36 and 121 to 131."""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest

from tests.support_change_log import PARTITIONED, Log, Row, image, with_table
from tests.support_postgres import mostly_one_server
from tests.support_writers import TABLES, source_rows, writing
from toolkit.source import catalog, change_log, install, snapshot_rows, ticks
from toolkit.source.locks import LockTimeout
from toolkit.values.lsn import Lsn

pytestmark = pytest.mark.postgres


def test_trap_121_an_open_writer_is_neither_missed_nor_waited_for(log: Log, database: str) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    log.install()
    start = log.tick()
    with psycopg.connect(database) as slow, psycopg.connect(database, autocommit=True) as fast:
        slow.execute("insert into t values (1)")
        fast.execute("insert into t values (2)")
        first = log.tick()
        fast.execute("insert into t values (3)")
        second = log.tick()
        slow.commit()
        third = log.tick()
    assert log.ops(start, first) == [("I", None, "(2)")]
    assert log.ops(first, second) == [("I", None, "(3)")]
    assert log.ops(second, third) == [("I", None, "(1)")], "a watermark over order of writing would be past it"
    assert Counter(log.ops(start, third)) == Counter(("I", None, f"({i})") for i in (1, 2, 3))
    assert log.ops(first, second) == log.ops(first, second), "a tick that is read again is the same"
    # The planted fault: a reader of everything above the highest xid it has seen.
    high = max(row.xid for row in log.rows(start, second))
    late = [row.xid for row in log.rows(second, third)]
    assert late and all(xid < high for xid in late)


def test_trap_033_a_tick_shows_a_later_commit_without_an_earlier_writer(log: Log, database: str) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    log.install()
    with psycopg.connect(database) as a, psycopg.connect(database, autocommit=True) as b:
        a.execute("insert into t values (1)")
        b.execute("insert into t values (2)")
        with ticks.tick_cut(log.config.source) as cut:
            a.commit()
            with snapshot_rows.reader(log.config.source, cut) as reader:
                assert reader.execute("select id from public.t").fetchall() == [(2,)]
            taken = ticks.known(log.conn, cut.lsn)
    assert taken is not None and taken.snapshot == cut.tick
    assert log.ops(taken, log.tick()) == [("I", None, "(1)")], "what the copy lacks comes in the next tick"


def test_trap_034_a_tick_waits_for_no_session(log: Log, database: str) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    log.install()
    with psycopg.connect(database) as blocker:
        blocker.execute("insert into t values (1)")
        with ticks.exact_cut(
            log.config.capture_rules, cut_seconds=log.config.check.cut_seconds
        ) as cut:  # a slot would wait here until the budget is spent
            assert cut.tick is not None and cut.slot == ""


def test_trap_035_a_writer_older_than_the_triggers(log: Log, database: str) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    quick = log.config.model_copy(update={"snapshot": log.config.snapshot.model_copy(update={"lock_seconds": 1})})
    with psycopg.connect(database) as old:
        old.execute("insert into t values (1)")
        with pytest.raises(LockTimeout, match=r"held by pid \d+.*insert into t"):
            install.install(log.conn, quick.capture_rules, ddl=quick.ddl, lock_seconds=quick.snapshot.lock_seconds)
        left = log.conn.execute("select count(*) from pg_namespace where nspname = 'cdc'").fetchone()
        assert left == (0,), "what was installed before the refusal is taken back"
        old.rollback()
    with psycopg.connect(database) as old:
        old.execute("select 1")  # a snapshot and a transaction from before the triggers, which has not written yet
        old.execute("select pg_current_xact_id()")
        log.install()
        start = log.tick()
        old.execute("insert into t values (2)")
        old.commit()
    assert log.ops(start, log.tick()) == [("I", None, "(2)")]


@mostly_one_server
def test_trap_036_copy_and_ticks_meet_without_gap_or_double_under_writers(log: Log, database: str, seed: int) -> None:
    log.conn.execute(TABLES)
    log.install()
    with writing(database, count=4, seed=seed) as writers:
        while len(writers.seen_by_watermark) < 30:
            pass
        with ticks.tick_cut(log.config.source) as cut, snapshot_rows.reader(log.config.source, cut) as reader:
            rows = reader.execute("select id::text, v::text, note from public.item").fetchall()
        more = len(writers.seen_by_watermark) + 30
        while len(writers.seen_by_watermark) < more:
            pass
    since, upto = ticks.known(log.conn, cut.lsn), log.tick()
    assert since is not None
    relid = log.conn.execute("select 'public.item'::regclass::oid::int").fetchone()
    state = {row[0]: tuple(row) for row in rows}
    for row in log.rows(since, upto):
        if relid == (row.relid,):
            old, new = (image(text, 3) for text in (row.old, row.new))
            if old is not None:
                assert state.pop(old[0]) == old, "the old image is what was there"
            if new is not None:
                assert new[0] not in state
                state[new[0]] = new
    assert Counter(state.values()) == source_rows(database, "public.item")


def test_trap_122_an_earlier_xid_may_write_the_later_value(log: Log, database: str) -> None:
    log.conn.execute("create table public.t (id int primary key, v text)")
    log.conn.execute("insert into public.t values (1, 'start')")
    log.install()
    start = log.tick()
    with psycopg.connect(database) as early, psycopg.connect(database) as late:
        first = early.execute("select pg_current_xact_id()::text::bigint").fetchone()
        late.execute("update t set v = 'late' where id = 1")
        late.commit()
        early.execute("update t set v = 'early' where id = 1")
        early.commit()
    rows = log.rows(start, log.tick())
    assert [row.new for row in rows] == ["(1,late)", "(1,early)"]
    assert first == (rows[1].xid,) and rows[1].xid < rows[0].xid


def test_trap_123_no_sequence_to_cache_and_lastval_stays(log: Log, database: str) -> None:
    log.conn.execute("create table public.t (id bigserial primary key)")
    log.install()
    found = log.conn.execute(
        "select count(*) from pg_class where relkind = 'S' and relnamespace = 'cdc'::regnamespace"
    ).fetchone()
    assert found == (0,)
    with psycopg.connect(database, autocommit=True) as app:
        app.execute("insert into t default values")
        assert app.execute("select lastval() = (select max(id) from t)").fetchone() == (True,)


def test_trap_124_a_long_transaction_holds_up_no_other_session(log: Log, database: str) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    log.install()
    since = log.tick()
    with psycopg.connect(database) as idle, psycopg.connect(database, autocommit=True) as app:
        idle.execute("insert into t values (0)")
        for i in range(1, 6):
            app.execute("insert into t values (%s)", [i])
            upto = log.tick()
            assert log.ops(since, upto) == [("I", None, f"({i})")]
            since = upto
        idle.commit()
    assert log.ops(since, log.tick()) == [("I", None, "(0)")]


def test_trap_126_the_applications_settings_do_not_leak_in(log: Log, database: str) -> None:
    log.conn.execute(
        "create table public.t (id int primary key, b bytea, i interval, f float8, t timestamptz, m money, r regclass)"
    )
    log.install()
    since = log.tick()
    for number, settings in enumerate(
        (
            "set bytea_output = escape; set intervalstyle = iso_8601; set extra_float_digits = -5",
            "set datestyle = 'German'; set lc_monetary = 'C'; set timezone = 'Japan'; set quote_all_identifiers = on",
        )
    ):
        with psycopg.connect(database, autocommit=True) as app:
            app.execute(settings)
            app.execute(
                "insert into t"
                " values (%s, '\\x00ff', '1 day', 0.1::float8 + 0.2, '2024-01-02 03:04:05.6+00', '1.5', 'pg_class')",
                [number],
            )
    texts = {(row.new or "")[2:] for row in log.rows(since, log.tick())}
    assert texts == {',"\\\\x00ff","1 day",0.30000000000000004,"2024-01-02 03:04:05.6+00",$1.50,pg_class)'}


def test_trap_127_what_goes_past_a_trigger(log: Log, database: str) -> None:
    log.conn.execute("create table public.t (id int primary key, v int)")
    log.conn.execute("insert into public.t values (1, 1)")
    log.install()
    assert log.during("set session_replication_role = replica; insert into t values (2, 2)") == [("I", None, "(2,2)")]
    before = log.conn.execute("select count(*) from cdc.logged_tables").fetchone()
    since = log.tick()
    log.conn.execute("alter table public.t disable trigger user")
    assert log.conn.execute("select count(*) from cdc.logged_tables").fetchone() == (0,)
    log.conn.execute("insert into public.t values (3, 3)")
    assert log.rows(since, log.tick()) == []
    texts = [row.new or "" for row in log.rows(since, log.tick(), messages=True)]
    assert any('"published": false' in text for text in texts), "the DDL event says that capture stopped"
    assert change_log.recheck(log.conn, log.config.capture_rules) == ("public.t",)
    assert log.conn.execute("select count(*) from cdc.logged_tables").fetchone() == before
    since = log.tick()
    log.conn.execute("alter table public.t alter v type bigint")
    log.conn.execute("alter table public.t add w int default 5")
    assert log.rows(since, log.tick()) == []
    assert len(log.rows(since, log.tick(), messages=True)) >= 2, "rewrites log no row; the DDL is in the log itself"


def _names(log: Log, rows: list[Row]) -> list[tuple[str, str]]:
    found = log.conn.execute("select oid::int, relname from pg_class").fetchall()
    names: dict[int, str] = dict(found)
    return [(names[row.relid], row.op) for row in rows]


def test_trap_128_truncate_of_leaf_and_root(log: Log) -> None:
    log.conn.execute(PARTITIONED)
    log.install()
    since = log.tick()
    log.conn.execute("truncate public.m1")
    middle = log.tick()
    log.conn.execute("truncate public.m")
    assert _names(log, log.rows(since, middle)) == [("m1", "T")]
    assert sorted(_names(log, log.rows(middle, log.tick()))) == [("m", "T"), ("m1", "T"), ("m2", "T")]


def test_trap_129_partitions_come_and_go(log: Log) -> None:
    log.conn.execute(PARTITIONED)
    log.install()
    assert log.during("update m set d = 12 where id = 1") == [("D", "(1,1,a)", None), ("I", None, "(1,12,a)")]
    log.conn.execute("create table public.m3 partition of public.m for values from (20) to (30)")
    assert log.during("insert into m values (3, 21, 'c')") == [("I", None, "(3,21,c)")], "rows of a new leaf from birth"
    captured = {row[0] for row in log.conn.execute("select relid::regclass::text from cdc.logged_tables").fetchall()}
    assert "public.m3" in captured, "as one whose TRUNCATE is captured"
    log.conn.execute("alter table public.m detach partition public.m1")
    assert log.during("insert into m1 values (4, 4, 'alone')") == [("I", None, "(4,4,alone)")]
    log.conn.execute("set cdc.capture = off; create table public.m4 partition of public.m for values from (30) to (40)")
    assert log.during("insert into m values (5, 31, 'lost')") == []
    assert change_log.recheck(log.conn, log.config.capture_rules) == ("public.m4",)
    assert log.during("insert into m values (6, 32, 'seen')") == [("I", None, "(6,32,seen)")]
    assert change_log.recheck(log.conn, log.config.capture_rules) == ()


def test_trap_130_savepoints_keep_the_top_level_xid(log: Log, database: str) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    log.install()
    since = log.tick()
    with psycopg.connect(database) as app:
        top = app.execute("select pg_current_xact_id()::text::bigint").fetchone()
        for i in range(3):
            app.execute("savepoint s")
            app.execute("insert into t values (%s)", [i])
            app.execute("rollback to s" if i == 1 else "release s")
        between = log.tick()
        app.commit()
    assert log.rows(since, between) == []
    rows = log.rows(since, log.tick())
    assert top is not None
    assert [(row.xid, row.new) for row in rows] == [(top[0], "(0)"), (top[0], "(2)")]


@mostly_one_server
def test_trap_131_purge_takes_only_what_is_drained(log: Log, database: str, seed: int) -> None:
    log.conn.execute(TABLES)
    log.install()
    collected: Counter[Row] = Counter()
    purged: Counter[int] = Counter()
    since = log.tick()
    with writing(database, count=4, seed=seed) as writers, psycopg.connect(database) as slow:
        slow.execute("insert into public.journal (writer, n) values (-1, 0)")  # keeps a part: the third one is needed
        while len(purged) < 3 or purged.total() < 6 or len(writers.seen_by_watermark) < 200:
            upto = log.tick()
            collected.update(log.rows(since, upto))
            purged.update(change_log.purge(log.conn, upto.snapshot))
            since = upto
            if set(purged) == {1, 2}:
                slow.commit()
            assert not writers.errors
    upto = log.tick()
    collected.update(log.rows(since, upto))
    assert max(collected.values()) == 1, "no row is read twice"
    relid = log.conn.execute("select 'public.journal'::regclass::oid::int").fetchone()
    seen = Counter(row.new.split(",")[0][1:] for row in collected if (row.relid,) == relid and row.new)
    assert seen == Counter(row[0] for row in source_rows(database, "public.journal"))
    for _ in range(2):
        change_log.purge(log.conn, upto.snapshot)
    assert log.conn.execute("select count(*) from cdc.change_log").fetchone() == (0,)


def test_trap_131_purge_waits_for_no_session_and_none_for_it(log: Log, database: str) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    log.install()

    def part_of(key: int) -> tuple[int]:
        found = log.conn.execute("select part from cdc.change_log where new = %s", [f"({key})"]).fetchone()
        assert found is not None
        return found

    locked = (
        "select relation::regclass::text from pg_locks where pid = pg_backend_pid() and mode = 'AccessExclusiveLock'"
        " and relation in (select relid from cdc.log_parts)"
    )
    with psycopg.connect(database, autocommit=True) as app:
        app.execute("insert into t values (1)")
        drained = log.tick()
        with log.conn.transaction():
            assert change_log.purge(log.conn, drained.snapshot) == (), "it is the part that is written to"
            assert log.conn.execute(locked).fetchall() == []
            app.execute("set lock_timeout = '1ms'; insert into t values (2); reset lock_timeout")
        assert part_of(2) == (0,)
        drained = log.tick()
        with psycopg.connect(database) as writer:
            writer.execute("insert into t values (3)")
            with log.conn.transaction():
                assert change_log.purge(log.conn, drained.snapshot) == (0,)
                assert log.conn.execute(locked).fetchall() == [("cdc.change_log_0",)]
                app.execute("insert into t values (4)")
            assert change_log.purge(log.conn, log.tick().snapshot) == (), "row 3 is not committed"
            app.execute("insert into t values (5)")
            writer.commit()
        assert change_log.purge(log.conn, drained.snapshot) == (), "rows 3 and 4 are not drained"
        assert len({part_of(3), part_of(4), part_of(5)}) == 2, "rows of an open transaction do not stop the rotation"
    assert log.ops(drained, log.tick()) == [("I", None, "(3)"), ("I", None, "(4)"), ("I", None, "(5)")]


def test_a_key_that_is_written_again_while_it_is_drained_is_not_lost(log: Log, database: str) -> None:
    """psycopack's defect (e): one log row a key, and the drain removed it together with the newer change of the key."""
    log.conn.execute("create table public.t (id int primary key, v int)")
    log.install()
    since = log.tick()
    with psycopg.connect(database, autocommit=True) as app, psycopg.connect(database) as other:
        app.execute("insert into t values (1, 1)")
        upto = log.tick()
        assert log.ops(since, upto) == [("I", None, "(1,1)")]
        app.execute("update t set v = 2 where id = 1")  # committed between reading and purging
        assert change_log.purge(log.conn, upto.snapshot) == ()
        other.execute("update t set v = 3 where id = 1")  # and one that is open while its key is purged
        following = log.tick()
        assert log.ops(upto, following) == [("U", "(1,1)", "(1,2)")]
        change_log.purge(log.conn, following.snapshot)
        other.commit()
    assert log.ops(following, log.tick()) == [("U", "(1,2)", "(1,3)")]


def test_the_order_of_arrival_in_a_tick_does_not_matter(log: Log) -> None:
    log.conn.execute("create table public.t (id int primary key, v text)")
    log.install()
    since = log.tick()
    expected = log.during(
        "insert into t values (1, 'a'), (2, 'a')",
        "begin; delete from t where id = 1; insert into t values (1, 'b'); update t set v = 'c' where id = 1; commit",
        "delete from t where id = 2",
        "insert into t values (2, 'd')",
    )
    upto = log.tick()
    backwards = "insert into cdc.change_log select * from moved order by lsn desc, xid desc"
    log.conn.execute(f"with moved as (delete from cdc.change_log returning *) {backwards}")
    assert log.conn.execute("select new from cdc.change_log limit 1").fetchone() == ("(2,d)",)
    assert log.ops(since, upto) == expected


def test_every_way_to_write_is_logged(log: Log, database: str) -> None:
    log.conn.execute(
        "create table public.p (id int primary key);"
        "create table public.c (id int primary key, p int references public.p on delete cascade on update cascade)"
    )
    log.install()
    rows = log.during(
        "insert into p values (1), (2)",
        "insert into c values (10, 1) on conflict (id) do update set p = 1",
        "insert into c values (10, 1) on conflict (id) do update set p = 2",
        "merge into p using (values (2), (3)) as s (id) on p.id = s.id"
        " when matched then update set id = 4 when not matched then insert values (s.id)",
        "copy p from program 'echo 7'",
        "delete from p where id = 4",
    )
    assert Counter(rows) == Counter([
        ("I", None, "(1)"),
        ("I", None, "(2)"),
        ("I", None, "(10,1)"),
        ("U", "(10,1)", "(10,2)"),
        ("U", "(2)", "(4)"),
        ("U", "(10,2)", "(10,4)"),
        ("I", None, "(3)"),
        ("I", None, "(7)"),
        ("D", "(4)", None),
        ("D", "(10,4)", None),
    ])  # fmt: skip


def test_a_change_by_the_users_own_trigger_is_logged_after_what_fired_it(log: Log) -> None:
    log.conn.execute(
        "create table public.t (id int primary key, v int);"
        "create function public.again() returns trigger language plpgsql as $$ begin"
        "  update public.t set v = 100 where id = new.id and v <> 100; return null; end $$;"
        'create trigger "A first" after insert or update on public.t for each row execute function public.again()'
    )
    log.install()
    assert log.during("insert into t values (1, 1)") == [("I", None, "(1,1)"), ("U", "(1,1)", "(1,100)")]


def test_what_is_logged_late_is_followed_by_what_its_key_holds(log: Log) -> None:
    log.conn.execute(
        "create table public.t (id int primary key, self int references public.t deferrable, v int);"
        "insert into public.t values (1, 1, 1), (2, 1, 2), (3, 3, 3);"
        "create function public.other() returns trigger language plpgsql as $$ begin"
        "  update public.t set v = v + 100 where new.id = 1 and new.v < 100 and id = 2; return null; end $$;"
        "create trigger other after update on public.t for each row execute function public.other()"
    )
    log.install()
    assert [op for op, _, _ in log.during("update t set v = v + 1 where id = 1")] == ["U", "U"]
    assert log.during("update t set v = v + 1 where id < 3") == [
        ("U", "(1,1,2)", "(1,1,3)"),
        ("U", "(2,1,103)", "(2,1,203)"),  # the row was 103 for a moment, in a change that is logged behind
        ("D", "(2,1,102)", None),
        ("I", None, "(2,1,203)"),
    ]
    # Rows that a foreign key or an upsert only locks are not changed again.
    assert [op for op, _, _ in log.during("insert into t values (5, 6, 0), (6, 5, 0)")] == ["I", "I"]
    upsert = "insert into t values (5, 5, 1), (6, 6, 1) on conflict (id) do update set v = 9"
    assert [op for op, _, _ in log.during(upsert)] == ["U", "U"]


def test_without_publications_a_stored_generated_column_is_known_not_to_be_sent(log: Log) -> None:
    """Its shape said neither yes nor no, so no DDL message of the table could be read, and every table went stale."""
    log.conn.execute(
        "create table public.g (id int primary key, price int, twice int generated always as (price * 2) stored)"
    )
    log.install()
    (table,) = catalog.published_tables(log.conn)
    assert {column.name: column.published for column in table.columns} == {"id": True, "price": True, "twice": False}


def test_statement_triggers_log_bulk_changes(log: Log) -> None:
    log.conn.execute("create table public.t (id int primary key deferrable initially deferred, v text)")
    log = with_table(log, "public.t", triggers="statement")
    log.install()
    rows = log.during(
        "insert into t select i, 'x' from generate_series(1, 3) as i", "update t set id = id + 1", "truncate t"
    )
    assert rows == [
        *(("I", None, f"({i},x)") for i in (1, 2, 3)),
        *(("D", f"({i},x)", None) for i in (1, 2, 3)),
        *(("I", None, f"({i},x)") for i in (2, 3, 4)),
        ("T", None, None),
    ]
    assert log.during("insert into t values (1, 'a')", "delete from t where id = 1")[1:] == [("D", "(1,a)", None)]


def test_a_source_that_forgot_the_tick_is_not_continued(log: Log) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    log.install()
    taken = log.tick()
    assert ticks.known(log.conn, taken.lsn) == taken
    ticks.forget_before(log.conn, Lsn(int(taken.lsn) + 1))
    assert ticks.known(log.conn, taken.lsn) is None

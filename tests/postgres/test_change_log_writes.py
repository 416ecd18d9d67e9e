"""The user's write never fails because triggers capture it: what cannot be logged is marked. Traps 125 and 131."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support_change_log import Log, image, with_table
from toolkit.source import change_log

pytestmark = pytest.mark.postgres

_LARGE = "insert into {} select 2, string_agg(decode(md5(i::text), 'hex'), '') from generate_series(1, 40000) as i"


def test_trap_125_a_value_never_fails_the_write(log: Log, database: str) -> None:
    log.conn.execute("create table public.t (id int primary key, doc json, raw bytea, words text)")
    log.conn.execute("create role app")
    try:
        log.conn.execute("grant select, insert, update, delete on public.t to app")
        log.install()
        since = log.tick()
        with psycopg.connect(database, autocommit=True) as app:
            app.execute("set role app")
            app.execute("""insert into t values (1, '{"a": "\\u0000", "a": 2}', '\\x00ff', E'\\t(",\\\\')""")
            app.execute("update t set words = repeat('x', 3000000) where id = 1")
            app.execute(_LARGE.format("t (id, raw)"))
        rows = log.rows(since, log.tick())
        assert [row.op for row in rows] == ["I", "U", "I"]
        first = image(rows[0].new, 4)
        assert first == ("1", '{"a": "\\u0000", "a": 2}', "\\x00ff", '\t(",\\')
        assert image(rows[1].new, 4) == (*first[:3], "x" * 3000000)
    finally:
        log.conn.execute("drop owned by app")
        log.conn.execute("drop role app")


def test_trap_125_what_cannot_be_logged_is_marked_and_the_write_goes_on(log: Log, database: str) -> None:
    log.conn.execute("create table public.t (id int primary key, raw bytea)")
    log.install()
    since = log.tick()
    # A stand-in for an image of more than 1 GB: the log refuses it, and only large rows may be refused.
    log.conn.execute("alter table cdc.change_log add constraint small check (length(new) < 1000000)")
    with psycopg.connect(database, autocommit=True) as app:
        app.execute(_LARGE.format("t"))
        assert app.execute("select count(*) from t").fetchone() == (1,)
    (row,) = log.rows(since, log.tick())
    assert row.op == "F" and "small" in (row.new or "")


_LONG_PRINTED = "(select {}('1e131071'::numeric) from generate_series(1, 8300))"  # 100 kB, which print as 1.1 GB


@pytest.mark.wide
@pytest.mark.parametrize("triggers", ["row", "statement"])
@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_trap_125_a_small_row_whose_text_no_server_can_make(log: Log, database: str, triggers: str) -> None:
    log.conn.execute("create table public.t (id int primary key, doc jsonb, n numeric[])")
    with_table(log, "public.t", triggers=triggers).install()
    since = log.tick()
    with psycopg.connect(database, autocommit=True) as app:
        app.execute("insert into t values (1, null, " + _LONG_PRINTED.format("array_agg") + ")")
        app.execute("insert into t values (2)")
        app.execute("update t set doc = " + _LONG_PRINTED.format("jsonb_agg") + " where id = 2")
        assert app.execute("select max(pg_column_size(t.*)) < 100000 from t").fetchone() == (True,)
        app.execute("delete from t where id = 2")
        assert app.execute("select id from t").fetchall() == [(1,)]
    rows = log.rows(since, log.tick())
    assert Counter(row.op for row in rows) == Counter("FIFF"), "each is marked, and the others are there"
    assert all("memory" in (row.new or "") for row in rows if row.op == "F")


@pytest.mark.long
@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_trap_125_a_logged_row_that_no_server_can_send(log: Log, database: str) -> None:
    log.conn.execute("create table public.t (id int primary key, words text)")
    log.install()
    since = log.tick()
    with psycopg.connect(database, autocommit=True) as app:
        app.execute("insert into t values (1, repeat('\\', 300000000))")  # COPY doubles what the log holds of it
        app.execute("insert into t values (2)")
    assert [(row.op, row.new) for row in log.rows(since, log.tick())] == [
        ("F", "54000 images of more than 500 MB of text cannot be read from the change log"),
        ("I", "(2,)"),
    ]


@pytest.mark.parametrize("triggers", ["row", "statement"])
def test_trap_131_a_write_with_a_lock_timeout_outlives_a_purge(log: Log, database: str, triggers: str) -> None:
    """The purge holds the part for the moment of its TRUNCATE; no session's write may fail of that."""
    log.conn.execute("create table public.t (id int primary key)")
    with_table(log, "public.t", triggers=triggers).install()
    since = log.tick()
    writes = ("insert into t values (1)", "truncate t", "insert into t values (2)")
    waits = "select count(*) from pg_locks where not granted and relation = 'cdc.change_log_0'::regclass"
    for write in writes:
        with (
            psycopg.connect(database, autocommit=True, options="-c lock_timeout=1") as app,
            psycopg.connect(database) as purge,
            ThreadPoolExecutor(1) as pool,
        ):
            purge.execute("lock table cdc.change_log_0 in access exclusive mode")
            written = pool.submit(app.execute, write)
            while log.conn.execute(waits).fetchone() != (1,) and not written.done():
                pass
            purge.execute("select pg_sleep(0.02)")  # longer than the writer would wait
            purge.commit()
            written.result()
    assert [op for op, _, _ in log.ops(since, log.tick())] == ["I", "T", "I"]


@pytest.mark.parametrize("triggers", ["row", "statement"])
def test_a_part_is_not_detached_under_its_writers(log: Log, database: str, triggers: str) -> None:
    """DETACH CONCURRENTLY waits for no writer, and the row that comes next would find no part: its write would fail."""
    log = with_table(log, "public.t", triggers=triggers)
    log.conn.execute("create table public.t (id int primary key)")
    log.install()
    since = log.tick()
    log.conn.execute("set lock_timeout = 100")
    detach = "alter table cdc.change_log detach partition cdc.change_log_0 concurrently"
    with psycopg.connect(database) as app:
        app.execute("insert into t values (1)")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="default partition"):
            log.conn.execute(detach)
        app.execute("insert into t values (2)")
    assert [row.new for row in log.rows(since, log.tick())] == ["(1)", "(2)"]
    log.conn.execute("drop table cdc.change_log_none")  # by someone who insists
    assert not change_log.is_read(log.conn), "its tables turn red"
    with psycopg.connect(database) as reader:
        reader.execute("select from t")
        reader.execute("table cdc.change_log")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            log.conn.execute(detach)
    log.conn.execute("set lock_timeout = 0")
    assert not change_log.is_read(log.conn)
    log.install()
    assert change_log.is_read(log.conn)
    assert log.during("insert into t values (3)") == [("I", None, "(3)")]

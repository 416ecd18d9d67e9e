"""Partitions and inheritors of logged tables: the user's DDL never fails, no row is missed or logged twice."""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest

from tests.support_change_log import PARTITIONED, Log, with_table
from toolkit.source import change_log

pytestmark = pytest.mark.postgres
_ONE = pytest.mark.parametrize("pg", ["pg16"], indirect=True)


def _logged(log: Log) -> set[str]:
    return {row[0] for row in log.conn.execute("select relid::regclass::text from cdc.logged_tables").fetchall()}


def test_trap_129_partition_ddl_by_an_unprivileged_role(log: Log, database: str) -> None:
    log.conn.execute(PARTITIONED)
    app = f"app_{psycopg.conninfo.conninfo_to_dict(database)['dbname']}"
    log.conn.execute(f"create role {app}; grant all on schema public to {app}")
    for table in ("m", "m1", "m2"):
        log.conn.execute(f"alter table public.{table} owner to {app}")
    log.install()
    try:
        rows = log.during(
            f"set role {app}",
            "create table m3 partition of m for values from (20) to (30)",
            "insert into m values (3, 21, 'c')",
            "truncate m3",
            "create table m4 (like m including all)",
            "alter table m attach partition m4 for values from (30) to (40)",
            "insert into m values (4, 31, 'd')",
            "alter table m detach partition m1",
            "insert into m1 values (5, 5, 'e')",
            "alter table m attach partition m1 for values from (0) to (10)",
            "update m set d = 32 where id = 5",
            "delete from m where id = 5",
            "drop table m2",
        )
    finally:
        log.conn.execute(f"drop owned by {app} cascade; drop role {app}")
    assert rows == [
        ("I", None, "(3,21,c)"),
        ("T", None, None),
        ("I", None, "(4,31,d)"),
        ("I", None, "(5,5,e)"),
        ("D", "(5,5,e)", None),
        ("I", None, "(5,32,e)"),
        ("D", "(5,32,e)", None),
    ]


@_ONE
def test_trap_129_a_logged_table_is_attached(log: Log) -> None:
    log.conn.execute(PARTITIONED)
    log.install()
    log.conn.execute("create table public.load (like public.m including all)")
    assert change_log.recheck(log.conn, log.config.capture_rules) == ("public.load",)
    rows = log.during(
        "insert into load values (3, 21, 'before')",
        "alter table m attach partition load for values from (20) to (30)",
        "insert into m values (4, 22, 'by the root')",
        "insert into load values (5, 23, 'itself')",
        "alter table m detach partition load",
        "insert into load values (6, 24, 'alone')",
    )
    assert [new for _, _, new in rows] == [
        '(3,21,before)', '(4,22,"by the root")', "(5,23,itself)", "(6,24,alone)"
    ]  # fmt: skip
    assert change_log.recheck(log.conn, log.config.capture_rules) == ()
    log.conn.execute("alter table public.m attach partition public.load for values from (20) to (30)")


@_ONE
def test_trap_129_a_logged_table_becomes_the_leaf_of_a_new_root(log: Log) -> None:
    """A bag shows what is logged twice: it has no key by which it would be one row."""
    log.conn.execute("create table public.bag (d int, v text)")
    log.install()
    log.conn.execute(
        "create table public.top (d int, v text) partition by range (d);"
        "create table public.sub partition of public.top for values from (0) to (100) partition by range (d);"
        "alter table public.sub attach partition public.bag for values from (0) to (10)"
    )
    change_log.recheck(log.conn, log.config.capture_rules)
    log.install()
    assert _logged(log) >= {"public.bag"}
    rows = log.during(
        "insert into top values (1, 'a'), (1, 'a')",
        "create table more partition of sub for values from (10) to (20)",
        "insert into sub values (11, 'b'), (2, 'c')",
        "update top set d = 12 where d = 2",
        "truncate top",
    )
    assert Counter(rows) == Counter([
        ("I", None, "(1,a)"), ("I", None, "(1,a)"), ("I", None, "(11,b)"), ("I", None, "(2,c)"),
        ("D", "(2,c)", None), ("I", None, "(12,c)"), *[("T", None, None)] * 4,
    ])  # fmt: skip


@_ONE
def test_statement_triggers_do_not_see_what_comes_through_a_family(log: Log) -> None:
    log.conn.execute(
        "create table public.bulk (id int primary key, v text); create table public.base (id int, v text);"
        "create table public.part (id int primary key, v text);"
        "create table public.root (id int primary key, v text) partition by range (id)"
    )
    log = with_table(log, "public.[bp]*", triggers="statement")
    log.install()
    assert {"public.bulk", "public.part", "public.base"} <= _logged(log)
    log.conn.execute("alter table public.bulk inherit public.base")
    log.conn.execute("alter table public.root attach partition public.part for values from (0) to (10)")
    assert not {"public.bulk", "public.base"} & _logged(log), "what the comparison sees, and turns red"
    assert "public.part" in _logged(log), "the event trigger gave it row triggers"
    rows = log.during("insert into root values (1, 'a')", "insert into part values (2, 'b')", "update root set v = 'c'")
    assert [op for op, _, _ in rows] == ["I", "I", "U", "U"]
    log.conn.execute("alter table public.bulk no inherit public.base")
    assert {"public.bulk", "public.base"} <= _logged(log)


@_ONE
def test_a_drain_gives_no_triggers_to_a_table_that_init_refuses(log: Log) -> None:
    """A new partitioned table and its partitions got statement triggers, which cost time and captured nothing."""
    log.conn.execute("create table public.first (id int primary key)")
    log = with_table(log, "public.*", triggers="statement")
    log.install()
    log.conn.execute(
        "create table public.root (id int primary key) partition by range (id);"
        "create table public.part partition of public.root for values from (0) to (10);"
        "create table public.plain (id int primary key)"
    )
    assert {name for name, _, _ in change_log.refusals(log.conn, log.config.capture_rules)} == {
        "public.root", "public.part",
    }  # fmt: skip
    assert change_log.recheck(log.conn, log.config.capture_rules) == ("public.plain",)


@_ONE
@pytest.mark.parametrize("triggers", ["row", "statement"])
def test_copy_savepoints_and_the_replica_role_by_an_unprivileged_role(log: Log, database: str, triggers: str) -> None:
    app = f"app_{psycopg.conninfo.conninfo_to_dict(database)['dbname']}"
    log.conn.execute("create table public.t (id int primary key, v text); create table public.bag (v text)")
    log = with_table(log, "public.*", triggers=triggers)
    log.install()
    log.conn.execute(f"create role {app}; grant all on all tables in schema public to {app}")
    log.conn.execute(f"grant set on parameter session_replication_role to {app}")
    try:
        since = log.tick()
        with psycopg.connect(database, autocommit=True) as session:
            session.execute(f"set role {app}")
            for table, line in (("t", "1\ta\n2\tb\n"), ("bag", "x\nx\n")):
                with session.cursor().copy(f"copy {table} from stdin") as copy:
                    copy.write(line)
            session.execute("begin; insert into t values (3, 'c'); savepoint s; delete from t; rollback to s; commit")
            session.execute("begin; savepoint s; insert into bag values ('y'); release s; commit")
            session.execute("set session_replication_role = replica")
            session.execute("update t set v = 'd' where id = 3")
            session.execute("delete from bag where v = 'y'")
        rows = log.ops(since, log.tick())
    finally:
        log.conn.execute(f"drop owned by {app}; drop role {app}")
    update: list[tuple[str, str | None, str | None]] = [("U", "(3,c)", "(3,d)")]
    if triggers != "row":
        update = [("D", "(3,c)", None), ("I", None, "(3,d)")]
    assert rows == [
        ("I", None, "(1,a)"), ("I", None, "(2,b)"), ("I", None, "(x)"), ("I", None, "(x)"), ("I", None, "(3,c)"),
        ("I", None, "(y)"), *update, ("D", "(y)", None),
    ]  # fmt: skip


@_ONE
def test_trap_128_truncate_cascades_to_sub_partitions(log: Log) -> None:
    log.conn.execute(
        "create table public.p (id int primary key); insert into public.p values (1);"
        "create table public.m (id int references public.p, d int) partition by range (d);"
        "create table public.m1 partition of public.m for values from (0) to (10) partition by range (d);"
        "create table public.m11 partition of public.m1 for values from (0) to (5);"
        "create table public.m12 partition of public.m1 for values from (5) to (10);"
        "insert into public.m values (1, 1), (1, 6)"
    )
    log.install()
    since = log.tick()
    log.conn.execute("truncate public.p cascade")
    rows = log.rows(since, log.tick())
    names = {row[0]: row[1] for row in log.conn.execute("select oid::int, relname from pg_class").fetchall()}
    assert {row.op for row in rows} == {"T"}
    assert Counter(names[row.relid] for row in rows) == Counter(["p", "m", "m1", "m11", "m12"])

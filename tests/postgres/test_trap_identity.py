"""Traps of identity: what the WAL holds of a row is not always what the log needs to find it again."""

from __future__ import annotations

import contextlib
import re
import threading
from typing import Any

import psycopg
import pytest

from tests.trap_world import ROOT, World
from toolkit.demo.scratch_server import open_scratch
from toolkit.history import ddl_lint
from toolkit.source import install, preflight, slot
from toolkit.source.connection import connect
from toolkit.values.errors import PreflightFailed

# What is written to the WAL, and when DETACH CONCURRENTLY commits, is the same on all majors.
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]


def test_trap_094_a_row_that_joins_by_update_lacks_its_unchanged_toast(world: World) -> None:
    """Its UPDATE comes as an INSERT, and the value that was not sent stands in no event."""
    log = world.start(
        "create table t (region text, id int, big text, n int, primary key (region, id))",
        "alter table t alter big set storage external", "create publication cdc for table t where (region = 'EU')",
    )  # fmt: skip
    world.sql("insert into t values ('US', 1, repeat('b', 5000), 1), ('US', 2, null, 1)")
    world.sql("update t set region = 'EU' where id = 2")  # nothing is left out
    log.drain()
    world.exact("t")
    world.sql("insert into t values ('EU', 3, 'small', 1)", "update t set region = 'EU' where id = 1")
    log.drain()
    assert "row filter, and its unchanged large value in column 3" in world.stale()["public.t"]
    (gap,) = log.of("gap", world.relid("t"))
    (joined,) = [e for e in log.of("row", world.relid("t")) if e["unchanged"]]
    assert (gap["commit_lsn"], gap["end_lsn"]) == (joined["commit_lsn"], joined["end_lsn"])
    log.repair("public.t")
    world.exact("t")
    # The old image of REPLICA IDENTITY FULL carries it.
    world.sql("alter table t replica identity full", "insert into t values ('US', 4, repeat('c', 5000), 1)")
    world.sql("update t set region = 'EU' where id = 4", "update t set n = 2 where id = 4")
    log.drain()
    world.exact("t")


KEYS = (
    "create table r (id int not null, alt int not null, v text, primary key (id)) partition by range (id)",
    "create table r1 partition of r for values from (0) to (10)",
    "insert into r values (1, 1, 'a'), (2, 2, 'b')",
    "create publication cdc for tables in schema public with (publish_via_partition_root = true)",
)
_WIDER = ("create unique index ra on r (id, alt)", "alter table r replica identity using index ra")
_LEAF = ("create unique index r1a on r1 (id, alt)", "alter table r1 replica identity using index r1a")
_OTHER = ("create unique index r1b on r1 (alt)", "alter table r1 replica identity using index r1b")


@pytest.mark.parametrize(
    ("steps", "mended"),
    [
        (_WIDER, "alter table r1 replica identity using index r1_id_alt_idx"),
        (_OTHER, "alter table r1 replica identity default"),
        (("alter table r replica identity full",), "alter table r1 replica identity full"),
        (("alter table r drop constraint r_pkey", *_LEAF), "alter table r1 replica identity full"),
    ],
    ids=["root by a wider index", "leaf by another index", "root full", "root without a key"],
)
def test_trap_057_a_partition_with_another_identity_than_its_root(
    world: World, steps: tuple[str, ...], mended: str
) -> None:
    """The WAL has the partition's own, and the log is folded by the root's."""
    log = world.start(*KEYS)
    world.sql(*steps, "update r set alt = 9 where id = 1", "delete from r where id = 2")
    log.drain()
    state = log.states()["public.r"]
    assert state.state == "stale" and "partition public.r1" in (state.reason or ""), state
    assert "alter table public.r1 replica identity" in (state.remedy or ""), state
    with connect(world.config.source) as conn:
        assert any(
            "partition public.r1" in str(f)
            for f in preflight.preflight(conn, world.config.capture_rules, ddl=world.config.ddl)
        )
    log.repair("public.r")
    world.sql("update r set alt = 8 where id = 1")
    log.drain()
    assert "partition public.r1" in world.stale()["public.r"]  # as long as it is so
    assert "partition public.r1" in (log.unverified(world.relid("r"), log.complete_to) or "")
    world.sql(mended)
    log.drain()
    log.repair("public.r")
    world.sql("update r set alt = 7 where id = 1", "insert into r values (3, 3, 'c')", "delete from r where id = 1")
    log.drain()
    world.exact("r")


def test_trap_057_a_root_whose_partition_does_not_come_like_it_is_refused(world: World) -> None:
    world.sql(*KEYS)
    with connect(world.config.source) as conn:
        install.install(
            conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
        )
        with open_scratch(world.config.capture_rules, ddl=world.config.ddl) as conninfo:
            (reported,) = ddl_lint.lint(
                world.config.capture_rules, "alter table r replica identity full", conninfo=conninfo
            )
        assert reported.effect == "silent" and "partition public.r1 has REPLICA IDENTITY by id" in reported.detail
        world.sql("alter table r replica identity full")
        with pytest.raises(
            PreflightFailed, match=r"r1 has REPLICA IDENTITY by id.*alter table public\.r1 replica identity"
        ):
            install.install(
                conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
            )
        world.sql("alter table r1 replica identity full")
        install.install(
            conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
        )


def test_trap_057_a_partition_that_sends_more_than_its_root_is_exact(world: World) -> None:
    log = world.start(*KEYS)
    world.sql(*_LEAF, "update r set alt = 9 where id = 1", "update r set id = 3 where id = 2")
    log.drain()
    world.exact("r")
    world.sql("alter table r1 replica identity full", "update r set alt = 8 where id = 1", "delete from r where id = 3")
    log.drain()
    world.exact("r")
    # Born and made like its root in one transaction, before any row.
    world.sql("alter table r replica identity full")
    world.sql(
        "begin", "create table r2 partition of r for values from (10) to (20)", "alter table r2 replica identity full",
        "insert into r values (11, 1, 'x')", "commit", "update r set v = 'y'",
    )  # fmt: skip
    log.drain()
    world.exact("r")


def test_trap_040_a_partition_whose_rows_are_not_in_the_wal(world: World) -> None:
    log = world.start(*ROOT)
    world.sql("create unlogged table r3 partition of r for values from (20) to (30)", "insert into r values (25, 'c')")
    log.drain()
    state = log.states()["public.r"]
    assert "partition public.r3 is unlogged" in (state.reason or ""), state
    assert "alter table public.r3 set logged" in (state.remedy or "")
    log.repair("public.r")
    world.sql("insert into r values (26, 'd')")
    log.drain()
    assert "partition public.r3 is unlogged" in world.stale()["public.r"]
    assert log.unverified(world.relid("r"), log.complete_to)  # and so to whoever asks for this LSN later
    world.sql("drop table r3")
    log.drain()
    log.repair("public.r")
    world.exact("r")
    world.sql("alter table r1 set unlogged")
    log.drain()
    log.repair("public.r")
    assert "partition public.r1 is unlogged" in world.stale()["public.r"]
    world.sql("alter table r1 set logged")
    log.drain()
    log.repair("public.r")
    world.exact("r")
    world.sql(
        "create table q (id int) partition by range (id)", "create table q1 partition of q for values from (0) to (9)",
        "create foreign data wrapper nowhere", "create server nowhere foreign data wrapper nowhere",
        "create foreign table far partition of q for values from (90) to (99) server nowhere",
    )  # fmt: skip
    log.drain()
    assert "partition public.far is a foreign table" in world.stale()["public.q"]
    world.sql("drop foreign table far", "insert into q values (1)")
    log.drain()
    log.repair("public.q")
    world.exact("r", "q")


def _waits(world: World) -> None:
    """Until a DETACH CONCURRENTLY has committed its first transaction."""
    for _ in range(2000):
        row = world.user.execute("select count(*) from pg_inherits where inhdetachpending").fetchone()
        if row and row[0]:
            return
    raise AssertionError("it never came to wait")


_AFTER_A_CANCEL = {
    "finalized": "alter table r detach partition r2 finalize",
    "dropped": "drop table r2",
    "dropped with its root": "drop table r",
}


@pytest.mark.parametrize("how", ["waited", "commented", *_AFTER_A_CANCEL])
def test_trap_096_detached_concurrently_is_unverified_from_where_it_began(world: World, how: str) -> None:
    """SELECT loses the rows when its first transaction commits; the event trigger fires in the second."""
    log = world.start(*ROOT)
    relid = world.relid("r")
    statement = "alter table r detach partition r2 concurrently"
    with (
        psycopg.connect(world.config.source.conninfo) as reader,
        psycopg.connect(world.config.source.conninfo, autocommit=True) as detacher,
    ):
        reader.execute("select count(*) from r")
        worker = threading.Thread(target=lambda: _ends(detacher, statement))
        worker.start()
        _waits(world)
        world.sql("insert into r values (3, 'meanwhile')")
        at = slot.wait_flush(log.conn)
        assert world.user.execute("select count(*) from r").fetchone() == (2,)  # r2's row is not shown
        if how == "commented":
            world.sql("comment on table r is 'c'")
        if how in _AFTER_A_CANCEL:
            detacher.cancel()
        reader.rollback()
        worker.join()
    if how in _AFTER_A_CANCEL:
        world.sql(_AFTER_A_CANCEL[how])
    if how == "dropped with its root":
        log.drain()
        assert log.unverified(relid, at) is not None
        return
    world.sql("insert into r values (4, 'after')")
    log.drain()
    assert log.unverified(relid, at) is not None
    assert re.search("detached|dropped", world.stale()["public.r"])
    log.repair("public.r")
    world.exact("r")


def _ends(session: psycopg.Connection[Any], statement: str) -> None:
    with contextlib.suppress(psycopg.errors.QueryCanceled):
        session.execute(statement)


def test_trap_096_a_plain_detach_is_unverified_from_there(world: World) -> None:
    log = world.start(*ROOT)
    world.sql("insert into r values (3, 'b')")
    at = slot.wait_flush(log.conn)
    world.sql("alter table r detach partition r2")
    log.drain()
    assert log.unverified(world.relid("r"), at) is None
    assert "detached" in world.stale()["public.r"]


def test_trap_078_a_key_that_names_other_objects(world: World) -> None:
    """A row is logged under the name at that time: after a rename its UPDATE and DELETE find nothing."""
    log = world.start("create table other (id int primary key)", "create publication cdc for tables in schema public")
    world.sql(
        "create table t (r regclass primary key, v int)", "insert into t values ('other', 0)",
        "alter table other rename to another", "update t set v = 9",
    )  # fmt: skip
    log.drain()
    assert "names of other objects" in (log.states()["public.t"].reason or "")
    assert log.unverified(world.relid("t"), log.complete_to)
    log.repair("public.t")
    assert "names of other objects" in world.stale()["public.t"]
    world.sql(
        "alter table t add column id int not null default 1", "alter table t add unique (id)",
        "alter table t replica identity using index t_id_key",
    )  # fmt: skip
    log.drain()
    log.repair("public.t")
    world.sql("update t set v = 10")
    log.drain()
    world.exact("t")

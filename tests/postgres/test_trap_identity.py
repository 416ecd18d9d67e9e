"""Traps of identity: what the WAL holds of a row is not always what the log needs to find it again."""

from __future__ import annotations

import pytest

from tests.trap_world import World

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

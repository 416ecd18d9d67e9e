"""Builds go on after upkeep as if there had been none."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import commands
from tests.dbt.harness import Lake, behind, rebuilt
from tests.dbt.scenario import Source
from tests.dbt.test_models import actions, check_current, check_history
from tests.dbt.test_rebuild import plain_run
from tests.dbt.walk import Walk, bag_table, keyed_table
from tests.support_ledger import ledger_of
from toolkit.build import small_tables
from toolkit.lake import reads, upkeep
from toolkit.lake.applied import applied, commits
from toolkit.lake.lake_catalog import force
from toolkit.rawlog import states
from toolkit.values.errors import LakeError
from toolkit.values.lake_access import LakeAccess

pytestmark = [pytest.mark.dbt, pytest.mark.spark, pytest.mark.wide]


def test_builds_go_on_from_where_they_were(built: Lake, seed: int) -> None:
    rng = random.Random(seed)
    source = Source()
    walks = [Walk(source, keyed_table(100), rng, schema=False), Walk(source, bag_table(101), rng, schema=False)]
    tables = [walk.table for walk in walks]
    for table in tables:
        source.baseline(table, first=True)
    for number in range(6):
        for walk in walks * 2:
            walk.step()
        built.append(source)
        if number in (0, 5):
            built.build()
    at_once = built.config.model_copy(update={"lake": built.config.lake.model_copy(update={"keep_days": 0.0})})
    done = {one.table: one for one in commands.maintain(at_once)}
    assert done["raw.events"].merged and all(one.skipped is None for one in done.values())
    assert done["current.public__" + tables[0].name].snapshots
    check_current(built, source, tables)
    ledger = ledger_of(built.config)
    live = states.live_tables(ledger)
    assert behind(built.config) == set()  # else the next build makes all of it again
    assert all(not applied(built.config.lake_access, table).foreign(None) for table in live)
    assert not rebuilt(built.build())

    last = ledger.last()
    assert last is not None
    source.batch_id = last.batch_id + 1  # maintain has written a checkpoint, in a batch of its own
    source.begin()
    source.insert(tables[0], {1: "99", 2: "p", 3: "b", 4: None, 5: None})
    source.insert(tables[1], {1: "5", 2: "x", 3: "t"})
    source.commit()
    built.append(source)
    made = actions(built.build(select=["current"]))
    assert "merge" in made.values(), made
    check_current(built, source, tables)


def test_a_table_that_lost_a_file_is_mended_as_maintain_says(built: Lake) -> None:
    source, table = Source(), keyed_table(100)
    source.baseline(table, first=True)
    source.begin()
    source.insert(table, {1: "1", 2: "p", 3: "b", 4: None, 5: None})
    source.commit()
    built.append(source)
    built.build()
    for layer in ("current", "history"):
        location = str((reads.metadata(built.config.lake_access, f"{layer}.public__t100") or {})["location"])
        (lost,) = Path(location.removeprefix("file:")).rglob("*.parquet")
        lost.unlink()
    said = (
        r"^these tables could not be maintained: current\.public__t100, history\.public__t100; the first: .*`cdc build"
    )
    with pytest.raises(LakeError, match=said) as found:
        commands.maintain(built.config)
    advised = str(found.value).partition("`cdc build -- ")[2].rstrip("`").split()
    built.build(dbt_args=advised)
    assert {one.skipped for one in commands.maintain(built.config)} == {None}
    check_current(built, source, [table])
    check_history(built, source, table)


def test_a_build_during_the_compaction_is_not_repeated(built: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain `dbt run` holds no lease. The compaction repeated the older position, and history had its rows twice."""
    monkeypatch.setattr(small_tables, "build", lambda *_, **__: ([], False))
    monkeypatch.setattr(upkeep, "_MIN_FILES", 2)
    source, name = Source(), "history.public__t100"
    table = keyed_table(100)
    source.baseline(table, first=True)

    def grow(number: int, build: Callable[..., object] = built.build) -> None:
        source.begin()
        source.insert(table, {1: str(number), 2: "p", 3: "b", 4: None, 5: None})
        source.commit()
        built.append(source)
        build(select=["public__t100"])

    def of_others(access: LakeAccess, maintained: str, snapshot_id: int) -> None:
        force(access, maintained, snapshot_id)
        if maintained == name and len(table.rows) < 3:  # before the compaction
            source.batch_id += 1  # that of the checkpoint
            grow(3)

    grow(1)
    grow(2)
    at_once = built.config.model_copy(update={"lake": built.config.lake.model_copy(update={"keep_days": 0.0})})
    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "force", of_others)
        done = {one.table: one for one in commands.maintain(at_once)}
    assert (done[name].merged, done[name].into) == (2, 1)
    monkeypatch.setattr(upkeep, "_MIN_FILES", 9)
    done = {one.table: one for one in commands.maintain(at_once)}
    assert (done[name].merged, done[name].snapshots) == (0, 0)  # only the table snapshot of the build has its position
    newest = next(commits(reads.metadata(built.config.lake_access, name) or {}))
    assert newest.rewrite and newest.batch_id == source.batch_id - 1
    source.batch_id += 1
    grow(4, lambda **_: plain_run(built, "current__public__t100", "history__public__t100"))
    check_current(built, source, [table])
    check_history(built, source, table)
    assert {one.table: one for one in commands.maintain(at_once)}[name].snapshots


def test_a_table_that_a_build_changes_during_its_compaction_is_left_to_the_next_one(
    built: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that the compaction replaces have deleted rows then. Maintenance ended with an error of Spark."""
    monkeypatch.setattr(small_tables, "build", lambda *_, **__: ([], False))
    monkeypatch.setattr(upkeep, "_MIN_FILES", 2)
    source, name = Source(), "current.public__t100"
    table = keyed_table(100)
    source.baseline(table, first=True)

    def insert(number: int) -> None:
        source.begin()
        source.insert(table, {1: str(number), 2: "p", 3: "b", 4: None, 5: None})
        source.commit()
        built.append(source)
        built.build(select=["public__t100"])

    def of_others(access: LakeAccess, maintained: str, snapshot_id: int) -> None:
        force(access, maintained, snapshot_id)
        if maintained == name and len(table.rows) == 2:
            source.batch_id += 1  # that of the checkpoint
            source.begin()
            source.delete(table, table.rows[0])
            source.commit()
            built.append(source)
            built.build(select=["public__t100"])

    insert(1)
    insert(2)
    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "force", of_others)
        done = {one.table: one for one in commands.maintain(built.config)}
    assert done[name].skipped == "another process changed it during its compaction: run `cdc maintain` again"
    check_current(built, source, [table])
    assert {one.table: one for one in commands.maintain(built.config)}[name].merged
    check_current(built, source, [table])

"""Builds go on after upkeep as if there had been none."""

from __future__ import annotations

import random

import pytest

from tests import commands
from tests.dbt.harness import Lake, rebuilt
from tests.dbt.scenario import Source
from tests.dbt.test_models import actions, check_current
from tests.dbt.walk import Walk, bag_table, keyed_table
from tests.support_ledger import ledger_of
from toolkit.lake.applied import applied, behind
from toolkit.rawlog import states

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
    assert (
        behind(built.config.lake_access, built.spark, ledger, live) == ()
    )  # else the next build makes all of it again
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

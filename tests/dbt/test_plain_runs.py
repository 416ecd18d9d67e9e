"""A plain `dbt run` builds what `cdc build` would, or nothing, whatever happened since the last build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.dbt.harness import Lake
from tests.dbt.scenario import Source, Table, column
from tests.dbt.test_models import check_current, check_history
from tests.dbt.test_rebuild import plain_run
from tests.support_ledger import lake_of, ledger_of
from toolkit.build import models, schema_changes
from toolkit.lake import reads
from toolkit.lake.applied import Commit, commits
from toolkit.rawlog.arrow import to_arrow

pytestmark = [pytest.mark.dbt, pytest.mark.spark]


def _statuses(outcome: Any) -> set[str]:
    return {str(result.status) for result in outcome.result.results}


def _append_all(built: Lake, source: Source, batches: int) -> None:
    """Append many batches at once."""
    events = [event for _ in range(batches) for event in source.batch()]
    frame = built.spark.createDataFrame(to_arrow(events), built.spark.table("raw.events").schema)
    frame.writeTo("raw.events").append()


@pytest.mark.parametrize("later", [False, True])
def test_a_build_that_ended_at_a_ddl_many_batches_ago_is_continued(built: Lake, later: bool) -> None:
    """A plain run missed what was more than 50 batches old: changes, or that values were left out as unchanged."""
    source = Source()
    table = Table(500, "big", [column(1, "id", "bigint", not_null=True), column(2, "v"), column(3, "w")], [1])
    table.rows = [{1: str(n), 2: "x", 3: "large"} for n in range(3)]
    source.baseline(table, first=True)
    built.append(source)
    built.build()
    source.begin()
    table.columns = [c | {"name": "renamed"} if c["attnum"] == 2 else c for c in table.columns]
    source.schema(table)
    source.commit()
    built.append(source)
    source.begin()
    source.update(table, table.rows[0], {2: "y"}, [3])
    source.update(table, table.rows[1], {2: "y"}, [3])
    source.commit()
    _append_all(built, source, 60)
    assert schema_changes.evolve(built.config.lake_access, ledger_of(built.config)) == ()  # and the runner is killed
    if later:
        source.begin()
        source.update(table, table.rows[1], {2: "z", 3: "other"}, [])
        source.commit()
    built.append(source)
    assert _statuses(plain_run(built, "current", "history")) <= {"success", "skipped"}
    check_current(built, source, [table])
    check_history(built, source, table)


def test_a_clock_that_stepped_back_hides_no_build(built: Lake) -> None:
    """The build before was taken for the newest, and what came since was applied to `history` a second time.

    Iceberg takes a table snapshot that is up to a minute older than the one before it.
    """
    source = Source()
    table = Table(500, "big", [column(1, "id", "bigint", not_null=True), column(2, "v")], [1])
    table.rows = [{1: str(n), 2: "x"} for n in range(3)]
    source.baseline(table, first=True)
    built.append(source)
    models.sync(lake_of(built.config), built.config.dbt_project)
    for number in range(3):
        assert _statuses(plain_run(built, "current", "history")) == {"success"}
        if number:
            for name in ("current.public__big", "history.public__big"):
                _step_back(built, name)
        source.begin()
        source.update(table, table.rows[0], {2: f"y{number}"}, [])
        source.commit()
        built.append(source)
    assert _statuses(plain_run(built, "current", "history")) == {"success"}
    check_current(built, source, [table])
    check_history(built, source, table)


def _step_back(built: Lake, name: str) -> None:
    """Make the newest table snapshot a second older than the one before it, as the clock of its runner said."""
    place = reads.metadata_location(built.config.lake_access, name)
    assert place is not None
    file = Path(place.removeprefix("file://"))
    found = json.loads(file.read_text(encoding="utf-8"))
    newest = found["snapshot-log"][-1]
    newest["timestamp-ms"] = found["snapshot-log"][-2]["timestamp-ms"] - 1_000
    for snapshot in found["snapshots"]:
        if snapshot["snapshot-id"] == newest["snapshot-id"]:
            snapshot["timestamp-ms"] = newest["timestamp-ms"]
    file.write_text(json.dumps(found), encoding="utf-8")
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the file


_OWN = """
{{ config(materialized='table', file_format='iceberg', schema='marts',
          post_hook="delete from current.public__big where id = 1") }}
select 1 as n
"""


def test_what_the_users_models_change_is_not_the_commit_of_a_build(built: Lake) -> None:
    """Each commit of the run had the position of the models, so the next check carried the proof of a changed table."""
    source = Source()
    table = Table(500, "big", [column(1, "id", "bigint", not_null=True), column(2, "v")], [1])
    table.rows = [{1: str(n), 2: "x"} for n in range(3)]
    source.baseline(table, first=True)
    built.append(source)
    models.sync(lake_of(built.config), built.config.dbt_project)
    assert _statuses(plain_run(built, "current", "history")) == {"success"}
    source.begin()
    source.update(table, table.rows[0], {2: "y"}, [])
    source.insert(table, {1: "7", 2: "new"})
    source.commit()
    built.append(source)
    assert _statuses(plain_run(built, "current", "history")) == {"success"}
    check_current(built, source, [table])
    check_history(built, source, table)
    last, tables = ledger_of(built.config).last(), ("current.public__big", "history.public__big")
    assert last is not None
    made = {name: [(c.batch_id, c.lsn) for c in _commits(built, name)] for name in tables}
    for found in made.values():
        assert len(found) == 3, "a table that is created, and a MERGE and an INSERT"
        assert found[:2] == [(last.batch_id, last.complete_to)] * 2 and None not in found[2]
    (built.config.root / "dbt_project" / "models" / "own.sql").write_text(_OWN, encoding="utf-8")
    assert _statuses(plain_run(built, "own", "current", "history")) == {"success"}
    (_, *before), after = made["current.public__big"], _commits(built, "current.public__big")
    assert after[0].batch_id is None and after[1].batch_id == last.batch_id and len(after) == len(before) + 2
    assert [c.batch_id for c in _commits(built, "marts.own")] == [None]


def _commits(built: Lake, name: str) -> list[Commit]:
    return list(commits(reads.metadata(built.config.lake_access, name) or {}))


def test_a_model_is_not_built_under_a_name_that_its_table_has_lost(built: Lake) -> None:
    """A plain run showed a table of the source under the name that another one has now."""
    source = Source()
    one, two, gone = (
        Table(relid, name, [column(1, "id"), column(2, "v")], [1], rows=[{1: "1", 2: name}])
        for relid, name in ((500, "one"), (501, "two"), (502, "gone"))
    )
    for table in (one, two, gone):
        source.baseline(table, first=True)
    built.append(source)
    built.build()
    before = {name: built.spark.table(name).collect() for name in _names(built)}
    source.begin()
    one.name, two.name, gone.dropped = "two", "one", True
    for table in (one, two, gone):
        source.schema(table)
    source.create(Table(503, "gone", [column(1, "other")], [1]))
    source.commit()
    built.append(source)
    results = plain_run(built, "current", "history").result.results
    refused = {r.node.name: r.message for r in results if r.status == "error"}
    assert set(refused) == {f"{layer}__public__{name}" for layer in ("current", "history") for name in ("one", "two")}
    assert "the source's table is public__two now; run cdc models sync" in refused["current__public__one"]
    assert {name: built.spark.table(name).collect() for name in _names(built)} == before
    models.sync(lake_of(built.config), built.config.dbt_project)
    assert _statuses(plain_run(built, "current", "history")) == {"success"}
    check_current(built, source, [one, two, source.tables[503]])
    for table in (one, two):
        check_history(built, source, table)
    assert "history.public__gone__dropped_g1_502" in _names(built)


class _Root(Table):
    """A partitioned table whose partitions are captured as tables of their own."""

    def snapshot(self) -> dict[str, Any]:
        children = [int(row[1] or 0) for row in self.rows]
        return super().snapshot() | {"kind": "p", "published": False, "children": children}


def test_the_view_of_a_partitioned_table_is_not_made_of_partitions_that_it_has_lost(built: Lake) -> None:
    """A plain run showed the rows of a detached partition, and none of a new one, until the next build."""
    source = Source()
    parts = [Table(n, f"m_{n}", [column(1, "id")], [1], rows=[{1: str(n)}]) for n in (601, 602)]
    root = _Root(600, "m", [column(1, "id")], [1], rows=[{1: "601"}, {1: "602"}])
    for part in parts:
        source.baseline(part, first=True)
    source.tables[root.relid] = root
    source.begin()
    source.schema(root)
    source.commit()
    built.append(source)
    built.build()
    assert _statuses(plain_run(built, "current")) == {"success"}
    source.begin()
    del root.rows[1]
    source.schema(root)
    source.commit()
    built.append(source)
    results = plain_run(built, "current").result.results
    (refused,) = (r for r in results if r.status == "error")
    assert refused.node.name == "current__public__m" and "run cdc models sync, or cdc build" in refused.message
    models.sync(lake_of(built.config), built.config.dbt_project)
    assert _statuses(plain_run(built, "current")) == {"success"}
    assert [row[0] for row in built.spark.sql("select id from current.public__m").collect()] == ["601"]


def _names(built: Lake) -> list[str]:
    return sorted(
        f"{layer}.{n}" for layer in ("current", "history") for n in reads.tables(built.config.lake_access, layer)
    )

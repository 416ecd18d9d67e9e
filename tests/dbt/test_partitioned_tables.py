"""A user has given tables of the lake partitions and an order: builds keep them, and rows are in their partitions."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests import commands
from tests.dbt.harness import Lake, built_table
from tests.dbt.scenario import Source, Table
from tests.dbt.test_models import check_current, check_history
from tests.dbt.test_rebuild import plain_run
from toolkit.lake import reads, table_commit
from toolkit.lake.table_commit import Commit
from toolkit.values.config import Config
from toolkit.values.errors import LakeError
from toolkit.values.outcome import BuildAction

pytestmark = [pytest.mark.dbt, pytest.mark.spark]
_TABLES = ("current.public__t", "history.public__t")


@pytest.fixture
def made(built: Lake) -> tuple[Source, Table]:
    source, table = built_table(built)
    for name in _TABLES:
        for field in ("v", "bucket(4, id)"):
            built.spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD {field}")
        built.spark.sql(f"ALTER TABLE {name} WRITE ORDERED BY n DESC")
    return source, table


def _layout(built: Lake, name: str) -> tuple[list[tuple[str, str]], list[str]]:
    """The partition fields of a table, and the directions of its order."""
    metadata: dict[str, Any] = reads.metadata(built.config.lake_access, name) or {}
    (spec,) = (s for s in metadata["partition-specs"] if s["spec-id"] == metadata["default-spec-id"])
    (order,) = (o for o in metadata["sort-orders"] if o["order-id"] == metadata["default-sort-order-id"])
    return [(f["name"], f["transform"]) for f in spec["fields"]], [f["direction"] for f in order["fields"]]


def _at_once(config: Config) -> Config:
    return config.model_copy(update={"lake": config.lake.model_copy(update={"keep_days": 0.0})})


def _ids(built: Lake, v: str) -> list[int]:
    return [
        row[0] for row in built.spark.sql(f"select id from current.public__t where v = '{v}' order by id").collect()
    ]


def _change(built: Lake, source: Source, table: Table) -> None:
    source.begin()
    source.update(table, table.rows[0], {2: "y"}, [])
    source.insert(table, {1: "10", 2: "new", 3: "1"})
    source.delete(table, table.rows[3])
    source.commit()
    built.append(source)


def _copy(built: Lake, source: Source, table: Table) -> None:
    source.baseline(table)
    built.append(source)


@pytest.mark.parametrize("changed", [_change, _copy])
@pytest.mark.parametrize("plain", [False, True])
def test_partitions_and_order_stay(
    built: Lake, made: tuple[Source, Table], caplog: pytest.LogCaptureFixture, changed: Any, plain: bool
) -> None:
    """The rows of a small table were written into one partition, so that a filter on its column did not find them."""
    source, table = made
    changed(built, source, table)
    if plain:
        assert {str(r.status) for r in plain_run(built, "current", "history").result.results} == {"success"}
    else:
        built.build()
    assert not [r for r in caplog.records if r.message == "left to its model"]
    for v in ("x", "y", "new"):
        assert _ids(built, v) == sorted(int(row[1] or 0) for row in table.rows if row[2] == v)
    check_current(built, source, [table])
    check_history(built, source, table)
    for name in _TABLES:
        assert _layout(built, name) == ([("v", "identity"), ("id_bucket_4", "bucket[4]")], ["desc"])


def test_a_table_that_has_got_partitions_meanwhile_is_left_to_its_model(
    built: Lake, made: tuple[Source, Table]
) -> None:
    access, (name, _) = built.config.lake_access, _TABLES
    since = (reads.metadata(access, name) or {})["current-snapshot-id"]
    rows = table_commit.read_table(access, name, since)
    with pytest.raises(LakeError, match=f"writing .*{name}: it has got partitions meanwhile; run `cdc build` again"):
        table_commit.overwrite(table_commit.Java(built.spark), access, name, rows, Commit({}, {}, None, since))


@pytest.mark.parametrize("copied", [False, True])
def test_a_partition_of_a_column_that_is_gone_is_named(
    built: Lake, made: tuple[Source, Table], caplog: pytest.LogCaptureFixture, copied: bool
) -> None:
    """Iceberg drops no column that partitions are made of, and merges nothing afterwards with deletion vectors."""
    source, table = made
    source.begin()
    source.drop_column(table, 2)
    source.commit()
    if copied:
        source.baseline(table)
    built.append(source)
    with caplog.at_level(logging.WARNING):
        built.build()
    lost = {r.__dict__["table"] for r in caplog.records if "no longer by a column" in r.message}
    for name in _TABLES:
        by_v = [field for field in _layout(built, name)[0] if field[0] == "v"]
        assert (name in lost) == (not by_v) and _layout(built, name)[0][-1] == ("id_bucket_4", "bucket[4]")
    assert "current.public__t" in lost
    source.begin()
    source.update(table, table.rows[0], {3: "77"}, [])
    source.delete(table, table.rows[1])
    source.commit()
    built.append(source)
    assert {model.action for model in built.build().models if "public__t" in model.name} == {BuildAction.MERGE}
    check_current(built, source, [table])
    check_history(built, source, table)
    assert all(one.skipped is None for one in commands.maintain(_at_once(built.config)) if one.table in _TABLES)
    check_current(built, source, [table])

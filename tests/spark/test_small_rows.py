"""The driver prints rows of small tables itself: the same texts as Spark, and only where that is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.test_small_lines import VALUES, _make, _plan
from toolkit.lake import row_lines, row_versions, small_rows
from toolkit.lake.row_lines import Side
from toolkit.values.config import Config
from toolkit.values.namespaces import Namespaces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.values.row_line import Comparison

pytestmark = [pytest.mark.spark]
_PRINTED = [
    "boolean", "smallint", "integer", "bigint", "numeric(12,2)", "numeric(30,12)", "timestamp without time zone",
    "timestamp with time zone", "text",
]  # fmt: skip


def _both(spark: SparkSession, lake: Config, plan: Comparison) -> tuple[object, object]:
    fields = dict(zip([c.name for c in plan.columns], row_lines.current_fields(plan), strict=True))
    relation = Side(plan, None, Namespaces()).relation
    mine = small_rows.read(lake.lake_access, relation, plan, None, None)
    theirs = list(row_versions.read(spark, relation, fields, None, None, None))
    return mine and sorted(mine, key=str), sorted(theirs, key=str)


def test_the_texts_are_those_of_spark(spark: SparkSession, lake: Config) -> None:
    plan = _plan("printed", _PRINTED, 1)
    name = _make(spark, plan)
    mine, theirs = _both(spark, lake, plan)
    assert mine == theirs
    # A text that the type cannot hold stands for the value.
    cells = ", ".join("NULL" if t != "text" else "'x'" for t in _PRINTED)
    spark.sql(f"INSERT INTO {name} SELECT {cells}, map('c3', '9999999999', 'c8', '0044-03-15 00:00:00+00 BC')")
    mine, theirs = _both(spark, lake, plan)
    assert mine == theirs
    assert "BC" in str(mine)
    key = {"c3": "9999999999"}
    spark.sql(f"ALTER TABLE {name} ADD COLUMNS (_cdc_from_lsn bigint, _cdc_to_lsn bigint, _cdc_doubtful boolean)")
    assert small_rows.read(lake.lake_access, name, plan, key, None) is None  # the files are older than the columns


@pytest.mark.parametrize("type_", sorted(VALUES.keys() - set(_PRINTED)))
def test_a_type_with_more_than_one_text_is_left_to_spark(spark: SparkSession, lake: Config, type_: str) -> None:
    plan = _plan("left", ["integer", type_], 2)
    name = _make(spark, plan)
    assert small_rows.read(lake.lake_access, name, plan, None, None) is None


def test_what_changes_rows_without_a_new_file_is_left_to_spark(spark: SparkSession, lake: Config) -> None:
    plan = _plan("changed", ["integer", "text"], 3)
    name = _make(spark, plan)
    assert len(small_rows.read(lake.lake_access, name, plan, None, None) or ()) == 3
    spark.sql(f"UPDATE {name} SET _cdc_text = map('c1', '1') WHERE c1 = -1")
    assert small_rows.read(lake.lake_access, name, plan, None, None) is None  # a deletion vector
    beside = _plan("beside", ["integer", "text"], 4)
    name = _make(spark, beside, rows=1)
    spark.sql(f"INSERT OVERWRITE {name} SELECT 1, 'x', map('c1', '2')")
    assert small_rows.read(lake.lake_access, name, beside, None, None) is None  # a text beside a typed value


def test_versions_of_a_key_come_in_order(spark: SparkSession, lake: Config) -> None:
    plan = _plan("versions", ["integer", "text"], 5)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS history")
    name = "history.public__versions"
    spark.sql(
        f"CREATE TABLE {name} (c1 int, c2 string, _cdc_from_lsn bigint, _cdc_to_lsn bigint,"
        " _cdc_doubtful boolean, _cdc_text map<string,string>)"
        " USING iceberg TBLPROPERTIES ('format-version'='3')"
    )
    spark.sql(
        f"INSERT INTO {name} VALUES (1, 'b', 32, NULL, true, NULL), (1, 'a', 16, 32, false, NULL),"
        " (2, 'c', 16, NULL, false, NULL)"
    )
    assert small_rows.read(lake.lake_access, name, plan, {"c1": "1"}, None) == [
        {"c1": "1", "c2": "a", "_cdc_from_lsn": "0/10", "_cdc_to_lsn": "0/20", "_cdc_doubtful": "f"},
        {"c1": "1", "c2": "b", "_cdc_from_lsn": "0/20", "_cdc_to_lsn": None, "_cdc_doubtful": "t"},
    ]
    assert small_rows.read(lake.lake_access, name, plan, {"c1": "1"}, 1) == [
        {"c1": "1", "c2": "a", "_cdc_from_lsn": "0/10", "_cdc_to_lsn": "0/20", "_cdc_doubtful": "f"}
    ]

"""The driver reads small tables itself: the same figures as a scan by Spark, and only where that is the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from tests.support_history import column, snapshot
from toolkit.lake import row_lines, small_lines
from toolkit.lake.applied import applied
from toolkit.lake.row_lines import Side
from toolkit.values import freed_memory, progress
from toolkit.values.config import Config
from toolkit.values.lake_types import spark_type
from toolkit.values.namespaces import Namespaces
from toolkit.values.row_line import Comparison, comparison
from toolkit.values.table import TableVersion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]

VALUES = {
    "boolean": ("true", "false"),
    "smallint": ("5", "-70000"),  # the second is beyond the source's type
    "integer": ("825373492", "-1"),
    "bigint": ("5", "-9223372036854775808"),
    "numeric(12,2)": ("1.10", "-0.01"),
    "numeric(30,12)": ("1", "-1.000000000001"),
    "real": ("0.1", "cast('NaN' as float)"),
    "double precision": ("cast('-0' as double)", "0.10000000000000002"),
    "date": ("date'2024-02-29'", "date'0001-01-01'"),
    "timestamp without time zone": ("timestamp_ntz'2024-03-10 02:30:00'", "timestamp_ntz'9999-12-31 23:59:59.999999'"),
    "timestamp with time zone": ("timestamp'2024-03-10 02:30:00.1Z'", "timestamp'0001-01-01 00:00:00Z'"),
    "bytea": ("X''", "X'5c7800'"),
    "text": ("''", "'NULL'"),
}  # fmt: skip


def _plan(name: str, types: Sequence[str], relid: int, buckets: int = 1) -> Comparison:
    columns = [column(n, f"c{n}", type_) for n, type_ in enumerate(types, 1)]
    return comparison(TableVersion.from_json(snapshot(name, columns, relid=relid)), buckets)


def _make(spark: SparkSession, plan: Comparison, rows: int = 3) -> str:
    """Create the table with each value of each type, and NULLs."""
    name = Side(plan, None, Namespaces()).relation
    cells = [VALUES[c.type] for c in plan.columns]
    values = (
        ", ".join(
            f"cast({v[n] if n < 2 else 'NULL'} AS {spark_type(c)})" for v, c in zip(cells, plan.columns, strict=True)
        )
        for n in range(rows)
    )
    shape = ", ".join(f"{c.name} {spark_type(c)}" for c in plan.columns)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS current")
    spark.sql(
        f"CREATE TABLE {name} ({shape}, _cdc_text map<string,string>) USING iceberg TBLPROPERTIES"
        " ('format-version'='3', 'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read')"
    )
    if rows:
        spark.sql(f"INSERT INTO {name} " + " UNION ALL ".join(f"SELECT {row}, NULL" for row in values))
    return name


def _side(lake: Config, plan: Comparison) -> Side:
    return Side(plan, applied(lake.lake_access, plan.table).snapshot_id, Namespaces())


def _both(spark: SparkSession, lake: Config, *plans: Comparison) -> tuple[Any, Any]:
    sides = [_side(lake, plan) for plan in plans]
    return small_lines.figures(spark, lake.lake_access, sides), row_lines.figures(spark, sides)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_the_figures_are_those_of_a_scan_by_spark(spark: SparkSession, lake: Config, zone: str) -> None:
    types = [*VALUES]
    plans = (
        _plan("every", types, 1, buckets=8), _plan("backwards", types[::-1], 2), _plan("empty", ["integer"], 5),
        _plan("one", ["text"], 3), _plan("twice", ["text", "integer", "text", "integer"], 4),
    )  # fmt: skip
    for plan in plans:
        _make(spark, plan, rows=0 if plan.table.name == "empty" else 3)
    spark.sql("INSERT INTO current.public__empty SELECT 1, NULL")
    spark.sql("DELETE FROM current.public__empty")  # the whole file, so there is none left
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        small, scanned = _both(spark, lake, *plans)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert small == scanned and small.keys() == {1, 2, 3, 4, 5}
    assert small[5] == {} and len({str(figures) for figures in small.values()}) == 5


def test_every_difference_of_a_row_shows(spark: SparkSession, lake: Config) -> None:
    """A row that is missing, a cell that was altered, and two tables with each other's rows."""
    plans = [_plan(name, ["integer", "text"], n) for n, name in enumerate(("a", "b", "c", "d"), 1)]
    for plan in plans:
        _make(spark, plan)
    before, _ = _both(spark, lake, *plans)
    assert before[1] == before[2] == before[3] == before[4]
    spark.sql("INSERT OVERWRITE current.public__b SELECT * FROM current.public__a WHERE c1 IS NOT NULL")
    spark.sql("INSERT OVERWRITE current.public__c SELECT c1 + 1, c2, _cdc_text FROM current.public__a")
    spark.sql("INSERT OVERWRITE current.public__d VALUES (7, 'seven', NULL)")
    after, scanned = _both(spark, lake, *plans)
    assert after == scanned and after[1] == before[1]
    assert len({str(after[n]) for n in (1, 2, 3, 4)}) == 4
    swapped = [Side(plan, _side(lake, plan).snapshot_id, Namespaces()) for plan in plans]
    assert small_lines.figures(spark, lake.lake_access, swapped[::-1]) == after


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM {} WHERE c1 = -1",  # a deletion vector
        "UPDATE {} SET c2 = 'x' WHERE c1 = -1",
        "INSERT INTO {} SELECT 4, NULL, map('c2', 'a text')",  # a value that its type does not hold
        "ALTER TABLE {} ADD COLUMN c3 int",  # the files do not have it
        "ALTER TABLE {} ALTER COLUMN c1 TYPE bigint",  # the files have another type
    ],
)
def test_a_table_that_shows_more_than_its_files_is_left_to_spark(
    spark: SparkSession, lake: Config, change: str
) -> None:
    types = ["integer", "text"]
    name = _make(spark, _plan("t", types, 1))
    spark.sql(f"INSERT INTO {name} SELECT * FROM {name}")
    spark.sql(change.format(name))
    if "ALTER" in change:
        types = ["bigint", "text"] if "TYPE" in change else [*types, "integer"]
        spark.sql(f"INSERT INTO {name} (c1) VALUES (9)")  # a table snapshot with the new columns
    small, scanned = _both(spark, lake, _plan("t", types, 1))
    assert small == {} and scanned[1]


def test_the_rows_of_a_table_without_columns_are_counted(spark: SparkSession, lake: Config) -> None:
    """They were not: such a table differed from its source, and had its table no rows at the source, it did not."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS current")
    spark.sql("CREATE TABLE current.public__t (_cdc_text map<string,string>) USING iceberg")
    spark.sql("INSERT INTO current.public__t VALUES (NULL), (NULL), (NULL)")
    small, scanned = _both(spark, lake, _plan("t", [], 1))
    assert small == {} and scanned[1][0].rows == 3


def test_a_file_that_is_gone_is_left_to_spark(spark: SparkSession, lake: Config) -> None:
    """The scan by Spark then says what is wrong."""
    plan = _plan("t", ["integer", "text"], 1)
    name = _make(spark, plan)
    (file,) = spark.sql(f"SELECT file_path FROM {name}.files").first() or ("",)
    from pathlib import Path

    Path(file.removeprefix("file:")).unlink()
    assert small_lines.figures(spark, lake.lake_access, [_side(lake, plan)]) == {}


def test_what_the_queries_used_returns_to_the_system(
    spark: SparkSession, lake: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the rest of the check, and not only at its end: 60 MB with two thousand tables."""
    plans = [_plan(name, ["integer"], n) for n, name in enumerate(("a", "b"), 1)]
    for plan in plans:
        _make(spark, plan)
    done: list[str] = []
    count = small_lines._figures

    def counted(*args: Any) -> Any:
        done.append("query")
        return count(*args)

    monkeypatch.setattr(small_lines, "_figures", counted)
    monkeypatch.setattr(progress, "_LONG_SECONDS", 0.0)
    monkeypatch.setattr(freed_memory, "return_freed", lambda: done.append("returned"))
    assert small_lines.figures(spark, lake.lake_access, [_side(lake, plan) for plan in plans]).keys() == {1, 2}
    assert done == ["query", "returned"]  # the last query too, of the tables that are left


def test_no_stage_is_shown_for_no_large_tables(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of small tables said that it reads 0 tables of the lake."""
    shown: list[str] = []
    monkeypatch.setattr(progress, "stage", lambda what, *_: shown.append(what))
    assert row_lines.figures(spark, []) == {}
    assert not shown

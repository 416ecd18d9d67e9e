"""What an incremental check costs the lake: files whose keys nothing touched are not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support_history import column, snapshot
from toolkit.catalog import TableVersion
from toolkit.lake.parity import Side, lines_of_keys
from toolkit.parity import comparison, line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.wide]


def _side(name: str) -> Side:
    columns = [column(1, "Id", "bigint"), column(2, "body", "text")]
    return Side(comparison(TableVersion.from_json(snapshot(name, columns)), 1), None)


def _rows_read(spark: SparkSession) -> int:
    """Rows that the scans of the last query put out, by Spark's own metrics."""
    spark._jsc.sc().listenerBus().waitUntilEmpty()  # type: ignore[attr-defined]
    store = spark._jsparkSession.sharedState().statusStore()
    number = store.executionsList().last().executionId()
    nodes, values = store.planGraph(number).allNodes(), store.executionMetrics(number)
    found = 0
    for i in range(nodes.size()):
        node = nodes.apply(i)
        for j in range(node.metrics().size()):
            metric = node.metrics().apply(j)
            if node.name().startswith("BatchScan") and metric.name() == "number of output rows":
                found += int(values.apply(metric.accumulatorId()).replace(",", ""))
    return found


def test_the_lake_reads_the_files_of_the_touched_keys_alone(spark: SparkSession) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS current")
    read = {}
    for rows in (1_000, 40_000):
        side = _side(f"t{rows}")
        spark.sql(f"CREATE TABLE {side.relation} (Id bigint, body string, _cdc_text map<string,string>) USING iceberg")
        # What a first build wrote, and what two merges added behind it.
        for first, last in ((1, rows), (rows + 1, rows + 20), (rows + 21, rows + 30)):
            spark.sql(
                f"INSERT INTO {side.relation} SELECT /*+ COALESCE(1) */ id, 'x', NULL FROM range({first}, {last + 1})"
            )
        keys = [(str(rows + i),) for i in (1, 2, 20, 25, 31)]
        found = sorted(lines_of_keys(spark, side, keys))
        read[rows] = _rows_read(spark)
        assert found == sorted(line((str(key), "x")) for (key,) in keys[:4])
    assert read[1_000] == read[40_000] == 30
    everything = list(lines_of_keys(spark, side, [("1",), ("40030",)]))
    assert len(everything) == 2

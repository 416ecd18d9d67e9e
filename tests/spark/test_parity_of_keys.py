"""What an incremental check costs the lake: files whose keys nothing touched are not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support_history import column, snapshot
from toolkit.lake.row_lines import Side, lines, lines_of_keys
from toolkit.values.namespaces import Namespaces
from toolkit.values.row_line import comparison, fields
from toolkit.values.table import TableVersion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.wide]


def _side(name: str) -> Side:
    columns = [column(1, "Id", "bigint"), column(2, "body", "text")]
    return Side(comparison(TableVersion.from_json(snapshot(name, columns)), 1), None, Namespaces())


def _rows_read(spark: SparkSession) -> int:
    """Rows that the scans of the last query put out, by Spark's own metrics."""
    spark._jsc.sc().listenerBus().waitUntilEmpty()
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
        found = sorted(fields(line, side.plan.natives) for line in lines_of_keys(spark, side, keys))
        read[rows] = _rows_read(spark)
        assert found == sorted((key, "x") for (key,) in keys[:4])
    assert read[1_000] == read[40_000] == 30
    everything = list(lines_of_keys(spark, side, [("1",), ("40030",)]))
    assert len(everything) == 2


def test_what_no_server_sends_is_not_taken_for_its_bytes(spark: SparkSession) -> None:
    columns = [column(1, "n", "integer"), column(2, "s", "smallint"), column(3, "at", "timestamp without time zone")]
    side = Side(comparison(TableVersion.from_json(snapshot("forged", columns)), 1), None, Namespaces())
    micros = int.from_bytes(b"\1" * 8, "big") + 946_684_800_000_000
    stamp = f"cast(timestamp_micros({micros}) as timestamp_ntz)"
    rows = {
        "sent": f"({int.from_bytes(b'1234', 'big')}, 5, NULL, map('at', 'infinity'))",
        "a text of four letters": "(NULL, 5, NULL, map('n', '1234', 'at', 'infinity'))",
        "no smallint": f"({int.from_bytes(b'1234', 'big')}, {0x1_0005}, NULL, map('at', 'infinity'))",
        "a stamp": f"(1, 5, {stamp}, NULL)",
        "its bytes as a text": f"(1, 5, NULL, map('at', '{chr(1) * 8}'))",
        "both": f"(1, 5, {stamp}, map('at', '{chr(1) * 8}'))",
    }
    spark.sql("CREATE NAMESPACE IF NOT EXISTS current")
    spark.sql(
        f"CREATE TABLE {side.relation} (n int, s int, at timestamp_ntz, _cdc_text map<string,string>) USING iceberg"
    )
    found = {}
    for name, row in rows.items():
        spark.sql(f"INSERT OVERWRITE {side.relation} VALUES {row}")
        (found[name],) = lines(spark, side, range(1))
    assert len(set(found.values())) == len(rows), found
    assert fields(found["sent"], side.plan.natives) == ("825373492", "5", "infinity")
    assert fields(found["a stamp"], side.plan.natives)[2] == "4292-05-14 12:27:18.076673"

"""Two cells that readers of the lake can tell apart never have the same line: what is proven is what they read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support_history import column, snapshot
from toolkit.lake.applied import applied, misshapen
from toolkit.lake.row_lines import Side, lines
from toolkit.values.config import Config
from toolkit.values.lake_types import spark_type
from toolkit.values.namespaces import Namespaces
from toolkit.values.row_line import Comparison, comparison, fields
from toolkit.values.table import TableVersion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.wide]

#: A stamp of the year 242,000 or so: its bytes read `infinity`.
_INFINITY = int.from_bytes(b"infinity", "big") + 946_684_800_000_000
#: Of each type typed values, and texts kept in place of one. NULL is added to all.
CELLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "boolean": (("true", "false"), ("t", "f")),
    "smallint": (("5", "cast(65541 as int)", "cast(-70000 as int)"), ("5", "\\0\\5")),
    "integer": (("825373492",), ("1234", "825373492")),
    "bigint": (("5",), ("5", "\\0\\0\\0\\0\\0\\0\\0\\5")),
    "oid": (("5",), ("5",)),
    "xid8": (("5",), ("5",)),
    "numeric(12,2)": (("1.10", "1.1 + 0.01", "0"), ("1.10", "0.00", "NaN")),
    "numeric(30,12)": (("1", "1.000000000001"), ("1.000000000000", "NaN")),
    "real": (("0", "cast('-0' as float)", "cast('NaN' as float)", "cast(1e-38 as float)"), ("1e-45",)),
    "double precision": (("0", "cast('-0' as double)", "cast('NaN' as double)", "0.1", "0.10000000000000002"), ()),
    "date": (("date'2024-02-29'", "date'0001-01-01'"), ("2024-02-29", "infinity", "0001-01-01 BC")),
    "timestamp without time zone": (
        (
            "timestamp_ntz'2024-03-10 02:30:00'", "timestamp_ntz'2024-03-10 03:30:00'",
            "timestamp_ntz'2024-03-10 02:30:00.000001'", f"cast(timestamp_micros({_INFINITY}) as timestamp_ntz)",
        ),
        ("2024-03-10 02:30:00", "infinity", "-infinity"),
    ),
    "timestamp with time zone": (
        ("timestamp'2024-03-10 02:30:00Z'", f"timestamp_micros({_INFINITY})"), ("2024-03-10 02:30:00+00", "infinity"),
    ),
    "bytea": (("X''", "X'5c78'"), ("\\\\x", "\\\\x5c78")),
    "integer[]": (("array()", "array(null)", "array(1)"), ("{}", "{NULL}", "{1}", "{{1}}", "[0:0]={1}")),
    "text[]": (("array()", "array('')", "array('NULL')", "array(null)", "array('a', 'b')", "array('a,b')"), ("{a,b}",)),
    "text": (("''", "'NULL'", "' '"), ("x",)),
}  # fmt: skip


def _plan() -> Comparison:
    columns = [column(1, "id", "integer"), *(column(n, f"c{n}", type_) for n, type_ in enumerate(CELLS, 2))]
    return comparison(TableVersion.from_json(snapshot("forged", columns)), 1)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_no_two_cells_have_one_line(spark: SparkSession, zone: str) -> None:
    plan = _plan()
    side = Side(plan, None, Namespaces())
    rows: list[str] = []
    for n, (typed, kept) in enumerate(CELLS.values(), 2):
        name = f"c{n}"
        rows += [f"SELECT {len(rows)} AS id, '{name}' AS c, NULL AS _cdc_text"]
        rows += [f"SELECT {len(rows) + i}, '{name}', NULL" for i in range(len(typed))]
        rows += [f"SELECT {len(rows) + i}, '{name}', map('{name}', '{text}')" for i, text in enumerate(kept)]
    cells: list[str] = []
    nulls: list[int] = []
    number = 0
    for n, (typed, kept) in enumerate(CELLS.values(), 2):
        whens = " ".join(f"WHEN id = {number + i} THEN {value}" for i, value in enumerate(typed, 1))
        cells.append(f"cast(CASE {whens} END AS {spark_type(plan.columns[n - 1])}) AS c{n}")
        nulls.append(number)
        number += 1 + len(typed) + len(kept)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS current")
    spark.sql(
        f"CREATE TABLE {side.relation} USING iceberg AS SELECT id, {', '.join(cells)}, _cdc_text"
        f" FROM ({' UNION ALL '.join(rows)})"
    )
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        found = list(lines(spark, side, range(1)))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    # Behind the number of columns and the key, which distinguishes the rows.
    bare = {fields(line, plan.natives)[0]: line[:2] + line[10:] for line in found}
    assert len(bare) == len(found) == number
    by_line: dict[bytes, list[int]] = {}
    for i, line in bare.items():
        by_line.setdefault(line, []).append(int(i or 0))
    assert [sorted(same) for same in by_line.values() if len(same) > 1] == [nulls]


def test_columns_that_are_not_the_source_s_are_named(spark: SparkSession, lake: Config) -> None:
    """Rows compare equal in them: a comparison asks for the columns that it knows, and rounds to the scale it knows."""
    plan = _plan()
    side, table = Side(plan, None, Namespaces()), plan.table
    shape = ", ".join(f"{c.name} {spark_type(c)}" for c in plan.columns)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS current")
    spark.sql(
        f"CREATE TABLE {side.relation} ({shape}, _cdc_from_lsn bigint, _cdc_text map<string,string>) USING iceberg"
    )
    assert misshapen(table, applied(lake.lake_access, table)) is None  # no one has written it yet
    row = f"INSERT INTO {side.relation} (id) VALUES (1)"
    spark.sql(row)
    assert misshapen(table, applied(lake.lake_access, table)) is None
    for ddl, reported in {
        "ADD COLUMN margin int": "margin is of no column of the source",
        "DROP COLUMN margin": None,
        "RENAME COLUMN c4 TO C4": "C4 is of no column of the source; c4 is missing",
        "RENAME COLUMN C4 TO c4": None,
        "DROP COLUMN c17": "c17 is missing",
        "ALTER COLUMN c8 TYPE decimal(14,2)": "c8 is decimal(14,2), not decimal(12,2); c17 is missing",
    }.items():
        spark.sql(f"ALTER TABLE {side.relation} {ddl}")
        spark.sql(row)
        assert misshapen(table, applied(lake.lake_access, table)) == reported

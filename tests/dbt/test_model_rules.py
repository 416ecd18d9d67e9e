"""The rules of a table that `cdc models sync` states as dbt tests turn red when a value breaks them."""

from __future__ import annotations

import pytest

from tests.dbt.harness import Lake, rules
from tests.dbt.scenario import Source, Table, column

pytestmark = [pytest.mark.dbt, pytest.mark.spark, pytest.mark.wide]

LABELS = [{"oid": 1, "label": "it's"}, {"oid": 2, "label": "back\\slash"}, {"oid": 3, "label": "{{ braces }} ${x}"}]
COLUMNS = [
    column(1, "shop", "integer", not_null=True),
    column(2, "Number", "numeric(10,0)", not_null=True),
    column(3, "mood", "mood", type_kind="e", type_category="E", enum_labels=LABELS),
    column(4, "small", "smallint"),
    column(5, "code", "character(3)"),
    column(6, "name", "character varying(5)"),
    column(7, "kind", "object_kind", type_kind="d", base_type="oid"),
]
GOOD: dict[int, str | None] = {1: "1", 3: "it's", 4: "-32768", 5: "ab ", 6: "", 7: "4294967295"}
FAULTS = {
    "not_null_current__public__ruled__shop": "shop = NULL WHERE Number = 1",
    "cdc_unique_current__public__ruled": "Number = 3 WHERE Number = 2",
    "accepted_values_current__public__ruled__mood": "mood = 'ok' WHERE Number = 3",
    "cdc_between_current__public__ruled__small": "small = 32768 WHERE Number = 4",
    "cdc_between_current__public__ruled__code": "code = 'ab' WHERE Number = 4",
    "cdc_between_current__public__ruled__name": "name = 'longer' WHERE Number = 4",
    "cdc_between_current__public__ruled__kind": "kind = -1 WHERE Number = 4",
    "unique_current__public__single__id": "id = 2 WHERE id = 1",
}


def _failed(lake: Lake) -> list[str]:
    """Names of the tests that fail; every one of them has run."""
    results = rules(lake.config)
    assert len(results) == len(FAULTS) + 4, results  # `id` and `Number` are not null either, and two histories
    assert {status for *_, status in results} <= {"pass", "fail"}, results
    return [name for name, _, status in results if status == "fail"]


def test_each_rule_turns_red_by_its_name(built: Lake) -> None:
    source = Source()
    ruled = Table(16384, "ruled", COLUMNS, [1, 2])
    ruled.rows = [GOOD | {2: str(n)} for n in (1, 2, 3, 4)]
    ruled.rows[3][3] = "{{ braces }} ${x}"
    ruled.rows[2][3] = "back\\slash"
    ruled.rows[2] |= {2: "NaN"}  # not carried by its type: NULL in the lake, and no fault
    ruled.rows.append(GOOD | {2: "3"})
    single = Table(16385, "single", [column(1, "id", "bigint", not_null=True)], [1])
    single.rows = [{1: "1"}, {1: "2"}]
    for table in (ruled, single):
        source.baseline(table, first=True)
    built.append(source)
    built.build()
    rows = built.rows("current.public__ruled", ruled.snapshot())
    assert rows == source.at(ruled.relid, source.lsn)[0], built.spark.table("ops.tables").collect()  # type: ignore[index]
    assert _failed(built) == []
    for name, change in FAULTS.items():
        altered = "single" if "single" in name else "ruled"
        built.spark.sql(f"UPDATE current.public__{altered} SET {change}")
    failed = _failed(built)
    missing = [name for name in FAULTS if not any(found.startswith(name) for found in failed)]
    assert missing == [], failed
    assert len(failed) == len(FAULTS)

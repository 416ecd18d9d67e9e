"""The fold in dbt's own unit tests: a few events of a planned table, and the rows that they become."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.dbt.harness import Lake, rules
from tests.dbt.scenario import Source, Table, column

pytestmark = [pytest.mark.dbt, pytest.mark.spark]

_EVENT = (
    "select 'row' as kind, {commit}L as commit_lsn, 0L as ordinal, {end}L as end_lsn, '{op}' as op, {kind} as old_kind,"
    " {new} as new, {old} as old, {unchanged} as unchanged, 0L as batch_id, 1 as generation, {relid}L as relid"
)


def _array(image: list[Any] | None, of: str) -> str:
    return f"cast({'null' if image is None else f'array({str(image)[1:-1]})'} as array<{of}>)"


class Events:
    """Row events of one table, each a transaction of its own."""

    def __init__(self, relid: int, low: int) -> None:
        self._relid, self._low, self._made = relid, low, list[str]()

    def add(
        self, op: str, new: list[str] | None, old: list[str] | None = None, unchanged: list[int] | None = None
    ) -> Events:
        commit = self._low + 10 * len(self._made)
        kind = "null" if old is None else "'K'" if len(old) == 1 else "'O'"
        self._made.append(
            _EVENT.format(
                commit=commit, end=commit + 8, op=op, kind=kind, new=_array(new, "string"), old=_array(old, "string"),
                unchanged=_array(unchanged, "int"), relid=self._relid,
            )
        )  # fmt: skip
        return self

    def case(self, name: str, table: str, values: list[str], **facts: Any) -> dict[str, Any]:
        """A dbt unit test: only the log is given, and what the model asks Spark about it while it is compiled."""
        macros = {
            "cdc_segment_facts": {"toast": [], "moved": False, "chained": False, "changed": 4, "copied": 0} | facts,
            "cdc_pinned": "",
        }
        return {
            "name": name,
            "model": f"current__public__{table}",
            "overrides": {"macros": macros},
            "given": [{"input": "source('raw', 'events')", "format": "sql", "rows": " union all ".join(self._made)}],
            "expect": {"rows": [{"v": value} for value in values]},
        }


def test_what_events_come_to_in_dbts_unit_tests(built: Lake) -> None:
    source = Source()
    columns = [column(1, "id", "integer"), column(2, "v")]
    for table in (Table(300, "keyed", columns, [1]), Table(301, "bag", columns, [], identity="f")):
        source.baseline(table, first=True)
    low = source.lsn
    source.lsn += 1000
    built.append(source)
    built.build()
    first = ["1", "a"]
    cases = [
        Events(300, low).add("I", first).add("U", ["1", "b"]).case("last_image_of_a_key", "keyed", ["b"]),
        Events(300, low).add("I", first).add("D", None, ["1"]).case("deleted_key", "keyed", []),
        Events(300, low).add("I", first).add("U", ["2", "a"], ["1"]).case("moved_key", "keyed", ["a"], moved=True),
        Events(300, low)
        .add("I", first)
        .add("U", ["1", ""], unchanged=[2])
        .case("value_that_was_not_sent", "keyed", ["a"], toast=[2]),
        Events(301, low)
        .add("I", first)
        .add("I", first)
        .add("I", first)
        .add("D", None, first)
        .case("equal_rows_of_a_bag", "bag", ["a", "a"]),
    ]
    wrong = Events(300, low).add("I", first).add("I", ["2", "a"]).case("planted", "keyed", ["a"])
    unit_tests = {"version": 2, "unit_tests": [*cases, wrong]}
    path = built.config.dbt_project.folder / "models" / "current" / "unit_tests.yml"
    path.write_text(yaml.safe_dump(unit_tests), encoding="utf-8")
    found = {name: status for name, _, status in rules(built.config, "test_type:unit")}
    assert found == {case["name"]: "pass" for case in cases} | {"planted": "fail"}

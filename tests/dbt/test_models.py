"""The dbt models against a plain-Python oracle that knows what SELECT would have shown at every LSN."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.dbt.harness import Lake, rebuilt
from tests.dbt.scenario import Row, Source, Table
from tests.dbt.walk import Walk, bag_table, keyed_table
from toolkit.build.dbt_run import BuildResult
from toolkit.values.lake_types import text_sql
from toolkit.values.lsn import Lsn
from toolkit.values.names import lake_columns
from toolkit.values.table import TableVersion

pytestmark = [pytest.mark.dbt, pytest.mark.spark]


def expected(source: Source, table: Table) -> Counter[Row]:
    found = source.at(table.relid, source.lsn)
    assert found is not None
    return found[0]


def actions(result: BuildResult) -> dict[str, str]:
    return {model.name: model.action for model in result.models}


def check_current(built: Lake, source: Source, tables: list[Table]) -> None:
    for table in tables:
        assert built.rows(f"current.{built.alias(table.snapshot())}", table.snapshot()) == expected(source, table), (
            table.name
        )


def check_history(built: Lake, source: Source, table: Table) -> None:
    """As of every LSN, on the columns that live then and now."""
    version = TableVersion.from_json(table.snapshot())
    names = lake_columns([(c.attnum, c.name) for c in version.columns])
    texts = ", ".join(text_sql(names[c.attnum], c) for c in version.columns)
    rows = built.spark.sql(
        f"select struct({texts}), _cdc_from_lsn, coalesce(_cdc_to_lsn, 1L << 62)"
        f" from history.{built.alias(table.snapshot())}"
    ).collect()
    live = [c.attnum for c in version.columns]
    for end_lsn, state, attnums in source.truth[table.relid]:
        if source.at(table.relid, end_lsn) != (state, attnums):
            continue  # a later state at the same LSN
        shared = [a for a in live if a in attnums]
        want: Counter[Row] = Counter()
        for row, count in state.items():
            want[tuple(row[attnums.index(a)] for a in shared)] += count
        have = Counter(tuple(r[0][live.index(a)] for a in shared) for r in rows if r[1] <= end_lsn < r[2])
        assert have == want, (table.name, Lsn(end_lsn))
    assert all(r[1] < r[2] for r in rows)


@pytest.mark.parametrize("kinds", ["few", pytest.param("all", marks=pytest.mark.wide)])
def test_incremental_equals_rebuild_equals_oracle(built: Lake, seed: int, kinds: str) -> None:
    rng = random.Random(seed)
    source = Source()
    walks = [
        Walk(source, keyed_table(100), rng),
        Walk(source, keyed_table(101, toasted_key=True), rng, schema=False, toasted_key=True),
        Walk(source, bag_table(102), rng),
    ]
    if kinds == "all":
        walks += [
            Walk(source, keyed_table(103), rng, schema=False),
            Walk(source, keyed_table(104, composite=True), rng, schema=False),
            Walk(source, bag_table(105), rng, schema=False),
        ]
    tables = [walk.table for walk in walks]
    for walk in walks[::2]:
        source.baseline(walk.table, first=True)
    source.begin()
    for walk in walks[1::2]:
        source.create(walk.table)
    source.commit()
    seen, merged = Counter[str](), set[str]()
    middle = 0
    # Twice, and again where chance has led every table to the same way of building.
    for number, count in enumerate((40, 4, 1, 1, 1, 1)):
        if seen["merge"] and seen["rebuild"]:
            break
        for _ in range(count):
            rng.choice(walks).step()
        for walk in walks:
            walk.step()
        built.append(source)
        # Small tables are built together; with a selector of dbt's, each is built by its model.
        result = built.build(select=["current", "history"] if number % 2 else None)
        seen.update(actions(result).values())
        merged |= {name for name, action in actions(result).items() if action == "merge"}
        check_current(built, source, tables)
        middle = middle or source.lsn
    for table in tables:
        check_history(built, source, table)
    assert seen["merge"] and seen["rebuild"]
    assert {name.partition(".")[0] for name in merged} == {"current", "history"}

    assert not rebuilt(built.build())
    forced = built.build(dbt_args=["--full-refresh"], select=["current"])
    assert set(actions(forced).values()) == {"rebuild"}
    check_current(built, source, tables)

    built.build(as_of=Lsn(middle))
    for table in tables:
        state, attnums = source.at(table.relid, middle) or (Counter(), [])
        then = next(e for e in reversed(built.schema_payloads(table.relid)) if e[0] <= middle)[1]
        assert [c["attnum"] for c in then["columns"]] == attnums
        assert built.rows(f"asof_{Lsn(middle).tag}.{built.alias(then)}", then) == state
    check_current(built, source, tables)

"""A model merges on a branch of its table: readers see all of it or nothing."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dbt.harness import Lake
from tests.dbt.scenario import Source, Table, column
from tests.dbt.test_models import actions, check_current, check_history
from tests.support_ledger import lake_of
from toolkit.history.rows_at_lsn import read_rows
from toolkit.lake import reads, table_commit
from toolkit.lake.session import own_session
from toolkit.values.errors import BuildFailed, ConfigError
from toolkit.values.lsn import Lsn

pytestmark = [pytest.mark.dbt, pytest.mark.spark]
_KEY = (1 << 53) + 1  # a number that a float does not have, as all odd ones after it


class _Interrupted(Exception):
    """A build that was ended between two statements."""


def _at(monkeypatch: pytest.MonkeyPatch, start: str, action: Any) -> list[str]:
    """Do something before statements that match. Return the list of all statements."""
    run, write, seen = SparkSession.sql, table_commit.write, []

    def noted(spark: SparkSession, text: str) -> None:
        seen.append(text)
        if re.search(start, text):
            action(spark, run, text)

    def sql(self: SparkSession, text: str, *args: Any, **named: Any) -> Any:
        noted(self, text)
        return run(self, text, *args, **named)

    def written(spark: SparkSession, text: str, summary: Mapping[str, str]) -> None:
        noted(spark, text)
        write(spark, text, summary)

    monkeypatch.setattr(SparkSession, "sql", sql)
    monkeypatch.setattr(table_commit, "write", written)
    return seen


def _changed(source: Source, table: Table) -> None:
    source.begin()
    source.update(table, table.rows[0], {2: "changed"}, [])
    source.update(table, table.rows[1], {1: str(_KEY + 2000)}, [])
    source.delete(table, table.rows[2])
    source.insert(table, {1: str(_KEY + 3000), 2: "new"})
    source.commit()


def _state(built: Lake) -> Any:
    return sorted(map(str, built.spark.table("current.public__big").collect()))


def test_a_merge_that_does_not_reach_main_changes_nothing(built: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    table = Table(400, "big", [column(1, "id", "bigint", not_null=True), column(2, "v")], [1])
    table.rows = [{1: str(_KEY + 2 * n), 2: "x"} for n in range(-3, 4)]
    source.baseline(table, first=True)
    built.append(source)
    built.build(select=["current", "history"])
    _changed(source, table)
    built.append(source)
    before = _state(built)

    def end(*_: Any) -> None:
        raise _Interrupted

    with monkeypatch.context() as patch:
        seen = _at(patch, r"insert into \w+\.public__big\.branch_", end)
        with pytest.raises(BuildFailed):
            built.build(select=["current", "history"])
        assert any("merge into current.public__big.branch_cdc_build_" in text for text in seen)
    assert _state(built) == before
    with pytest.raises(ConfigError, match="not built that far yet"):
        list(read_rows(lake_of(built.config), "public.big", Lsn(source.lsn)))

    def overtake(spark: SparkSession, run: Any, text: str) -> None:
        run(spark, "insert into current.public__big (id) values (1)")

    with monkeypatch.context() as patch:
        _at(patch, r"fast_forward\(table => 'current\.public__big'", overtake)
        with pytest.raises(BuildFailed, match=r"(?i)fast-forward"):
            built.build(select=["current", "history"])
    assert len(_state(built)) == len(before) + 1
    own_session(built.config.lake_access).sql("delete from current.public__big where id = 1")
    with monkeypatch.context() as patch:
        _at(patch, r"current\.public__big drop branch", overtake)
        built.build(select=["current", "history"])
    tag = f"g1_lsn_{Lsn(source.lsn).tag}"
    tagged = built.spark.sql(f"select id from current.public__big version as of '{tag}' where id = 1")
    assert tagged.isEmpty(), "a tag names what its run has built"
    own_session(built.config.lake_access).sql("delete from current.public__big where id = 1")
    check_current(built, source, [table])
    check_history(built, source, table)
    # The two builds that failed left a branch each, under names of their own.
    assert (
        len((reads.metadata(built.config.lake_access, "current.public__big") or {})["refs"]) == 1 + 2 + 2
    )  # main, tags


def _random_changes(source: Source, table: Table, rng: random.Random, changes: int) -> None:
    """In one transaction: new keys, deletes, moved keys, unchanged TOAST, and keys that come back."""
    free = [key for key in _clusters(40) if key not in {row[1] for row in table.rows}]
    source.begin()
    for row in rng.sample(table.rows, changes):
        chance = rng.random()
        values: dict[int, str | None] = {2: rng.choice([None, "", "changed"])} if rng.random() < 0.7 else {}
        if chance < 0.2:
            source.delete(table, row)
            if rng.random() < 0.5:  # the same key again, in the same transaction
                source.insert(table, {**row, 2: "again"})
            else:
                free.append(str(row[1]))
        elif chance < 0.4:
            source.insert(table, {1: free.pop(rng.randrange(len(free))), 2: "new", 3: _long(rng)})
        else:
            if chance < 0.6:
                free.append(str(row[1]))
                values[1] = free.pop(rng.randrange(len(free)))
            left_out = chance < 0.9
            source.update(table, row, values if left_out else values | {3: _long(rng)}, [3] if left_out else [])
    source.commit()


def _clusters(each: int) -> list[str]:
    """Give numbers in groups with gaps between them, over nearly all that a bigint holds."""
    return [str(group * (1 << 59) + 2 * n + 1) for group in (-15, -9, -8, 0, 1, 6, 15) for n in range(each)]


def _long(rng: random.Random) -> str:
    return rng.randbytes(8000).hex()


def _all_rows(built: Lake, name: str) -> Counter[str]:
    frame = built.spark.table(name)
    shown = [f"to_json({c})" if c == "_cdc_text" else f"`{c}`" for c in frame.columns]
    return Counter(map(str, frame.selectExpr(*shown).collect()))


def test_merges_into_a_large_table_equal_a_full_rebuild(
    built: Lake, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is too large to be written whole, so the models merge, by ranges of the keys that changed."""
    rng = random.Random(seed)
    source = Source()
    columns = [column(1, "id", "bigint", not_null=True), column(2, "v"), column(3, "big")]
    table = Table(401, "large", columns, [1])
    table.rows = [{1: key, 2: "x", 3: _long(rng)} for key in _clusters(50)[::2]]
    source.baseline(table, first=True)
    built.append(source)
    built.build()
    for changes in (60, 3, 30):
        _random_changes(source, table, rng, changes)
        built.append(source)
        applied: list[tuple[str, str]] = []

        def explain(self: SparkSession, run: Any, text: str, applied: list[tuple[str, str]] = applied) -> None:
            applied.append((text, run(self, f"explain {text}").collect()[0][0]))

        with monkeypatch.context() as patch:
            _at(patch, r"(merge|insert) into \w+\.public__large\.branch_", explain)
            done = actions(built.build())
        assert {done["current.public__large"], done["history.public__large"]} == {"merge"}
        assert sorted(" or t.`id` between " in text for text, _ in applied) == [False, False, True, True]
        # The log is folded once, into a cached table, and not again for each of the two statements.
        above, cached, _ = zip(*(plan.partition("Scan In-memory table") for _, plan in applied), strict=True)
        assert all(cached) and not any("Window" in plan for plan in above)
        check_current(built, source, [table])
    check_history(built, source, table)
    merged = {layer: _all_rows(built, f"{layer}.public__large") for layer in ("current", "history")}
    built.build(dbt_args=["--full-refresh"])
    for layer, rows in merged.items():
        assert rows == _all_rows(built, f"{layer}.public__large")

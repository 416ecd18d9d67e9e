"""A model merges on a branch of its table: readers see all of it or nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dbt.harness import Lake
from tests.dbt.scenario import Source, Table, column
from tests.dbt.test_models import check_current, check_history
from tests.support_ledger import lake_of
from toolkit.history.rows_at_lsn import read_rows
from toolkit.lake import reads
from toolkit.lake.session import own_session
from toolkit.values.errors import BuildFailed, ConfigError
from toolkit.values.lsn import Lsn

pytestmark = [pytest.mark.dbt, pytest.mark.spark]
_KEY = (1 << 53) + 1  # a number that a float does not have, as all odd ones after it


class _Interrupted(Exception):
    """A build that was ended between two statements."""


def _at(monkeypatch: pytest.MonkeyPatch, start: str, action: Any) -> list[str]:
    """Do something before statements that match. Return the list of all statements."""
    run, seen = SparkSession.sql, []

    def sql(self: SparkSession, text: str, *args: Any, **named: Any) -> Any:
        seen.append(text)
        if re.search(start, text):
            action(self, run)
        return run(self, text, *args, **named)

    monkeypatch.setattr(SparkSession, "sql", sql)
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

    def overtake(_: SparkSession, run: Any) -> None:
        # A session of its own: the commits of the run's session name the position of the run.
        run(own_session(built.config.lake_access), "insert into current.public__big (id) values (1)")

    with monkeypatch.context() as patch:
        _at(patch, r"fast_forward\(table => 'current\.public__big'", overtake)
        with pytest.raises(BuildFailed, match=r"(?i)fast-forward"):
            built.build(select=["current", "history"])
    assert len(_state(built)) == len(before) + 1
    own_session(built.config.lake_access).sql("delete from current.public__big where id = 1")
    built.build(select=["current", "history"])
    check_current(built, source, [table])
    check_history(built, source, table)
    # The two builds that failed left a branch each, under names of their own.
    assert (
        len((reads.metadata(built.config.lake_access, "current.public__big") or {})["refs"]) == 1 + 2 + 2
    )  # main, tags

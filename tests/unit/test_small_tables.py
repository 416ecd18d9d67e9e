"""Which tables are simple enough and small enough to be built together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from toolkit.build import small_tables
from toolkit.lake import reads, shared_fold
from toolkit.lake.plans import Model
from toolkit.lake.targets import Decision, Facts, Found, Target
from toolkit.rawlog.order import Point
from toolkit.rawlog.plan import Era, Layer, PlannedColumn, Segment, TablePlan
from toolkit.rawlog.states import Doubt
from toolkit.values.config import Config, SourceConfig
from toolkit.values.outcome import BuildAction

pytestmark = pytest.mark.unit

_COLUMN = PlannedColumn(1, False, None, "id", "integer", "b", None, ())
_LOW = Point(80, 0, 88)
_SEGMENT = Segment(_LOW, None, (1,), (), (), "true", "null", "0")
_PLAN = TablePlan(7, Layer.HISTORY, False, 3, 80, None, (), columns=(_COLUMN,), segments=(_SEGMENT,))
_TARGET = Target(relid=7, generation=1, schema_id=3, snapshot="11", batch=4, lsn=800)


_MERGE, _REBUILD = Decision(BuildAction.MERGE, ""), Decision(BuildAction.REBUILD, "")


def _wanted(plan: TablePlan, found: Found, monkeypatch: pytest.MonkeyPatch, size: int = 1000) -> Any:
    monkeypatch.setattr(reads, "snapshot_summary", lambda *_: {"total-files-size": str(size)})
    config = Config(source=SourceConfig(conninfo="host=nowhere"))
    return small_tables._wanted(config.lake_access, "history.t", Model(plan, found))


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("a key that changed", replace(_PLAN, segments=(_SEGMENT, _SEGMENT))),
        ("no key", replace(_PLAN, segments=(replace(_SEGMENT, key=()),))),
        ("no rows left", replace(_PLAN, segments=())),
        ("no column", replace(_PLAN, columns=())),
        ("a truncate in its history", replace(_PLAN, segments=(replace(_SEGMENT, clears=(_LOW,)),))),
        ("rows in doubt", replace(_PLAN, doubts=(Doubt(90, None, None, None),))),
        ("a label that was renamed", replace(_PLAN, columns=(replace(_COLUMN, relabel=(Era(90, {"a": "b"}),)),))),
    ],
)
def test_a_table_with_a_special_case_is_left_to_its_model(name: str, plan: TablePlan) -> None:
    assert not shared_fold.is_simple(plan), name


def test_a_simple_table_is_built_together(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shared_fold.is_simple(_PLAN)
    cleared = replace(_PLAN, layer=Layer.CURRENT, segments=(replace(_SEGMENT, clears=(_LOW,)),))
    assert shared_fold.is_simple(cleared), "the rows that are there now follow the last truncate"
    first = _wanted(_PLAN, Found(None, _REBUILD, whole=Facts(n=10)), monkeypatch)
    assert (first.low, first.merge) == (_LOW.position, False)
    merge = _wanted(_PLAN, Found(_TARGET, _MERGE, Facts(n=10, low=800)), monkeypatch)
    assert merge.merge and merge.low < (800, 0), "the events of the transaction at the target's LSN are new"
    left_out = Facts(n=10, low=800, toast="2,3")
    assert _wanted(_PLAN, Found(None, _REBUILD, whole=left_out), monkeypatch).toast == (2, 3)
    assert _wanted(_PLAN, Found(_TARGET, _MERGE, left_out), monkeypatch).toast == (2, 3)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("nothing new", Found(_TARGET, Decision(BuildAction.SKIP, ""))),
        ("a moved key, and a value left out", Found(None, _REBUILD, whole=Facts(n=10, moved=1, chained=1, toast="2"))),
        ("the same among new events", Found(_TARGET, _MERGE, Facts(n=10, moved=1, chained=1, toast="2"))),
        ("many events", Found(None, _REBUILD, whole=Facts(n=20_001))),
        ("many new events", Found(_TARGET, _MERGE, Facts(n=20_001))),
        ("what only the model can decide", Found(_TARGET, None, whole=Facts(n=10))),
        ("no event", Found(None, _REBUILD)),
    ],
)
def test_what_is_not_small_or_not_known_is_left_to_its_model(
    name: str, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _wanted(_PLAN, found, monkeypatch) is None, name


@pytest.mark.parametrize(("type_", "merged"), [("numeric(12,2)", False), ("bigint", True), ("uuid", True)])
def test_only_a_key_whose_values_have_one_text_is_merged(
    type_: str, merged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(_PLAN, columns=(replace(_COLUMN, type=type_),))
    assert (_wanted(plan, Found(_TARGET, _MERGE, Facts(n=1, low=800)), monkeypatch) is not None) is merged
    assert _wanted(plan, Found(_TARGET, _MERGE, Facts(n=1, low=800)), monkeypatch, size=1 << 21) is None, "a large file"

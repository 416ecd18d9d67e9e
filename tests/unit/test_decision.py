"""Whether a table is skipped, merged or rebuilt: the rules, and how a model that runs alone asks for them."""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import jinja2
import pytest

import dbt_cdc_toolkit
from toolkit.lake.targets import Aim, Decision, Facts, Found, Target, decide
from toolkit.rawlog.order import Point
from toolkit.rawlog.plan import Layer, PlannedColumn, Segment, TablePlan
from toolkit.values.outcome import BuildAction
from toolkit.values.resources import ROOT

pytestmark = pytest.mark.unit

_UPTO, _BATCH = 1600, 5
_AIM = Aim(relid=7, schema_id=3, exists=True, keyed=True, generation=1, batch=_BATCH, upto=_UPTO, compared=True)
_TARGET = Target(7, 1, 3, "11", 4, 800)
_SEGMENT = Segment(Point(80, 0, 88), None, (1,), (), (), "true", "null", "0")
_PLAN = TablePlan(
    7, Layer.CURRENT, False, 3, 80, None, (), segments=(_SEGMENT,),
    columns=(PlannedColumn(1, False, None, "id", "integer", "b", None, ()),),
)  # fmt: skip
_PLANS = (_PLAN, replace(_PLAN, segments=(replace(_SEGMENT, key=()),)), replace(_PLAN, segments=()))
_TARGETS = (
    None,
    *(
        Target(relid, generation, schema_id, "11", batch, lsn)
        for relid, generation, schema_id, batch, lsn in itertools.product(
            (7, 8), (1, 2), (3, 4), (4, 5, 6), (800, 1600, 1601)
        )
    ),
)
_NEWS = (Facts(), *(Facts(n=2, low=low, control=control) for low in (799, 800) for control in (0, 1)))
_MACRO = (ROOT / "dbt_project" / "macros" / "decide" / "cdc_decide.sql").read_text(encoding="utf-8")


class _ReturnError(Exception):
    """Carries what a macro returns, as dbt's own does."""


def _returned(value: Any) -> None:
    raise _ReturnError(value)


@cache
def _template(text: str) -> jinja2.Template:
    environment = jinja2.Environment(extensions=["jinja2.ext.do"], autoescape=False)
    return environment.from_string(text + "{{ cdc_decide(shown) }}")


class _RefusedError(Exception):
    """What the macro refuses."""


class _Exceptions:
    @staticmethod
    def raise_compiler_error(message: str) -> None:
        raise _RefusedError(message)


class _This:
    @staticmethod
    def render() -> str:
        return "current.public__t"


def _rendered(
    plan: TablePlan,
    target: Target | None,
    news: Facts,
    newest: int,
    found: Found | None = None,
    text: str = _MACRO,
    *,
    full: bool = False,
) -> dict[str, Any]:
    """Return what the macro returns for a table, with the newest batch of the log when the model runs."""
    macros = {
        "adapter": dbt_cdc_toolkit._extended(object)(),
        "cdc_existing": lambda: None,
        "cdc_target_state": lambda _: asdict(target) if target else {"snapshot": "11"},
        "cdc_news": lambda *_: asdict(news),
        "cdc_rows": lambda _: [[newest]],
        "cdc_log": lambda: "log",
        "flags": {"WHICH": "run", "FULL_REFRESH": full},
        "exceptions": _Exceptions,
        "this": _This,
        "var": lambda *_: None,
        "return": _returned,
    }
    position = {"upto": _UPTO, "batch": _BATCH, "generation": _AIM.generation}
    shown = asdict(plan) | {"known": True, "position": position, "found": found and asdict(found)}
    with pytest.raises(_ReturnError) as ended:
        _template(text).render({"shown": shown, **macros})
    value: dict[str, Any] = ended.value.args[0]
    return value


@pytest.mark.parametrize(
    ("aim", "target", "news", "expected"),
    [
        ({"exists": False}, None, {}, (BuildAction.SKIP, "dropped at the source")),
        ({}, None, {}, (BuildAction.REBUILD, "no table with a position")),
        ({}, {"batch": 6}, {}, None),
        ({}, {"batch": 5, "lsn": 1601}, {}, None),
        ({}, {"batch": 5, "lsn": 1600}, {}, (BuildAction.SKIP, "nothing new")),
        ({}, {"generation": 2, "lsn": 1601}, {}, (BuildAction.REBUILD, "another table had this name")),
        ({}, {"relid": 8}, {}, (BuildAction.REBUILD, "another table had this name")),
        ({}, {"schema_id": 4}, {}, (BuildAction.REBUILD, "schema version 3")),
        ({}, {"written": True}, {}, (BuildAction.SKIP, "nothing new")),
        ({"compared": False}, {"written": True}, {}, (BuildAction.REBUILD, "another program has written to it")),
        ({}, {}, {}, (BuildAction.SKIP, "nothing new")),
        ({}, {}, {"low": 800, "control": 1}, (BuildAction.REBUILD, "a baseline, a truncate or a schema version")),
        ({}, {}, {"low": 799}, (BuildAction.REBUILD, "new events below the applied position")),
        ({}, {}, {"low": 800}, (BuildAction.MERGE, "new events")),
        ({"keyed": False}, {}, {"low": 800}, (BuildAction.REBUILD, "new events")),
    ],
)
def test_the_rules(
    aim: dict[str, Any], target: dict[str, Any] | None, news: dict[str, Any], expected: tuple[BuildAction, str] | None
) -> None:
    built = None if target is None else replace(_TARGET, **target)
    found = decide(replace(_AIM, **aim), built, Facts(n=2, **news) if news else Facts())
    assert found == (expected and Decision(*expected))


def _differing(text: str = _MACRO) -> list[Any]:
    """List the cases in which a model that runs alone decides differently than a build."""
    found = []
    for plan, target, news in itertools.product(_PLANS, _TARGETS, _NEWS):
        keyed = bool(plan.segments and plan.segments[-1].key)
        expected = decide(replace(_AIM, exists=bool(plan.segments), keyed=keyed), target, news)
        shown = _rendered(plan, target, news, _BATCH, text=text)
        if expected is not None and (shown["action"], shown["reason"]) != (expected.action, expected.reason):
            found.append((plan, target, news, shown, expected))
    return found


def test_a_model_that_runs_alone_decides_as_a_build() -> None:
    assert len(_PLANS) * len(_TARGETS) * len(_NEWS) == 1095
    assert _differing() == []


@pytest.mark.parametrize(
    ("part", "planted"),
    [
        ("adapter.cdc_decide(plan, target, news)", "adapter.cdc_decide(plan, target)"),
        ("adapter.cdc_decide(plan, target)", "adapter.cdc_decide(plan, {})"),
        ("decided.action == 'skip' and not plan.found", "false"),
    ],
)
def test_a_part_of_the_macro_that_differs_is_found(part: str, planted: str) -> None:
    assert part in _MACRO
    assert _differing(_MACRO.replace(part, planted))


def test_a_model_does_what_the_build_has_decided() -> None:
    for action in BuildAction.SKIP, BuildAction.REBUILD, BuildAction.MERGE:
        shown = _rendered(_PLAN, _TARGET, Facts(n=2), 5, Found(_TARGET, Decision(action, "as decided")))
        assert (shown["action"], shown["reason"], shown["target"]) == (action, "as decided", asdict(_TARGET))
        assert (shown["news"] is not None) == (action == BuildAction.MERGE)


@pytest.mark.parametrize(
    "ahead", [Target(7, 1, 3, "11", 6, 800), Target(7, 1, 3, "11", 5, 1601), Target(8, 2, 3, "11", 6, 800)]
)
def test_a_table_ahead_of_the_log_is_decided_when_its_model_runs(ahead: Target) -> None:
    assert decide(_AIM, ahead, Facts()) is None
    for found in (None, Found(ahead, None)):
        assert _rendered(_PLAN, ahead, Facts(), 6, found)["reason"] == "built further by another run"
        with pytest.raises(_RefusedError, match=r"current\.public__t: another run has built it further"):
            _rendered(_PLAN, ahead, Facts(), 6, found, full=True)
    if ahead.batch > _BATCH:
        assert _rendered(_PLAN, ahead, Facts(), 5)["reason"] == "the table is ahead of the log"
        assert _rendered(_PLAN, ahead, Facts(), 5, full=True)["reason"] == "full refresh"

"""Whether a table is skipped, merged or rebuilt: the rules in Python, and the same rules of a model that runs alone."""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import jinja2
import pytest

from toolkit.lake.targets import Decision, Facts, Found, Target, decide
from toolkit.rawlog.batch import BatchRecord, SourceIdentity
from toolkit.rawlog.order import Point
from toolkit.rawlog.plan import Layer, PlannedColumn, Segment, TablePlan
from toolkit.values.lsn import Lsn
from toolkit.values.outcome import BuildAction
from toolkit.values.resources import ROOT

pytestmark = pytest.mark.unit

_UPTO = Lsn(1600)
_LAST = BatchRecord(
    batch_id=5, generation=1, from_lsn=Lsn(800), upto_lsn=_UPTO, complete_to=_UPTO, origin="slot",
    slot="cdc", identity=SourceIdentity("1", 1, 1, {}), changes=1,
)  # fmt: skip
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
    position = {"upto": int(_UPTO), "batch": _LAST.batch_id, "generation": _LAST.generation}
    shown = asdict(plan) | {"known": True, "position": position, "found": found and asdict(found)}
    with pytest.raises(_ReturnError) as ended:
        _template(text).render({"shown": shown, **macros})
    value: dict[str, Any] = ended.value.args[0]
    return value


def _differing(text: str = _MACRO) -> list[Any]:
    """List the cases in which the macro decides differently than Python."""
    found = []
    for plan, target, news in itertools.product(_PLANS, _TARGETS, _NEWS):
        expected = decide(plan, target, news, _LAST, _UPTO)
        shown = _rendered(plan, target, news, _LAST.batch_id, text=text)
        if expected is not None and (shown["action"], shown["reason"]) != (expected.action, expected.reason):
            found.append((plan, target, news, shown, expected))
    return found


def test_a_model_that_runs_alone_decides_as_a_build() -> None:
    assert len(_PLANS) * len(_TARGETS) * len(_NEWS) == 1095
    assert _differing() == []


@pytest.mark.parametrize(
    ("rule", "planted"),
    [
        ("news.low < target.lsn", "news.low <= target.lsn"),
        ("target.schema_id != plan.schema_id", "false"),
        ("news.control", "false"),
        ("not plan.segments[-1].key", "false"),
        ("target.batch > p.batch or", "target.batch >= p.batch or"),
        ("target.lsn > p.upto", "target.lsn >= p.upto"),
        ("target.generation == p.generation and", ""),
    ],
)
def test_a_rule_that_differs_is_found(rule: str, planted: str) -> None:
    assert rule in _MACRO
    assert _differing(_MACRO.replace(rule, planted))


def test_a_model_does_what_the_build_has_decided() -> None:
    target = Target(7, 1, 3, "11", 4, 800)
    for action in (BuildAction.SKIP, BuildAction.REBUILD):
        found = Found(target, Decision(action, "as decided"))
        assert _rendered(_PLAN, target, Facts(), 5, found) == {"action": action, "reason": "as decided"}
    merged = _rendered(_PLAN, target, Facts(n=2), 5, Found(target, Decision(BuildAction.MERGE, "as decided")))
    assert (merged["action"], merged["target"], merged["news"]["n"]) == ("merge", asdict(target), 2)


@pytest.mark.parametrize(
    "ahead", [Target(7, 1, 3, "11", 6, 800), Target(7, 1, 3, "11", 5, 1601), Target(8, 2, 3, "11", 6, 800)]
)
def test_a_table_ahead_of_the_log_is_decided_when_its_model_runs(ahead: Target) -> None:
    assert decide(_PLAN, ahead, Facts(), _LAST, _UPTO) is None
    for found in (None, Found(ahead, None)):
        assert _rendered(_PLAN, ahead, Facts(), 6, found)["reason"] == "built further by another run"
        with pytest.raises(_RefusedError, match=r"current\.public__t: another run has built it further"):
            _rendered(_PLAN, ahead, Facts(), 6, found, full=True)
    if ahead.batch > _LAST.batch_id:
        assert _rendered(_PLAN, ahead, Facts(), 5)["reason"] == "the table is ahead of the log"
        assert _rendered(_PLAN, ahead, Facts(), 5, full=True)["reason"] == "full refresh"

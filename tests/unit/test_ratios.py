"""`make bench` names a ratio that fell by more than a fifth."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks import ratios


@pytest.mark.parametrize(("ratio", "falls"), [(0.5, False), (0.41, False), (0.39, True), (0.6, False), (None, False)])
def test_a_ratio_that_fell_by_more_than_a_fifth_is_named(ratio: float | None, falls: bool) -> None:
    said = ratios.fallen("drain_w1", ratio, {"drain_w1": 0.5})
    assert (said is not None) == falls
    assert said is None or said == "bench: drain_w1 fell to 0.39 of its limit; 0.5 is kept (22% less)"


def test_a_figure_without_a_kept_ratio_is_not_named() -> None:
    assert ratios.fallen("new_figure", 0.01, {"drain_w1": 0.5}) is None


def test_the_kept_ratios_are_those_of_figures() -> None:
    assert ratios.read() and all(0 < ratio < 10 for ratio in ratios.read().values())
    lines = [json.dumps({"name": name, "limit_ratio": ratio}) for name, ratio in (("a", 0.5), ("b", None))]
    assert ratios.of_figures([*lines, "not a figure"]) == {"a": 0.5}

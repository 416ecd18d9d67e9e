"""The plot of the figures page."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.benchmarks import plot

pytestmark = pytest.mark.unit
_PAGE = Path(__file__).parents[2] / "docs" / "reference"


def test_each_step_has_a_line_through_the_medians_of_its_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = [("large_copy", 1_000_000, 10.0), ("large_copy", 100_000_000, 900.0), ("large_check", 1_000_000, 1.0)]
    figures += [("large_copy", 100_000_000, 1000.0), ("large_copy", 100_000_000, 2000.0), ("large_other", 1, 1.0)]
    file = tmp_path / "figures.jsonl"
    file.write_text("\n".join(json.dumps({"name": n, "rows": r, "seconds": s}) for n, r, s in figures))
    plot.main([str(file)])
    found = ElementTree.fromstring(capsys.readouterr().out)
    points = [(point.get("cx"), point.get("cy")) for point in found.iter("{http://www.w3.org/2000/svg}circle")]
    # The bottom left is one second at a million rows, and the top right 1,000 seconds at a hundred million.
    assert points == [("60.0", "220.0"), ("590.0", "20.0"), ("60.0", "320.0")]


def test_the_plot_of_the_page_is_one_of_this_program() -> None:
    drawn = (_PAGE / "figures.svg").read_text(encoding="utf-8")
    assert drawn.startswith(plot.svg({}).partition("<rect")[0])
    assert all(name in drawn for name, _ in plot._STEPS.values())
    assert "figures.svg" in (_PAGE / "figures.md").read_text(encoding="utf-8")

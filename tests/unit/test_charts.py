"""Charts are pictures that a notebook shows without a network, whether JupyterLab trusts it or not."""

from __future__ import annotations

from typing import Any

import pytest

from toolkit.api import Toolkit

pytestmark = pytest.mark.unit


def test_a_chart_is_drawn_as_svg_and_as_png() -> None:
    """In a notebook that another process has run, JupyterLab shows no SVG; it would show the text of the object."""
    import altair as alt
    import pandas as pd

    before = alt.renderers.active
    chart = alt.Chart(pd.DataFrame({"a": [1, 2]})).mark_bar().encode(x="a:O")
    try:
        Toolkit.draw_charts()
        bundle: Any = chart._repr_mimebundle_()
    finally:
        alt.renderers.enable(before)
    drawn, sizes = bundle
    assert drawn["image/svg+xml"].startswith("<svg") and drawn["image/png"].startswith(b"\x89PNG")
    assert min(sizes["image/png"].values()) > 10


def test_a_chart_of_many_checks_is_drawn() -> None:
    """The chart of every check failed after some weeks: Altair refuses more than 5,000 rows, for the size of a page."""
    import altair as alt
    import pandas as pd

    before = alt.renderers.active
    chart = alt.Chart(pd.DataFrame({"a": range(5001)})).mark_tick().encode(x="a:Q")
    try:
        Toolkit.draw_charts()
        bundle: Any = chart._repr_mimebundle_()
    finally:
        alt.renderers.enable(before)
        alt.data_transformers.enable("default", max_rows=5000)
    assert bundle[0]["image/svg+xml"].startswith("<svg")

"""Pages as a real browser shows them, without a network: nothing fails, images have a size, names are no markup."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import support_browser as browser
from toolkit.demo import notebooks
from toolkit.quality import report_page
from toolkit.quality.report import Cause, CheckReport, Difference, Sample, TableCheck
from toolkit.values.lsn import Lsn
from toolkit.values.outcome import CauseKind, CheckStatus, RowClass

pytestmark = [
    pytest.mark.notebook,
    pytest.mark.skipif(browser.PROGRAM is None, reason=browser.MISSING),
]

HOSTILE = ("<img src=x onerror=alert(1)>", '"><script>alert(2)</script>', "{{ 1 }}'--><b onclick=alert(3)>$x", "</pre>")
PLAIN = tuple("abcd")


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _report(names: tuple[str, ...]) -> str:
    a, b, c, d = names
    cause = Cause(CauseKind.CAPTURE, d, f"cdc repair {a}", Lsn(8), 3, 700)
    sample = Sample(RowClass.MODIFIED, ((b, c),), (Difference(c, b, None),), cause=cause)
    red = TableCheck(f"public.{a}", 1, CheckStatus.DIFFERENT, 3, 2, 1, 0, 0, reason=b, remedy=c, samples=(sample,))
    tables = (red, replace(red, table=f"{b}.{d}", relid=2, status=CheckStatus.STALE, samples=()))
    green = TableCheck(f"public.{c}", 3, CheckStatus.IDENTICAL, 1_000_000, 1_000_000, 0, 0, 0)
    return report_page.render(CheckReport(Lsn(0x1000), (*tables, green)), [f"{a}/b/c/d"])


def _notebook(names: tuple[str, ...]) -> str:
    """A notebook with a table and a chart, drawn and exported as the toolkit's are."""
    import altair as alt
    import nbformat.v4 as made
    import pandas as pd

    data = pd.DataFrame({"n": range(len(names)), "table": names})
    before = alt.renderers.active
    try:
        alt.renderers.enable("svg")  # as the notebooks export them
        chart = alt.Chart(data).mark_bar().encode(x="n:Q", y="table:N").properties(title=names[2])
        shown: Any = chart._repr_mimebundle_()
    finally:
        alt.renderers.enable(before)
    bundle = shown[0] if isinstance(shown, tuple) else shown
    outputs = [
        made.new_output("display_data", bundle),
        made.new_output("display_data", {"text/html": data.to_html()}),
        made.new_output("stream", name="stdout", text="\n".join(names)),
    ]
    cell = made.new_code_cell("chart", outputs=outputs)
    return notebooks.as_page(made.new_notebook(cells=[made.new_markdown_cell("# Title"), cell]))


@pytest.mark.parametrize("make", [_report, _notebook], ids=["report", "notebook"])
def test_a_page_loads_without_a_network_and_no_name_is_markup(make: Any, tmp_path: Path) -> None:
    plain = browser.look(_write(tmp_path / "plain.html", make(PLAIN)), tmp_path)
    hostile = browser.look(_write(tmp_path / "hostile.html", make(HOSTILE)), tmp_path)
    assert plain.errors == hostile.errors == ()
    assert hostile.elements == plain.elements
    assert len(plain.images) == len(hostile.images) == (make is _notebook)
    assert all(min(size) > 50 and size[2] <= 1200 for size in (*plain.images, *hostile.images))


def test_what_is_wrong_with_a_page_is_seen(tmp_path: Path) -> None:
    """The planted faults of the test above."""
    bad = (
        "<script>console.error('said')</script><img src=x onerror=alert(1)><script src=https://a.example/b.js></script>"
    )
    found = browser.look(_write(tmp_path / "bad.html", f"<html><head></head><body>{bad}</body></html>"), tmp_path)
    reported = "\n".join(found.errors)
    assert all(word in reported for word in ("said", "alert: 1", "not loaded", "b.js"))
    assert found.images == ((0, 0, found.images[0][2]),)

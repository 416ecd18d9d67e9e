"""Draw the charts of notebooks as pictures, which no network and no script is needed to see."""

from __future__ import annotations

from typing import Any


def draw_as_pictures() -> None:
    """Let charts of Altair be drawn as SVG and as PNG.

    Exported pages and JupyterLab show the SVG. In a notebook that another process has run, JupyterLab trusts no SVG and
    shows the PNG. A picture has no rows in it, so Altair's limit of 5,000 rows for the size of a page is taken away.
    """
    import altair as alt

    alt.data_transformers.disable_max_rows()
    alt.renderers.register("pictures", _pictures)
    alt.renderers.enable("pictures")


def _pictures(spec: dict[str, Any], **metadata: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    import altair as alt

    before = alt.renderers.active
    drawn: dict[str, Any] = {}
    sizes: dict[str, Any] = {}
    try:
        for kind in ("svg", "png"):
            alt.renderers.enable(kind)
            made = alt.renderers.get()(spec, **metadata)
            bundle, size = made if isinstance(made, tuple) else (made, {})
            drawn |= bundle
            sizes |= size
    finally:
        alt.renderers.enable(before)
    return drawn, sizes

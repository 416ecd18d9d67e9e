"""Look at the pages that notebooks are exported to."""

from __future__ import annotations

import base64
import re
import tempfile
from pathlib import Path

from tests import support_browser as browser

_LOADED = re.compile(r"""(?:src|href)\s*=\s*["']?https?:|@import\b|\bimport\b[^;]*["']https?:""")


def charts_without_a_network(page: Path) -> list[str]:
    """Give the charts of a page, as SVG: drawn in the page itself, which loads nothing from another place."""
    text = page.read_text(encoding="utf-8")
    assert not _LOADED.search(text)
    if browser.PROGRAM is not None:
        with tempfile.TemporaryDirectory(prefix="browser-") as folder:
            shown = browser.look(page, Path(folder))
        assert shown.errors == () and all(min(size) > 50 for size in shown.images)
    drawn = re.findall(r'<img[^>]*src="data:image/svg\+xml;base64,([^"]+)"', text)
    return [base64.b64decode(chart).decode() for chart in drawn]

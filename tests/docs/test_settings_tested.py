"""The guides say of each setting whether it is tested, and a setting that they call tested is in a test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.docs.documents import name
from toolkit.values import object_store
from toolkit.values.resources import ROOT

pytestmark = pytest.mark.unit
_GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
_NOT_RUN = "not tested"


@dataclass(frozen=True)
class Row:
    """A row of a table of settings."""

    page: str
    settings: tuple[str, ...]
    tested: str

    def __str__(self) -> str:
        return f"{self.page}: {', '.join(self.settings)}"


def _rows(page: Path) -> Iterator[Row]:
    column = None
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells[:1] == ["setting"]:
            column = cells.index("tested")
        elif not cells:
            column = None
        elif column is not None and set(line) - set("|-"):
            yield Row(name(page), tuple(re.findall(r"`([\w.-]+)", cells[0])), cells[column])


_ROWS = [row for page in _GUIDES for row in _rows(page)]


@cache
def _tests() -> str:
    own = Path(__file__)
    return "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py") if path != own)


@pytest.mark.parametrize("row", _ROWS, ids=str)
def test_a_setting_is_in_a_test_or_marked_as_not_run(row: Row) -> None:
    assert row.settings and row.tested, row
    if _NOT_RUN not in row.tested:
        missing = [setting for setting in row.settings if setting.rstrip(".") not in _tests()]
        assert missing == [], f"{row} is called tested ({row.tested}), and no test names {missing}"


def test_every_setting_of_a_store_is_on_the_page_of_stores() -> None:
    listed = {setting for row in _ROWS if row.page.endswith("object-store.md") for setting in row.settings}
    assert listed == {setting for store in object_store._STORES.values() for setting in store.allowed}

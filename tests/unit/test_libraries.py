"""Imports of large libraries, without what they have no use for."""

from __future__ import annotations

import importlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from toolkit.values import libraries

pytestmark = pytest.mark.unit


def test_what_is_left_out_is_there_for_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Great Expectations is imported in the background, while a command may need what it does without."""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with libraries._left_out(frozenset({"colorsys"})), ThreadPoolExecutor(1) as other:
        with pytest.raises(ModuleNotFoundError, match="colorsys is left out"):
            importlib.import_module("colorsys")
        assert other.submit(importlib.import_module, "colorsys").result().__name__ == "colorsys"
    monkeypatch.delitem(sys.modules, "colorsys")
    assert importlib.import_module("colorsys").__name__ == "colorsys"


def test_what_shares_sqlalchemy_is_imported_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check on a catalog in PostgreSQL failed by chance: "module 'sqlalchemy' has no attribute 'dialects'"."""
    began, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def imported(name: str) -> object:
        if name == libraries.Library.GREAT_EXPECTATIONS:
            began.set()
            assert may_end.wait(60)
        order.append(name)
        return sys

    monkeypatch.setattr(libraries, "_imported", {})
    monkeypatch.setattr(libraries, "importlib", type("Stub", (), {"import_module": staticmethod(imported)}))
    catalog, checks = libraries.Library.SQL_CATALOG, libraries.Library.GREAT_EXPECTATIONS
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(libraries.load, checks)
        assert began.wait(60)
        second = threads.submit(libraries.load, catalog)
        libraries.load(libraries.Library.DBT)  # shares nothing with them, and does not wait
        assert not second.done()
        may_end.set()
        assert first.result() is second.result() is sys
    assert order == [libraries.Library.DBT, checks, libraries._DRIVER, catalog]
    with libraries._importing[catalog]:
        libraries.load(catalog)  # what is there needs no other thread to end

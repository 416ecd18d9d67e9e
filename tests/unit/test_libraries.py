"""Imports of large libraries, without what they have no use for."""

from __future__ import annotations

import importlib
import sys
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

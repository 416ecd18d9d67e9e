"""Imports of large libraries, without what they have no use for."""

from __future__ import annotations

import importlib
import subprocess
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


def test_what_a_command_shares_with_a_library_is_imported_before_it() -> None:
    """A check failed by chance: "module 'sqlalchemy' has no attribute 'dialects'", or the same of pyspark.sql."""
    program = """
import sys, threading
from toolkit.lake import lake_catalog
from toolkit.values.libraries import Library, preload
from toolkit.values.modes import CatalogKind
sys.modules["thrift"] = None  # the extra for Hive is not installed
for kind, modules in lake_catalog._MODULES.items():
    wanted = {"pyspark.sql", "pyarrow", *(modules if kind != CatalogKind.HIVE else ())}
    threading.Thread.start = lambda _: print(wanted <= sys.modules.keys())
    preload(Library.GREAT_EXPECTATIONS, after=modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.split() == ["True"] * 3, run

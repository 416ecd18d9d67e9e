"""Import dbt and Great Expectations, which takes seconds: each once, and ahead of its use while a command waits."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any


class Library(StrEnum):
    """A library that is slow to import, by the module that a command needs."""

    DBT = "dbt.cli.main"
    GREAT_EXPECTATIONS = "great_expectations"


#: Great Expectations imports these for expectations that no check has. They take 60 MB, and seconds.
_LATE = ("scipy.stats", "altair")
#: Great Expectations does without these where they are not installed. They take 27 MB, and no check has a use for them.
_LEFT_OUT = frozenset({"pyspark.ml", "sqlalchemy"})
_INTERVAL = sys.getswitchinterval()
#: The libraries import these too, and the commands that preload them need them anyway.
_COMMON = ("pyarrow", "pyspark.sql")
#: Two threads in the middle of one package may find modules that are only half imported.
_importing = {library: threading.Lock() for library in Library}


def load(library: Library) -> Any:
    """Import a library without its messages, or wait until another thread has imported it. Return the module."""
    # Great Expectations reads this when it is imported. A scheduled run never wants telemetry.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with _importing[library], warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations within the library, which we cannot fix
        if library == Library.GREAT_EXPECTATIONS:
            with _late(_LATE), _left_out(_LEFT_OUT):
                return importlib.import_module(library)
        return importlib.import_module(library)


@contextmanager
def _late(names: Sequence[str]) -> Iterator[None]:
    """Let modules that are imported inside the block be read with the first use of one of their attributes."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update({name: _LateModule(name) for name in absent})
    try:
        yield
    finally:
        for name in absent:  # whatever imports them from here on gets the modules themselves
            del sys.modules[name]


class _LateModule(ModuleType):
    """Stands for a module that is imported when an attribute is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by the import itself
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _left_out(names: frozenset[str]) -> Iterator[None]:
    """Let modules seem not installed to the imports inside the block. Other threads, which may need them, get them."""
    finder = _NotFound(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _NotFound(MetaPathFinder):
    """Finds no module of some names for the thread that made it."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names, self._thread = names, threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self._names and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is left out", name=name)


def preload(*libraries: Library, after: Sequence[str] = ()) -> None:
    """Import libraries in the background, in this order. Errors are raised where a library is needed.

    `after` names modules of the lake's catalog. They are imported first, by this thread, as is what else the libraries
    have in common with the command: of a package that two threads import at a time, modules may be half imported.
    """
    for name in (*_COMMON, *after):
        with suppress(ImportError):  # such as the client of Hive, which is an extra
            importlib.import_module(name)

    def start() -> None:
        # The command's own thread gets the interpreter back ten times sooner when it needs it.
        sys.setswitchinterval(_INTERVAL / 10)
        for library in libraries:
            with suppress(Exception):
                load(library)
        sys.setswitchinterval(_INTERVAL)

    threading.Thread(target=start, name="preload", daemon=True).start()

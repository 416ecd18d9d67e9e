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
from types import ModuleType
from typing import Any


class Library(StrEnum):
    """A library that is slow to import, by the module that a command needs."""

    DBT = "dbt.cli.main"
    GREAT_EXPECTATIONS = "great_expectations"


#: Great Expectations imports these for expectations that no check has. They take 60 MB, and seconds.
_LATE = ("scipy.stats", "altair")
_INTERVAL = sys.getswitchinterval()
#: Two threads in the middle of one package may find modules that are only half imported.
_importing = {library: threading.Lock() for library in Library}


def load(library: Library) -> Any:
    """Import a library without its messages, or wait until another thread has imported it. Return the module."""
    # Great Expectations reads this when it is imported. A scheduled run never wants telemetry.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with _importing[library], warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations within the library, which we cannot fix
        with _late(_LATE if library == Library.GREAT_EXPECTATIONS else ()):
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


def preload(*libraries: Library) -> None:
    """Import libraries in the background, in this order. Errors are raised where a library is needed."""

    def start() -> None:
        # The command's own thread gets the interpreter back ten times sooner when it needs it.
        sys.setswitchinterval(_INTERVAL / 10)
        for library in libraries:
            with suppress(Exception):
                load(library)
        sys.setswitchinterval(_INTERVAL)

    threading.Thread(target=start, name="preload", daemon=True).start()

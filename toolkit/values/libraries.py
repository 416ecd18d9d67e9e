"""Import dbt and Great Expectations, which takes seconds: each once, and ahead of its use while a command waits."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import warnings
from contextlib import suppress
from enum import StrEnum
from typing import Any


class Library(StrEnum):
    """A library that is slow to import, by the module that a command needs."""

    DBT = "dbt.cli.main"
    GREAT_EXPECTATIONS = "great_expectations"


_INTERVAL = sys.getswitchinterval()
#: Two threads in the middle of one package may find modules that are only half imported.
_importing = {library: threading.Lock() for library in Library}


def load(library: Library) -> Any:
    """Import a library without its messages, or wait until another thread has imported it. Return the module."""
    # Great Expectations reads this when it is imported. A scheduled run never wants telemetry.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with _importing[library], warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations within the library, which we cannot fix
        return importlib.import_module(library)


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


__all__ = ["Library", "load", "preload"]

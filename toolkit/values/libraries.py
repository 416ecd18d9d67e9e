"""Import dbt and Great Expectations, which takes seconds: each once, and ahead of its use while a command waits."""

from __future__ import annotations

import importlib
import importlib.util
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


#: Great Expectations imports this for expectations that no check has. It takes 38 MB, and seconds.
_LATE = "scipy.stats"
_INTERVAL = sys.getswitchinterval()
#: Two threads in the middle of one package may find modules that are only half imported.
_importing = {library: threading.Lock() for library in Library}


def load(library: Library) -> Any:
    """Import a library without its messages, or wait until another thread has imported it. Return the module."""
    # Great Expectations reads this when it is imported. A scheduled run never wants telemetry.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with _importing[library], warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations within the library, which we cannot fix
        if library == Library.GREAT_EXPECTATIONS and _LATE not in sys.modules:
            _import_late(_LATE)
        return importlib.import_module(library)


def _import_late(name: str) -> None:
    """Let a module be imported with the first use of one of its attributes."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    package, _, own = name.rpartition(".")
    setattr(sys.modules[package], own, module)
    spec.loader.exec_module(module)


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

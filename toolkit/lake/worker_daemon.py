"""Run Spark's Python daemon with everything already imported that a worker needs.

A worker is a fork of the daemon. It starts in milliseconds and owns only the memory of its task, which is freed when
the worker ends. What is imported is taken out of the garbage collector, which would write to it in each fork, and each
fork would then have a copy.
"""

from __future__ import annotations

import gc
import os
import sys
import zipimport
from importlib import import_module
from importlib.machinery import PathFinder

from toolkit.lake import pandas_on_demand


def run(*modules: str) -> None:
    """Fork a worker for each connection of Spark, until Spark ends. Workers need `modules` too."""
    leave_archives_out()
    pandas_on_demand.prepare_worker()
    from pyspark.daemon import manager

    import toolkit.decode.rows
    import toolkit.lake.batch_parts  # noqa: F401

    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]


def leave_archives_out() -> None:
    """Take Spark's archives off Python's path: jars, and a copy of PySpark where PySpark is installed.

    Spark puts them before everything else, and each worker would list the files of all of them.
    """
    archives = [entry for entry in sys.path if entry.endswith((".jar", ".zip"))]
    installed = PathFinder.find_spec("pyspark", [entry for entry in sys.path if entry not in archives])
    copies = f"{installed.origin.removesuffix('__init__.py')}python{os.sep}" if installed and installed.origin else None
    for entry in archives:
        if entry.endswith(".jar") or (copies is not None and entry.startswith(copies)):
            sys.path.remove(entry)
            sys.path_importer_cache.pop(entry, None)
    getattr(zipimport, "_zip_directory_cache", {}).clear()  # what was listed to find this module


if __name__ == "__main__":
    run()

"""Keep pandas out of a command of the toolkit until something asks for it by name.

pyarrow imports pandas with the first array that it makes, and PySpark with the first call of the JVM and with each
DataFrame that it makes of rows, only to find out whether a value is one of pandas. In the processes of a drain that
takes 0.7 seconds and 40 MB each. A program that uses the toolkit as a library, and its Spark workers, may have values
of pandas at any time, so there nothing is changed.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The environment variable that Spark's Python workers have if they run for such a command.
_VARIABLE = "CDC_PANDAS_ON_DEMAND"

#: Not empty once `enable` was called.
_enabled: list[bool] = []


def enable() -> None:
    """Say that this process has no values of pandas until it imports pandas itself."""
    _enabled.append(True)


def worker_settings() -> dict[str, str]:
    """Return the Spark settings with which workers do as this process."""
    return {f"spark.executorEnv.{_VARIABLE}": "1"} if _enabled else {}


def prepare_worker() -> None:
    """Prepare a worker, or the daemon of which workers are forks.

    Workers of a `cdc` command have no pandas until they need it. Those of another program import it here.
    """
    if _VARIABLE in os.environ:
        enable()
        settle_pyarrow()
    else:
        import pandas  # noqa: F401 - otherwise each fork would import it


def settle_pyarrow() -> None:
    """Let pyarrow look for pandas now. It looks once, and again when it is asked for values of pandas."""
    import pyarrow as pa

    with without_pandas():
        pa.array([0])


def settle_pyspark() -> None:
    """Import what PySpark imports with the first call of the JVM."""
    with without_pandas():
        import pyspark.testing.utils  # noqa: F401


def create_frame(spark: SparkSession, data: Any, schema: str | None = None) -> DataFrame:
    """Make a DataFrame of an Arrow table, or of rows with a schema."""
    with without_pandas():
        return spark.createDataFrame(data, schema)


@contextmanager
def without_pandas() -> Iterator[None]:
    """Refuse imports of pandas by this thread inside the block, if `enable` was called."""
    absent = _Absent()
    if _enabled:
        sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        if _enabled:
            sys.meta_path.remove(absent)


class _Absent(MetaPathFinder):
    """Finds no pandas, like a Python that does not have it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("pandas is not imported here", name=fullname)
        return None

"""Spark's Python daemon with everything a worker needs already imported.

A worker is a fork of it: it starts in milliseconds and owns no memory but what its task holds, which goes back to the
machine with the worker.
"""

from __future__ import annotations

import pandas  # noqa: F401, TID253 - pyarrow imports it with the first array that it makes
from pyspark.daemon import manager  # noqa: TID253

import toolkit.decode.rows
import toolkit.lake.frames  # noqa: F401

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]

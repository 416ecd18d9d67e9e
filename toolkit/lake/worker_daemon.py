"""Run Spark's Python daemon with everything already imported that a worker needs.

A worker is a fork of the daemon. It starts in milliseconds and owns only the memory of its task, which is freed when
the worker ends.
"""

from __future__ import annotations

import pandas  # noqa: F401, TID253 - pyarrow imports it with the first array that it makes
from pyspark.daemon import manager  # noqa: TID253

import toolkit.decode.rows
import toolkit.lake.batch_parts  # noqa: F401

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]

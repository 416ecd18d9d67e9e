"""Run Spark's Python daemon with everything already imported that a worker needs.

A worker is a fork of the daemon. It starts in milliseconds and owns only the memory of its task, which is freed when
the worker ends. What is imported is taken out of the garbage collector, which would write to it in each fork, and each
fork would then have a copy.
"""

from __future__ import annotations

import gc

import pandas  # noqa: F401, TID253 - pyarrow imports it with the first array that it makes
from pyspark.daemon import manager  # noqa: TID253

import toolkit.decode.rows
import toolkit.lake.batch_parts  # noqa: F401


def run() -> None:
    """Fork a worker for each connection of Spark, until Spark ends."""
    gc.collect()
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    run()

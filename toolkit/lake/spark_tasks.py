"""Run functions in tasks of Spark, and turn each failure there into one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from toolkit.values import errors
from toolkit.values.errors import CdcError, LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


def run_in_tasks(spark: SparkSession, inputs: Sequence[T], work: Callable[[T], R], doing: str) -> list[R]:
    """Call `work` with each input, in as many tasks as run at a time. Return what the calls return, in that order.

    A worker is started once for all of its calls: to start it takes half as long as to decode what a call decodes. It
    receives `work` and its own inputs only.

    A cluster may run a task again, and even twice at a time. The result of one attempt is returned, and the files of
    the others are not used. Each attempt therefore writes to its own `attempt_place`.

    This is not a Python Data Source: each planning step of a data source keeps its own daemon and worker alive in every
    session. Those are five pairs, which need more memory than a batch and add a second to the first commit.

    Raises:
        CdcError: a call failed, with its own error if that is one of the toolkit's. `doing` begins the message.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    context = spark.sparkContext
    tasks = max(1, min(len(inputs), context.defaultParallelism))
    try:
        return context.parallelize(inputs, tasks).map(work).collect()
    except (Py4JError, PySparkException) as error:
        raise _refusal(doing, error) from None


def runs_once(spark: SparkSession) -> bool:
    """Return whether Spark starts each task once, as it does in local mode."""
    return str(spark.sparkContext.master).startswith("local[")


def attempt_place(place: str) -> str:
    """Return a place of its own for the running attempt at a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return f"{place.removesuffix('.parquet')}-{context.taskAttemptId()}.parquet"


def _refusal(doing: str, error: Exception) -> CdcError:
    """Return one line for the failure in the JVM or in a worker."""
    from toolkit.lake import session

    if not hasattr(error, "java_exception") and (ended := session.jvm_end()) is not None:
        return LakeError(f"{doing}: {ended}; run it again")
    text = f"{error}\n{getattr(error, 'java_exception', None) or ''}"
    # A worker's own error arrives as the last line of its traceback.
    own = re.search(r"^toolkit\.values\.errors\.(\w+): (.+)$", text, re.MULTILINE)
    if own is not None:
        kind: type[CdcError] = getattr(errors, own[1], LakeError)
        return kind(f"{doing}: {own[2]}")
    causes = re.findall(r"^(?:Caused by: )?((?:\w+\.)*\w*(?:Error|Exception)\b.*)$", text, re.MULTILINE)
    reason = (causes[-1] if causes else next(iter(text.splitlines()), type(error).__name__))[:300]
    return LakeError(f"{doing}: {reason}; nothing of it is in the log, run it again")

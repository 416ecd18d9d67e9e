"""Run functions in tasks of Spark, and turn each failure there into one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from toolkit.values import errors
from toolkit.values.errors import CdcError, LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_in_tasks(
    spark: SparkSession, count: int, work: Callable[[int], Mapping[str, Any]], schema: pa.Schema, doing: str
) -> list[Any]:
    """Call `work` with each number below `count`, in as many tasks as run at a time. Return the row of each call.

    A worker is started once for all of its calls: to start it takes half as long as to decode what a call decodes.

    A cluster may run a task again, and even twice at a time. The row of one attempt is returned, and the files of the
    others are not used. Each attempt therefore writes to its own `attempt_place`.

    This is not a Python Data Source: each planning step of a data source keeps its own daemon and worker alive in every
    session. Those are five pairs, which need more memory than a batch and add a second to the first commit.

    Raises:
        CdcError: a call failed, with its own error if that is one of the toolkit's. `doing` begins the message.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    def run(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pylist([dict(work(number))], schema=schema)

    slots = min(count, spark.sparkContext.defaultParallelism)
    frame = spark.range(0, count, 1, slots).mapInArrow(run, from_arrow_schema(schema))
    try:
        return frame.collect()
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
    return place.replace(".parquet", f"-{context.taskAttemptId()}.parquet")


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

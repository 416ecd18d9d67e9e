"""Decide whether Spark runs on a cluster, and check its executors before anything on the source moves."""

from __future__ import annotations

import os
import re
import socket
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from toolkit.lake import storage
from toolkit.lake.executors import Delivery, examine, to_deliver
from toolkit.lake.file_lists import listed_files
from toolkit.values import progress
from toolkit.values.errors import ConfigError, LakeError
from toolkit.values.installed_code import code_identity
from toolkit.values.locations import scheme

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from toolkit.values.lake_access import LakeAccess

MASTER = "spark.master"
_AUTHENTICATE = "spark.authenticate"
AUTHENTICATION_SECRET = "spark.authenticate.secret"
_PYTHON = ("spark.pyspark.python", "spark.executorEnv.PYSPARK_PYTHON")
_WAIT_SECONDS = 120.0  # for executors, whose machines or images may have to start
#: Commands end within seconds or minutes, and most of the code that they run is not worth the optimizing compiler.
#: These limits are ten times as high as the JVM's own.
_COMPILED_LATE = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
    " -XX:Tier4BackEdgeThreshold=400000"
)
_CAUSES = (
    (r"No module named '?([\w.]+)", "their Python lacks the module {}; install cdc-toolkit and what it needs there"),
    (r'Cannot run program "([^"]+)"', "they have no program {}; set spark.executorEnv.PYSPARK_PYTHON to their Python"),
    (r"(PYTHON_VERSION_MISMATCH)", "their Python has another version than the driver's ({}); install the same one"),
)


def is_cluster(access: LakeAccess) -> bool:
    """Return whether tasks run in executors, which may not see the disk of the driver."""
    return re.fullmatch(r"local(\[.*)?", access.spark.get(MASTER, "local")) is None


def is_standalone(access: LakeAccess) -> bool:
    """Return whether Spark's own master has the executors, which authenticate only if the configuration says so."""
    return access.spark.get(MASTER, "").startswith("spark://")


def is_open(access: LakeAccess) -> bool:
    """Return whether the configuration lets the processes of a standalone cluster run without authentication."""
    return is_standalone(access) and access.spark.get(_AUTHENTICATE, "").lower() == "false"


def java_options(access: LakeAccess, process: str) -> str:
    """Return the options of a `driver` or `executor`. A JVM with two garbage collectors does not start."""
    chosen = re.search(r"-XX:\+Use\w+GC\b", access.spark.get(f"spark.{process}.extraJavaOptions", ""))
    return f"-Duser.timezone=UTC {'' if chosen else '-XX:+UseParallelGC '}{_COMPILED_LATE}"


def security_settings(access: LakeAccess) -> dict[str, str]:
    """Return the settings by which Spark's processes trust each other, and encrypt what they send to other machines."""
    settings = {} if is_open(access) else {_AUTHENTICATE: "true"}
    if access.spark.get(MASTER, "local").startswith("local"):
        # A laptop's host name often resolves to an address that the laptop does not have.
        return settings | {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
    return settings if is_open(access) else settings | {"spark.network.crypto.enabled": "true"}


def worker_settings(access: LakeAccess) -> dict[str, str]:
    """Return the settings of the workers that run tasks: executors of a cluster, and their Python daemons."""
    on_cluster = is_cluster(access)
    in_store = on_cluster or scheme(access.warehouse) not in (None, "file")
    daemon = "store_daemon" if in_store else "worker_daemon"
    java = {"spark.executor.defaultJavaOptions": java_options(access, "executor")} if on_cluster else {}
    return {"spark.python.daemon.module": f"toolkit.lake.{daemon}", **java}


def require_secured(access: LakeAccess) -> None:
    """Check that the configuration of a standalone cluster says whether its processes authenticate.

    Raises:
        ConfigError: it does not.
    """
    if not is_standalone(access):
        return
    stated = access.spark.get(_AUTHENTICATE)
    if stated is None:
        raise ConfigError(
            f"[spark] {MASTER} is a standalone cluster, and {_AUTHENTICATE} is not set: without it, whoever reaches the"
            " cluster's ports can run programs there and read what is sent; set it to true, with"
            " spark.authenticate.secret, here and on master and workers, or to false if no one else reaches them"
        )
    if stated.lower() == "true" and not access.spark.get(AUTHENTICATION_SECRET):
        raise ConfigError(
            f"[spark] {_AUTHENTICATE} is true, and spark.authenticate.secret is not set; give the cluster's secret,"
            " preferably in the variable CDC_SPARK"
        )


def python_of_executors(settings: Mapping[str, str]) -> str:
    """Return the Python that workers run: this one on this machine, else what the settings name."""
    given = next(filter(None, map(settings.get, _PYTHON)), None)
    return given or (sys.executable if settings[MASTER].startswith("local") else "python3")


def spool_folder(access: LakeAccess) -> str:
    """Return the place under which the bytes of tasks are."""
    return f"{access.warehouse}/.spool"


def new_place(access: LakeAccess) -> str:
    """Return the place of a new file for executors."""
    return f"{spool_folder(access)}/{uuid.uuid4()}"


def require_fit(spark: SparkSession, access: LakeAccess) -> tuple[str, ...]:
    """Check that executors start, have the driver's code, and read what the driver writes. Return their hosts.

    Each task of a drain compares the code again: an executor may come later.

    Raises:
        LakeError: one of them does not.
    """
    properties, content = storage.file_properties(access), os.urandom(64)
    with listed_files(access, "probes", properties) as files, progress.stage("asking the executors"):
        place = files.add(new_place(access))
        with to_deliver(place, properties) as file:
            file.write(content)
        return ask_executors(spark, partial(examine, Delivery(code_identity(), properties), place, content))


def ask_executors(spark: SparkSession, question: Callable[[], str | None]) -> tuple[str, ...]:
    """Ask each executor that answers what is wrong with it. Return their hosts.

    Raises:
        LakeError: something is, or none of them answers.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    def answer(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in numbers:
            yield pa.RecordBatch.from_pydict(
                {"host": [socket.gethostname()], "problem": pa.array([question()], pa.string())}
            )

    context = spark.sparkContext
    tasks = max(2, 2 * context.defaultParallelism)
    frame = spark.range(0, tasks, 1, tasks).mapInArrow(answer, "host string, problem string")
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(frame.collect)
        try:
            answers = asked.result(_WAIT_SECONDS)
        except TimeoutError:
            context.cancelAllJobs()
            raise LakeError(
                f"no executor of {context.master} has answered in {_WAIT_SECONDS:.0f} seconds; check that its workers"
                " run and have free cores and memory, and run it again"
            ) from None
        except (Py4JError, PySparkException) as error:
            raise LakeError(
                f"the executors of {context.master} cannot be used: {_cause(str(error))}; correct that, and run again"
            ) from None
    problems = sorted({row["problem"] for row in answers if row["problem"]})
    if problems:
        raise LakeError(
            f"the executors of {context.master} cannot be used: {problems[0]}; correct that there, and run it again"
        )
    return tuple(sorted({row["host"] for row in answers}))


def _cause(text: str) -> str:
    for pattern, meaning in _CAUSES:
        if found := re.search(pattern, text):
            return meaning.format(found[1])
    named = [line.strip() for line in text.splitlines() if re.search(r"(Error|Exception)\b", line)]
    return (named[-1] if named else text)[:300]

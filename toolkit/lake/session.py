"""Start the one Spark session of a process, with the settings that `dbt run` shares with it."""

from __future__ import annotations

import atexit
import itertools
import locale
import logging
import os
import re
import secrets
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.lake import class_archive, cluster, jars, pandas_on_demand, reads
from toolkit.lake.java import find_java
from toolkit.lake.lake_catalog import forbid_repeated_commits, jars_of, secrets_of, spark_properties
from toolkit.lake.tables import require_writable
from toolkit.values import progress
from toolkit.values.errors import LakeError
from toolkit.values.interruption import uninterrupted
from toolkit.values.locations import local_path
from toolkit.values.log_setup import not_of_py4j
from toolkit.values.process_env import environment
from toolkit.values.resources import ROOT
from toolkit.values.run_folders import run_folder

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from toolkit.values.lake_access import LakeAccess

LOG_NAME = "spark.log"
_DRIVER_OPTIONS = "spark.driver.defaultJavaOptions"
_CLASS_PATH = "spark.driver.extraClassPath"
_HEAP = "2g"
_TASK_BYTES = 256 << 20  # heap that one task may need
_HEAP_IS_FULL = 52  # the exit code of Spark's process after an OutOfMemoryError
#: Spark's own list, and what catalogs call their secrets.
_REDACTED = r"(?i)secret|password|token|(access|account)[.-]?key|credential|\.header\."
_CAUSE = "Caused by: "  # how a trace of Java names what led to an exception
_POLL_SECONDS = 0.05
_END_SECONDS = 20.0
#: Options for a JVM that works for seconds only, in which the work of the second compiler does not pay for itself. One
#: compiler alone gets 48 MB for its code. Spark fills them with the classes that it generates, and the JVM ends.
ONE_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
_SMALL_LOG = 250_000  # events; with 300,000, both ways took the same time
_LOG4J = Path(__file__).with_name("log4j2.properties")

_lock = threading.RLock()
_current: dict[str, Any] = {}  # "session", the "settings" that it was made with, and "own"
_beginning: list[threading.Thread] = []  # the thread that starts Spark in the background


def spark_settings(access: LakeAccess) -> dict[str, str]:
    """Return every Spark setting that the lake needs, and those of `[spark]` last. Reads and starts nothing.

    The toolkit's session and dbt's profile use the same dictionary. It does not contain the secret by which Spark's
    processes trust each other: Spark makes a new secret for each run.
    """
    catalog = f"spark.sql.catalog.{access.lake.catalog}"
    settings = {
        "spark.app.name": "cdc-toolkit",
        "spark.master": f"local[{_tasks(access.spark.get('spark.driver.memory', _HEAP))}]",
        "spark.driver.memory": _HEAP,
        **jars_of(access),
        _DRIVER_OPTIONS: (
            f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} -Dderby.stream.error.file=/dev/null"
            f" {cluster.java_options(access, 'driver')}"
        ),
        "spark.hadoop.fs.permissions.umask-mode": "077",  # Hadoop sets modes itself, whatever the umask of the process
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # dbt's session asks for Hive support before it applies these settings. Without a Hive catalog there is no Derby
        # database.
        "spark.sql.catalogImplementation": "in-memory",
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
        # Not the lake: Spark makes nothing there, and looks for a file system of Hadoop.
        "spark.sql.warehouse.dir": str(local_path(access.warehouse) or access.work_dir),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.defaultCatalog": access.lake.catalog,
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{catalog}.{key}": value for key, value in spark_properties(access).items()},
        # Without it, a table re-created under an old name shares the location, and removing orphan files destroys data.
        f"{catalog}.unique-table-location": "true",
        # With it, a session keeps the state of a table from before another process committed.
        f"{catalog}.cache-enabled": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "UTC",
        # Names come from the source unchanged: with substitution the column `${spark} $1` was created as ` $1`.
        "spark.sql.variable.substitute": "false",
        "spark.sql.shuffle.partitions": "4",
        # Spark infers filters from every expression. The time grows with the square of the columns, and none helps
        # here.
        "spark.sql.constraintPropagation.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        # Else the jars are on Python's path, and each worker reads the names of all of their files.
        "spark.submit.pyFiles": "",
        "spark.python.worker.reuse": "false",  # the daemon starts a worker faster than an old one returns memory
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "false",
        "spark.python.worker.faulthandler.enabled": "false",
        **pandas_on_demand.worker_settings(),
    }
    if secrets_of(access):
        settings["spark.redaction.regex"] = _REDACTED
    return settings | cluster.security_settings(access) | cluster.worker_settings(access) | dict(access.spark)


def _tasks(heap: str) -> int:
    """Return the number of concurrent tasks in local mode: one for each core, as long as the heap has room."""
    match = re.fullmatch(r"(\d+)([kmgt])b?", heap.strip().lower())
    room = int(match[1]) * 1024 ** ("kmgt".index(match[2]) + 1) // _TASK_BYTES if match else 1
    return max(1, min(os.cpu_count() or 1, room))


def session(access: LakeAccess) -> SparkSession:
    """Return the shared session of the process; start it if there is none. dbt in this process uses the same session.

    A configuration of another lake gets its own session in the same JVM, which becomes the shared one. Settings of the
    JVM itself (memory, master) stay those of the first session.

    Raises:
        ConfigError: the configuration of a standalone cluster does not set authentication.
        JavaMissing, LakeError: the JVM cannot be started, the lake's folder is not writable, or the executors of a
            cluster do not fit.
    """
    with _alone():
        return _shared(access)


def _shared(access: LakeAccess) -> SparkSession:
    settings = spark_settings(access)
    shared: SparkSession | None = _current.get("session")
    if shared is not None and shared._sc._jsc is not None:
        if _current["settings"] == settings:
            return shared
        require_writable(access)
        shared = _configured(shared, settings)
        forbid_repeated_commits(shared, access.lake.catalog)
        _make_default(shared)
    else:
        cluster.require_secured(access)
        require_writable(access)
        shared = _start(access, settings)
        atexit.register(stop_session)
    _current.clear()
    _current.update(session=shared, settings=settings)
    return shared


def running() -> bool:
    """Return whether this process has started Spark."""
    return "session" in _current


def begin(access: LakeAccess) -> None:
    """Start Spark in the background for a command that will need it, unless it runs.

    If it fails, it is started again where it is needed, and the error is raised there.
    """
    import pyspark.sql  # noqa: F401  (two threads that import it at a time may find modules half imported)

    def start() -> None:
        with suppress(Exception):
            own_session(access)

    if not running() and _starting() is None:
        # Python waits for it at its own end, so that what a start has made is removed.
        _beginning[:] = [threading.Thread(target=start, name="starting Spark")]
        _beginning[0].start()


def _starting() -> threading.Thread | None:
    """Return the other thread that starts Spark in the background, if there is one."""
    return next((t for t in _beginning if t.is_alive() and t is not threading.current_thread()), None)


@contextmanager
def _alone() -> Iterator[None]:
    """Let no other thread start or stop Spark inside the block. A start in the background is waited for."""
    if (thread := _starting()) is not None:
        thread.join()
    with _lock:
        yield


def own_session(access: LakeAccess) -> SparkSession:
    """Return the toolkit's own session in the shared JVM. ANSI mode is on; dbt turns it off in the shared session."""
    with _alone():
        shared = _shared(access)
        if "own" not in _current:
            fresh = _configured(shared, spark_settings(access))
            fresh.conf.set("spark.sql.ansi.enabled", "true")
            forbid_repeated_commits(fresh, access.lake.catalog)
            _current["own"] = fresh
        own: SparkSession = _current["own"]
        return own


def stop_session(*, at_once: bool = False, seconds: float = _END_SECONDS) -> None:
    """Stop Spark and wait until its JVM ends. Do nothing if there is none. A start in the background is broken off.

    `at_once` ends the JVM without a call to it, which is not possible after an interruption. A JVM that has not ended
    after so many seconds is killed.
    """
    if "pyspark" not in sys.modules:
        return
    if (thread := _starting()) is not None:
        _break_off(thread)
    with _lock:
        _stop(at_once, seconds)


@contextmanager
def _without_py4j() -> Iterator[None]:
    """Leave out what py4j reports of each connection that breaks while a JVM ends, to the root logger itself."""
    root = logging.getLogger()

    def kept(record: logging.LogRecord) -> bool:
        return not_of_py4j(record)

    root.addFilter(kept)
    try:
        yield
    finally:
        root.removeFilter(kept)  # and not the one of a command


@_without_py4j()
def _stop(at_once: bool, seconds: float) -> None:
    from pyspark import SparkContext

    _current.clear()
    atexit.unregister(stop_session)
    gateway = SparkContext._gateway
    if gateway is None:
        return
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    try:
        if SparkContext._active_spark_context is not None and not at_once:
            from pyspark.sql import SparkSession

            SparkSession(SparkContext._active_spark_context).stop()
    except Exception:  # a JVM that died by itself answers with any py4j error, and has ended either way
        SparkContext._active_spark_context = None
    try:
        if not at_once:
            gateway.shutdown()
    finally:
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None
        if process is not None:
            _end(process, seconds)


@_without_py4j()
def _break_off(starting: threading.Thread) -> None:
    """End a start in the background by ending its JVM, as soon as there is one, in a way that leaves no files."""
    from pyspark import SparkContext

    while starting.is_alive():
        if (launched := getattr(SparkContext._gateway, "proc", None)) is not None:
            launched.stdin.close()
        starting.join(_POLL_SECONDS)


def jvm_end(seconds: float = 5.0) -> str | None:
    """Describe in one line how the JVM of this process ended by itself; None if it runs, or was never started.

    `seconds` is the time to wait for its end, since its connections break a moment before.
    """
    gateway = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    process: subprocess.Popen[bytes] | None = getattr(getattr(gateway, "_gateway", None), "proc", None)
    if process is None:
        return None
    try:
        code = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    if code == _HEAP_IS_FULL:
        how, remedy = "needed more than its heap", 'raise "spark.driver.memory" in [spark]'
    elif code < 0:
        how = f"was ended by signal {-code}, as a system without free memory does it"
        remedy = 'give the machine more memory, or lower "spark.driver.memory" in [spark]'
    else:
        how, remedy = f"ended with code {code}", f"correct what {LOG_NAME} in the lake's work folder says"
    return f"Spark's Java process {how}; nothing was lost; {remedy}"


def _end(process: subprocess.Popen[bytes], seconds: float) -> None:
    if process.stdin is not None:
        process.stdin.close()  # the gateway ends when its standard input is closed
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start(access: LakeAccess, settings: dict[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise LakeError("Spark was started outside the toolkit in this process; call toolkit.lake.session first")
    # Python workers import the toolkit, which may not be installed.
    pandas_on_demand.settle_pyarrow()
    pandas_on_demand.settle_pyspark()
    search = [str(ROOT), *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != str(ROOT))]
    java_home = find_java().parent.parent
    variables = {
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": cluster.python_of_executors(settings),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(search),
    }
    if sys.getfilesystemencoding() == "utf-8" and not locale.getencoding().lower().startswith("utf"):
        variables["LC_ALL"] = "C.UTF-8"  # Python takes the C locale for UTF-8, and Java's names of files for ASCII
    if settings["spark.master"].startswith("local"):
        # Spark looks the name of the host up before it reads settings, and a container may not know its own.
        variables["SPARK_LOCAL_HOSTNAME"] = os.environ.get("SPARK_LOCAL_HOSTNAME", "localhost")
    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    if settings["spark.master"].startswith("local-cluster") and "spark.authenticate.secret" not in settings:
        conf.set("spark.authenticate.secret", secrets.token_hex(32))  # other local masters get one from Spark
    with environment(variables):
        gateway = _launch(access, settings, conf, class_archive.find(java_home, settings))
        SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm  # `stop_session` finds it from here on
        try:
            # Spark has resolved its packages here, and no executor runs yet.
            resolved = gateway.jvm.java.lang.System.getProperty("spark.repl.local.jars") or ""
            jars.require_pinned(filter(None, resolved.split(",")), settings)
            # In the main thread, a Spark context replaces the handler of Ctrl-C. The new handler calls the JVM while
            # another call is open, and fails.
            with ThreadPoolExecutor(1) as thread:
                context = thread.submit(SparkContext, conf=conf, gateway=gateway).result()
            started = SparkSession(context, options=dict(settings))
            forbid_repeated_commits(started, access.lake.catalog)
            if cluster.is_cluster(access):
                cluster.require_fit(started, access)
            return started
        except BaseException as error:
            lines = str(error).splitlines()
            _stop(at_once=False, seconds=_END_SECONDS)
            if isinstance(error, LakeError) or not isinstance(error, Exception):
                raise
            raise LakeError(
                f"Spark did not start: {lines[0] if lines else error!r}; see {access.work_dir / LOG_NAME}"
            ) from None


def _launch(access: LakeAccess, settings: Mapping[str, str], conf: SparkConf, archive: Path | None) -> JavaGateway:
    """Start the JVM, once more without its archive of classes if it does not start: the archive may be damaged."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    log_path = access.work_dir / LOG_NAME
    own, resolved = settings.get(_CLASS_PATH, ""), jars.class_path(settings)
    conf.set(_CLASS_PATH, os.pathsep.join(filter(None, (own, *map(str, resolved)))))
    if resolved:  # Spark would copy them each time, in a folder that this account may not write in
        conf.set("spark.jars", ",".join(path.as_uri() for path in resolved))
        conf.set("spark.jars.packages", "")
    shared = "" if archive is None else f' "-XX:SharedArchiveFile={archive}"'
    quick = f" {ONE_COMPILER}" if _is_small(access) else ""
    conf.set(_DRIVER_OPTIONS, f"{settings[_DRIVER_OPTIONS]}{quick}{shared}")
    with (
        progress.stage("starting Spark"),
        log_path.open("wb") as log,
        _submit_arguments(conf.getAll()) as arguments,
        environment(arguments),
        jars.one_download(settings),
    ):
        try:
            with uninterrupted():  # pyspark forgets a JVM that it has not reached yet, and the JVM stays
                return launch_gateway(None, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
        except PySparkRuntimeError:
            if archive is None:
                remedy = f"all of it is in {log_path}{jars.unwritable(settings)}"
                raise LakeError(f"Spark did not start: {_last_words(log_path)}; {remedy}") from None
    with suppress(OSError):
        archive.unlink(missing_ok=True)
    return _launch(access, settings, conf, None)


def _is_small(access: LakeAccess) -> bool:
    """Return whether the log is known to hold few events; not if it is empty, as a first copy may fill it now."""
    with suppress(LakeError):  # of a lake that is damaged or cannot be reached, which is reported where it is read
        summary = reads.snapshot_summary(access, access.names.events) or {}
        return 0 < int(summary.get("total-records", 0)) < _SMALL_LOG
    return False


@contextmanager
def _submit_arguments(settings: Iterable[tuple[str, str]]) -> Iterator[dict[str, str]]:
    """Pass settings to spark-submit in a file that only this account can read: all users can read a command line."""

    def escaped(text: str) -> str:
        return "".join(c if c.isascii() and (c.isalnum() or c in "._-/") else f"\\u{ord(c):04x}" for c in utf16(text))

    def utf16(text: str) -> Iterator[str]:
        units = text.encode("utf-16-be")
        return (chr(units[i] << 8 | units[i + 1]) for i in range(0, len(units), 2))

    with run_folder(Path(tempfile.gettempdir()), "cdc-spark-") as folder:
        file = folder / "spark.properties"
        file.touch(mode=0o600)
        file.write_text("".join(f"{escaped(k)}={escaped(v)}\n" for k, v in settings), encoding="ascii")
        yield {
            "PYSPARK_SUBMIT_ARGS": shlex.join(
                ["--properties-file", str(file), "--load-spark-defaults", "pyspark-shell"]
            )
        }


def _last_words(log_path: Path) -> str:
    """Find the line of the JVM's output that most likely says why it ended."""
    lines = [line.strip() for line in log_path.read_text(encoding="utf-8", errors="replace").splitlines()]
    for at, line in enumerate(lines):
        if any(word in line for word in ("Exception", "rror", "unresolved")):
            trace = itertools.takewhile(lambda one: one.startswith(("at ", "...", _CAUSE)), lines[at + 1 :])
            causes = [one.removeprefix(_CAUSE) for one in trace if one.startswith(_CAUSE)]
            return (causes[-1] if causes else line)[:300]
    return lines[-1][:300] if lines else "the JVM printed nothing"


def _configured(base: SparkSession, settings: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    fresh = base.newSession()
    jvm = fresh._jvm
    assert jvm is not None
    # The builder does the same for an existing session: it leaves settings of the JVM itself alone.
    module = SparkSession._get_j_spark_session_module(jvm)
    module.applyModifiableSettings(
        fresh._jsparkSession, {key: value for key, value in settings.items() if key.startswith("spark.sql.")}
    )
    # A new session has the settings of the JVM: password and store of the first lake, whose catalog has the same name.
    for key in fresh.conf.getAll.keys() - settings.keys():
        if key.startswith(f"spark.sql.catalog.{settings['spark.sql.defaultCatalog']}."):
            fresh.conf.unset(key)
    return fresh


def _make_default(chosen: SparkSession) -> None:
    """Make `SparkSession.builder.getOrCreate()` return `chosen`, in Python and in the JVM."""
    from pyspark.sql import SparkSession

    SparkSession._instantiatedSession = chosen
    SparkSession._activeSession = chosen
    jvm = chosen._jvm
    assert jvm is not None
    java_class = SparkSession._get_j_spark_session_class(jvm)
    java_class.setDefaultSession(chosen._jsparkSession)
    java_class.setActiveSession(chosen._jsparkSession)

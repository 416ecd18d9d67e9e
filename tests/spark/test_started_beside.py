"""Spark starts in the background while a command does what needs none of it, and is broken off with the command."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.api import Toolkit
from toolkit.capture import runner, slot_drain
from toolkit.lake import java, reads, session
from toolkit.quality import parity
from toolkit.values.config import Config
from toolkit.values.errors import LakeError

pytestmark = pytest.mark.spark

#: Begins to start Spark for the lake of the first argument. `launched` counts the JVMs.
_BEGIN = """
import os, sys, threading, time
from pathlib import Path
import pyspark.java_gateway
from pyspark import SparkContext
from toolkit.lake import session
from toolkit.values.config import Config

launched = []
launch = pyspark.java_gateway.launch_gateway

def counted(*given):
    launched.append(launch(*given))
    return launched[-1]

pyspark.java_gateway.launch_gateway = counted
memory = {"spark.driver.memory": "1 parsec"} if sys.argv[2:] else {}

def starts():
    return sum(thread.name == "starting Spark" for thread in threading.enumerate())

access = Config(root=Path(sys.argv[1]), spark=memory).lake_access
session.begin(access)
"""
_USED = """
spark = session.own_session(access)
print(spark.conf.get("spark.sql.ansi.enabled"), spark.range(3).count(), len(launched), session.running())
session.begin(access)
print(starts(), spark is session.own_session(access))
session.stop_session()
print(launched[0].proc.poll() is not None, session.running())
"""
#: Stops as soon as the JVM runs, and then starts it again.
_STOPPED = """
while SparkContext._gateway is None:
    time.sleep(0.005)
begun = time.monotonic()
session.stop_session(at_once=AT_ONCE)
print([gateway.proc.poll() is not None for gateway in launched], session.running(), starts())
assert time.monotonic() - begun < 15
print(session.own_session(access).range(3).count(), len(launched))
session.stop_session()
"""
_AT_ONCE = """
session.stop_session(at_once=True)
print([gateway.proc.poll() is not None for gateway in launched], session.running(), starts())
"""
#: Fails to start it here too, while the background waits: each waited for the end of the other.
_FAILED_BOTH = """
session.stop_session()
from toolkit.lake import jars
jars.PINNED = dict.fromkeys(jars.PINNED, "0" * 64)
with session._lock:
    session.begin(access)
    try:
        session._shared(access)
    except Exception as error:
        print(type(error).__name__)
session.stop_session()
print(starts())
"""
_FAILED = """
try:
    session.own_session(access)
except Exception as error:
    print(type(error).__name__, str(error)[:20], session.running())
"""


def _run(folder: Path, program: str, *more: str) -> list[str]:
    """Run a program with a folder of its own for temporary files. Return what it printed; of the files, none remain."""
    temporary = folder / "tmp"
    temporary.mkdir()
    options = f"-Djava.io.tmpdir={temporary}"
    environment = {
        "PYTHONPATH": str(Path(java.__file__).parents[2]), "HOME": str(Path.home()), "PATH": os.environ["PATH"],
        "TMPDIR": str(temporary), "JDK_JAVA_OPTIONS": options,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + program, str(folder), *more], env=environment, cwd=folder,
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    left = [
        path.name for path in temporary.iterdir() if path.name.startswith(("cdc-", "spark-", "blockmgr-", "pyspark"))
    ]
    assert left == []
    return done.stdout.splitlines()


@pytest.mark.parametrize("call", ["run", "check"])
def test_a_run_and_a_check_begin_before_they_drain(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before `cdc init`: a run that could only say so took ten seconds longer."""
    done: list[str] = []

    def drained(*_: object, **__: object) -> None:
        done.append("drain")
        raise LakeError("it is full; free space")

    monkeypatch.setattr(runner, "only_runner", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(session, "begin", lambda access: done.append(f"begin in {access.work_dir.name}"))
    monkeypatch.setattr(slot_drain, "drain", drained)
    monkeypatch.setattr(parity, "check", drained)
    with pytest.raises(LakeError, match="it is full"):
        getattr(Toolkit(Config(root=tmp_path)), call)()
    assert done == ["drain"]
    monkeypatch.setattr(reads, "metadata_location", lambda *_: "00001.metadata.json")
    with pytest.raises(LakeError, match="it is full"):
        getattr(Toolkit(Config(root=tmp_path)), call)()
    assert done == ["drain", "begin in lake", "drain"]


def test_what_was_started_in_the_background_is_used(tmp_path: Path) -> None:
    assert _run(tmp_path, _USED) == ["true 3 1 True", "0 True", "True False"]


@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "with-calls"])
def test_a_start_in_the_background_is_broken_off(at_once: bool, tmp_path: Path) -> None:
    assert _run(tmp_path, _STOPPED.replace("AT_ONCE", str(at_once))) == ["[True] False 0", "3 2"]


def test_it_is_broken_off_before_there_is_a_jvm(tmp_path: Path) -> None:
    assert _run(tmp_path, _AT_ONCE) in (["[True] False 0"], ["[] False 0"])


def test_a_program_that_ends_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    assert _run(tmp_path, "print('done')") == ["done"]


def test_a_failure_is_raised_where_spark_is_needed(tmp_path: Path) -> None:
    assert _run(tmp_path, _FAILED, "fails") == ["LakeError Spark did not start: False"]


def test_a_failure_beside_a_start_in_the_background_ends(tmp_path: Path) -> None:
    assert _run(tmp_path, _FAILED_BOTH) == ["LakeError", "0"]


#: Starts Spark on a log of so many events as the arguments say, and prints how many compilers the JVM has.
_COMPILERS = """
import sys
from pathlib import Path
from toolkit.lake import session
from toolkit.values.config import Config
access = Config(root=Path(sys.argv[1])).lake_access
for more in (0, 3, 249_996, 1, 1):
    spark = session.own_session(access)
    bean = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    loader = spark._jvm.java.lang.Class.forName("org.apache.iceberg.Table").getClassLoader().getClass().getSimpleName()
    print(session.ONE_COMPILER.split()[0] in list(bean.getInputArguments()), loader)
    spark.sql("CREATE TABLE IF NOT EXISTS raw.events (n BIGINT) USING iceberg")
    if more:
        spark.sql(f"INSERT INTO raw.events SELECT id FROM range({more})")
    session.stop_session()
"""


def test_a_small_log_gets_one_compiler_and_iceberg_is_on_the_class_path(tmp_path: Path) -> None:
    """A log that is not there, or empty, may be filled by the JVM that is started now."""
    done = subprocess.run(
        [sys.executable, "-c", _COMPILERS, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        check=False, env={name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{one} AppClassLoader" for one in (False, False, True, True, False)]


#: Makes a table in a lake whose folder has a name that ASCII cannot hold.
_ACCENTED = """
import sys
from pathlib import Path
from toolkit.lake import reads, session
from toolkit.values.config import Config
access = Config(root=Path(sys.argv[1]) / "pr\\xf6j").lake_access
session.own_session(access).sql("CREATE TABLE raw.t (n BIGINT) USING iceberg")
print(reads.metadata(access, "raw.t") is not None)
session.stop_session()
"""


def test_a_lake_in_a_folder_with_an_accent_is_found_in_the_c_locale(tmp_path: Path) -> None:
    """The JVM wrote to another folder, with a question mark in its name, and the lake could not be used any more."""
    variables = {name: os.environ[name] for name in ("PATH", "HOME")} | {"LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-c", _ACCENTED, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        check=False, env={**variables, "PYTHONPATH": str(Path(java.__file__).parents[2])},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert [folder.name for folder in tmp_path.iterdir()] == ["pr\xf6j"]

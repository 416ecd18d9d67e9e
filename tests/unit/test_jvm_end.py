"""A JVM that the system has ended is named, whatever the broken connections to it say."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext

from toolkit.build import dbt_run
from toolkit.cli import frame
from toolkit.lake import session, spark_tasks
from toolkit.values import log_setup

pytestmark = pytest.mark.unit


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the place of the JVM's."""
    with subprocess.Popen(["sleep", "600"]) as process:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
        yield process
        process.kill()


def test_a_jvm_that_runs_is_not_named(process: subprocess.Popen[bytes]) -> None:
    assert session.jvm_end(0.1) is None
    assert dbt_run._message(ValueError("a model"), []) == "building: a model; correct it and run `cdc build` again"
    assert process.poll() is None


def test_each_command_names_a_jvm_that_was_killed(process: subprocess.Popen[bytes]) -> None:
    """A build said "Connection refused; correct it", other commands "free space or correct permissions there"."""
    process.kill()
    found = [
        frame._jvm(ConnectionRefusedError(111, "Connection refused")),
        dbt_run._message(ConnectionResetError(104, "reset"), []),
        str(spark_tasks._refusal("committing batch 7", Py4JNetworkError("no answer"))),
    ]
    for text in found:
        assert text is not None
        assert "Spark's Java process was ended by signal 9" in text
        assert "again" in text.rpartition(";")[2]
    assert frame._jvm(ValueError("of another kind")) is None


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(52, 'raise "spark.driver.memory" in [spark]'), (50, "correct what spark.log"), (1, "spark.log")],
)
def test_a_jvm_that_ended_by_itself_is_named_with_a_remedy_for_its_cause(
    monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
) -> None:
    """A heap that was too small for a row of 120 MB was to be made even smaller."""
    with subprocess.Popen(["sh", "-c", f"exit {code}"]) as process:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
        assert remedy in (session.jvm_end() or "").rpartition(";")[2]


def test_tracebacks_of_py4j_are_left_out_of_the_log() -> None:
    log_setup.configure(verbose=False, as_json=False)
    for path, shown in (("/x/py4j/clientserver.py", False), ("/x/other/clientserver.py", True)):
        record = logging.LogRecord("root", logging.ERROR, path, 1, "Exception while sending command.", None, None)
        assert bool(logging.getLogger().filter(record)) == shown


def test_settings_that_a_killed_command_left_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have the password of the catalog and the keys of the store."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pid = os.fork()
    if not pid:
        with session._submit_arguments([("spark.sql.catalog.lake.token", "hidden")]):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (left,) = tmp_path.iterdir()
    assert "hidden" in (left / "spark.properties").read_text()
    with session._submit_arguments([]), session._submit_arguments([]):
        found = list(tmp_path.iterdir())
        assert len(found) == 2 and left not in found
    assert not list(tmp_path.iterdir())


def test_the_folder_of_another_account_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody can make a folder of such a name in the temporary folder, with a pipe that has no writer."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    theirs = tmp_path / "cdc-spark-theirs"
    theirs.mkdir()
    os.mkfifo(theirs / ".held")
    monkeypatch.setattr(os, "geteuid", lambda: theirs.stat().st_uid + 1)
    thread = threading.Thread(target=_submit_nothing, daemon=True)
    thread.start()
    thread.join(30)
    waiting = thread.is_alive()
    if waiting:  # a writer ends the wait
        os.close(os.open(theirs / ".held", os.O_WRONLY | os.O_NONBLOCK))
    assert not waiting and list(tmp_path.iterdir()) == [theirs]


def _submit_nothing() -> None:
    with session._submit_arguments([]):
        pass

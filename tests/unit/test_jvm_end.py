"""A JVM that the system has ended is named, whatever the broken connections to it say."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
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


def test_tracebacks_of_py4j_are_left_out_of_the_log() -> None:
    log_setup.configure(verbose=False, as_json=False)
    for path, shown in (("/x/py4j/clientserver.py", False), ("/x/other/clientserver.py", True)):
        record = logging.LogRecord("root", logging.ERROR, path, 1, "Exception while sending command.", None, None)
        assert bool(logging.getLogger().filter(record)) == shown

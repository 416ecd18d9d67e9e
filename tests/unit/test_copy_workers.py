"""Workers that copy tables, without a server: what becomes of one that does not answer as it should."""

from __future__ import annotations

import _thread
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support_lake import FILE_TARGET
from toolkit.capture.copy_workers import Copied, Copiers, Task, _Worker, _WorkerDied
from toolkit.source.slot import Cut
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn

pytestmark = pytest.mark.unit

_CUT = Cut(Lsn(8), "snapshot", "server")


def test_a_worker_whose_output_has_a_line_of_other_code_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver waited for its end, and the worker for its next task: both for ever."""
    (tmp_path / "sitecustomize.py").write_text("print('hello', flush=True)\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as thread:
        conninfo = f"host=127.0.0.1 port={silent.getsockname()[1]} connect_timeout=600"
        source = Config(root=tmp_path).source_access.changed(conninfo=conninfo)
        worker = _Worker(source, _CUT, FILE_TARGET, lambda rows, size: None)
        answer = thread.submit(worker.run, Task("none", 1, 1, ()))
        try:
            with pytest.raises(_WorkerDied, match="signal 9, after it printed 'hello'"):
                answer.result(120)
        finally:
            worker.stop()


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, which processes that share the tests among them ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_no_task_gets_a_new_worker_after_an_interruption(tmp_path: Path) -> None:
    """The thread of a worker that was stopped started another one, which outlived the command."""
    stopped, tasks = threading.Event(), []

    class Interrupted:
        def run(self, task: Task) -> Copied:
            tasks.append(task)
            if len(tasks) == 1:
                _thread.interrupt_main()
            stopped.wait(20)
            raise _WorkerDied("signal 9")

        def stop(self) -> None:
            stopped.set()

    source = Config(root=tmp_path).source_access
    before = set(threading.enumerate())
    with (
        _interruptible(),
        pytest.raises(KeyboardInterrupt),
        Copiers(source, _CUT, FILE_TARGET, workers=1, report=lambda rows, size: None, start=Interrupted) as copiers,
    ):
        copiers.run([Task("a", 1, 1, ()), Task("b", 1, 1, ())])
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert [task.place for task in tasks] == ["a"]

"""Copy pieces of tables into Parquet files of `raw.events`, by worker processes on one exported snapshot.

A worker is `python -m toolkit.capture.copy_workers`. It reads tasks as JSON lines from its standard input, and writes
JSON lines about its progress. If its parent process ends, it ends at the next block at the latest. The driver gives the
task of a dead worker to a new one.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from toolkit.lake.files import FileTarget
from toolkit.values.capture_rules import SourceConfig
from toolkit.values.errors import CdcError, LakeError, SourceUnavailable
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from toolkit.source.connection import Connection
    from toolkit.source.slot import Cut
    from toolkit.source.snapshot_rows import Images, Piece
    from toolkit.values.source_access import SourceAccess

_log = logger(__name__)
#: How often the same task may lose its worker.
_ATTEMPTS = 3

Report = Callable[[int, int], None]  # rows, bytes


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of one table."""

    relid: int
    payload: str  # JSON of the table in the exported snapshot
    schema_id: int
    piece: Piece
    images: Images


@dataclass(frozen=True, slots=True)
class Task:
    """Pieces that share a file, in this order."""

    place: str  # of the file
    generation: int
    batch_id: int
    items: tuple[Item, ...]

    def at(self, place: str) -> Task:
        """Return the task for another file."""
        return replace(self, place=place)

    def without(self, relids: set[int]) -> Task:
        """Return the task for the same file without some tables."""
        return replace(self, items=tuple(i for i in self.items if i.relid not in relids))


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of one task: rows by relid, and the tables that could not be read.

    A refusal is `(reason, another cut may help)`.
    """

    task: Task
    rows: dict[int, int] = field(default_factory=dict)
    refused: dict[int, tuple[str, bool]] = field(default_factory=dict)


@can_fail(Point.COPY)
def copy(conn: Connection, cut: Cut, task: Task, target: FileTarget, lock_seconds: float, report: Report) -> Copied:
    """Read a task's pieces into its file; stop at the first table that cannot be read, and leave no file then.

    Raises:
        SourceUnavailable: the session was lost.
        LakeError: the file cannot be written.
    """
    from toolkit.lake.files import EventsFile
    from toolkit.source import snapshot_rows
    from toolkit.values.table import TableVersion

    rows: dict[int, int] = {}
    try:
        with EventsFile(task.place, target) as file:
            for item in task.items:
                table = TableVersion.from_json(json.loads(item.payload))
                rows.setdefault(item.relid, 0)
                for batch in snapshot_rows.snapshot_batches(
                    conn, table, cut.lsn, generation=task.generation, batch_id=task.batch_id, schema_id=item.schema_id,
                    piece=item.piece, images=item.images, lock_seconds=lock_seconds,
                ):  # fmt: skip
                    rows[item.relid] += batch.num_rows
                    report(batch.num_rows, batch.column("new").nbytes)
                    file.write(batch)
                    del batch  # do not hold a huge row while the next one is read
    except snapshot_rows.TableRefused as error:
        return Copied(task, refused={list(rows)[-1]: (str(error), error.moved)})
    except OSError as error:
        raise LakeError(
            f"writing rows of a copy to {task.place}: {error.strerror or error}; correct that, and run it again"
        ) from None
    return Copied(task, rows)


class Copiers:
    """A context manager that runs tasks on one cut: in this process, or by `workers` copiers.

    `start` makes a copier, which has `run` and `stop`; by default it is a process of this machine.
    """

    def __init__(
        self,
        source: SourceAccess,
        cut: Cut,
        target: FileTarget,
        *,
        workers: int,
        report: Report,
        start: Callable[[], Any] | None = None,
    ) -> None:
        self._source = source
        self._cut = cut
        self._target = target
        self._report = report
        self._stack = contextlib.ExitStack()
        start = start or partial(_Worker, source, cut, target, report)
        self._pool = [start() for _ in range(workers)]
        self._conn: Connection | None = None

    def __enter__(self) -> Copiers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._pool:
            worker.stop()
        self._stack.close()

    def run(self, tasks: Sequence[Task]) -> tuple[list[Copied], dict[int, tuple[str, bool]]]:
        """Copy all tasks. A table that cannot be read is left out of every file, and returned with its reason.

        Raises:
            SourceUnavailable: the cut is gone, or a task lost its worker too often.
        """
        done: list[Copied] = []
        refused: dict[int, tuple[str, bool]] = {}
        left = list(tasks)
        while left:
            for result in self._pass(left):
                refused |= result.refused
                done.append(result)
            gone = set(refused)
            left = [c.task.without(gone) for c in done if c.refused or any(item.relid in gone for item in c.task.items)]
            done = [c for c in done if not c.refused and not any(item.relid in gone for item in c.task.items)]
            left = [task for task in left if task.items]
        return done, refused

    def _pass(self, tasks: Sequence[Task]) -> list[Copied]:
        if not self._pool:
            conn = self._own()
            seconds = self._source.snapshot.lock_seconds
            return [copy(conn, self._cut, task, self._target, seconds, self._report) for task in tasks]
        waiting: queue.SimpleQueue[tuple[Task, int]] = queue.SimpleQueue()
        for task in tasks:
            waiting.put((task, 1))
        results: list[Copied] = []
        failures: list[BaseException] = []
        threads = [
            threading.Thread(target=_serve, args=(worker, waiting, results, failures), daemon=True)
            for worker in self._pool
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.5)  # so that Ctrl-C works
        except BaseException as stopped:
            failures.append(stopped)  # else a thread would give its task to a new worker when its own is stopped
            raise
        if failures:
            raise failures[0]
        return results

    def _own(self) -> Connection:
        from toolkit.source import snapshot_rows

        if self._conn is None:
            self._conn = self._stack.enter_context(snapshot_rows.reader(self._source.rules.source, self._cut))
        return self._conn


def _serve(
    worker: Any,
    waiting: queue.SimpleQueue[tuple[Task, int]],
    results: list[Copied],
    failures: list[BaseException],
) -> None:
    """Run tasks in one thread until none is left, or until one has finally failed."""
    while not failures:
        try:
            task, attempt = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            results.append(worker.run(task))
        except _WorkerDied as error:
            if failures:
                return
            _log.warning("snapshot worker died", extra={"file": task.place, "attempt": attempt, "how": str(error)})
            if attempt >= _ATTEMPTS:
                what = ", ".join(sorted({_name(item) for item in task.items}))
                failures.append(
                    SourceUnavailable(
                        f"copying {what}: {_ATTEMPTS} workers ended without an answer, the last: {error}; run it again"
                    )
                )
            else:
                waiting.put((task, attempt + 1))
        except CdcError as error:
            failures.append(error)
        except Exception as error:  # the failure of a thread must be reported
            failures.append(CdcError(f"copying to {task.place}: {error!r}; run it again"))


def _name(item: Item) -> str:
    data = json.loads(item.payload)
    return f"{data['schema']}.{data['name']}"


class _WorkerDied(Exception):
    """The process ended during a task."""


class _Worker:
    """One worker process, started with its first task and again after its death."""

    def __init__(self, source: SourceAccess, cut: Cut, target: FileTarget, report: Report) -> None:
        self._hello = {
            "source": json.loads(source.config.model_dump_json()),
            "lock_seconds": source.snapshot.lock_seconds,
            "cut": {**asdict(cut), "lsn": int(cut.lsn)},
            "target": asdict(target),
        }
        self._report = report
        self.process: subprocess.Popen[str] | None = None

    def run(self, task: Task) -> Copied:
        """Send one task to the process and wait for its end.

        Raises:
            _WorkerDied: the process ended; the next call starts another one.
        """
        from toolkit.values import errors

        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        rows = size = 0
        printed = ""
        try:
            _send(process.stdin, _plain(task))
            for line in process.stdout:
                answer = json.loads(line)
                if "rows" in answer:
                    rows, size = rows + answer["rows"], size + answer["bytes"]
                    self._report(answer["rows"], answer["bytes"])
                elif "lost" in answer:
                    self._forget(rows, size)
                    raise _WorkerDied(answer["lost"])
                elif "error" in answer:
                    kind = getattr(errors, answer["error"], SourceUnavailable)
                    raise kind(answer["message"])
                else:
                    refused = {int(k): (v[0], v[1]) for k, v in answer["refused"].items()}
                    return Copied(task, {int(k): v for k, v in answer["copied"].items()}, refused)
        except BrokenPipeError:
            pass
        except json.JSONDecodeError as error:  # other code prints there, or the process was killed inside a line
            printed = f", after it printed {error.doc.strip()[:100]!r}"
            process.kill()
        code = process.wait()
        self._forget(rows, size)
        raise _WorkerDied((f"signal {-code}" if code < 0 else f"exit code {code}") + printed)

    def _forget(self, rows: int, size: int) -> None:
        self._report(-rows, -size)
        self.stop()

    def _started(self) -> subprocess.Popen[str]:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "toolkit.capture.copy_workers"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
            assert self.process.stdin is not None
            _send(self.process.stdin, self._hello)
        return self.process

    def stop(self) -> None:
        """End the process, if there is one."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


def _send(pipe: Any, value: Any) -> None:
    pipe.write(json.dumps(value) + "\n")
    pipe.flush()


def _plain(task: Task) -> dict[str, Any]:
    items = [
        {
            "relid": i.relid,
            "payload": i.payload,
            "schema_id": i.schema_id,
            "piece": asdict(i.piece),
            "op": i.images.op,
            "columns": None if i.images.columns is None else sorted(i.images.columns),
            "keys": i.images.keys,
        }
        for i in task.items
    ]
    return {"place": task.place, "generation": task.generation, "batch_id": task.batch_id, "items": items}


def _task(data: dict[str, Any]) -> Task:
    from toolkit.source.snapshot_rows import Images, Piece

    items = tuple(
        Item(
            relid=i["relid"],
            payload=i["payload"],
            schema_id=i["schema_id"],
            piece=Piece(**i["piece"]),
            images=Images(
                i["op"], None if i["columns"] is None else frozenset(i["columns"]), tuple(map(tuple, i["keys"]))
            ),
        )
        for i in data["items"]
    )
    return Task(data["place"], data["generation"], data["batch_id"], items)


def _lines() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def work() -> int:
    """Run as a worker: read one greeting, then task after task until the input ends."""
    from toolkit.source import snapshot_rows
    from toolkit.source.slot import Cut

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the driver decides
    out = sys.stdout
    lines = _lines()
    hello = next(lines, None)
    if hello is None:
        return 0
    source = SourceConfig(**hello["source"])
    cut = Cut(**{**hello["cut"], "lsn": Lsn(hello["cut"]["lsn"])})
    target = FileTarget(**hello["target"])

    def report(rows: int, size: int) -> None:
        _send(out, {"rows": rows, "bytes": size})

    try:
        with snapshot_rows.reader(source, cut) as conn:
            for data in lines:
                try:
                    done = copy(conn, cut, _task(data), target, hello["lock_seconds"], report)
                except SourceUnavailable as error:
                    _send(out, {"lost": str(error)})  # only this session: the cut may still exist
                    return 1
                _send(out, {"copied": done.rows, "refused": done.refused})
    except BrokenPipeError:
        os._exit(1)  # the driver no longer reads
    except CdcError as error:
        _send(out, {"error": type(error).__name__, "message": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(work())

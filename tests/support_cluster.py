"""A standalone Spark cluster on loopback: a master and workers that run as another user, from the jars of pyspark.

The workers cannot read a file of the test: they have folders of their own, and an installation of Python with a copy of
the toolkit. So what executors do proves that nothing is shared with the driver. It needs root, `setpriv` and a Python
that the other user can run; where one is missing, the tests are skipped.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

import toolkit
from toolkit.demo.loopback import Loopback, standalone

_OTHER = "nobody"
#: Row changes of `burst`: so many that a drain leaves them to executors; the last of them stay.
BURST_ROWS, BURST_STAY = 510_000, 1_000
_SPARK = Path(pyspark.__file__).parent
_SITE = Path(pyspark.__file__).parents[1]


@dataclass
class Cluster:
    """A running cluster. `folder` is readable for its user; `python` is the Python of its executors."""

    folder: Path
    python: Path
    master: str
    secret: str
    workers: list[Loopback]

    @property
    def settings(self) -> dict[str, str]:
        """The section `[spark]` without the secret."""
        return {
            "spark.master": self.master,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.authenticate": "true",
            "spark.executorEnv.PYSPARK_PYTHON": str(self.python),
            # as the test runs itself: see tests/conftest.py
            "spark.executorEnv.JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.executorEnv.AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "spark.executor.memory": "1g",
        }

    @property
    def toolkit(self) -> Path:
        """The copy of the toolkit that executors import."""
        return self.folder / "code" / "toolkit"

    def executors(self) -> list[int]:
        """The process ids of the executors that run now."""
        return [pid for worker in self.workers for pid in _executors(worker)]

    def tasks(self, executor: int) -> list[int]:
        """The process ids of the Python workers of an executor."""
        found = [worker for daemon in _children(executor) for worker in _children(daemon)]
        return [worker for worker in found if _stat(worker)[:1] not in ([], ["Z"])]  # one that has ended runs no task

    def cpu_seconds(self) -> float:
        """The processor time of the executors that run now."""
        return sum(_cpu_seconds(pid) for pid in self.executors())

    def kill_worker(self, number: int) -> None:
        """Kill a worker, as a machine that is lost; its executors are part of it."""
        worker = self.workers[number]
        for pid in [*_executors(worker), *_of_server(worker)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        worker.end()

    def restore(self) -> None:
        """Start the workers that were killed."""
        for worker in self.workers:
            if worker.process is None:
                worker.start()

    def private(self, name: str, text: str) -> Path:
        """Write a file that only the user of the cluster can read."""
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
        shutil.chown(path, _OTHER, pwd.getpwnam(_OTHER).pw_gid)
        return path

    def archive(self, folder: Path) -> Path:
        """Pack the environment of the executors with the toolkit in it, for `spark.archives`."""
        (site,) = (self.folder / "python" / "lib").glob("python3.*/site-packages")
        path = folder / "environment.tar.gz"
        with tarfile.open(path, "w:gz", compresslevel=1) as packed:
            for part in (self.folder / "python").iterdir():
                packed.add(part, part.name, filter=lambda info: None if info.name.endswith("tests.pth") else info)
            inside = site.relative_to(self.folder / "python")
            packed.add(self.toolkit, str(inside / "toolkit"))
            others = folder / "others.pth"
            others.write_text(f"{_SITE}\n", encoding="utf-8")
            packed.add(others, str(inside / "others.pth"))
        return path

    def texts(self) -> Iterator[tuple[Path, bytes]]:
        """Every file that the cluster has written."""
        for path in self.folder.glob("work-*/**/*"):
            if path.is_file() and path.suffix != ".jar":
                yield path, path.read_bytes()


def _children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] + [
            int(p) for thread in Path(f"/proc/{pid}/task").iterdir() if thread.name != str(pid)
            for p in (thread / "children").read_text().split()
        ]  # fmt: skip
    except OSError:  # it has ended
        return []


def _of_server(server: Loopback) -> list[int]:
    """The process of a server, which runs under a shell."""
    return [pid for pid in _children(server.process.pid) if _has(pid, b"org.apache.spark")] if server.process else []


def _executors(worker: Loopback) -> list[int]:
    return [pid for server in _of_server(worker) for pid in _children(server) if _has(pid, b"CoarseGrainedExecutor")]


def _has(pid: int, word: bytes) -> bool:
    try:
        return word in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _cpu_seconds(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stat(pid: int) -> list[str]:
    """Give the fields of /proc/PID/stat from the state on; none if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def burst(mark: str) -> str:
    """Give the transaction of a burst on a table `public.bulk (id, note)`, which it empties twice."""
    rows = [
        f"insert into public.bulk select i, '{mark}' from generate_series(1, {n}) i" for n in (BURST_ROWS, BURST_STAY)
    ]
    return f"begin; truncate public.bulk; {rows[0]}; truncate public.bulk; {rows[1]}; commit"


def as_other(command: Sequence[str | Path]) -> list[str]:
    """Give a command line that runs a command as the other user."""
    group = pwd.getpwnam(_OTHER).pw_gid
    user = ["setpriv", f"--reuid={_OTHER}", f"--regid={group}", "--clear-groups"]
    return [*user, "sh", "-c", 'exec "$@"', "sh", *map(str, command)]  # setpriv itself would find a program as root


def _python() -> Path:
    """A Python of this version, with the packages of the tests, that the other user can run."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can run a cluster as another user (and setpriv must be installed)")
    name = "python{}.{}".format(*sys.version_info[:2])
    installed = shutil.which(name, path="/usr/local/bin:/usr/bin") or sys.executable
    code = f"import sys; sys.path.append({str(_SITE)!r}); import pyarrow, pandas, pyiceberg, pyspark"
    for python in map(os.path.realpath, (sys.executable, installed)):
        tried = subprocess.run(as_other([python, "-c", code]), capture_output=True, cwd="/", check=False)
        if tried.returncode == 0:
            return Path(python)
    pytest.skip(f"user {_OTHER} can run no {name} with the packages of the tests")


@contextlib.contextmanager
def cluster(cores: Sequence[int] = (1, 1), memory: str = "1g") -> Iterator[Cluster]:
    """A master, and a worker for each number of cores. All of them end with the block."""
    base = _python()
    if shutil.which("java") is None:
        pytest.skip("no java on PATH: the other user cannot run the one of this user")
    folder = Path(tempfile.mkdtemp(prefix="cdc-cluster-"))
    try:
        folder.chmod(0o755)
        python = _installation(base, folder)
        # Spark runs a slow task a second time only on another machine.
        hosts = [f"127.0.0.{number}" for number in range(2, 2 + len(cores))]
        with standalone(folder, cores, memory, owner=_OTHER, wrap=as_other, hosts=hosts) as running:
            yield Cluster(folder, python, running.master, running.secret, running.workers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _installation(base: Path, folder: Path) -> Path:
    """An environment of Python with the packages of the tests and a copy of the toolkit."""
    subprocess.run([base, "-m", "venv", "--without-pip", folder / "python"], check=True)
    ignored = shutil.ignore_patterns("__pycache__", "dbt_project", "notebooks")
    shutil.copytree(Path(toolkit.__file__).parent, folder / "code" / "toolkit", ignore=ignored)
    (site,) = (folder / "python" / "lib").glob("python3.*/site-packages")
    (site / "tests.pth").write_text(f"{folder / 'code'}\n{_SITE}\n", encoding="utf-8")
    for path in [folder / "code", *(folder / "code").rglob("*"), folder / "python", *(folder / "python").rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755)
    return folder / "python" / "bin" / "python"


__all__ = ["BURST_ROWS", "BURST_STAY", "Cluster", "as_other", "burst", "cluster"]

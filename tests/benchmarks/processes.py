"""What this process, its children and the embedded server use, read from /proc (Linux)."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from toolkit.demo.server import EmbeddedServer

_TICK = os.sysconf("SC_CLK_TCK")
_SAMPLE_SECONDS = 0.1
_CHILDREN_SECONDS = 0.02  # from one look at the daemon's children to the next


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used: `cpu_seconds` without the server's; `rss_mb` is the peak, with shared pages counted once.

    `read_mb` is what this process and its children read from files, cached or not, and from pipes and sockets.
    """

    seconds: float
    cpu_seconds: float
    server_cpu_seconds: float
    rss_mb: float
    read_mb: float = 0.0


class Meter:
    """Measures what happens inside the `with`."""

    usage: Usage

    def __init__(self, server: EmbeddedServer, root: int | None = None, *, jvm: bool = False) -> None:
        self._server = int((server.data / "postmaster.pid").read_text().split("\n", 1)[0])
        self.root = root  # whose memory is meant, with all of its descendants; None: not known yet
        self._jvm = jvm  # whether the memory of the JVM counts
        self._stop = threading.Event()
        self._peak = 0.0
        self._unreaped: dict[int, float] = {}  # CPU seconds of processes whose end their parent ignores, when last seen
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._own, self._theirs = self._cpu()
        self._read = self._bytes_read()
        self._sampler.start()
        self._started = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.monotonic() - self._started
        self._stop.set()
        self._sampler.join()
        own, theirs = self._cpu()
        self.usage = Usage(
            seconds, own - self._own, theirs - self._theirs, self._peak, (self._bytes_read() - self._read) / 1e6
        )

    def _sample(self) -> None:
        while True:
            started = time.thread_time()
            children = children_by_parent()
            server = tree(children, self._server)
            meant = tree(children, self.root) - server if self.root is not None else set()
            total = sum(_memory(pid) for pid in meant if self._jvm or not _is_java(pid))
            self._peak = max(self._peak, total)
            ours = tree(children, os.getpid()) - server
            daemons = list(filter(_ignores_ends, ours))  # Spark's: the kernel counts the children of such nowhere
            # To read the memory of a process takes milliseconds. All samples together take a tenth of a core at most.
            until = time.monotonic() + max(_SAMPLE_SECONDS, 9 * (time.thread_time() - started))
            while time.monotonic() < until:
                self._unreaped |= {child: _cpu(child) for daemon in daemons for child in _children(daemon)}
                if self._stop.wait(_CHILDREN_SECONDS):
                    return

    def _bytes_read(self) -> int:
        children = children_by_parent()
        server = tree(children, self._server)
        return sum(map(_read, tree(children, os.getpid()) - server))

    def _cpu(self) -> tuple[float, float]:
        children = children_by_parent()
        server = tree(children, self._server)
        ours = tree(children, os.getpid()) - server
        ended = sum(seconds for pid, seconds in self._unreaped.items() if pid not in ours)
        return ended + sum(map(_cpu, ours)), sum(map(_cpu, server))


def stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on, empty if the process is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def children_by_parent() -> dict[int, list[int]]:
    """Every process's children."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names only, many times a second
        if entry.isdigit() and (fields := stat(int(entry))):
            children[int(fields[1])].append(int(entry))
    return children


def tree(children: dict[int, list[int]], root: int) -> set[int]:
    """A process with all of its descendants."""
    found, left = {root}, [root]
    while left:
        for child in children.get(left.pop(), ()):
            found.add(child)
            left.append(child)
    return found


def _cpu(pid: int) -> float:
    """CPU seconds of a process and of its children that have ended."""
    fields = stat(pid)
    return sum(map(int, fields[11:15])) / _TICK if fields else 0.0


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    return []


def _ignores_ends(pid: int) -> bool:
    """Return whether a process ignores SIGCHLD."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGCHLD - 1) & 1)
    return False


def _read(pid: int) -> int:
    """Bytes that a process and its children that have ended read."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/io").read_text(encoding="ascii").split()[1])
    return 0


def _memory(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _is_java(pid: int) -> bool:
    """Say whether a process is a JVM, or a fork of one that has not started its program yet."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name == "java"
    return False

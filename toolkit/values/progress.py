"""Report the progress of long work: to a display if one is set, and in a log line every five seconds.

A stage that lasted for more than two seconds is also logged when it ends, and what it has freed returns to the system.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from toolkit.values import freed_memory
from toolkit.values.log_setup import logger

_log = logger(__name__)
_LOG_SECONDS = 5.0
_LONG_SECONDS = 2.0
_T = TypeVar("_T")


class Display(Protocol):
    """A display of the open stages for the user. Any thread may call it."""

    def begin(self, stage: Stage) -> None:
        """Show a new stage."""

    def update(self, stage: Stage) -> None:
        """Show new figures of a stage. An ended stage is not shown again."""

    def end(self, stage: Stage) -> None:
        """Remove a stage."""

    def result(self) -> None:
        """Remove the stage of the whole command, because its result is written now."""


@dataclass(eq=False)
class Stage:
    """Work of which `done` of `total` units are done. The total is an estimate, or None if it is unknown."""

    what: str
    unit: str = ""
    total: int | None = None
    done: int = 0
    size: int = 0  # bytes
    detail: str = ""  # what is being worked on
    whole: bool = False  # of the command as a whole: shown after a second, until its result is written
    started: float = field(default_factory=time.monotonic)
    _said: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, done: int = 1, size: int = 0) -> None:
        """Add units and bytes. Negative numbers subtract what must be repeated."""
        with self._lock:
            self.done += done
            self.size += size
        self.show()

    def show(self) -> None:
        """Show the current figures."""
        for display in tuple(_displays):
            display.update(self)
        with self._lock:
            now = time.monotonic()
            if now - max(self._said, self.started) < _LOG_SECONDS:
                return
            self._said = now
        _log.info(self.what, extra=self.facts(now))

    def facts(self, now: float) -> dict[str, int | str | None]:
        """Return the finished units, the units per second, and the estimated seconds left."""
        seconds = max(now - self.started, 1e-6)
        share = self.done / self.total if self.total else 0.0
        left = seconds * (1 - share) / share if 0 < share < 1 else None
        facts: dict[str, int | str | None] = {
            "done": self.done,
            "total": self.total,
            "unit": self.unit,
            "per_second": round(self.done / seconds),
            "seconds_left": None if left is None else round(left),
        }
        return facts | ({"bytes": self.size} if self.size else {}) | ({"detail": self.detail} if self.detail else {})


_displays: list[Display] = []


def show_on(display: Display | None) -> None:
    """Show the stages that begin from now on with `display`; None shows nothing."""
    _displays[:] = [] if display is None else [display]


def result() -> None:
    """Prepare for output of the command: the stage of the whole command is not shown from now on."""
    for display in _displays:
        display.result()


@contextmanager
def stage(what: str, unit: str = "", total: int | None = None, *, whole: bool = False) -> Iterator[Stage]:
    """Show a stage while the block runs, until it ends in whatever way. Stages may be nested."""
    begun, displays = Stage(what, unit, total, whole=whole), tuple(_displays)
    for display in displays:
        display.begin(begun)
    try:
        yield begun
    finally:
        for display in displays:
            display.end(begun)
        now = time.monotonic()
        if now - begun.started > _LONG_SECONDS:
            _log.info(what, extra=begun.facts(now) | {"seconds": round(now - begun.started, 1)})
            freed_memory.return_freed()


def each(what: str, unit: str, items: Sequence[_T]) -> Iterator[_T]:
    """Show a stage while a loop goes through the items."""
    with stage(what, unit, len(items)) as begun:
        for item in items:
            yield item
            begun.add()

"""Draw the open stages of a command on a terminal: one line each, wiped when the stage ends.

The stage of the whole command appears when the command has lasted for a second, and goes when its result is written.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO

from toolkit.values.interruption import uninterrupted
from toolkit.values.names import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from toolkit.values.progress import Stage


_SOON = 1.0  # seconds


class _Above:
    """A stream for the log that writes above the bars."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @uninterrupted()
    def write(self, text: str) -> None:
        self._console.out(text, end="", highlight=False)

    def flush(self) -> None:
        """Do nothing: the console writes at once."""


class Bars:
    """The bars on standard error. They exist only while a stage is open.

    rich must finish what it draws: after an interruption it erases the wrong lines.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._live: Progress | None = None
        self._tasks: dict[Stage, TaskID] = {}
        self._whole: Stage | None = None
        self._streams: list[tuple[logging.StreamHandler[Any], TextIO]] = []

    @uninterrupted()
    def begin(self, stage: Stage) -> None:
        """Show a new stage."""
        with self._lock:
            if stage.whole:
                self._whole = stage
                late = threading.Timer(_SOON, self._late)
                late.daemon = True
                late.start()
            else:
                self._add(stage)

    def _late(self) -> None:
        with self._lock:
            if self._whole is not None:
                self._add(self._whole)

    def _add(self, stage: Stage) -> None:
        with self._lock:
            if self._live is None:
                self._live = self._started()
            self._tasks[stage] = self._live.add_task(visible(stage.what), total=stage.total, figures="", stage=stage)

    @uninterrupted()
    def update(self, stage: Stage) -> None:
        """Show new figures of a stage; one that has ended is not shown again."""
        with self._lock:
            if self._live is None or stage not in self._tasks:
                return
            total = None if stage.total is None or stage.done > stage.total else stage.total
            rate = stage.facts(time.monotonic())["per_second"]
            of = f" of {total:,}" if total else ""
            speed = f", {rate:,}/s" if stage.done else ""
            self._live.update(
                self._tasks[stage],
                description=visible(f"{stage.what} {stage.detail}".strip()),
                total=total,
                completed=stage.done,
                figures=f"{stage.done:,}{of} {stage.unit}{speed}" if stage.unit and (stage.done or of) else "",
            )

    @uninterrupted()
    def result(self) -> None:
        """Take the stage of the whole command away, also if it has not appeared yet."""
        with self._lock:
            if self._whole is not None:
                self.end(self._whole)

    @uninterrupted()
    def end(self, stage: Stage) -> None:
        """Take a stage away; with the last one the bars are wiped."""
        with self._lock:
            if stage is self._whole:
                self._whole = None
            task = self._tasks.pop(stage, None)
            if self._live is not None and task is not None:
                self._live.remove_task(task)
            if not self._tasks:
                self._wipe()

    @uninterrupted()
    def close(self) -> None:
        """Wipe the bars and return the log's stream to it."""
        with self._lock:
            self._whole = None
            self._tasks.clear()
            self._wipe()

    def _wipe(self) -> None:
        with self._lock:
            live, self._live = self._live, None
            if live is not None:
                live.stop()
            for handler, stream in self._streams:
                handler.setStream(stream)
            self._streams.clear()

    def _started(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
        from rich.text import Text

        class Left(ProgressColumn):
            """The time left. The column of rich forgets the rate of a stage whose steps are half a minute apart."""

            def render(self, task: Task) -> Text:
                left = task.fields["stage"].facts(time.monotonic())["seconds_left"]
                return Text("" if left is None else f"{timedelta(seconds=left)} left", style="progress.remaining")

        console = Console(file=sys.stderr, force_terminal=True)
        live = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(20),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            Left(),
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        for handler in logging.getLogger("toolkit").handlers:
            if isinstance(handler, logging.StreamHandler):
                self._streams.append((handler, handler.stream))
                handler.setStream(_Above(console))
        live.start()
        return live


def wanted() -> bool:
    """Return whether standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")

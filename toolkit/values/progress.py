"""Show the progress of a long copy: one updating line on a terminal, log lines with `--verbose`."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self

from toolkit.values.log_setup import logger

_log = logger(__name__)
_TTY_SECONDS, _LOG_SECONDS = 0.5, 5.0


class Progress:
    """Count rows and bytes from any thread. Use as a context manager.

    The totals are estimates, so the counts may exceed them.
    """

    def __init__(self, what: str, *, rows: int, size: int) -> None:
        self._what = what
        self._total_rows = rows
        self._total_bytes = size
        self._rows = self._bytes = 0
        self._lock = threading.Lock()
        self._started = self._said = time.monotonic()
        self._tty = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tty and self._said > self._started:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def add(self, rows: int, size: int) -> None:
        """Add rows and bytes that were read; negative numbers take back what must be read again."""
        with self._lock:
            self._rows += rows
            self._bytes += size
            now = time.monotonic()
            if now - self._said < (_TTY_SECONDS if self._tty else _LOG_SECONDS):
                return
            self._said = now
            if self._tty:
                sys.stderr.write(f"\r\x1b[K{self.line(now)}")
                sys.stderr.flush()
            _log.info(self._what, extra=self.facts(now))

    def facts(self, now: float) -> dict[str, int | None]:
        """Give rows, bytes, rows per second, and the estimated seconds left."""
        seconds = max(now - self._started, 1e-6)
        share = self._rows / self._total_rows if self._total_rows else 0.0
        left = seconds * (1 - share) / share if 0 < share < 1 else None
        return {
            "rows": self._rows,
            "bytes": self._bytes,
            "rows_per_second": round(self._rows / seconds),
            "seconds_left": None if left is None else round(left),
        }

    def line(self, now: float) -> str:
        """Give the same figures as one line of text."""
        facts = self.facts(now)
        left = "" if facts["seconds_left"] is None else f", about {facts['seconds_left']} s left"
        total = f" of about {self._total_rows:,}" if self._total_rows > self._rows else ""
        size = self._bytes / 1e6
        return f"{self._what}: {self._rows:,}{total} rows, {size:,.0f} MB, {facts['rows_per_second']:,} rows/s{left}"


__all__ = ["Progress"]

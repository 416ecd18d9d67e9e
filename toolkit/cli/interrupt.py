"""Stop a command at Ctrl-C: at a safe point, and silently but for one line."""

from __future__ import annotations

import io
import logging
import signal
import sys
import threading
from types import FrameType


class Interrupt:
    """While it is entered, the first Ctrl-C stops the command, and errors of other threads are not shown.

    A library between here and there may turn the KeyboardInterrupt into an error of its own, so `came` counts.
    """

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGINT, self._stop)

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN if self.came else self.before)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.came = True
        logging.disable(logging.CRITICAL)
        threading.excepthook = lambda _: None
        sys.stderr = io.StringIO()  # the log's own stream stays
        raise KeyboardInterrupt

"""Keep the signals that stop a command out of work that must not stop halfway."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: The signals that stop a command: Ctrl-C, a scheduler's, and a closed terminal's.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay what would stop the command until the block ends. Also a decorator of a function: `@uninterrupted()`."""
    if threading.current_thread() is not threading.main_thread():  # signals never reach other threads
        yield
        return
    held: list[int] = []
    before = {number: signal.signal(number, lambda came, _: held.append(came)) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])

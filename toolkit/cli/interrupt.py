"""Stop a command at Ctrl-C, SIGTERM or SIGHUP: at a safe point, and silently but for one line."""

from __future__ import annotations

import io
import logging
import signal
import sys
import threading
from types import FrameType

#: What the signals do once one of them has come. A closed terminal sends SIGHUP, and so does the shell that it ends.
_AFTERWARDS = {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_IGN}
#: The file of Python's own code for imports, as its frames name it.
_IMPORTLIB = "<frozen importlib._bootstrap>"
_SOON = 0.005  # seconds until a signal that came inside an import is sent again


class Interrupt:
    """While it is entered, the first of these signals stops the command, and errors of other threads are not shown.

    A library between here and there may turn the KeyboardInterrupt into an error of its own, so `came` counts: the
    number of the signal. A second SIGTERM ends the process at once. SIGHUP stays ignored under `nohup`.
    """

    def __init__(self) -> None:
        self.came = 0

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            caught = [number for number in _AFTERWARDS if not (nohup and number == signal.SIGHUP)]
            self.before = {number: signal.signal(number, self._stop) for number in caught}

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, before in self.before.items():
                signal.signal(number, _AFTERWARDS[number] if self.came else before)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        # Python 3.11 has a lock for all imports. An exception that a handler raises at the wrong moment leaves it
        # locked, and other threads wait for it for ever.
        if frame is not None and frame.f_code.co_filename == _IMPORTLIB:
            threading.Timer(_SOON, signal.pthread_kill, (threading.get_ident(), number)).start()
            return
        for other, afterwards in _AFTERWARDS.items():
            signal.signal(other, afterwards)
        self.came = number
        logging.disable(logging.CRITICAL)
        threading.excepthook = lambda _: None
        sys.stderr = io.StringIO()  # the log's own stream stays
        raise KeyboardInterrupt

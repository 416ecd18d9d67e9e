"""Ctrl-C stops a command where nothing is left locked."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import importlib, signal, sys, threading
from toolkit.cli.interrupt import Interrupt

stop, passed = Interrupt(), []

class Interrupting:
    def find_spec(self, *_):
        stop._stop(signal.SIGINT, sys._getframe(1))  # a frame of Python's own code for imports
        passed.append("import")

try:
    with stop:
        sys.meta_path.insert(0, Interrupting())
        try:
            importlib.import_module("there_is_no_such_module")
        except ImportError:
            passed.append("no module")
        threading.Event().wait(60)
except KeyboardInterrupt:
    print(*passed, stop.came == signal.SIGINT)
"""


def test_ctrl_c_inside_an_import_stops_the_command_after_it() -> None:
    """Python 3.11 kept the lock of all imports if it came at the wrong moment, and `cdc run` hung in its commit."""
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.stdout, ended.returncode) == ("import no module True\n", 0), ended

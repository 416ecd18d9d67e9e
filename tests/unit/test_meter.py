"""The meter of benchmarks counts all processor time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.benchmarks.processes import Meter

_NO_PROCESS = 1 << 22  # above the largest process id of Linux
_FORKS = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while time.process_time() < 0.5:
        pass
    os._exit(0)
try:
    os.wait()
except ChildProcessError:
    pass
"""


def test_the_processor_time_of_children_whose_end_is_ignored_is_counted(tmp_path: Path) -> None:
    """Spark's daemon ignores the end of its workers, and the kernel adds their time to no other process."""
    (tmp_path / "postmaster.pid").write_text(f"{_NO_PROCESS}\n", encoding="ascii")
    server: Any = SimpleNamespace(data=tmp_path)
    with Meter(server) as meter:
        subprocess.run([sys.executable, "-c", _FORKS], check=True)
    assert meter.usage.cpu_seconds > 0.3

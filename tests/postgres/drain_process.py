"""`cdc drain` without a JVM as a process of its own: one JSON line with the changes and the peak of its memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests import commands
from tests.support_lake import without_jvm
from toolkit.values import config

if __name__ == "__main__":
    without_jvm()
    changes = commands.drain(config.load(sys.argv[1])).changes
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) // 1024
    print(json.dumps({"changes": changes, "peak_mb": peak}))

"""Start commands as processes of their own, with failpoints: a fork of this one costs no second of imports.

Reads JSON lines. One with `command`, `config`, `points` and `lease` starts a command and is answered with its `pid`.
One with `wait` is answered with the exit `code` of that process, or with what it is after `seconds`: `stopped` or
`running`. A command without points writes the steps that it went through into the file `steps` beside its
configuration.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from tests import commands
from tests.support_ledger import ledger_of
from toolkit.values import failpoints

os.environ.setdefault(failpoints.VARIABLE, "")  # before the steps are imported

from tests.support_lake import without_jvm
from toolkit.capture import copy, tick_drain
from toolkit.lake import durable, files, sqlite_catalog
from toolkit.source import install, peek, snapshot_rows
from toolkit.values import config as configuration
from toolkit.values.errors import CdcError

_LOADED = (durable, files, sqlite_catalog, install, peek, snapshot_rows, tick_drain)
_COMMANDS: dict[str, Callable[[Any], Any]] = {
    "init": commands.init,
    "drain": commands.drain,
    "repair": lambda config: commands.repair(config, ["public.a"]),
    "checkpoint": lambda config: ledger_of(config).write_checkpoint(),
    "uninstall": commands.uninstall,
}


def _start(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.environ[failpoints.VARIABLE] = order["points"]
    config = configuration.load(order["config"])
    log = os.open(config.root / "runs.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 0
    try:
        with commands.only_runner(config) if order["lease"] else nullcontext():
            _COMMANDS[order["command"]](config)
    except CdcError as error:
        os.write(2, f"{order['points']}: {type(error).__name__}: {error}\n".encode())
        code = error.exit_code
    except OSError as error:
        os.write(2, f"{order['points']}: {error}\n".encode())
        code = 1
    if not order["points"]:
        steps = {point.partition(".")[0] for point in failpoints._calls}
        (config.root / "steps").write_text(" ".join(sorted(steps)), encoding="utf-8")
    os._exit(code)


def _wait(pid: int, seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if found and os.WIFSTOPPED(status):
            return {"stopped": True}
        if found:
            return {"code": os.waitstatus_to_exitcode(status)}
        time.sleep(0.01)
    return {"running": True}


if __name__ == "__main__":
    without_jvm()
    copy._WORKERS_FROM = 0  # every copy is of worker processes
    for line in sys.stdin:
        order = json.loads(line)
        answer = _wait(order["wait"], order["seconds"]) if "wait" in order else {"pid": _start(order)}
        print(json.dumps(answer), flush=True)

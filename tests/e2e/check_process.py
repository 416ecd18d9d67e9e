"""`cdc check` as a process of its own that SIGKILL ends where a step is called."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from toolkit.cli import main


def ended_at(real: Callable[..., Any], call: str, end: Callable[[], None]) -> Callable[..., Any]:
    """Return `real` with `end` called before its n-th call (`call` is a number) or before a call with that value."""
    calls = [0]

    def stepped(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if call in arguments or call == str(calls[0]):
            end()
        return real(*arguments, **named)

    return stepped


if __name__ == "__main__":
    file, module, step, call = sys.argv[1:]
    owner = importlib.import_module(module)
    setattr(owner, step, ended_at(getattr(owner, step), call, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    main(["check", "--config", file])

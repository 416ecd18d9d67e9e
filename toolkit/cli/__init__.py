"""Provide the command line: one module for each family of commands, registered on `main` by its import."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.cli.commands import main

INTERRUPTED = "interrupted; nothing half-done remains, run the command again"


def run() -> None:
    """Run `cdc`. Ctrl-C is answered before anything else is imported."""
    signal.signal(signal.SIGINT, _stop_at_once)
    _open_closed_streams()
    # As it ends, Python restores the default, which would end a finished command without its exit code.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    from toolkit.cli.commands import main
    from toolkit.lake import pandas_on_demand

    pandas_on_demand.enable()
    main(prog_name="cdc")


def _open_closed_streams() -> None:
    """Open the standard streams that the caller has closed.

    The next files would take their numbers, and get what this process or Spark's JVM writes to a stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest free one, which is that of the stream
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def _stop_at_once(*_: object) -> None:
    """End the process: no command has begun, or the command has ended."""
    os.write(2, f"cdc: {INTERRUPTED}\n".encode())
    os._exit(130)


def __getattr__(name: str) -> Any:
    """Import the commands when they are asked for: `run` must come before them."""
    if name != "main":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from toolkit.cli.commands import main

    return main


__all__ = ["INTERRUPTED", "main", "run"]

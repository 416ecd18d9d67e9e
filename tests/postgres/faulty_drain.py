"""`cdc drain` without a JVM as a process with a fault: `clock SECONDS` shifts its clock, `kill POINT` ends it there."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, NoReturn

from tests import commands


def shift(seconds: float) -> None:
    """Shift the clock by which commits are dated. Those of pandas and of psycopg stay: they are C."""
    now = time.time
    time.time = lambda: now() + seconds


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def kill_at(point: str) -> None:
    """Kill this process before the commit, before the swap of its metadata file, or after that."""
    from toolkit.lake import direct_commit
    from toolkit.lake.sqlite_catalog import SqliteCatalog

    commit, swap = direct_commit.commit, SqliteCatalog.swap

    def committing(*arguments: Any) -> Any:
        if point == "commit":
            _die()
        commit(*arguments)
        _die()

    def swapping(*arguments: Any) -> bool:
        if point == "swap":
            _die()
        return swap(*arguments)

    setattr(direct_commit, "commit", committing)  # noqa: B010
    setattr(SqliteCatalog, "swap", swapping)  # noqa: B010


def main(file: str, fault: str, value: str) -> None:
    """Drain, or say in one line why not."""
    if fault == "clock":
        shift(float(value))
    from tests.support_lake import without_jvm
    from toolkit.values import config as configuration
    from toolkit.values.errors import CdcError

    without_jvm()
    if fault == "kill":
        kill_at(value)
    config = configuration.load(file)
    try:
        with commands.only_runner(config):
            print(commands.drain(config).changes)
    except CdcError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])

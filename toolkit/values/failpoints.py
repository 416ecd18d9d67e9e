"""Fail at a named step, for tests: before or after it, in the n-th call, in one of eight ways.

`CDC_FAILPOINTS` holds points as `STEP.WHEN[:CALL]=ACTION`, divided by blanks, such as `commit.after:3=sigkill`.
Without the variable a step is its plain function. A process passes the variable on to its workers.

Failpoints give no new right: whoever sets the environment of a process can end, stop and replace it anyway. They are
read from there alone, never from the configuration, the source or the lake. No action opens, runs or sends anything;
the most that one does is to leave out a step, which ending the process there does too.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Any, ParamSpec, TypeVar

from toolkit.values.errors import CdcError, ConfigError

P = ParamSpec("P")
R = TypeVar("R")
VARIABLE = "CDC_FAILPOINTS"
_SLEEP_SECONDS = 1.0
_calls: Counter[str] = Counter()
_counting = threading.Lock()


class Point(StrEnum):
    """A step that leaves something behind: on the source, in the lake or in a file."""

    INSTALL = "install"  # objects of capture on the source
    SLOT = "slot"  # a new slot with its exported snapshot
    COPY = "copy"  # a file of rows of a snapshot
    PEEK = "peek"  # the spool of a slot's changes
    BEACON = "beacon"
    COMMIT = "commit"  # a batch in the log
    SWAP = "swap"  # a commit by pyiceberg: the catalog names other metadata
    FORCE = "force"  # files of a commit on the disk
    ADVANCE = "advance"  # the slot forgets
    PURGE = "purge"  # the change log forgets
    TICK = "tick"  # a new tick
    FORGET = "forget"  # ticks before one that is drained
    CUT = "cut"  # the tick at the cut of a slot, in a handover
    HANDOVER = "handover"  # the ledger row that says who goes on
    DROP_SLOT = "drop_slot"
    SETTLE = "settle"  # what the change log needs of the way it is drained
    UNINSTALL = "uninstall"
    JUDGED = "judged"  # states and plans of the tables
    EVOLVE = "evolve"  # schema changes of built tables
    MODELS = "models"  # small tables together, and one run of dbt
    RETIRE = "retire"  # a built table that the source has given up is dropped
    TAG = "tag"  # the tag that keeps what is proven
    PUBLISH = "publish"  # the proofs of a check
    VIEW = "view"  # one view of `published`
    RESULTS = "results"  # of a check
    CHECKPOINT = "checkpoint"  # of the states, in the log
    ERASE = "erase"  # erased rows, from the files of the log
    COMPACT = "compact"
    UNTAG = "untag"  # old tags and branches
    EXPIRE = "expire"  # old table snapshots
    ORPHANS = "orphans"  # files that nothing names


class Action(StrEnum):
    """The fault at a point."""

    RAISE = "raise"  # a refusal of the toolkit's own
    EXIT = "exit"  # the process ends with code 137, without cleaning up
    SIGKILL = "sigkill"
    SIGSTOP = "sigstop"
    HANG = "hang"
    SLEEP = "sleep"
    LIE = "lie"  # as if the answer had been lost: after the step, done but reported as failed
    SKIP = "skip"  # before the step only: not done, but reported as done


def can_fail(name: Point) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function a step that can fail."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        if VARIABLE not in os.environ:
            return function

        @functools.wraps(function)
        def run(*arguments: P.args, **named: P.kwargs) -> R:
            if _reached(f"{name}.before"):
                return None  # type: ignore[return-value]
            done = function(*arguments, **named)
            _reached(f"{name}.after")
            return done

        return run

    return wrap


def points(text: str) -> dict[str, tuple[int, Action]]:
    """Read points, each with the call at which it acts.

    Raises:
        ConfigError: there is no such step or action.
    """
    found = {}
    for word in text.split():
        parts = re.fullmatch(r"((\w+)\.(before|after))(?::(\d+))?=(\w+)", word)
        if parts is None or parts[2] not in set(Point) or parts[5] not in set(Action):
            raise ConfigError(
                f"{VARIABLE}: {word!r} is no point; expected STEP.before or STEP.after with [:CALL]=ACTION, where STEP"
                f" is one of {', '.join(Point)} and ACTION one of {', '.join(Action)}; correct it or unset it"
            )
        action = Action(parts[5])
        if action == Action.SKIP and parts[3] == "after":
            raise ConfigError(f"{VARIABLE}: {word!r}: what is done cannot be left out; write {parts[2]}.before=skip")
        found[parts[1]] = int(parts[4] or 1), action
    return found


def _reached(point: str) -> bool:
    """Act at a point; true if the step is to be left out."""
    call, action = points(os.environ.get(VARIABLE, "")).get(point, (0, None))
    with _counting:
        _calls[point] += 1
        number = _calls[point]
    if action is None or number != call:
        return False
    if action in _ACTIONS:
        _ACTIONS[action](point)
    return action == Action.SKIP


def _raise(point: str) -> Any:
    raise CdcError(f"failpoint {point}: it raises; unset {VARIABLE}")


def _lie(point: str) -> Any:
    raise ConnectionError(f"failpoint {point}: the answer is lost")


_ACTIONS: dict[Action, Callable[[str], Any]] = {
    Action.RAISE: _raise,
    Action.EXIT: lambda _: os._exit(137),
    Action.SIGKILL: lambda _: os.kill(os.getpid(), signal.SIGKILL),
    Action.SIGSTOP: lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    Action.HANG: lambda _: threading.Event().wait(),
    Action.SLEEP: lambda _: time.sleep(_SLEEP_SECONDS),
    Action.LIE: _lie,
}

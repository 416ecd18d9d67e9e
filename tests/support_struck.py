"""Faults during a random life: a step of a drain fails, the server crashes, and a restored copy of it is drained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import commands
from tests.support_life import Life
from tests.support_log import Log
from tests.support_postgres import restored_from
from toolkit.demo.server import EmbeddedServer
from toolkit.lake.stored_log import StoredLog
from toolkit.rawlog.memory import MemoryLog
from toolkit.source import change_log, peek, slot, ticks
from toolkit.values.errors import CdcError, HistoryDiverged

#: What a drain does, by name. The next drain finds it done or not.
_STEPS: dict[str, tuple[tuple[Any, str], ...]] = {
    "peek": ((peek, "peek"),),
    "beacon": ((slot, "emit_beacon"),),
    "commit": ((MemoryLog, "commit"), (StoredLog, "commit")),
    "advance": ((slot, "advance"),),
    "tick": ((ticks, "record"),),
    "purge": ((change_log, "purge"),),
}
POINTS = tuple(f"{step}.{when}" for step in _STEPS for when in ("before", "after"))


class Struck(Exception):
    """A step failed."""


@contextmanager
def struck(point: str) -> Iterator[None]:
    """Within the block, a step fails before or after what it does."""
    step, _, when = point.partition(".")

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def fail(*arguments: Any, **named: Any) -> Any:
            if when == "after":
                function(*arguments, **named)
            raise Struck(point)

        return fail

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in _STEPS[step]:
            patch.setattr(owner, name, failing(getattr(owner, name)))
        yield


def drain_struck(point: str, drain: Callable[[], object]) -> bool:
    """Drain, and fail at a point if the drain comes to it. Return whether it did."""
    try:
        with struck(point):
            drain()
    except Struck:
        return True
    except CdcError as error:
        assert "DDL that has not committed locks a table" in str(error), error
    return False


class Faults:
    """Faults of a life that is captured into a log in memory.

    What it says: `fault: STEP.WHEN CHANGES A BATCH`, `crash: server`, and `restore: taken` and later `restore: drained`
    of a copy of the server.
    """

    def __init__(self, life: Life, log: Log, server: EmbeddedServer, counts: Counter[str]) -> None:
        self.life, self.log, self.server, self.counts = life, log, server, counts
        self._copy: EmbeddedServer | None = None
        self._open = ExitStack()

    def follow(self, word: str, rest: str) -> bool:
        """Do what a line says; give whether it is one of a fault."""
        if word == "fault":
            point, _, batch_changes = rest.partition(" ")
            self.strike(point, int(batch_changes))
        elif word == "crash":
            self.crash()
        elif word == "restore":
            self.take_copy() if rest == "taken" else self.drain_copy()
        return word in ("fault", "crash", "restore")

    def strike(self, point: str, batch_changes: int) -> None:
        """Drain, and fail at a point if the drain comes to it."""
        self.life.said.append(f"fault: {point} {batch_changes}")
        self.counts["faults"] += drain_struck(point, lambda: self.log.drain(batch_changes=batch_changes))

    def crash(self) -> None:
        """Crash the server: all transactions end, and its slot may be behind the ledger afterwards."""
        self.life.said.append("crash: server")
        self.life.close()
        self.log.conn.close()
        self.server.restart(immediate=True)
        self.life.connect(len(self.life.sessions))
        self.log.reconnect()
        self.counts["crashes"] += 1

    def take_copy(self) -> None:
        """Copy the server with its slot, as a snapshot of its volume does."""
        self.life.said.append("restore: taken")
        self._copy = self._open.enter_context(restored_from(self.server, self.log.config.source.slot))

    def drain_copy(self) -> None:
        """Drain the copy, which lacks what the log has since: it is refused, and the log stays."""
        self.life.said.append("restore: drained")
        assert self._copy is not None
        config, events = self.log.config, self.log.events
        name = str(conninfo_to_dict(config.source.conninfo)["dbname"])
        source = config.source.model_copy(update={"conninfo": self._copy.conninfo(name)})
        self.log.config = config.model_copy(update={"source": source})
        try:
            with pytest.raises(HistoryDiverged):
                commands.drain(self.log.config, log=self.log.store)
        finally:
            self.log.config = config
            self.close()
        assert self.log.events == events
        self.counts["restored"] += 1

    def close(self) -> None:
        """End the copy."""
        self._open.close()
        self._copy = None


__all__ = ["POINTS", "Faults", "Struck", "struck"]

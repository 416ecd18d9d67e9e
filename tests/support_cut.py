"""Make a cut beside other sessions: creating its slot waits for their open transactions, and then for later ones.

One thread drives the sessions of a life and another waits for the cut, so that a life replays: after each step the cut
exists, or it waits for a transaction that is still open.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import psycopg

from toolkit.source import slot, ticks
from toolkit.values.config import Config

_WAITING = """
select count(*) from pg_stat_activity
where datname = current_database() and backend_type = 'walsender' and cardinality(pg_blocking_pids(pid)) > 0
"""


class Awaited:
    """A cut to be had as soon as open transactions let it; a context manager."""

    def __init__(self, config: Config, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self._stack = ExitStack()
        self._pool = self._stack.enter_context(ThreadPoolExecutor(1))
        self._cut = self._pool.submit(
            self._stack.enter_context, ticks.exact_cut(config.capture_rules, cut_seconds=config.check.cut_seconds)
        )

    def __enter__(self) -> Awaited:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def had(self) -> bool:
        """Whether the cut is there. False: it waits for a transaction that is open now."""
        while not self._cut.done():
            row = self._conn.execute(_WAITING).fetchone()
            if row is not None and row[0]:
                return False
            time.sleep(0.002)
        return True

    @property
    def cut(self) -> slot.Cut:
        return self._cut.result()


__all__ = ["Awaited"]

"""Wait for the lock of another session for a limited time, and report which session held it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from toolkit.source.connection import Connection
from toolkit.values import resources
from toolkit.values.errors import CdcError
from toolkit.values.log_setup import logger

_log = logger(__name__)
_LOOK_SECONDS = 0.1
_SHOWN = 3
_BELOW_DEADLOCK_TIMEOUT = 0.5  # seconds
_LOOK_EARLY = """
select pg_catalog.set_config('deadlock_timeout', %s::text, true)
where pg_catalog.has_parameter_privilege('deadlock_timeout', 'SET')
"""


class LockTimeout(CdcError):
    """Another session held a lock for too long; the message names it."""


@contextmanager
def waiting(conn: Connection, what: str, *, seconds: float) -> Iterator[None]:
    """Limit every wait for a lock inside the block to `seconds`; the error names the blocking sessions.

    Raises:
        LockTimeout: names the action and the blocking sessions.
    """
    with _watching(conn) as watch:
        try:
            with _bounded(conn, seconds):
                yield
        except psycopg.errors.LockNotAvailable:
            raise watch.refusal(what, seconds) from None


def limit(conn: Connection, *, seconds: float) -> None:
    """Limit every later wait for a lock in this session to `seconds`."""
    conn.execute(f"set lock_timeout = {int(seconds * 1000)}")


@contextmanager
def brief_reading(conn: Connection, *, seconds: float) -> Iterator[None]:
    """Read in one REPEATABLE READ transaction, in which no wait for a lock lasts longer than `seconds`.

    Raises:
        LockTimeout: another session held a lock for longer.
    """
    conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    try:
        with conn.transaction():
            conn.execute(f"set local lock_timeout = {int(seconds * 1000)}")
            yield
    except psycopg.errors.LockNotAvailable:
        raise LockTimeout(
            f"reading the catalog: another session held a lock for more than {seconds:g} s; run it again"
        ) from None
    finally:
        conn.isolation_level = None


def insist(conn: Connection, what: str, change: Callable[[], object], *, seconds: float) -> None:
    """Change one table in a transaction, in short waits of `seconds` together, so the queue behind it stays short.

    Each wait ends before the server looks for deadlocks, so it never chooses a transaction of the application as the
    victim. Only one table is changed at a time. With several tables, writers that lock them in another order would hold
    one while this session holds the other, in every attempt. An autovacuum yields only to a wait that has looked for
    deadlocks. These waits therefore look early, if the role may set that.

    Raises:
        LockTimeout: the lock was not free in time; names the action and the blocking sessions.
    """
    attempts = max(3, int(seconds / _BELOW_DEADLOCK_TIMEOUT))
    with _watching(conn) as watch:
        for attempt in range(1, attempts + 1):
            try:
                with _bounded(conn, seconds / attempts), conn.transaction():
                    conn.execute(_LOOK_EARLY, [int(seconds / attempts * 300)])
                    change()
                return
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                if attempt == attempts:
                    raise watch.refusal(what, seconds) from None
                watch.connected.wait(seconds)  # watch the next wait from its start
                if attempt <= _SHOWN:
                    _log.warning("lock not acquired, trying again", extra={"attempt": attempt, "holder": watch.seen})


@contextmanager
def _bounded(conn: Connection, seconds: float) -> Iterator[None]:
    before = conn.execute("select pg_catalog.current_setting('lock_timeout')").fetchone()
    assert before is not None
    conn.execute(f"set lock_timeout = {int(seconds * 1000)}")
    try:
        yield
    finally:
        if conn.info.transaction_status != psycopg.pq.TransactionStatus.INERROR and not conn.closed:
            conn.execute(f"set lock_timeout = '{before[0]}'")


@contextmanager
def _watching(conn: Connection) -> Iterator[_Watch]:
    """Watch from a second session: when the wait is over, the server no longer shows which session caused it."""
    watch = _Watch(conn)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


class _Watch:
    """A watcher with a session of its own, which it opens only after the wait has lasted for a while."""

    def __init__(self, conn: Connection) -> None:
        self.seen = ""
        self.ends = ""  # what ends the first one in `seen`
        self._pid = conn.info.backend_pid
        self._dsn = conn.info.dsn
        self._password = conn.info.password
        self.connected = threading.Event()  # connected, or failed to connect
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def refusal(self, what: str, seconds: float) -> LockTimeout:
        return LockTimeout(
            f"{what}: waited {seconds:g} s for a lock held by {self.seen or 'a session that has just ended'};"
            f" run it again{f', or run: {self.ends}' if self.ends else ''}"
        )

    def _look(self) -> None:
        if self._over.wait(_LOOK_SECONDS):
            return
        try:
            with psycopg.connect(self._dsn, password=self._password or None, autocommit=True) as conn:
                self.connected.set()
                while True:
                    rows = conn.execute(resources.load("introspect/waits"), {"pid": self._pid}).fetchall()
                    if rows:
                        self.ends = rows[0][-1]
                        self.seen = ", ".join(
                            f"{holder} ({role}{' ' + application if application else ''}, {state}, {age} s{query})"
                            for holder, role, application, state, age, query, _ in rows[:_SHOWN]
                        ) + (f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else "")
                    if self._over.wait(_LOOK_SECONDS):
                        return
        except psycopg.Error:
            return  # it only improves the message
        finally:
            self.connected.set()

"""Waiting for another session's lock: never without end, and afterwards it is known who held it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from toolkit import queries
from toolkit.errors import CdcError
from toolkit.source.connection import Connection

_LOOK_SECONDS = 0.1
_SHOWN = 3


class LockTimeout(CdcError):
    """Another session held a lock for too long; the message names it."""


@contextmanager
def waiting(conn: Connection, what: str, *, seconds: float) -> Iterator[None]:
    """Bound every wait for a lock inside the block by `seconds`; whoever was waited for is in the refusal.

    A second session looks on meanwhile: when the wait is over, the server no longer knows whom it was for.

    Raises:
        LockTimeout: names what was being done and the sessions waited for.
    """
    watch = _Watch(conn)
    before = conn.execute("select pg_catalog.current_setting('lock_timeout')").fetchone()
    assert before is not None
    conn.execute(f"set lock_timeout = {int(seconds * 1000)}")
    watch.start()
    try:
        yield
    except psycopg.errors.LockNotAvailable:
        raise LockTimeout(
            f"{what}: waited {seconds:g} s for a lock held by {watch.seen or 'a session that has just ended'};"
            " run it again, or end that session with pg_terminate_backend"
        ) from None
    finally:
        watch.stop()
        if conn.info.transaction_status != psycopg.pq.TransactionStatus.INERROR and not conn.closed:
            conn.execute(f"set lock_timeout = '{before[0]}'")


class _Watch:
    """Looks on from a session of its own, which it opens only once the wait has lasted."""

    def __init__(self, conn: Connection) -> None:
        self.seen = ""
        self._pid = conn.info.backend_pid
        self._dsn = conn.info.dsn
        self._password = conn.info.password
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        if self._over.wait(_LOOK_SECONDS):
            return
        try:
            with psycopg.connect(self._dsn, password=self._password or None, autocommit=True) as conn:
                while True:
                    rows = conn.execute(queries.load("introspect/waits"), {"pid": self._pid}).fetchall()
                    if rows:
                        self.seen = ", ".join(
                            f"pid {pid} ({role}{' ' + application if application else ''}, {state}, {age} s: {query})"
                            for pid, role, application, state, age, query in rows[:_SHOWN]
                        ) + (f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else "")
                    if self._over.wait(_LOOK_SECONDS):
                        return
        except psycopg.Error:
            return  # it only makes a better message


__all__ = ["LockTimeout", "waiting"]

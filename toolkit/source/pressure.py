"""Read which replication resources the server has left, and why its slots keep WAL."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.rows import dict_row

from toolkit.source.connection import Connection
from toolkit.values import resources


@dataclass(frozen=True, slots=True)
class Pressure:
    """Limits of the server and their use. `oldest` is the oldest transaction that has written, if there is one."""

    keep_mb: int  # max_slot_wal_keep_size; -1: no limit
    slots: int
    slots_used: int
    senders: int
    senders_used: int
    oldest: str | None
    oldest_ends: str | None  # what ends it
    oldest_seconds: float | None


def read_pressure(conn: Connection) -> Pressure:
    """Read limits and use; works on a standby too."""
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(resources.load("introspect/pressure")).fetchone()
    assert row is not None
    return Pressure(**row)

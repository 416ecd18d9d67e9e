"""What watches over capture itself: triggers for what fires no event trigger, and the state of the event triggers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import psycopg
from psycopg.rows import dict_row

from toolkit import queries
from toolkit.config import Config
from toolkit.log import logger
from toolkit.names import quote_postgres
from toolkit.source.connection import Connection, one_line

_log = logger(__name__)
_TRIGGER = """
create or replace trigger _cdc_truncate before truncate on {table}
for each statement execute function cdc.capture_truncate();
alter table {table} enable always trigger _cdc_truncate;
"""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition, or its root, that had no truncate trigger. `moved`: it may have been truncated before."""

    relid: int
    schema: str
    name: str
    roots: tuple[int, ...]
    moved: bool


@dataclass(frozen=True, slots=True)
class CaptureState:
    """The event triggers: `state` differs when one was altered, `standing` when all are on."""

    state: str
    standing: bool
    paused: bool
    absent: bool = False  # there is none: the role might not create them
    settings: str = "[]"  # of roles and databases, that switch it off


def capture_state(conn: Connection) -> CaptureState:
    """How capture stands in the snapshot of `conn`."""
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(queries.load("introspect/capture")).fetchone()
    assert row is not None
    return CaptureState(**row)


def unguarded(conn: Connection, config: Config, also: Iterable[int] = ()) -> tuple[Partition, ...]:
    """Partitions without their trigger, and those of `also` as they stand now."""
    parameters = {"publication": config.source.publication, "also": list(also)}
    with conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(queries.load("introspect/unguarded"), parameters).fetchall()
    return tuple(Partition(**(row | {"roots": tuple(row["roots"])})) for row in rows)


def guard(conn: Connection, config: Config) -> tuple[int, ...]:
    """Put the trigger on partitions that came since the last time; the relids of those that had none.

    A partition whose lock is not to be had at once is left to the next drain.
    """
    missing = unguarded(conn, config)
    for partition in missing:
        table = f"{quote_postgres(partition.schema)}.{quote_postgres(partition.name)}"
        try:
            with conn.transaction():
                conn.execute("set local lock_timeout = '2s'")
                conn.execute(_TRIGGER.format(table=table))
        except psycopg.Error as error:
            _log.warning("no truncate trigger", extra={"table": table, "error": one_line(error)})
    return tuple(partition.relid for partition in missing)

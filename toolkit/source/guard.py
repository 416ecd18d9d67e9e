"""Guard capture itself: triggers for what fires no event trigger, and the state of the event triggers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import psycopg
from psycopg.rows import dict_row

from toolkit.source.connection import Connection, one_line
from toolkit.source.settings import read_setting
from toolkit.values import resources
from toolkit.values.log_setup import logger
from toolkit.values.names import qualified

_log = logger(__name__)


#: The statements that `cdc init` runs on the source.
_STATEMENTS = (
    "install/10_schema", "install/12_key", "install/20_table_snapshot", "install/30_capture", "install/32_partitions",
    "install/35_switch", "install/40_event_triggers", "install/41_fingerprint", "install/42_roles", "install/43_owner",
    "install/45_seal", "changelog/10_log",
)  # fmt: skip


@cache
def version() -> str:
    """Return a digest of the objects that this version of the toolkit installs on a source."""
    return hashlib.sha256("\0".join(map(resources.load, _STATEMENTS)).encode()).hexdigest()


def of_another_version(conn: Connection) -> bool:
    """Return whether `cdc init` of another version of the toolkit has installed capture."""
    return read_setting(conn, "version") != version()


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition, or its root, that had no truncate trigger. `moved`: it may have been truncated before.

    `known`: it or its root had the trigger before, or has one that does not always fire.
    """

    relid: int
    schema: str
    name: str
    roots: tuple[int, ...]
    moved: bool
    known: bool


@dataclass(frozen=True, slots=True)
class CaptureState:
    """The event triggers: `state` changes when one is altered, `standing` means that all are on."""

    state: str
    standing: bool
    paused: bool
    intact: bool = True  # the functions are those that `cdc init` installed
    absent: bool = False  # there is none: the role may not create them
    settings: str = "[]"  # settings of roles and databases that switch it off


def capture_state(conn: Connection) -> CaptureState:
    """Read the state of capture in the snapshot of `conn`."""
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(resources.load("introspect/capture")).fetchone()
    assert row is not None
    return CaptureState(**row)


def faults(conn: Connection) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Find event triggers and functions that differ from those `cdc init` installed, each with what was found."""
    found = conn.execute(resources.load("introspect/event_triggers")).fetchall()
    triggers = [(f"event trigger {name}", what) for name, what in found]
    functions = []
    row = conn.execute(
        "select (select s.value from cdc.known_settings as s where s.name = 'functions'), cdc.fingerprint()"
    ).fetchone()
    assert row is not None
    put, now = map(_functions, row)
    for name in sorted(put.keys() | now.keys()):
        if put.get(name) != now.get(name):
            functions.append((f"function {name}", "is another" if name in put and name in now else "is missing or new"))
    return triggers, functions


def _functions(value: bytes | None) -> dict[str, str]:
    """Parse a value of `cdc.fingerprint`; empty if an older version or another program wrote it."""
    try:
        stated = json.loads(value or b"{}")
    except ValueError:
        return {}
    return stated if isinstance(stated, dict) else {}


def unguarded(conn: Connection, also: Iterable[int] = ()) -> tuple[Partition, ...]:
    """Read the partitions without their trigger, and the current state of those in `also`."""
    with conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(resources.load("introspect/unguarded"), {"also": list(also)}).fetchall()
    return tuple(Partition(**(row | {"roots": tuple(row["roots"])})) for row in rows)


def guard(conn: Connection, *, drains: bool = True) -> tuple[int, ...]:
    """Create the trigger on partitions that the event triggers missed; return the relids of those without one.

    A partition that cannot be locked at once is left to the next drain. So is, if this is no drain, a partition that
    may have been truncated while its trigger was off: only a drain makes its root stale.
    """
    missing = [p for p in unguarded(conn) if drains or not (p.moved and p.known)]
    for partition in missing:
        try:
            with conn.transaction():
                conn.execute("set local lock_timeout = '2s'")
                conn.execute("select cdc.guard(%s::oid)", [partition.relid])
                if drains and partition.moved:
                    name = qualified(partition.schema, partition.name)
                    conn.execute(resources.load("install/late_truncate"), {"relid": partition.relid, "name": name})
        except psycopg.Error as error:
            name = qualified(partition.schema, partition.name)
            _log.warning("no truncate trigger", extra={"table": name, "error": one_line(error)})
    return tuple(partition.relid for partition in missing)

"""The catalog comparison: what the source's catalog shows against what the captured DDL events say.

Without a race: the catalog was read in one snapshot before `upto` was taken, and tables whose newest DDL that snapshot
could not see yet are left to the next drain.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.catalog import SchemaVersion, TableVersion
from toolkit.events import Event
from toolkit.lsn import Lsn

if TYPE_CHECKING:
    import psycopg

    from toolkit.config import Config


@dataclass(frozen=True, slots=True)
class Observation:
    """The catalog in one snapshot: `tables` are snapshot JSON texts of all published tables by relid."""

    tables: Mapping[int, str]
    snapshot: str  # pg_current_snapshot() as text: xmin:xmax:xip_list

    def sees(self, xid: int) -> bool:
        """Whether a transaction, by the low 32 bits of its id, had ended for this snapshot."""
        low, high, running = self.snapshot.split(":")
        epoch = int(high) >> 32
        full = epoch << 32 | (xid & 0xFFFFFFFF)
        if full > int(high) + 2**31:
            full -= 2**32
        return full < int(low) or (full < int(high) and str(full) not in running.split(","))


def observe(conn: psycopg.Connection, config: Config) -> Observation:
    """Read the catalog of all published tables in one REPEATABLE READ snapshot."""
    from psycopg import IsolationLevel

    from toolkit.source import catalog

    conn.isolation_level = IsolationLevel.REPEATABLE_READ
    try:
        with conn.transaction():
            row = conn.execute("select pg_catalog.pg_current_snapshot()::text").fetchone()
            assert row is not None
            return Observation(tables=catalog.snapshot_json(conn, config), snapshot=row[0])
    finally:
        conn.isolation_level = None


def unexplained(
    seen: Observation,
    *,
    versions: Mapping[int, SchemaVersion],
    ddl_xids: Mapping[int, int],
    batch_id: int,
    generation: int,
    next_schema_id: int,
    at: Lsn,
) -> list[Event]:
    """Events for every difference that no DDL event explains: a gap, and the schema version that was found.

    All stand at `at` (commit LSN `at - 1`).
    """
    events: list[Event] = []
    ordinal = 1 << 39  # behind everything the stream may hold at this position

    def differs(relid: int, reason: str, found: str, table: TableVersion) -> None:
        nonlocal next_schema_id, ordinal
        base: dict[str, Any] = {
            "batch_id": batch_id,
            "generation": generation,
            "commit_lsn": int(at) - 1,
            "end_lsn": int(at),
        }
        payload = json.dumps({"reason": reason, "remedy": f"cdc repair {table.identifier}"})
        events.append(
            Event(**base, ordinal=ordinal, kind="schema", relid=relid, schema_id=next_schema_id, payload=found)
        )
        events.append(Event(**base, ordinal=ordinal + 1, kind="gap", relid=relid, payload=payload))
        next_schema_id += 1
        ordinal += 2

    hidden = {relid for relid, xid in ddl_xids.items() if not seen.sees(xid)}
    for relid, text in sorted(seen.tables.items()):
        if relid in hidden:
            continue
        table = TableVersion.from_json(json.loads(text))
        known = versions.get(relid)
        if known is None or known.table.dropped:
            differs(relid, "the table is published and no DDL event introduced it", text, table)
            continue
        changed = _differences(json.loads(known.payload), json.loads(text))
        if changed:
            reason = f"the catalog differs from the captured DDL in {', '.join(changed)}: it was changed past capture"
            differs(relid, reason, text, table)
    for relid, version in sorted(versions.items()):
        last = version.table
        if relid in seen.tables or relid in hidden or last.dropped or not last.published:
            continue
        gone = json.dumps(json.loads(version.payload) | {"dropped": True})
        differs(relid, "the table left the catalog or the publication without a DDL event", gone, last)
    return events


def _differences(was: dict[str, object], now: dict[str, object]) -> list[str]:
    """Names of the properties that differ, but for what only the log remembers."""
    names = []
    for key in sorted(was.keys() | now.keys()):
        a, b = was.get(key), now.get(key)
        if key == "columns":
            a, b = _plain_columns(a), _plain_columns(b)
        if key != "dropped" and a != b:
            names.append(key)
    return names


def _plain_columns(columns: object) -> object:
    if not isinstance(columns, list):
        return columns
    # Any rewrite clears missing values (VACUUM FULL); former labels are carried by the log alone.
    carried = ("missing", "has_missing", "former_labels")
    return [{k: v for k, v in column.items() if k not in carried} for column in columns]

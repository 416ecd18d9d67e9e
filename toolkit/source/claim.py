"""Record which lake captures the source, so that a second lake neither takes the capture over nor removes it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from toolkit.source import slot
from toolkit.source.connection import Connection
from toolkit.source.settings import read_setting
from toolkit.values.errors import PreflightFailed


@dataclass(frozen=True)
class Claim:
    """A lake that captures the source."""

    lake: str  # the identifier that Iceberg gave its raw log, which stays when the lake is moved
    warehouse: str  # where the lake was at the last `cdc init`, for messages
    slot: str  # the configured one, also where the change log is drained without a slot
    database: str  # which one it captures: a dump takes the record to other databases


def read_claim(conn: Connection) -> Claim | None:
    """Read the lake of the last `cdc init`; None if there was none, or it was of a version without this record."""
    text = read_setting(conn, "lake")
    return Claim(**json.loads(text)) if text else None


def database_of(conn: Connection) -> str:
    """Return the identity of the database: that of its cluster, and its OID there."""
    row = conn.execute(
        "select pg_catalog.concat_ws(' ', s.system_identifier, d.oid)"
        " from pg_catalog.pg_control_system() as s, pg_catalog.pg_database as d"
        " where d.datname = pg_catalog.current_database()"
    ).fetchone()
    assert row is not None
    return str(row[0])


def write_claim(conn: Connection, claim: Claim) -> None:
    """Record the lake that captures the source from now on."""
    conn.execute(
        "insert into cdc.settings (name, value) values ('lake', pg_catalog.convert_to(%s, 'UTF8'))"
        " on conflict (name) do update set value = excluded.value where settings.value is distinct from excluded.value",
        [json.dumps(asdict(claim))],
    )


def require_unclaimed(conn: Connection, lake: str | None, *, slot_of_lost_lake: str | None = None) -> None:
    """Refuse to change a capture that another lake reads.

    A capture whose slot no longer exists is read by no lake, nor is one that a dump brought into this database. Without
    a slot that cannot be known, so such a capture is always in use.

    Args:
        lake: the identifier of the raw log; None if there is no log yet.
        slot_of_lost_lake: if there is no log: a lake that used this slot is taken to be lost, and not refused for.

    Raises:
        PreflightFailed: the other lake, by its place and slot.
    """
    claim = read_claim(conn)
    if claim is None or claim.lake == lake or (lake is None and claim.slot == slot_of_lost_lake):
        return
    if claim.database != database_of(conn):
        return
    found = slot.read_slot(conn, claim.slot)
    if (found is None or found.database != conn.info.dbname) and read_setting(conn, "ddl_to_log") is None:
        return
    raise PreflightFailed(
        f"schema cdc on the source: the lake in {claim.warehouse} captures this database through slot {claim.slot!r},"
        " and only one lake can; use that lake, or, if it is no longer wanted, run `cdc uninstall` with its"
        f" configuration. If its files are lost, any configuration with slot {claim.slot!r} and an empty lake will do"
    )


__all__ = ["Claim", "database_of", "read_claim", "require_unclaimed", "write_claim"]

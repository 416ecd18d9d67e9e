"""Record which lakes capture the source, so that no lake takes over or removes the capture of another one.

Each lake has a slot of its own, and under its name the settings of `cdc.settings`. Capture itself is shared: the event
triggers write one message for each lake. The change log serves one lake only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from toolkit.source import slot
from toolkit.source.connection import Connection
from toolkit.values import resources
from toolkit.values.capture_rules import SourceConfig
from toolkit.values.errors import PreflightFailed, SlotRefused
from toolkit.values.names import quote_postgres

#: Publications that `cdc init` has created for a slot, without the named ones.
_MADE = """
select p.pubname
from cdc.settings as s
join pg_catalog.pg_publication as p on p.oid::text = pg_catalog.convert_from(s.value, 'UTF8')
where s.slot = %s and s.name = 'made' and p.pubname <> all (%s)
"""


@dataclass(frozen=True)
class Claim:
    """A lake that captures the source."""

    lake: str  # the identifier that Iceberg gave its raw log, which stays when the lake is moved
    warehouse: str  # where the lake was at the last `cdc init`, for messages
    slot: str  # the configured one, also where the change log is drained without a slot
    database: str  # which one it captures: a dump takes the record to other databases


def database_of(conn: Connection) -> str:
    """Return the identity of the database: that of its cluster, and its OID there."""
    row = conn.execute(
        "select pg_catalog.concat_ws(' ', s.system_identifier, d.oid)"
        " from pg_catalog.pg_control_system() as s, pg_catalog.pg_database as d"
        " where d.datname = pg_catalog.current_database()"
    ).fetchone()
    assert row is not None
    return str(row[0])


def write_claim(conn: Connection, claim: Claim, publications: Sequence[str]) -> None:
    """Record the lake that captures the source from now on, through these publications.

    Settings are dropped of another slot that it had before, and of lakes that read no slot any more, with the rights of
    their roles that no other lake has granted. So is another publication that `cdc init` had created for this lake. The
    caller has opened a transaction.
    """
    conn.execute(
        "insert into cdc.settings (slot, name, value) values (%s, 'lake', pg_catalog.convert_to(%s, 'UTF8'))"
        " on conflict (slot, name) do update set value = excluded.value"
        " where settings.value is distinct from excluded.value",
        [claim.slot, json.dumps(asdict(claim))],
    )
    others = [other for other in claims(conn) if other.slot != claim.slot]
    gone = [other.slot for other in others if other.lake == claim.lake or not _in_use(conn, other)]
    for left in (other.slot for other in others if other.lake == claim.lake):
        for (publication,) in conn.execute(_MADE, [left, list(publications)]).fetchall():
            conn.execute(f"drop publication {quote_postgres(publication)}")
    for left in gone:
        conn.execute(
            "insert into cdc.settings (slot, name, value) select %s, s.name, s.value from cdc.settings as s"
            " where s.slot = %s and s.name = 'made' on conflict (slot, name) do nothing",
            [claim.slot, left],
        )
        conn.execute("select pg_catalog.set_config('cdc.slot', %s, true)", [left])
        conn.execute("select cdc.withdraw('{}')")
        conn.execute("select pg_catalog.set_config('cdc.slot', %s, true)", [claim.slot])
        conn.execute("delete from cdc.settings where slot = %s", [left])
    if gone:
        conn.execute("select cdc.admit()")


def former_slots(conn: Connection, source: SourceConfig, lake: str | None) -> tuple[slot.SlotState, ...]:
    """Return slots of this database, other than the configured one, that `cdc init` has created for this lake."""
    here = database_of(conn)
    names = [
        claim.slot
        for claim in claims(conn)
        if (claim.lake, claim.database) == (lake, here) and claim.slot != source.slot and _created(conn, claim.slot)
    ]
    return tuple(state for state in (_slot_here(conn, name) for name in names) if state is not None)


def has_slot(conn: Connection, source: SourceConfig, *, has_read: bool = False) -> bool:
    """Return whether the configured slot, if it exists, is one that `cdc init` has created.

    Another program may have an idle slot of that name, for example a subscription that is called `cdc`.

    Args:
        conn: a session of the role that installs.
        source: has the slot.
        has_read: the log was read from a slot of that name. It is no more if `cdc init` has dropped that one.
    """
    if has_read:
        return _recorded(conn, source.slot) is not False
    here = database_of(conn)
    if not any(claim.slot == source.slot and claim.database == here for claim in claims(conn)):
        return False
    return _created(conn, source.slot)


def _created(conn: Connection, name: str) -> bool:
    recorded = _recorded(conn, name)
    # Earlier versions recorded no slot; a lake that is drained by ticks has none.
    return recorded if recorded is not None else not _by_ticks(conn, name)


def _recorded(conn: Connection, name: str) -> bool | None:
    """Return whether `cdc init` has created the slot, or dropped it later; None if neither is recorded."""
    if not claims(conn):
        return None
    row = conn.execute(
        "select s.value = '' from cdc.settings as s where s.name = 'slot'"
        " and coalesce(pg_catalog.to_jsonb(s) ->> 'slot', %s) in ('', %s)",
        [name, name],
    ).fetchone()
    return None if row is None else bool(row[0])


def _by_ticks(conn: Connection, name: str) -> bool:
    # `slot` is missing in the settings of an earlier version, which have one lake.
    row = conn.execute(
        "select exists (select from cdc.settings as s where s.name = 'ddl_to_log'"
        " and coalesce(pg_catalog.to_jsonb(s) ->> 'slot', %s) in ('', %s))",
        [name, name],
    ).fetchone()
    return row == (True,)


def record_slot(conn: Connection, source: SourceConfig, *, exists: bool) -> None:
    """Record that `cdc init` creates the configured slot from now on, or that it has dropped it."""
    conn.execute("delete from cdc.settings where slot = %s and name = 'slot'", [source.slot])
    conn.execute(
        "insert into cdc.settings (slot, name, value) values (%s, 'slot', pg_catalog.convert_to(%s, 'UTF8'))",
        [source.slot, "" if exists else "dropped"],
    )


def require_no_slot(conn: Connection, source: SourceConfig) -> None:
    """Refuse to read or drop a slot that another program has created.

    Raises:
        SlotRefused: a slot of the configured name exists.
    """
    if slot.read_slot(conn, source.slot) is not None:
        raise SlotRefused(
            source.slot,
            "exists, and `cdc init` has not created it: another program may read it",
            "give another name in [source] slot, or, if no program reads it, run: select"
            f" pg_drop_replication_slot('{source.slot}')",
        )


def other_lakes(conn: Connection, source: SourceConfig) -> tuple[Claim, ...]:
    """Return the lakes that capture this database through other slots than the configured one."""
    return tuple(c for c in claims(conn) if c.slot != source.slot and _in_use(conn, c))


def require_unclaimed(
    conn: Connection, source: SourceConfig, lake: str | None, *, slot_of_lost_lake: str | None = None
) -> None:
    """Refuse to change a capture that another lake reads through the configured slot.

    A capture whose slot no longer exists is read by no lake, nor is one that a dump brought into this database. Without
    a slot that cannot be known, so such a capture is always in use.

    Args:
        conn: a session of the role that installs.
        source: has the slot.
        lake: the identifier of the raw log; None if there is no log yet.
        slot_of_lost_lake: if there is no log: a lake that used this slot is taken to be lost, and not refused for.

    Raises:
        PreflightFailed: the other lake, by its place and slot.
    """
    for claim in claims(conn):
        if claim.slot != source.slot or claim.lake == lake or not _in_use(conn, claim):
            continue
        if lake is None and claim.slot == slot_of_lost_lake:
            continue
        raise PreflightFailed(
            f"schema cdc on the source: the lake in {claim.warehouse} captures this database through slot"
            f" {claim.slot!r}, and only one lake can; set another [source] slot and publication, or, if that lake is no"
            " longer wanted, run `cdc uninstall` with its configuration. If its files are lost, any configuration with"
            f" slot {claim.slot!r} and an empty lake will do"
        )


def require_apart(conn: Connection, source: SourceConfig) -> None:
    """Refuse a lake that shares with another one what only one of them can have.

    Raises:
        PreflightFailed: the publication or the change log, and the slot of the other lake.
    """
    found = conn.execute(resources.load("introspect/shared"), {"own": source.own}).fetchone()
    if found is None:
        return
    what, other = found
    raise PreflightFailed(
        f"{what} belongs to the lake with slot {other!r} of this database; set another [source] publication, or capture"
        " without the change log; nothing was changed on the source"
    )


def claims(conn: Connection) -> list[Claim]:
    """Read the lakes of all slots."""
    row = conn.execute("select pg_catalog.to_regclass('cdc.settings') is not null").fetchone()
    if row != (True,):
        return []
    found = conn.execute(
        "select pg_catalog.convert_from(value, 'UTF8') from cdc.settings where name = 'lake'"
    ).fetchall()
    return [Claim(**json.loads(text)) for (text,) in found]


def _slot_here(conn: Connection, name: str) -> slot.SlotState | None:
    state = slot.read_slot(conn, name)
    return state if state is not None and state.database == state.here else None


def _in_use(conn: Connection, claim: Claim) -> bool:
    if claim.database != database_of(conn):
        return False
    if _slot_here(conn, claim.slot) is not None:
        return True
    return _by_ticks(conn, claim.slot)

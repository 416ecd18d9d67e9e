"""Separate the role that installs capture from the one that drains and the one that only looks.

The installer owns schema `cdc`. The other two are named in `[source] drainer` and `[source] reader`; `cdc init` gives
them their rights (`sql/install/42_roles.sql`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from toolkit.source.connection import Connection, connect
from toolkit.values import resources
from toolkit.values.capture_rules import CaptureRules, SourceConfig
from toolkit.values.errors import PreflightFailed, SourceUnavailable
from toolkit.values.modes import Capture
from toolkit.values.names import quote_postgres
from toolkit.values.table import TableVersion


def grants_sql(rules: CaptureRules, tables: Sequence[TableVersion]) -> str:
    """Return the script that gives the two roles their rights, and takes every other right in schema `cdc` back."""
    read = [t for t in tables if rules.capture_of(t.schema, t.name).capture != Capture.SCHEMA]
    names = sorted(f"{quote_postgres(t.schema)}.{quote_postgres(t.name)}" for t in read)
    wanted = {"drainer": rules.source.drainer, "reader": rules.source.reader, "tables": names}
    literal = "'" + json.dumps(wanted, ensure_ascii=False).replace("'", "''") + "'"
    return resources.load("install/42_roles").replace(":'roles'", literal)


def require_installer(conn: Connection, source: SourceConfig, doing: str) -> None:
    """Refuse to change capture as a role that is neither a superuser nor the owner of schema `cdc`.

    Raises:
        PreflightFailed: names the role that is needed.
    """
    row = conn.execute(resources.load("introspect/installer")).fetchone()
    assert row is not None
    role, superuser, owner = row
    if superuser or owner == role or (owner is None and role not in (source.drainer, source.reader)):
        return
    needed = f"schema cdc belongs to role {owner!r}, and" if owner else "it is [source] drainer or reader, and"
    raise PreflightFailed(
        f"{doing}: role {role!r} may not change capture: {needed} only the role that installs it, or a superuser, can;"
        " run it as that role, for instance with its connection in CDC_SOURCE__CONNINFO"
    )


def installed_by_superuser(conn: Connection) -> bool:
    """Return whether the owner of schema `cdc` is a superuser; before `cdc init`, whether this role is one."""
    row = conn.execute(
        "select r.rolsuper from pg_catalog.pg_roles as r where r.oid = coalesce("
        " (select n.nspowner from pg_catalog.pg_namespace as n where n.nspname = 'cdc'),"
        " (select c.oid from pg_catalog.pg_roles as c where c.rolname = current_user))"
    ).fetchone()
    return bool(row and row[0])


def may_replicate(source: SourceConfig) -> bool:
    """Return whether this role may open replication sessions without having REPLICATION, which the server decides.

    Amazon RDS lets members of `rds_replication` do so.
    """
    try:
        connect(source, replication=True).close()
    except SourceUnavailable:
        return False
    return True


def faults(conn: Connection, source: SourceConfig, *, ticks: bool) -> Iterator[tuple[str, str, str]]:
    """Find what is wrong with the two roles, as `(what, what was found, what to do)`."""
    for key, name in (("drainer", source.drainer), ("reader", source.reader)):
        if not name:
            continue
        what, quoted = f"[source] {key} {name!r}", quote_postgres(name)
        replicates = key == "drainer" and not ticks
        row = conn.execute(resources.load("introspect/role"), {"role": name}).fetchone()
        if row is None:
            yield what, "is no role of the server", f"run: create role {quoted} login{' replication' * replicates}"
            continue
        superuser, replication, above = row
        if superuser:
            yield what, "is a superuser, whom no grant limits", f"run: alter role {quoted} nosuperuser"
        elif above is not None:
            yield (
                what,
                f"is a member of role {above}, which is a superuser or has installed capture",
                f"run: revoke {above} from {quoted}",
            )
        if replicates and not (superuser or replication):
            yield what, "has no REPLICATION right", f"run: alter role {quoted} replication"

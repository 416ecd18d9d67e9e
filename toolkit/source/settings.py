"""Read what `cdc init` keeps in `cdc.settings` on the source, as text by its name."""

from __future__ import annotations

import psycopg

from toolkit.source.connection import Connection
from toolkit.values.errors import PreflightFailed


def read_setting(conn: Connection, name: str) -> str | None:
    """Read one setting; None if it is not set, or capture was never installed.

    Raises:
        PreflightFailed: this role may not read them.
    """
    try:
        shown = conn.execute("select pg_catalog.to_regclass('cdc.known_settings') is not null").fetchone() == (True,)
        relation = "cdc.known_settings" if shown else "cdc.settings"  # capture of an earlier version has no view
        row = conn.execute(
            f"select pg_catalog.convert_from(value, 'UTF8') from {relation} where name = %s".encode(), [name]
        ).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    except psycopg.errors.InsufficientPrivilege:
        raise PreflightFailed(
            f"reading cdc.settings: role {conn.info.user!r} may not; connect as the role that ran `cdc init`, or as the"
            " one in [source] drainer"
        ) from None
    return None if row is None else str(row[0])

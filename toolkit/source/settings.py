"""Read what `cdc init` keeps in `cdc.settings` on the source, as text by its name. The signing key is not text."""

from __future__ import annotations

import psycopg

from toolkit.source.connection import Connection


def read_setting(conn: Connection, name: str) -> str | None:
    """Read one setting; None if it is not set, or capture was never installed.

    Raises:
        psycopg.errors.InsufficientPrivilege: this role may not read them.
    """
    try:
        row = conn.execute(
            "select pg_catalog.convert_from(value, 'UTF8') from cdc.settings where name = %s", [name]
        ).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    return None if row is None else str(row[0])


__all__ = ["read_setting"]

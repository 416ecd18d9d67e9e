"""Switch DDL capture off and on: `cdc ddl pause` and `cdc ddl resume`."""

from __future__ import annotations

from typing import LiteralString

from toolkit.source.connection import Connection


def pause(conn: Connection) -> bool:
    """Stop reading catalogs in the user's DDL, and return whether this call paused it.

    Each command still leaves a signed mark. The result is False if capture was paused already.
    """
    return _switch(conn, "select cdc.pause()")


def resume(conn: Connection) -> bool:
    """Capture again, and return whether this call resumed it.

    The current schema of the tables is written into the log. The result is False if capture was not paused.
    """
    return _switch(conn, "select cdc.resume()")


def paused(conn: Connection) -> bool:
    """Return whether capture is paused for all sessions."""
    row = conn.execute("select exists (select from cdc.known_settings as s where s.name = 'paused')").fetchone()
    return bool(row and row[0])


def _switch(conn: Connection, statement: LiteralString) -> bool:
    row = conn.execute(statement).fetchone()
    return bool(row and row[0])

"""`cdc ddl pause` and `resume`: capture switched off for a while, and the gap that this makes."""

from __future__ import annotations

from typing import LiteralString

from toolkit.source.connection import Connection


def pause(conn: Connection) -> bool:
    """Stop reading catalogs in the user's DDL; each command still leaves a signed mark. False if it was paused."""
    return _switch(conn, "select cdc.pause()")


def resume(conn: Connection) -> bool:
    """Capture again; what the tables are now goes into the log. False if it was not paused."""
    return _switch(conn, "select cdc.resume()")


def paused(conn: Connection) -> bool:
    """Whether capture is paused for everybody."""
    row = conn.execute("select exists (select from cdc.settings as s where s.name = 'paused')").fetchone()
    return bool(row and row[0])


def _switch(conn: Connection, statement: LiteralString) -> bool:
    row = conn.execute(statement).fetchone()
    return bool(row and row[0])

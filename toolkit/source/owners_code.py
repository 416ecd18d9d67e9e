"""Refuse to plan a query on a table if the server could run code of another role for it.

The planner runs functions of constant arguments that it finds in index expressions, in statistics and in partition
keys, as the role of the session. A read-only transaction does not prevent them from running COPY TO PROGRAM.
"""

from __future__ import annotations

import weakref

import psycopg

from toolkit.source import slot
from toolkit.source.connection import Connection
from toolkit.values.errors import CdcError
from toolkit.values.names import quote_postgres
from toolkit.values.resources import load

#: A second session for each session: the first one's snapshot shows former catalogs, but the planner uses the current
#: ones.
_seconds: weakref.WeakKeyDictionary[Connection, Connection] = weakref.WeakKeyDictionary()


class OwnersCode(CdcError):
    """Planning a query on the table could run code of a role that is neither a superuser nor the session's."""


def refuse(conn: Connection, relid: int, table: str) -> None:
    """Check the table in the state in which the next statement of `conn` finds it.

    Raises:
        OwnersCode: names the object, the code and its owner.
    """
    found = _second(conn).execute(load("introspect/owners_code"), {"relid": relid}).fetchone()
    if found is not None:
        what, code, owner = found
        raise OwnersCode(
            f"{table}: {what} uses {code} of role {owner}, which the server may run with the rights of role"
            f" {conn.info.user} while it plans to read the table; look at what it does and run: alter {code} owner to"
            f" {quote_postgres(conn.info.user)}, or drop {what}, or name the table in [source] exclude"
        )


def _second(conn: Connection) -> Connection:
    second = _seconds.get(conn)
    if second is None or second.closed:
        second = psycopg.connect(conn.info.dsn, password=conn.info.password or None, autocommit=True)
        weakref.finalize(conn, second.close)
        second.prepare_threshold = None
        slot.require_server(second, slot.server_identity(conn), "looking for code of other roles")
        _seconds[conn] = second
    return second

"""Read a server on which nothing of the toolkit is installed: its position and its tables."""

from __future__ import annotations

import json
from dataclasses import dataclass

from toolkit.source.connection import Connection
from toolkit.values import resources
from toolkit.values.lsn import Lsn
from toolkit.values.table import TableVersion


@dataclass(frozen=True, slots=True)
class Position:
    """The end of a server's own WAL, or of the WAL that it has replayed from its primary."""

    cluster: str
    follows: bool
    lsn: Lsn
    xid: str

    def __str__(self) -> str:
        return f"replayed to {self.lsn}" if self.follows else f"at transaction {self.xid}"


def position(conn: Connection) -> Position:
    """Read the current position."""
    cluster, follows, lsn, xid = conn.execute(resources.load("parity/position").encode()).fetchall()[0]
    return Position(cluster, follows, Lsn.parse(lsn), xid)


def tables(conn: Connection) -> dict[str, TableVersion]:
    """Read the ordinary and partitioned tables as far as a comparison needs them, by identifier."""
    rows = conn.execute(resources.load("parity/bare_tables").encode()).fetchall()
    found = (TableVersion.from_json(json.loads(text)) for (text,) in rows)
    return {table.identifier: table for table in found}

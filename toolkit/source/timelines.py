"""Read the history of the server's timelines: which WAL a promoted standby shares with the primary before it."""

from __future__ import annotations

import psycopg

from toolkit.source.connection import Connection, connect
from toolkit.source.roles import may_replicate
from toolkit.source.slot import require_server, server_identity
from toolkit.values import resources
from toolkit.values.capture_rules import SourceConfig
from toolkit.values.errors import SourceUnavailable
from toolkit.values.lsn import Lsn


def left_at(conn: Connection, source: SourceConfig, timeline: int, earlier: int) -> Lsn | None:
    """Return the LSN to which a timeline of this server has the WAL of an earlier one; None if it is no ancestor.

    Raises:
        SourceUnavailable: the role may not read the history, the server does not have it, or another server answers.
    """
    role = conn.execute(resources.load("introspect/role"), {"role": conn.info.user}).fetchone()
    if role is not None and not (role[0] or role[1] or may_replicate(source)):
        raise SourceUnavailable(
            f"the source is on timeline {timeline} and the log on timeline {earlier}, as after the promotion of a"
            f" standby; role {conn.info.user!r} has no REPLICATION right and cannot read where the one left the other:"
            " whether the log can be continued is not known; run it as the role that drains"
        )
    with connect(source, replication=True) as session:
        require_server(session, server_identity(conn), f"reading the history of timeline {timeline}")
        try:
            row = session.execute(f"TIMELINE_HISTORY {timeline:d}".encode()).fetchone()
        except psycopg.errors.UndefinedFile:
            raise SourceUnavailable(
                f"the source does not have {timeline:08X}.history in pg_wal, which says where timeline {timeline} left"
                f" timeline {earlier}; copy it there from the WAL archive, or start a new log with"
                " `cdc init --new-generation`"
            ) from None
    assert row is not None
    text = row[1].decode() if isinstance(row[1], bytes) else str(row[1])
    left = (line.split()[1] for line in text.splitlines() if line.split()[:1] == [str(earlier)])
    return next(map(Lsn.parse, left), None)

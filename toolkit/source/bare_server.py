"""Read a server on which nothing of the toolkit is installed: its position and its tables."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from toolkit.source.connection import Connection, connect
from toolkit.source.row_lines import inside_snapshot
from toolkit.values import resources
from toolkit.values.capture_rules import SourceConfig
from toolkit.values.errors import SourceUnavailable
from toolkit.values.lsn import Lsn
from toolkit.values.table import TableVersion

#: Between two attempts to take a snapshot, in seconds.
_BETWEEN = 0.005


@dataclass(frozen=True, slots=True)
class Position:
    """The end of a server's own WAL, or of the WAL that it has replayed from its primary."""

    cluster: str
    follows: bool
    lsn: Lsn
    xid: str
    committing: bool = False  # whether a transaction that has written may be committing

    def __str__(self) -> str:
        return f"replayed to {self.lsn}" if self.follows else f"at transaction {self.xid}"


def position(conn: Connection) -> Position:
    """Read the current position."""
    cluster, follows, lsn, xid, committing = conn.execute(resources.load("parity/position").encode()).fetchall()[0]
    return Position(cluster, follows, Lsn.parse(lsn), xid, committing)


@contextmanager
def snapshot_at(source: SourceConfig, asked: Connection, *, seconds: float) -> Iterator[tuple[Connection, Position]]:
    """Open a session that reads in one snapshot, and read the position that the snapshot shows exactly.

    A position that is read beside a snapshot may include a commit that the snapshot does not show: one that came
    between them, or one that waits for the disk or for a standby. The snapshot is therefore retaken until no
    transaction may be committing before it, and nothing is written from then until after it. `asked` is a session on
    the same server.

    Raises:
        SourceUnavailable: the server never stood still.
    """
    deadline = time.monotonic() + seconds
    with connect(source) as conn:
        while True:
            with inside_snapshot(conn, None, seconds=seconds):
                # The first statement of `conn` takes the snapshot.
                before, at, after = position(asked), position(conn), position(asked)
                if before.lsn == at.lsn == after.lsn and not before.committing:
                    yield conn, at
                    return
            if time.monotonic() > deadline:
                why = "a transaction that has written is active" if before.committing else "it writes all the time"
                raise SourceUnavailable(
                    f"no snapshot of the source at an exact LSN in {seconds:g} s: {why}, now from {before.lsn} to"
                    f" {after.lsn}; pause its writers for a moment, or raise [check] cut_seconds"
                )
            time.sleep(_BETWEEN)


def tables(conn: Connection) -> dict[str, TableVersion]:
    """Read the ordinary and partitioned tables as far as a comparison needs them, by identifier."""
    rows = conn.execute(resources.load("parity/bare_tables").encode()).fetchall()
    found = (TableVersion.from_json(json.loads(text)) for (text,) in rows)
    return {table.identifier: table for table in found}


def printing(conn: Connection) -> frozenset[str]:
    """Return what values of the server's own types are printed by now, which snapshots do not cover.

    A later state that has all of these facts prints the same rows alike.
    """
    return frozenset(fact for (fact,) in conn.execute(resources.load("parity/bare_printing").encode()).fetchall())

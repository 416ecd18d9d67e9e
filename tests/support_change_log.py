"""The change log of a fresh database, read by ticks and without a lake: fixture `log`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from toolkit.decode import logged_rows
from toolkit.source import connection, install, preflight, ticks
from toolkit.source.connection import Connection
from toolkit.source.ticks import Tick
from toolkit.values.config import Config, TableConfig

#: A partitioned table with two leaves, one row in each.
PARTITIONED = """
create table public.m (id int, d int, v text, primary key (id, d)) partition by range (d);
create table public.m1 partition of public.m for values from (0) to (10);
create table public.m2 partition of public.m for values from (10) to (20);
insert into public.m values (1, 1, 'a'), (2, 11, 'b');
"""


@dataclass(frozen=True)
class Row:
    """A row of the log."""

    xid: int
    lsn: int
    relid: int
    op: str
    old: str | None
    new: str | None


@dataclass
class Log:
    """The change log of a database, read by ticks."""

    config: Config
    conn: Connection

    def install(self) -> None:
        preflight.require(self.conn, self.config.capture_rules, ddl=self.config.ddl)
        install.install(
            self.conn, self.config.capture_rules, ddl=self.config.ddl, lock_seconds=self.config.snapshot.lock_seconds
        )

    def tick(self) -> Tick:
        found = self.conn.execute("select pg_catalog.pg_current_snapshot()::text").fetchone()
        assert found is not None
        return ticks.record(self.conn, found[0])

    def rows(self, since: Tick, upto: Tick, *, messages: bool = False) -> list[Row]:
        """The changes between two ticks; with `messages` also DDL, and the key for which late changes were logged."""
        found = []
        for cells in ticks.rows(self.conn, since, upto):
            texts = cells.to_pylist()
            for xid, lsn, relid, op, old, new in zip(*(texts[i::6] for i in range(6)), strict=True):
                if messages or op not in ("M", "O"):
                    found.append(Row(int(xid), int(lsn), int(relid), op, old, new))
        return found

    def ops(self, since: Tick, upto: Tick) -> list[tuple[str, str | None, str | None]]:
        return [(row.op, row.old, row.new) for row in self.rows(since, upto)]

    def during(self, *statements: str) -> list[tuple[str, str | None, str | None]]:
        """What the log has of statements that the application runs."""
        since = self.tick()
        with psycopg.connect(self.config.source.conninfo, autocommit=True) as app:
            for statement in statements:
                app.execute(statement)
        return self.ops(since, self.tick())


@pytest.fixture
def log(source: Config) -> Iterator[Log]:
    """A change log that is drained by ticks; nothing is installed yet."""
    chosen = source.source.model_copy(update={"capture": "change_log", "change_log_drain": "tick"})
    config = source.model_copy(update={"source": chosen})
    with connection.connect(config.source) as conn:
        yield Log(config, conn)


def with_table(log: Log, pattern: str, **settings: Any) -> Log:
    """The same with a `[table]` of its own."""
    table = {pattern: TableConfig(**settings)}
    return Log(log.config.model_copy(update={"table": table}), log.conn)


def image(text: str | None, width: int) -> tuple[str | None, ...] | None:
    """The cells of a logged image of `width` live columns."""
    images = logged_rows.record_images(pa.array([text], pa.string()), range(1, width + 1), width).to_pylist()
    return None if images[0] is None else tuple(images[0])

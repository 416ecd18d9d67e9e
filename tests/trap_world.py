"""A database of a test's own with a user and the toolkit's log, for traps that concern the whole database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support_log import Log
from toolkit.rawlog.states import live_tables
from toolkit.source import preflight
from toolkit.source.connection import connect
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn


class World:
    """A database, its user, and the log once it is started."""

    def __init__(self, config: Config, directory: Path, stack: ExitStack) -> None:
        self.config, self.directory, self.stack = config, directory, stack
        self.user = stack.enter_context(psycopg.connect(config.source.conninfo, autocommit=True))
        self.log: Log

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.user.execute(statement)

    def start(self, *setup: str, **source: Any) -> Log:
        """Run the setup, install capture and take the first copies."""
        self.sql(*setup)
        self.config = self.config.model_copy(update={"source": self.config.source.model_copy(update=source)})
        self.log = self.stack.enter_context(Log.started(self.config, self.directory))
        return self.log

    def relid(self, name: str) -> int:
        row = self.user.execute("select %s::regclass::oid::int8", [name]).fetchone()
        assert row is not None
        return int(row[0])

    def stale(self) -> dict[str, str]:
        """Reasons by table that no repair has answered."""
        at = self.log.complete_to
        open_ = {name: s for name, s in self.log.states().items() if not s.comparable}
        live = {t.relid for t in live_tables(self.log.reading())}
        return {
            name: (self.log.unverified(s.relid, at) if s.relid in live else None) or s.reason or ""
            for name, s in open_.items()
        }

    def exact(self, *names: str) -> None:
        """The tables are ok or repaired, and their rows in the log are those of SELECT."""
        for name in names:
            state = self.log.states()[f"public.{name}"]
            assert state.comparable, state.reason
            relid = self.relid(f"public.{name}")
            assert self.log.rows(relid, self.log.complete_to) == self.log.select(relid)

    def repaired_from(self, name: str, before: Lsn, reason: str) -> None:
        """The table is stale from an LSN up to `before`, for a reason with these words, and exact after its repair."""
        state = self.log.states()[f"public.{name}"]
        assert reason in (state.reason or "")
        assert state.from_lsn is not None and state.from_lsn <= before
        self.log.repair(f"public.{name}")
        self.log.drain()
        self.exact(name)

    def findings(self) -> str:
        """What `cdc doctor` says of the source."""
        with connect(self.config.source) as conn:
            return "\n".join(str(f) for f in preflight.preflight(conn, self.config.capture_rules, ddl=self.config.ddl))

    def bypass(self) -> None:
        """DDL while an event trigger is disabled."""
        self.sql(
            "alter event trigger _cdc_0_command disable", "alter table t add column sneaked int",
            "alter event trigger _cdc_0_command enable always",
        )  # fmt: skip


@pytest.fixture
def world(source: Config, tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(source, tmp_path, stack)


PAIR = ("create table t (id int primary key, v text)", "insert into t values (1, 'x'), (2, 'y')")
ROOT = (
    "create table r (id int primary key, v text) partition by range (id)",
    "create table r1 partition of r for values from (0) to (10)",
    "create table r2 partition of r for values from (10) to (20)",
    "insert into r values (1, 'a'), (11, 'b')",
    "create publication cdc for tables in schema public with (publish_via_partition_root = true)",
)

"""Random life with the server as oracle: at each drain, and as of every earlier one, the log's rows equal SELECT.

`CDC_TEST_LIFE_SECONDS` is the time budget of all rounds together; the seed is in the header of the run.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support_life import Life
from tests.support_log import Log, Shown
from tests.support_postgres import fresh_database, has_postgres_15
from toolkit.config import CheckConfig, Config, SourceConfig
from toolkit.embedded import EmbeddedServer
from toolkit.lsn import Lsn

pytestmark = pytest.mark.postgres

SECONDS = float(os.environ.get("CDC_TEST_LIFE_SECONDS", "60"))
_STEPS = 240  # of one round, on a database of its own


class Round:
    """One life and its log. `points` are what SELECT showed at each drain."""

    def __init__(self, life: Life, log: Log) -> None:
        self.life, self.log = life, log
        self.points: list[tuple[Lsn, dict[int, Shown]]] = []
        self.counts: Counter[str] = Counter()

    @classmethod
    @contextmanager
    def ready(cls, server: EmbeddedServer, directory: Path, seed: str) -> Iterator[Round]:
        dice = random.Random(seed)
        with fresh_database(server) as conninfo, Life.lived(conninfo, dice) as life:
            source = SourceConfig(conninfo=conninfo, slot="cdc_life", new_tables="publish", tables=("life.*",))
            config = Config(source=source, check=CheckConfig(cut_seconds=20.0))
            with Log.started(config, directory) as log:
                yield cls(life, log)

    def live(self, steps: int) -> None:
        for number in range(steps):
            self.life.step()
            if self.life.dice.random() < 0.06:
                self.look()
            if number % 80 == 79:
                self.life.settle()
                stale = [name for name, state in self.log.states().items() if not state.comparable]
                if stale:
                    self.log.repair(*stale)
        self.life.settle()
        self.look()

    def look(self) -> None:
        """Drain with whatever is open, and note what SELECT shows. Nothing commits meanwhile."""
        self.life.said.append("-- drain")
        at = self.log.drain(batch_changes=self.life.dice.choice((1, 10, 10**9)))
        shown: dict[int, Shown] = {}
        for relid in self.log.versions:
            table = self.log.version(relid, at)
            if table is None:
                continue
            try:
                with self.log.conn.transaction(force_rollback=True):
                    relation = f'"{table.schema}"."{table.name}"'
                    self.log.conn.execute(f"lock table {relation} in access share mode nowait".encode())
                    shown[relid] = self.log.select(relid)
            except psycopg.errors.LockNotAvailable:
                self.counts["locked"] += 1
        self.points.append((at, shown))
        self.compare(at, shown)

    def compare(self, at: Lsn, shown: dict[int, Shown]) -> None:
        for relid, (attnums, rows) in shown.items():
            table, doubt = self.log.version(relid, at), self.log.doubtful(relid, at)
            assert table is not None
            if doubt is not None:
                # Partitions come and go without row events.
                allowed = relid in self.life.doubtful or table.name.startswith("p")
                assert allowed, f"{table.identifier} at {at} is stale without need: {doubt}"
                self.counts["stale"] += 1
                continue
            found = self.log.rows(relid, at)
            assert found[0] == attnums, f"{table.identifier} at {at}: columns"
            assert found[1] == rows, (
                f"{table.identifier} at {at}: {found[1] - rows} too many, {rows - found[1]} missing"
            )
            self.counts["exact"] += 1
            self.counts["rows"] += rows.total()

    def again(self) -> None:
        """As of earlier points, by all that the log knows now."""
        for at, shown in self.points:
            self.compare(at, shown)


def _play(server: EmbeddedServer, directory: Path, seed: str, steps: int = _STEPS) -> Counter[str]:
    with Round.ready(server, directory, seed) as round_:
        try:
            round_.live(steps)
            round_.again()
        except Exception as error:
            kept = directory / f"life-{server.major}-{seed}.sql"
            kept.write_text("\n".join(round_.life.said) + "\n", encoding="utf-8")
            raise AssertionError(f"life {seed} on {server.major}, kept in {kept}: {error}") from error
        counts = round_.counts
        counts["statements"], counts["changes"] = round_.life.done, round_.log.changes
        counts["ddl"] = len(round_.log.of("ddl"))
        return counts


def test_the_log_is_what_select_showed(
    request: pytest.FixtureRequest, tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = [request.getfixturevalue(name) for name in _servers(request)]
    end = time.monotonic() + SECONDS
    counts: Counter[str] = Counter()
    while time.monotonic() < end or counts["rounds"] < len(servers):
        server = servers[counts["rounds"] % len(servers)]
        counts += _play(server, tmp_path, f"{seed}-{counts['rounds']}")
        counts["rounds"] += 1
    with capsys.disabled():
        print(f"\nlife: {json.dumps(counts)}")
    # Else nothing was proven: most looks find a table that can be known, through DDL and changes.
    assert counts["exact"] > 3 * counts["stale"]
    assert counts["changes"] > 50 * counts["rounds"] and counts["ddl"] > 5 * counts["rounds"]


def _servers(request: pytest.FixtureRequest) -> list[str]:
    return [*(["pg15"] if has_postgres_15() else []), "pg16", "pg18"]


def test_a_planted_loss_is_found(pg16: EmbeddedServer, tmp_path: Path) -> None:
    with Round.ready(pg16, tmp_path, "planted") as round_:
        round_.live(_STEPS // 2)
        log, (at, shown) = round_.log, round_.points[-1]
        events = log.events
        known = [relid for relid in shown if log.doubtful(relid, at) is None]
        truncated = {relid: max((_place(e) for e in log.of("truncate", relid)), default=(0, 0)) for relid in known}
        rows = [e for e in events if e["op"] == "I" and e["relid"] in known and _place(e) > truncated[e["relid"]]]
        shapes = []
        for relid in known:
            versions = log.of("schema", relid)
            shapes += [
                b["schema_id"]
                for a, b in itertools.pairwise(versions)
                if [c["attnum"] for c in a["payload"]["columns"]] != [c["attnum"] for c in b["payload"]["columns"]]
            ]
        for lost in (rows[-1], next(e for e in events if e["kind"] == "schema" and e["schema_id"] == shapes[-1])):
            log.events = [e for e in events if e is not lost]
            with pytest.raises((AssertionError, KeyError)):
                round_.again()


def test_ddl_that_is_left_open_holds_up_no_drain(source: Config, tmp_path: Path) -> None:
    """To print a column's default the server opens the table: the catalog comparison waited for the user's commit."""
    with psycopg.connect(source.source.conninfo, autocommit=True) as conn:
        conn.execute("create table public.t (id int primary key, v text default 'x')")
        with Log.started(source, tmp_path) as log, psycopg.connect(source.source.conninfo) as open_one:
            open_one.execute("alter table public.t add column late int default 7")
            conn.execute("create table public.u (id int primary key)")
            at = log.drain()
            assert log.compared_to < at
            open_one.commit()
            conn.execute("insert into public.t values (1)")
            assert log.drain() == log.compared_to or log.compared_to > at
            relid = next(r for r, v in log.versions.items() if v.table.name == "t")
            assert log.rows(relid, log.complete_to) == log.select(relid)


def _place(event: dict[str, Any]) -> tuple[int, int]:
    return event["commit_lsn"], event["ordinal"]

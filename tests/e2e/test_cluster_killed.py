"""Every part of a cluster is killed in every command: the next run continues, and no row is lost or doubled.

The table `_POINTS` says where a part dies: seen from outside while executors work, or at a failpoint where the driver
waits. At the end the module prints the matrix of what was killed where, with the exit code of the command that
was struck and the verdict on the run at the end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support_catalogs import postgresql_catalog, rest_catalog, rest_classpath, store_servers
from tests.support_cluster import BURST_ROWS, BURST_STAY, Cluster, burst, cluster
from tests.support_ledger import ledger_of
from tests.support_postgres import fresh_database, serve
from tests.support_shop import Shop
from tests.support_stores import running_store
from toolkit.demo.server import EmbeddedServer
from toolkit.lake.lake_catalog import open_catalog
from toolkit.source import connection, slot
from toolkit.values.config import Config
from toolkit.values.process_env import environment

__all__ = ["rest_classpath", "store_servers"]
pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]
_TABLES = ("bag", "bulk", "item", "large", "twice")
_STRUCK_SECONDS = 300


@dataclass(frozen=True)
class Point:
    """Where a command is struck.

    At a failpoint the driver waits until the victim is dead. Executors die after it, once they work again.
    """

    words: tuple[str, ...]
    failpoint: str = ""
    #: Without a failpoint, what is seen from outside.
    works: Callable[[World], bool] | None = None
    #: A command before it.
    before: tuple[str, ...] = ()
    #: Whether executors work here, so that they and their machine are victims too.
    at_work: bool = True


@dataclass
class World:
    """A source, and a lake of which every part is a process that can be killed."""

    shop: Shop
    workers: Cluster
    kills: dict[str, Callable[[int], None]]
    restores: list[Callable[[], None]]
    matrix: dict[tuple[str, str], str] = field(default_factory=dict)

    def restore(self) -> None:
        for start in self.restores:
            start()

    def lines(self, kind: str) -> Iterator[str]:
        """The matrix, as a table."""
        wide = max(map(len, _POINTS))
        yield f"\n{kind}: {'killed':{wide}}" + "".join(f" {victim:>14}" for victim in _VICTIMS)
        for point in _POINTS:
            yield f"{kind}: {point:{wide}}" + "".join(f" {self.matrix.get((point, v), '-'):>14}" for v in _VICTIMS)

    def hold(self) -> None:
        """Assert I1 to I3 of the log: the check after it compares the rows, and `cdc audit` the versions."""
        with environment(self.shop.environment):
            self._hold(self.shop.config())

    def _hold(self, config: Config) -> None:
        ledger = ledger_of(config)
        batches, last = ledger.batches(), ledger.last()
        assert last is not None
        assert [b.batch_id for b in batches] == list(range(1, len(batches) + 1)), "I2: a hole in the ledger"
        assert all(one.complete_to == two.from_lsn for one, two in pairwise(batches)), "I2: a gap"
        columns = ("batch_id", "generation", "commit_lsn", "ordinal", "relid", "origin", "end_lsn", "kind")
        access = config.lake_access
        found = open_catalog(access).load_table(access.names.events).scan(selected_fields=columns).to_arrow()
        found = found.filter(pc.is_in(found["kind"], pa.array(["row", "truncate"])))
        places = found.group_by(["generation", "commit_lsn", "ordinal", "relid"]).aggregate([([], "count_all")])
        assert places.num_rows == found.num_rows, "I1: an event is there twice"
        of_slot = found.filter(pc.equal(found["origin"], "slot"))
        assert of_slot.num_rows == 0 or pc.max(of_slot["end_lsn"]).as_py() <= last.complete_to, "I2: above the ledger"
        # A statement on `twice` writes to the change log too, in its transaction.
        of_slot = of_slot.filter(pc.not_equal(of_slot["relid"], self._relid("twice")))
        spans = of_slot.group_by(["generation", "commit_lsn"]).aggregate(
            [("ordinal", "min"), ("ordinal", "max"), ("ordinal", "count")]
        )
        for row in spans.to_pylist():
            assert row["ordinal_max"] - row["ordinal_min"] + 1 == row["ordinal_count"], f"I1: a hole, {row}"
        counted = Counter(of_slot.filter(pc.equal(of_slot["relid"], self._relid("bulk")))["batch_id"].to_pylist())
        assert all(count % (BURST_ROWS + BURST_STAY + 2) == 0 for count in counted.values()), (
            f"I2: a part of a burst, {counted}"
        )
        with connection.connect(config.source) as conn:
            state = slot.read_slot(conn, config.source.slot)
        assert state is not None and state.confirmed_flush_lsn <= last.complete_to, "I3: the slot is beyond the ledger"

    def _relid(self, name: str) -> int:
        with psycopg.connect(self.shop.conninfo) as conn:
            row = conn.execute("select %s::regclass::oid::int8", [f"public.{name}"]).fetchone()
        assert row is not None
        return int(row[0])


def _delivered(world: World) -> bool:
    """Whether executors decode: the bytes of tasks are in the store, and Python workers run."""
    lists = (world.shop.folder / "lake" / "delivered").glob("*.txt")
    return any(lists) and any(map(world.workers.tasks, world.workers.executors()))


def _copying(world: World) -> bool:
    """Whether a session of the source reads a piece of the large table."""
    with psycopg.connect(world.shop.conninfo, autocommit=True) as conn:
        found = conn.execute(
            "select 1 from pg_stat_activity where state = 'active' and query like 'copy (select%large%'"
            " and datname = current_database()"
        )
        return found.fetchone() is not None


_REPAIR = ("repair", "public.large")
#: In the order in which one victim dies in them: each command continues what the one before left.
_POINTS = {
    "drain: decoding": Point(("drain",), works=_delivered),
    "build: building": Point(("build",), "models.before", before=("drain",)),
    "check: comparing": Point(("check",), "models.after"),
    "snapshot: reading": Point(_REPAIR, works=_copying),
    "maintain: compacting": Point(("maintain",), "compact.before"),
    "drain: committed": Point(("drain",), "commit.after", at_work=False),
    "build: built": Point(("build",), "models.after", before=("drain",), at_work=False),
    "check: publishing": Point(("check",), "publish.before", at_work=False),
    "snapshot: committing": Point(_REPAIR, "commit.before", at_work=False),
    "maintain: expiring": Point(("maintain",), "expire.before", at_work=False),
}
_VICTIMS = ("executor", "worker", "driver", "store", "catalog")
_CASES = [
    pytest.param(victim, at_work, id=f"{victim}-{'at_work' if at_work else 'late'}")
    for at_work in (True, False)
    for victim in _VICTIMS
    if at_work or victim not in ("executor", "worker")
]


@pytest.fixture(scope="module", params=["rest+s3", "postgresql+s3"])
def world(
    request: pytest.FixtureRequest, pg16: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("killed")
    with ExitStack() as stack:
        workers = stack.enter_context(cluster())
        store = stack.enter_context(running_store("s3", request.getfixturevalue("store_servers")("s3"), folder))
        assert store.server is not None
        kills: dict[str, Callable[[int], None]] = {
            "executor": lambda _: _end(workers.executors()),
            "worker": lambda _: workers.kill_worker(0),
            "driver": lambda driver: _end([driver]),
            "store": lambda _, server=store.server: server.kill(),  # type: ignore[misc]
        }
        restores = [workers.restore, store.server.start]
        if request.param == "rest+s3":
            jars = request.getfixturevalue("rest_classpath")
            section, rest = stack.enter_context(rest_catalog(jars, folder, store.warehouse, store))
            # Iceberg's own client asks five times more, and each time this server waits for the store: 90 seconds.
            assert isinstance(section["properties"], dict)
            section["properties"]["rest.client.max-retries"] = "1"
            kills["catalog"] = lambda _: rest.kill()
            restores.append(rest.start)
        else:
            other = stack.enter_context(serve(18))
            section = stack.enter_context(postgresql_catalog(other))
            kills["catalog"] = lambda _: other.stop(immediate=True)
            restores.append(other.start)
        made = World(_shop(stack, request, pg16, workers, store, section), workers, kills, restores)
        yield made
        made.restore()
        reporter: Any = request.config.pluginmanager.get_plugin("terminalreporter")
        for line in made.lines(request.param):
            reporter.write_line(line)


def _shop(
    stack: ExitStack, request: pytest.FixtureRequest, server: EmbeddedServer, workers: Cluster, store: Any,
    section: dict[str, Any],
) -> Shop:  # fmt: skip
    """Make the source, and the lake by `cdc init` and `cdc run`."""
    own = request.getfixturevalue("tmp_path_factory").mktemp("own") / "pgpass"
    host = f"127.0.0.1:{server.port}:*:{server.user}:{server.password}\n"
    own.touch(mode=0o600)
    own.write_text(host, encoding="utf-8")
    local = stack.enter_context(fresh_database(server))
    shop = Shop(
        store.folder.parent, psycopg.conninfo.make_conninfo(local, host="127.0.0.1"),
        {
            "warehouse": store.warehouse, **section,
            "properties": {**store.properties, **store.keys, **section["properties"]},
            "environment": {**store.environment, "PGPASSFILE": str(own)},
        },
        spark=workers.settings | {"spark.executorEnv.PGPASSFILE": str(workers.private("pgpass", host))},
        spark_secrets={"spark.authenticate.secret": workers.secret},
        more='[snapshot]\non = "executors"\n[table."public.twice"]\ncapture = "both"\n',
    )  # fmt: skip
    shop.conninfo = local  # for what the test itself does
    shop.sql(
        "create table public.item (id int primary key, name text)",
        "insert into public.item select i, 'n' || i from generate_series(1, 500) i",
        "create table public.bulk (id int primary key, note text)",
        # more than the driver copies by itself
        "create table public.large (id int primary key, note text)",
        "insert into public.large select i, repeat(chr(97 + i % 26), 1000) from generate_series(1, 70000) i",
        "create table public.twice (id int primary key, name text)",
        "create table public.bag (name text)",
        "alter table public.bag replica identity full",
    )
    shop.cdc("init")
    shop.cdc("run")
    return shop


@pytest.mark.parametrize(("victim", "at_work"), _CASES)
def test_the_next_run_continues_and_no_row_is_lost_or_doubled(world: World, victim: str, at_work: bool) -> None:
    """The log holds after each death, and in the end a check compares every row of the lake with the source."""
    shop = world.shop
    points = [name for name, point in _POINTS.items() if point.at_work == at_work]
    for name in points:
        _change(shop, f"{name} {victim}")
        if name == "drain: decoding":
            shop.sql(burst(victim))
        _die(world, name, victim)
        world.hold()
    shop.cdc("run")
    world.hold()
    status = json.loads(shop.cdc("status", "--output", "json"))
    assert [(t["table"], t["state"]) for t in status["tables"]] == [(f"public.{name}", "ok") for name in _TABLES]
    assert list((shop.folder / "store").glob("lake/ware/house/.spool/*")) == []
    world.matrix |= {(name, victim): world.matrix[name, victim].replace("red", "green") for name in points}


def _die(world: World, name: str, victim: str) -> None:
    """Run a command, kill the victim at a point of it, wait for the command's end, and start what was killed again."""
    shop, point = world.shop, _POINTS[name]
    if point.before:
        shop.cdc(*point.before)
    world.matrix[name, victim] = "not struck"
    try:
        with shop.start(*point.words, failpoint=f"{point.failpoint}=sigstop" if point.failpoint else "") as running:
            try:
                _strike(world, point, victim, running)
                out, err = running.communicate(timeout=_STRUCK_SECONDS)
            finally:
                running.kill()  # of a command that hangs
    finally:
        world.restore()
    world.matrix[name, victim] = f"{running.returncode}, red"
    print(f"{time.strftime('%T')} {name}: {victim} killed, exit {running.returncode}", flush=True)
    allowed = {"driver": (-signal.SIGKILL,), "executor": (0,), "worker": (0,)}.get(victim, (0, 1))
    assert running.returncode in allowed, (name, out, err)
    assert "Traceback" not in err and len(re.findall(r"^Error", err, re.MULTILINE)) <= 1, (name, err)


def test_history_holds_and_a_run_of_nothing_changes_nothing(world: World) -> None:
    """I5 and I7, after all of that."""
    world.shop.cdc("audit")
    before = json.loads(world.shop.cdc("status", "--output", "json"))
    drained = json.loads(world.shop.cdc("drain", "--output", "json"))
    assert drained["changes"] == 0
    world.shop.cdc("run")
    after = json.loads(world.shop.cdc("status", "--output", "json"))
    assert [t["state"] for t in before["tables"]] == [t["state"] for t in after["tables"]] == ["ok"] * len(_TABLES)
    world.hold()


def _change(shop: Shop, mark: str) -> None:
    """Change each table, in a transaction for each statement."""
    shop.sql(
        f"insert into public.bag select '{mark}' from generate_series(1, 3)",
        "delete from public.bag where ctid = (select min(ctid) from public.bag)",
        f"insert into public.twice select coalesce(max(id), 0) + 1, '{mark}' from public.twice",
        f"update public.item set name = '{mark}' where id % 7 = 0",
        "update public.large set note = note || '-' where id % 100 = 0",
    )


def _strike(world: World, point: Point, victim: str, running: subprocess.Popen[str]) -> None:
    """Kill the victim where the table says. Without a failpoint it is what is seen that says so."""
    if point.failpoint:
        assert os.WIFSTOPPED(os.waitpid(running.pid, os.WUNTRACED)[1]), running.communicate()
        if victim in ("executor", "worker"):
            before = world.workers.cpu_seconds()
            running.send_signal(signal.SIGCONT)
            _wait(running, lambda: world.workers.cpu_seconds() > before + 0.3)
    else:
        works = point.works
        assert works is not None
        _wait(running, lambda: works(world))
    world.kills[victim](running.pid)
    if victim != "driver":
        running.send_signal(signal.SIGCONT)


def _wait(running: subprocess.Popen[str], is_due: Callable[[], bool]) -> None:
    while not is_due():
        assert running.poll() is None, running.communicate()
        time.sleep(0.002)


def _end(pids: list[int]) -> None:
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

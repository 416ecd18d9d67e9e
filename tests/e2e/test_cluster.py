"""The whole story on a standalone cluster whose workers share nothing with the driver but the object store.

The workers run as another user, who cannot read a file of the driver: see `tests/support_cluster.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psycopg
import pytest

from tests.support_catalogs import lake_section, rest_classpath, store_servers
from tests.support_cluster import Cluster, as_other, burst, cluster
from tests.support_postgres import fresh_database
from tests.support_shop import Shop
from toolkit.demo.server import EmbeddedServer

__all__ = ["rest_classpath", "store_servers"]
pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]


@pytest.fixture(scope="module")
def workers() -> Iterator[Cluster]:
    """Two workers with one core each."""
    with cluster() as made:
        yield made


@pytest.fixture(scope="module", params=["rest+s3", "postgresql+s3"])
def shop(
    request: pytest.FixtureRequest, pg16: EmbeddedServer, workers: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    """A lake that `cdc init` has made on the cluster, with a table of many rows."""
    folder = tmp_path_factory.mktemp(request.param)
    secret = {"spark.authenticate.secret": workers.secret}
    more = '[snapshot]\non = "executors"\n[table."public.twice"]\ncapture = "both"\n'
    host = f"127.0.0.1:{pg16.port}:*:{pg16.user}:{pg16.password}\n"
    own = tmp_path_factory.mktemp("own") / "pgpass"
    own.touch(mode=0o600)
    own.write_text(host, encoding="utf-8")
    settings = workers.settings | {"spark.executorEnv.PGPASSFILE": str(workers.private("pgpass", host))}
    with fresh_database(pg16) as local, lake_section(request, request.param, folder) as section:
        conninfo = psycopg.conninfo.make_conninfo(local, host="127.0.0.1")  # of the socket, executors have no right
        made = Shop(folder, conninfo, section, spark=settings, spark_secrets=secret, more=more)
        made.environment = {**made.environment, "PGPASSFILE": str(own)}
        made.secrets.append(pg16.password)
        made.conninfo = local  # for what the test itself does
        made.sql(
            "create table public.item (id int primary key, name text)",
            "insert into public.item select i, 'n' || i from generate_series(1, 500) i",
            "create table public.bulk (id int primary key, note text)",
            "create table public.twice (id int primary key, name text)",
            "create table public.bag (name text)",
            "alter table public.bag replica identity full",
            # more than the driver copies by itself
            "create table public.large (id int primary key, note text)",
            "insert into public.large select i, repeat(chr(97 + i % 26), 1000) from generate_series(1, 70000) i",
        )
        made.cdc("init")
        yield made


def _spooled(shop: Shop) -> list[Path]:
    return [path for path in (shop.folder / "store" / "lake" / "ware" / "house" / ".spool").glob("*") if path.is_file()]


def _delivered(shop: Shop) -> bool:
    """Whether a batch is being written: its bytes are in the store, and not only the probe for the executors."""
    return any((shop.folder / "lake" / "delivered").glob("*.txt")) and _spooled(shop) != []


def test_an_executor_killed_in_a_drain_leaves_each_row_once(shop: Shop, workers: Cluster) -> None:
    """The kill comes while the executor decodes. The check compares every row with the source."""
    shop.sql(burst("+"))
    with shop.start("drain") as running:
        killed = _kill(running, workers, lambda executor: _delivered(shop) and workers.tasks(executor) != [])
        out, err = running.communicate()
    assert running.returncode == 0 and killed, (out, err)
    log = (shop.folder / "lake" / "spark.log").read_text(encoding="utf-8", errors="replace")
    assert "exited with code 137" in log  # and its task was run again by another
    assert _spooled(shop) == []
    shop.cdc("run")


def test_what_a_killed_driver_left_for_the_executors_is_deleted(shop: Shop, workers: Cluster) -> None:
    shop.sql(burst("k"))
    with shop.start("drain") as running:
        while running.poll() is None and not (_delivered(shop) and any(map(workers.tasks, workers.executors()))):
            time.sleep(0.002)
        running.kill()
        running.communicate()
    assert _spooled(shop)
    shop.cdc("run")
    assert _spooled(shop) == []


def test_executors_have_read_the_large_table(shop: Shop) -> None:
    """An attempt of Spark at a task has its number in the name of its file."""
    names = [path.name for path in (shop.folder / "store").glob("**/raw/events*/data/**/*.parquet")]
    assert len([name for name in names if re.search(r"-copy-\d+-\d+\.parquet$", name)]) > 1, names


def test_executors_that_do_not_reach_the_source_are_refused_by_name(shop: Shop) -> None:
    """No password on their machine: nothing is copied. A password in the configuration is not sent to them."""
    before = shop.cdc("status", "--output", "json")
    spark = json.loads(shop.environment["CDC_SPARK"])
    lost = json.dumps(spark | {"spark.executorEnv.PGPASSFILE": "/no/file"})
    found = _refusal(shop, "repair", "public.large", CDC_SPARK=lost)
    assert "cannot be used: executor " in found and "cannot connect to the source (host=127.0.0.1" in found
    configured = json.dumps(spark | {"spark.executorEnv.PGPASSWORD": "known"})
    found = _refusal(shop, "repair", "public.large", CDC_SPARK=configured)
    assert "would send spark.executorEnv.PGPASSWORD of [spark] to executors" in found and "known" not in found
    assert _tables(shop.cdc("status", "--output", "json", expect=3)) == _tables(before)  # the last repair has failed
    shop.cdc("repair", "public.item")  # a small one, which the driver reads


def test_an_executor_killed_in_a_copy_leaves_each_row_once(shop: Shop, workers: Cluster) -> None:
    shop.sql("update public.large set note = note || '!' where id % 100 = 0")
    with shop.start("repair", "public.large") as running:
        killed = _kill(running, workers, lambda executor: _copying(shop) and workers.tasks(executor) != [])
        out, err = running.communicate()
    assert running.returncode == 0 and killed, (out, err)
    shop.cdc("run")


@pytest.mark.parametrize("command", ["drain", "repair"])
def test_a_slow_task_is_run_twice_and_counts_once(shop: Shop, workers: Cluster, command: str) -> None:
    """One attempt stops in the middle. Another executor does its work, and the first attempt's file is not taken."""
    shop.sql(burst("s"), "insert into public.bag values ('s')")
    quick = {
        "spark.speculation": "true", "spark.speculation.interval": "200ms", "spark.speculation.minTaskRuntime": "500ms",
        "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.5",
        "spark.speculation.task.duration.threshold": "3s",
    }  # fmt: skip
    works = _delivered if command == "drain" else _copying
    words = ["drain"] if command == "drain" else ["repair", "public.large"]
    with _with_spark(shop, quick), shop.start(*words) as running:
        stopped = _stop_one(running, workers, lambda: works(shop))
        out, err = running.communicate(timeout=300)
    with contextlib.suppress(ProcessLookupError):  # Spark has ended it
        os.kill(stopped, signal.SIGCONT)
    assert running.returncode == 0 and stopped, (out, err)
    shop.cdc("run")


def test_executors_come_and_go(shop: Shop, workers: Cluster) -> None:
    """Dynamic allocation: idle executors end during a run, and it goes on with new ones."""
    shop.sql("update public.item set name = name || 'd'", "insert into public.bag values ('d')")
    dynamic = {
        "spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0", "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
    }  # fmt: skip
    seen: list[int] = []
    with _with_spark(shop, dynamic), shop.start("run") as running:
        while running.poll() is None:
            seen += [pid for pid in workers.executors() if pid not in seen]
            time.sleep(0.05)
        out, err = running.communicate()
    assert running.returncode == 0 and len(seen) > 2, (seen, out, err)


def test_executors_run_a_packed_environment(shop: Shop, workers: Cluster) -> None:
    """Nothing of the toolkit is installed where they run: Spark brings the archive."""
    packed = {
        "spark.archives": f"{workers.archive(shop.folder)}#environment",
        "spark.executorEnv.PYSPARK_PYTHON": "./environment/bin/python",
    }
    away = workers.toolkit.rename(workers.toolkit.with_name("away"))
    try:
        shop.sql("update public.item set name = name || 'p'", burst("p"))
        with _with_spark(shop, packed):
            shop.cdc("run")
    finally:
        away.rename(away.with_name("toolkit"))


def test_executors_that_do_not_fit_are_refused_by_name(shop: Shop, workers: Cluster) -> None:
    """Other code, a missing module, a missing Python, an unreadable spool: nothing on source and lake moves."""
    shop.sql(burst("d"))  # so many that executors are needed
    before = json.loads(shop.cdc("status", "--output", "json"))
    changed = workers.toolkit / "decode" / "stream.py"
    text = changed.read_text(encoding="utf-8")
    changed.write_text(text + "\n# another version\n", encoding="utf-8")
    try:
        assert "and the driver has 0.1.0 (" in _refusal(shop)
        changed.rename(changed.with_suffix(".away"))
        assert "their Python lacks the module toolkit.decode.stream" in _refusal(shop)
    finally:
        changed.with_suffix(".away").unlink(missing_ok=True)
        changed.write_text(text, encoding="utf-8")
    wrong = {**json.loads(shop.environment["CDC_SPARK"]), "spark.executorEnv.PYSPARK_PYTHON": "/no/python"}
    assert "they have no program /no/python" in _refusal(shop, CDC_SPARK=json.dumps(wrong))
    after = json.loads(shop.cdc("status", "--output", "json", expect=3))  # the last drain has failed
    assert after["committed_lsn"] == before["committed_lsn"]
    assert after["slot"]["confirmed_flush_lsn"] == before["slot"]["confirmed_flush_lsn"]


def test_the_whole_story(shop: Shop, workers: Cluster) -> None:
    """Drain, build, check, rows, maintain, audit, repair, doctor. A green check compared every row with the source."""
    unreadable = subprocess.run(as_other(["ls", shop.folder]), capture_output=True, text=True, check=False)
    assert "Permission denied" in unreadable.stderr
    shop.sql(
        "insert into public.item select i, 'n' || i from generate_series(501, 1000) i",
        "insert into public.twice select i, 't' || i from generate_series(1, 100) i",
        "insert into public.bag select 'b' from generate_series(1, 3)",
    )
    shop.cdc("drain")
    assert _spooled(shop) == []
    shop.cdc("run")
    shop.sql(
        "update public.item set name = 'new' where id <= 10",
        "alter table public.item rename column name to label",
        "delete from public.bag where ctid = (select min(ctid) from public.bag)",
    )
    shop.cdc("run")
    status = json.loads(shop.cdc("status", "--output", "json"))
    assert [(t["table"], t["state"]) for t in status["tables"]] == [
        ("public.bag", "ok"), ("public.bulk", "ok"), ("public.item", "ok"), ("public.large", "ok"),
        ("public.twice", "ok"),
    ]  # fmt: skip
    found = json.loads(shop.cdc("rows", "public.item", "--key", "id=3", "--output", "json"))
    assert (found[0]["label"], found[-1]["label"]) == ("n3", "new")
    shop.cdc("maintain")
    shop.cdc("repair", "public.item")
    shop.cdc("run")
    shop.cdc("audit")
    assert "have the driver's code and read its spool, and they reach the source" in shop.cdc("doctor")


def test_an_executor_killed_in_a_build_leaves_tables_as_the_source_is(shop: Shop, workers: Cluster) -> None:
    shop.sql("update public.bulk set note = note || '-'", "insert into public.bag values ('c')")
    shop.cdc("drain")
    before = set((shop.folder / "store").glob("**/current/**/*.parquet"))

    def writing(_: int) -> bool:
        return set((shop.folder / "store").glob("**/current/**/*.parquet")) != before

    with shop.start("build") as running:
        killed = _kill(running, workers, writing)
        out, err = running.communicate()
    assert running.returncode == 0 and killed, (out, err)
    shop.cdc("check")


def test_no_file_of_the_cluster_and_no_command_line_has_a_secret(shop: Shop, workers: Cluster) -> None:
    assert len(shop.secrets) >= 3
    shop.sql(burst("s"))  # more than the driver decodes by itself
    with shop.start("drain", failpoint="commit.after=sigstop") as running:
        assert os.WIFSTOPPED(os.waitpid(running.pid, os.WUNTRACED)[1])
        lines = [(path, _read(path)) for path in Path("/proc").glob("[0-9]*/cmdline")]
        texts = list(workers.texts())
        running.send_signal(signal.SIGCONT)
        shop.printed += "".join(running.communicate())
    assert any(b"CoarseGrainedExecutorBackend" in line for _, line in lines)
    own = [(path, _read(path)) for path in shop.folder.rglob("*") if path.is_file()]
    for path, text in [*lines, *texts, *own, (Path("printed"), shop.printed.encode())]:
        assert [secret for secret in shop.secrets if secret.encode() in text] == [], path


def _tables(status: str) -> list[tuple[str, str]]:
    return [(table["table"], table["state"]) for table in json.loads(status)["tables"]]


def _copying(shop: Shop) -> bool:
    """Whether a session reads a piece of the large table."""
    with psycopg.connect(shop.conninfo, autocommit=True) as conn:
        found = conn.execute(
            "select 1 from pg_stat_activity where state = 'active' and query like 'copy (select%large%'"
            " and datname = current_database()"
        )
        return found.fetchone() is not None


@contextlib.contextmanager
def _with_spark(shop: Shop, settings: Mapping[str, str]) -> Iterator[None]:
    """Run commands with further settings of Spark."""
    kept = shop.environment
    shop.environment = kept | {"CDC_SPARK": json.dumps(json.loads(kept["CDC_SPARK"]) | dict(settings))}
    try:
        yield
    finally:
        shop.environment = kept


def _refusal(shop: Shop, *words: str, **environment: str) -> str:
    kept, shop.environment = shop.environment, {**shop.environment, **environment}
    try:
        with shop.start(*(words or ("drain",))) as running:
            out, err = running.communicate()
    finally:
        shop.environment = kept
    assert running.returncode in (1, 2), (out, err)
    return err


def _stop_one(running: subprocess.Popen[str], workers: Cluster, is_due: Callable[[], bool]) -> int:
    """Stop the first process of a task of an executor once something holds, and give its id."""
    while running.poll() is None:
        if is_due():
            for task in (task for executor in workers.executors() for task in workers.tasks(executor)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(task, signal.SIGSTOP)
                    return task
        time.sleep(0.002)
    return 0


def _kill(running: subprocess.Popen[str], workers: Cluster, is_due: Callable[[int], bool]) -> bool:
    """Kill the first executor for which something holds; say whether there was one before the command ended."""
    while running.poll() is None:
        for executor in workers.executors():
            if is_due(executor):
                os.kill(executor, signal.SIGKILL)
                return True
        time.sleep(0.002)
    return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""

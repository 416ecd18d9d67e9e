"""A runner is killed in a build, and its JVM commits after another runner has built further."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.support_outside import duck
from tests.support_postgres import fresh_database
from tests.support_processes import group, start, succeeds
from toolkit.demo.server import EmbeddedServer
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.published_tables import duckdb_script, scan_published
from toolkit.values import config as configuration
from toolkit.values.config import Config

pytestmark = [pytest.mark.embedded, pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]
_LARGE, _SMALL = 30_000, 300  # rows: what its model builds, and what is built together with other tables
_ADDED = "alter table public.a add m int default 7"  # so that no schema change without a rewrite is exact
_FULL = ("build", "--", "--full-refresh")


@pytest.fixture
def source(pg16: EmbeddedServer, tmp_path: Path) -> Iterator[str]:
    with fresh_database(pg16) as conninfo:
        (tmp_path / "cdc.toml").write_text(f"[source]\nconninfo = {json.dumps(conninfo)}\n", encoding="utf-8")
        _sql(conninfo, "create table public.a (id int primary key, n int)")
        succeeds(tmp_path, "init")
        yield conninfo


def _sql(conninfo: str, *statements: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement.encode())


def _rows(conninfo: str) -> list[tuple[int, int]]:
    with psycopg.connect(conninfo) as conn:
        return [(row[0], row[1]) for row in conn.execute("select id, n from public.a order by id")]


def _read(config: Config) -> list[list[tuple[int, int]]]:
    """Return the published rows as pyiceberg and DuckDB have them."""
    found = scan_published(config.lake_access, "public.a").to_arrow().sort_by("id")
    with duck(config, duckdb_script(config.lake_access)) as reader:
        rows = reader.sql("select id, n from published.public__a order by id").fetchall()
    return [list(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True)), rows]


def _orphaned(folder: Path, *words: str) -> int:
    """Start a build, stop its JVM at a commit of `current`, and kill the runner; return the JVM's process.

    Another session holds the lock of the catalog, so the JVM waits for it with its new metadata written.
    """
    data, metadata = "**/current/public__a*/**/*.parquet", "**/current/public__a*/metadata/*.metadata.json"
    before = set(folder.glob(data))
    with start(folder, *words) as running:
        while set(folder.glob(data)) == before:
            assert running.poll() is None, running.communicate()
            time.sleep(0.001)
        jvm = min(pid for pid, line in group(running.pid) if "SparkSubmit" in line)  # not a child that it forks
        with closing(sqlite3.connect(next(folder.glob("**/catalog.db")), isolation_level=None, timeout=20)) as catalog:
            catalog.execute("begin immediate")
            known = set(folder.glob(metadata))
            while set(folder.glob(metadata)) == known:
                assert running.poll() is None, running.communicate()
                time.sleep(0.001)
            _stop(jvm)
            catalog.execute("pragma busy_timeout = 0")
            catalog.execute("update iceberg_tables set metadata_location = metadata_location")
            while catalog.in_transaction:
                try:
                    catalog.execute("commit")
                except sqlite3.OperationalError:  # stopped in a read, the JVM would lock out every other process
                    os.kill(jvm, signal.SIGCONT)
                    time.sleep(0.001)
                    _stop(jvm)
            os.kill(running.pid, signal.SIGKILL)
        running.wait()
        for pipe in (running.stdout, running.stderr):
            assert pipe is not None
            pipe.close()
    return jvm


def _stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("rows", "ddl", "words"),
    [
        pytest.param(_LARGE, (), _FULL, id="replace"),
        pytest.param(_LARGE, (), ("build",), id="merge"),
        pytest.param(_LARGE, (_ADDED,), ("build",), id="schema change"),
        pytest.param(_SMALL, (), ("build",), id="small"),
        pytest.param(_SMALL, (_ADDED,), ("build",), id="small schema change"),
    ],
)
def test_a_jvm_that_outlives_its_runner_takes_nothing_back(
    source: str, tmp_path: Path, rows: int, ddl: tuple[str, ...], words: tuple[str, ...]
) -> None:
    config = configuration.load(str(tmp_path / "cdc.toml"))
    _sql(source, f"insert into public.a select i, 0 from generate_series(1, {rows}) i")
    succeeds(tmp_path, "run")
    _sql(source, *ddl, "update public.a set n = n + 1")
    succeeds(tmp_path, "drain")
    jvm = _orphaned(tmp_path, *words)
    try:
        _sql(source, "update public.a set n = n + 1", "delete from public.a where id % 100 = 0")
        succeeds(tmp_path, "run")  # green
        shown = _rows(source)
        assert _read(config) == [shown, shown]
        newest = open_catalog(config.lake_access).load_table("current.public__a").current_snapshot()
    finally:
        os.kill(jvm, signal.SIGCONT)
        deadline = time.monotonic() + 60
        while Path(f"/proc/{jvm}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert not Path(f"/proc/{jvm}").exists()
    assert _read(config) == [shown, shown], "what was published is there"
    assert open_catalog(config.lake_access).load_table("current.public__a").current_snapshot() == newest
    succeeds(tmp_path, "run")
    assert _read(config) == [shown, shown]

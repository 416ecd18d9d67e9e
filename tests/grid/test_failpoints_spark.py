"""The durable steps that only Spark has: `cdc run` and `cdc maintain` ended by SIGKILL there, then run again."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.grid.test_failpoints import SPARK
from tests.support_postgres import fresh_database
from toolkit.demo.server import EmbeddedServer
from toolkit.values.failpoints import VARIABLE, Point

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt]
_MAINTAIN = {Point.COMPACT, Point.EXPIRE, Point.ORPHANS}
_CHOSEN = {"publish.after", "compact.after"}


def _cdc(folder: Path, command: str, points: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": os.pathsep.join(sys.path)}
    if points is not None:
        environment[VARIABLE] = points
    words = [sys.executable, "-m", "toolkit.cli", command]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(pg16: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A lake that was set up and run once, and its source."""
    path = tmp_path_factory.mktemp("grid")
    with fresh_database(pg16) as conninfo:
        (path / "cdc.toml").write_text(f"[source]\nconninfo = {json.dumps(conninfo)}\n", encoding="utf-8")
        with psycopg.connect(conninfo, autocommit=True) as conn:
            conn.execute("create table public.a (id int primary key, n int)")
            conn.execute("create table public.old_0 (id int primary key, n int)")
            conn.execute("insert into public.a select i, 0 from generate_series(1, 20) i")
        for command in ("init", "run"):
            done = _cdc(path, command)
            assert done.returncode == 0, done.stdout + done.stderr
        yield path, conninfo


def _cases() -> list[Any]:
    return [
        pytest.param(f"{point}.{when}", marks=pytest.mark.wide if f"{point}.{when}" in _CHOSEN else pytest.mark.long)
        for point, when in itertools.product(SPARK, ("before", "after"))
    ]


@pytest.mark.parametrize("point", _cases())
def test_a_step_of_spark_is_ended_and_run_again(folder: tuple[Path, str], point: str) -> None:
    path, conninfo = folder
    with psycopg.connect(conninfo, autocommit=True) as conn:
        found = conn.execute("select tablename from pg_tables where tablename like 'old_%'").fetchone()
        assert found is not None
        number = int(found[0].removeprefix("old_"))
        conn.execute("update public.a set n = n + 1 where id % 3 = 0")
        conn.execute(f"alter table public.old_{number} rename to old_{number + 1}".encode())  # `retire` drops a table
    command = "maintain" if Point(point.partition(".")[0]) in _MAINTAIN else "run"
    ended = _cdc(path, command, f"{point}=sigkill")
    assert ended.returncode == -signal.SIGKILL, (point, ended.stdout, ended.stderr)
    for again in dict.fromkeys((command, "run")):
        done = _cdc(path, again)  # green: every row of the lake was compared with the source
        assert done.returncode == 0, (point, done.stdout, done.stderr)

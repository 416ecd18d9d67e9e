"""The durable steps that only Spark has: `cdc run` and `cdc maintain` struck there in every way, then run again."""

from __future__ import annotations

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

from tests.grid.test_failpoints import MAINTAIN, RUN, cases
from tests.support_invariants import hold
from tests.support_postgres import fresh_database
from toolkit.demo.server import EmbeddedServer
from toolkit.values import config as configuration
from toolkit.values.failpoints import VARIABLE, Action, Point

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt]
_WAYS = (Action.SIGKILL, Action.LIE, Action.RAISE, Action.EXIT, Action.SIGSTOP)


def _start(folder: Path, *command: str, points: str | None = None) -> subprocess.Popen[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": os.pathsep.join(sys.path)}
    if points is not None:
        environment[VARIABLE] = points
    return subprocess.Popen(
        [sys.executable, "-m", "toolkit.cli", *command],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def _cdc(folder: Path, *command: str, points: str | None = None) -> tuple[int, str]:
    with _start(folder, *command, points=points) as process:
        said, _ = process.communicate()
    return process.returncode, said


@pytest.fixture(scope="module")
def folder(pg16: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A lake that was set up and run once, and its source."""
    path = tmp_path_factory.mktemp("grid")
    with fresh_database(pg16) as conninfo:
        (path / "cdc.toml").write_text(
            f"[source]\nconninfo = {json.dumps(conninfo)}\n[lake]\nkeep_days = 0\n", encoding="utf-8"
        )
        with psycopg.connect(conninfo, autocommit=True) as conn:
            conn.execute("create table public.a (id int primary key, n int)")
            conn.execute("create table public.old_0 (id int primary key, n int)")
            conn.execute("insert into public.a select i, 0 from generate_series(1, 20) i")
        for command in ("init", "run"):
            assert (done := _cdc(path, command))[0] == 0, done
        yield path, conninfo


def _cases() -> list[Any]:
    """A case of each command is wide, by the seed of the run, and the others are long: each takes a minute."""
    return [
        pytest.param(
            command, *case.values, id=f"{command}-{case.id}", marks=pytest.mark.long if case.marks else pytest.mark.wide
        )
        for command, steps in (("run", RUN), ("maintain", MAINTAIN))
        for case in cases(steps, _WAYS)
    ]


@pytest.mark.parametrize(("command", "point", "action"), _cases())
def test_a_step_of_spark_is_struck_and_run_again(
    folder: tuple[Path, str], command: str, point: str, action: Action
) -> None:
    path, conninfo = folder
    with psycopg.connect(conninfo, autocommit=True) as conn:
        found = conn.execute("select tablename from pg_tables where tablename like 'old_%'").fetchone()
        assert found is not None
        number = int(found[0].removeprefix("old_"))
        conn.execute("update public.a set n = n + 1 where id % 3 = 0")
        conn.execute(f"alter table public.old_{number} rename to old_{number + 1}".encode())  # `retire` drops a table
    if point.startswith(Point.ERASE):
        for words in (["repair", "public.a"], ["run"], ["erase", "--yes", "public.a"]):
            assert (done := _cdc(path, *words))[0] == 0, done
    if action == Action.SIGSTOP:
        with _start(path, command, points=f"{point}={action}") as process:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            try:
                assert os.WIFSTOPPED(status), process.communicate()
                assert (second := _cdc(path, command))[0] == 4, second  # the lease
            finally:
                os.kill(process.pid, signal.SIGCONT)
            said, _ = process.communicate()
        assert process.returncode == 0, (point, said)
    else:
        expected = {Action.SIGKILL: -signal.SIGKILL, Action.EXIT: 137}.get(action, 1)
        assert (ended := _cdc(path, command, points=f"{point}={action}"))[0] == expected, (point, ended)
    for again in dict.fromkeys((command, "run")):  # green: every row of the lake was compared with the source
        assert (done := _cdc(path, again))[0] == 0, (point, done)
    hold(configuration.load(str(path / "cdc.toml")))

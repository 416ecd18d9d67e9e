"""A first copy by real processes, ended by SIGKILL at any moment: no process, no lock, no half table is left."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import commands
from tests.benchmarks.processes import children_by_parent, stat, tree
from tests.postgres.test_snapshot_log import current, of, on_source, sql
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from toolkit.lake.lake_catalog import open_catalog
from toolkit.values import config as configuration
from toolkit.values.config import Config
from toolkit.values.locations import local_path

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg18"], indirect=True)]
_ROOT = Path(__file__).parents[2]
_SECONDS = 60.0


@pytest.fixture
def config(database: str, plain_lake: Config) -> Config:
    """Three tables in a lake with a file of configuration."""
    name = conninfo_to_dict(database)["dbname"]
    file = plain_lake.root / "cdc.toml"
    file.write_text(
        f"[source]\nconninfo = {json.dumps(database)}\nslot = 'cdc_{name}'\n[snapshot]\nworkers = 2\n", encoding="utf-8"
    )
    config = configuration.load(str(file))
    sql(config, "create table public.a (id int primary key, x text)", "insert into public.a values (1, 'small')")
    for table in "bc":
        sql(
            config,
            f"create table public.{table} (id int primary key, x text)",
            f"insert into public.{table} select i, repeat('x', 600) from generate_series(1, 8000) i",
        )
    return config


def _start(config: Config) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.postgres.init_process", str(config.root / "cdc.toml")]
    return subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _family(pid: int) -> set[int]:
    return tree(children_by_parent(), pid)


def _until(what: str, happened: Any) -> None:
    deadline = time.monotonic() + _SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"{what} did not happen in {_SECONDS:g} s"
        time.sleep(0.01)


def _no_process_left(config: Config, family: set[int]) -> None:
    """The workers and their sessions go away by themselves."""
    _until("the end of all workers", lambda: all((stat(pid) or ["Z"])[0] == "Z" for pid in family))
    with psycopg.connect(config.source.conninfo, autocommit=True) as conn:
        query = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        _until("the end of all sessions", lambda: conn.execute(query).fetchone() == (0,))


def _kill(process: subprocess.Popen[str]) -> set[int]:
    family = _family(process.pid)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return family


def _finish(config: Config) -> dict[str, Any]:
    process = _start(config)
    try:
        out, errors = process.communicate(timeout=5 * _SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    result: dict[str, Any] = json.loads(out)
    return result


def _whole(config: Config) -> None:
    commands.drain(config)
    for table in "abc":
        assert of(config, table).state == "ok"
        assert current(config, table) == on_source(config, table)
    keys = [(e["commit_lsn"], e["ordinal"], e["relid"]) for e in rows_in_log(config)]
    assert len(keys) == len(set(keys))
    assert not list((config.lake_access.work_dir / "spool").glob("run-*"))
    assert not list((config.lake_access.work_dir / "new-files").iterdir())


def test_killed_in_the_middle_of_a_table_the_next_init_copies_that_one_again(config: Config) -> None:
    process = _start(config)
    begun = "raw/**/*-copy-3.parquet"  # batch 1 begins the ledger, 2 is table a, 3 is b
    try:
        _until(
            "the copy of b",
            lambda: any(Path(config.lake_access.warehouse).glob(begun)) and len(_family(process.pid)) >= 3,
        )
    finally:
        family = _kill(process)
    assert len(family) >= 3  # the command and its two workers
    _no_process_left(config, family)
    assert of(config, "a").state == "ok"
    before = [b.batch_id for b in ledger_of(config).batches()]
    assert before == [1, 2]
    # Half a table is there, unless its worker noticed that the command had ended; the next run deletes it.
    sql(config, "update public.b set x = 'later' where id = 7", "delete from public.c where id = 8")
    assert _finish(config)["rows"] == {"public.b": 8_000, "public.c": 7_999}
    assert [b.batch_id for b in ledger_of(config).batches()][:2] == before
    _whole(config)
    table = open_catalog(config.lake_access).load_table("raw.events")
    named = {local_path(file["file_path"]) for file in table.inspect.data_files().to_pylist()}
    assert set(Path(config.lake_access.warehouse).glob("raw/*/data/**/*.parquet")) == named


@pytest.mark.long
def test_killed_at_twenty_random_moments(config: Config, seed: int) -> None:
    """Under a writer; a kill may strike anywhere between the first line of Python and the last commit."""
    draw = random.Random(seed)
    kills = 0
    for number in range(20):
        process = _start(config)
        sql(
            config, f"insert into public.a values ({number + 10}, 'n')", f"delete from public.b where id = {number + 1}"
        )
        try:
            process.communicate(timeout=draw.uniform(0.5, 12.0))
        except subprocess.TimeoutExpired:
            kills += 1
            _no_process_left(config, _kill(process))
    assert kills or os.environ.get("CDC_TEST_SEED")
    _finish(config)
    _whole(config)

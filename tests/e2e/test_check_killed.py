"""A check that SIGKILL ends anywhere: readers see proofs only, and the next check is green."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys

import psycopg
import pytest

from toolkit import build, initialise, proofs
from toolkit import drain as draining
from toolkit.config import Config
from toolkit.lake import session
from toolkit.quality import check as checking
from toolkit.queries import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.long]

TABLES = ("one", "two")
#: Where it ends, and the number that each view shows then.
KILLS = {
    ("toolkit.quality.check", "_take_source", 1): (1, 1),
    ("toolkit.quality.expectations", "validate", 1): (1, 1),
    ("toolkit.quality.publish", "_keep", 2): (1, 1),
    ("toolkit.quality.publish", "_create_view", 2): (4, 1),
    ("toolkit.quality.publish", "_write", 2): (5, 5),
}


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_a_check_killed_anywhere(database: str, lake: Config) -> None:
    config = lake.model_copy(update={"source": lake.source.model_copy(update={"conninfo": database})})
    shutil.copytree(ROOT / "dbt_project", config.project_dir, ignore=shutil.ignore_patterns("target", "logs"))
    file = config.root / "cdc.toml"
    file.write_text(f"[source]\nconninfo = {json.dumps(database)}\n", encoding="utf-8")

    def source(n: int) -> None:
        with psycopg.connect(database, autocommit=True) as conn:
            for name in TABLES:
                conn.execute(f"update public.{name} set n = {n}".encode())

    def seen() -> tuple[int, ...]:
        reader = session.own_session(config)
        return tuple(reader.sql(f"select n from published.public__{name}").collect()[0][0] for name in TABLES)

    def seen_at_one_lsn() -> set[int]:
        reader = session.own_session(config)
        proofs.at_one_lsn(config, reader)
        return {reader.sql(f"select n from public__{name}").collect()[0][0] for name in TABLES}

    with psycopg.connect(database, autocommit=True) as conn:
        for name in TABLES:
            conn.execute(f"create table public.{name} (id int primary key, n int)".encode())
            conn.execute(f"insert into public.{name} values (1, 1)".encode())
    initialise.init(config)
    assert checking.check(config, drain=draining.drain, build=build.build).green
    assert seen() == (1, 1)
    for number, ((module, step, call), shown) in enumerate(KILLS.items(), 1):
        source(number)
        command = [sys.executable, "-m", "tests.e2e.check_process", str(file), module, step, str(call)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode == -signal.SIGKILL, (step, ended.stdout, ended.stderr)
        assert seen() == shown, step
        assert len(seen_at_one_lsn()) == 1, step
    source(6)
    assert checking.check(config, drain=draining.drain, build=build.build).green
    assert seen() == (6, 6)
    assert seen_at_one_lsn() == {6}

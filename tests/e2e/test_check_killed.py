"""A check that is killed anywhere: readers see proofs only, and the next check is green and leaves nothing behind."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import commands
from tests.e2e.check_process import ended_at
from tests.support_ledger import lake_of
from toolkit.history import rows_at_lsn
from toolkit.lake import check_results, published_views, row_lines, session
from toolkit.lake.scans import scan
from toolkit.quality import expectations
from toolkit.values.config import Config
from toolkit.values.resources import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]

TABLES = ("one", "two")
#: Where it ends (the n-th call of a function, or the first call with a value among its arguments), and the
#: number that each view shows then.
KILLS = {
    (row_lines.figures, 1): (1, 1),
    (expectations.validate, 1): (1, 1),
    (published_views.keep, 2): (1, 1),
    (published_views._create, 2): (4, 1),
    (check_results.write, "ops.parity_results"): (5, 5),
}


class Killed(BaseException):
    """Stands for SIGKILL where it strikes."""


def _raised(config: Config, file: Path, real: Callable[..., Any], call: int | str) -> None:
    def kill() -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[real.__module__], real.__name__, ended_at(real, str(call), kill))
        with pytest.raises(Killed):
            commands.check(config)


def _killed(config: Config, file: Path, step: Callable[..., Any], call: int | str) -> None:
    command = [sys.executable, "-m", "tests.e2e.check_process", str(file), step.__module__, step.__name__, str(call)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, (step, ended.stdout, ended.stderr)


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
@pytest.mark.parametrize(
    "end", [pytest.param(_raised, id="raised"), pytest.param(_killed, id="SIGKILL", marks=pytest.mark.long)]
)
def test_a_check_killed_anywhere(database: str, lake: Config, end: Any) -> None:
    # One thread, so that a step is done for the first table before it is called for the second.
    parts = {
        "source": lake.source.model_copy(update={"conninfo": database}),
        "dbt": lake.dbt.model_copy(update={"threads": 1}),
    }
    config = lake.model_copy(update=parts)
    shutil.copytree(ROOT / "dbt_project", config.dbt_project.folder, ignore=shutil.ignore_patterns("target", "logs"))
    file = config.root / "cdc.toml"
    file.write_text(f"[source]\nconninfo = {json.dumps(database)}\n[dbt]\nthreads = 1\n", encoding="utf-8")

    def source(n: int) -> None:
        with psycopg.connect(database, autocommit=True) as conn:
            for name in TABLES:
                conn.execute(f"update public.{name} set n = {n}".encode())

    def seen() -> tuple[int, ...]:
        reader = session.own_session(config.lake_access)
        return tuple(reader.sql(f"select n from published.public__{name}").collect()[0][0] for name in TABLES)

    def seen_at_one_lsn() -> set[int]:
        reader = session.own_session(config.lake_access)
        rows_at_lsn.at_one_lsn(lake_of(config), reader)
        return {reader.sql(f"select n from public__{name}").collect()[0][0] for name in TABLES}

    with psycopg.connect(database, autocommit=True) as conn:
        for name in TABLES:
            conn.execute(f"create table public.{name} (id int primary key, n int)".encode())
            conn.execute(f"insert into public.{name} values (1, 1)".encode())
    commands.init(config)
    assert commands.check(config).green
    assert seen() == (1, 1)
    for number, ((step, call), shown) in enumerate(KILLS.items(), 1):
        source(number)
        end(config, file, step, call)
        assert seen() == shown, step
        assert len(seen_at_one_lsn()) == 1, step
    source(6)
    assert commands.check(config).green
    assert seen() == (6, 6)
    assert seen_at_one_lsn() == {6}
    assert {row["status"] for row in scan(config.lake_access, "ops.published")} == {"identical"}
    assert not list((config.lake_access.work_dir / "spool").glob("run-*"))
    with psycopg.connect(database, autocommit=True) as conn:
        slots = conn.execute("select slot_name, active from pg_replication_slots").fetchall()
        assert slots == [(config.source.slot, False)]

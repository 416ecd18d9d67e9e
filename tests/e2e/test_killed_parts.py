"""The kernel ends a part of a command, as where memory is short: one line, exit code 1, and the next run is green."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psycopg
import pytest

from tests.support_processes import ends, group, start_until, succeeds

pytestmark = [pytest.mark.embedded, pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]

#: Command, the stage in which a part of it is ended, and what the command line of the part has in it.
_ENDED = (
    ("build", "building", "org.apache.spark"),
    ("check", "comparing", "org.apache.spark"),
    ("check", "publishing", "org.apache.spark"),
    ("drain", "draining", "org.apache.spark"),
    ("drain", "draining", "toolkit.lake.worker_daemon"),
    ("maintain", "maintaining", "org.apache.spark"),
)


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_a_jvm_or_worker_that_is_killed_costs_one_line(database: str, tmp_path: Path) -> None:
    drain = "[drain]\nmax_changes = 1000000\n[spark]\n" + '"spark.master" = "local[2]"\n'
    (tmp_path / "cdc.toml").write_text(f"[source]\nconninfo = {json.dumps(database)}\n{drain}", encoding="utf-8")
    with psycopg.connect(database, autocommit=True) as conn:
        for name in ("one", "two"):
            conn.execute(f"create table public.{name} (id int primary key, n int)".encode())
            conn.execute(f"insert into public.{name} select i, 0 from generate_series(1, 1000) i".encode())
    succeeds(tmp_path, "init")
    for command, stage, part in _ENDED:
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute(b"update public.one set n = n + 1")
            if command == "drain":
                conn.execute(
                    b"insert into public.two select m + i, 1 from (select max(id) as m from public.two) t,"
                    b" generate_series(1, 600000) i"
                )
        process, seen = start_until(tmp_path, *command.split(), stage=stage)
        found: list[int] = []
        while process.poll() is None and not found:
            found = [pid for pid, line in group(process.pid) if part in line]
            time.sleep(0.05)
        for pid in found if process.poll() is None else ():
            os.kill(pid, signal.SIGKILL)
        out, err = process.communicate(timeout=300)
        context = f"{command}, {stage}, {part}: exit {process.returncode}, stages {seen}\n{out}\n{err}"
        print(context)
        ends(process, context)
        assert process.returncode == 1, context
        lines = [line for line in err.splitlines() if " parity " not in line]  # a check says of each table what failed
        assert len(lines) == 1, context
        named = "memory" in lines[0] or "Spark did not start" in lines[0]  # a drain may still be starting it
        assert named == part.startswith("org"), context
    succeeds(tmp_path, "run")

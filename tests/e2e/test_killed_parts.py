"""The kernel ends a part of a command, as where memory is short: one line, exit code 1, and the next run is green."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from tests.e2e.test_interrupted import ANNOUNCING, ENVIRONMENT, begun, ends, succeeds

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]

#: Command, the stage in which a part of it is ended, and what the command line of the part has in it.
_ENDED = (
    ("build", "building", "org.apache.spark"),
    ("check", "comparing", "org.apache.spark"),
    ("check", "publishing", "org.apache.spark"),
    ("drain", "draining", "org.apache.spark"),
    ("drain", "draining", "toolkit.lake.worker_daemon"),
    ("maintain", "maintaining", "org.apache.spark"),
)


def _parts(pgid: int, text: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                if int(fields[2]) == pgid and fields[0] != "Z" and text in (entry / "cmdline").read_text():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


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
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", ANNOUNCING, *command.split()],
            cwd=tmp_path,
            env=ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path), "STAGES": str(writing)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=[writing],
        )
        os.close(writing)
        seen = begun(process, reading, stage)
        while process.poll() is None and not (found := _parts(process.pid, part)):
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

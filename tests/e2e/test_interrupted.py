"""Ctrl-C at any moment of a command ends it with one line and exit code 130, its JVM too, and the next run is green."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]

_MOMENTS = 3


def _start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, as a terminal does."""
    return subprocess.Popen(
        [sys.executable, "-m", "toolkit.cli", *words],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _group(pgid: int) -> list[str]:
    """The processes of a group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                if int(fields[2]) == pgid and fields[0] != "Z":
                    found.append((entry / "cmdline").read_text(encoding="utf-8").replace("\0", " ")[:200])
            except OSError:
                continue
    return found


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_ctrl_c_at_any_moment(database: str, tmp_path: Path, seed: int) -> None:
    moments = random.Random(seed)
    (tmp_path / "cdc.toml").write_text(f"[source]\nconninfo = {json.dumps(database)}\n", encoding="utf-8")
    with psycopg.connect(database, autocommit=True) as conn:
        for name in ("one", "two"):
            conn.execute(f"create table public.{name} (id int primary key, n int)".encode())
            conn.execute(f"insert into public.{name} select i, 0 from generate_series(1, 1000) i".encode())
    first = _start(tmp_path, "init")
    assert first.wait(300) == 0, first.communicate()
    interrupted = 0
    for number in range(_MOMENTS):
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute(b"update public.one set n = n + 1")
        command, longest = moments.choice([("run", 25), ("build", 20), ("check", 25), ("repair public.one", 10)])
        process = _start(tmp_path, *command.split())
        after = moments.uniform(1, longest)
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
        context = f"round {number}, {command}, {after:.2f} s: exit {process.returncode}\n{out}\n{err}"
        deadline = time.monotonic() + 20
        while _group(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)  # the kernel ends what the command has ended
        assert _group(process.pid) == [], context
        if process.returncode == 0:
            continue
        interrupted += 1
        assert process.returncode == 130, context
        assert [line[:16] for line in err.splitlines()] == ["cdc: interrupted"], context
    assert interrupted, "no run was interrupted"
    last = _start(tmp_path, "run")
    out, err = last.communicate(timeout=300)
    assert last.returncode == 0, out + err

"""Ctrl-C at any moment of a command ends it with one line and exit code 130, its JVM too, and the next run is green."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest

from tests.support_processes import ends, start, start_until, succeeds

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]

_MOMENTS = 3


def _interrupted(process: subprocess.Popen[str], after: float) -> tuple[str, str]:
    """Interrupt a command and what it started, unless it ends within `after` seconds. Return what it printed."""
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
    return process.communicate(timeout=120)


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_ctrl_c_at_any_moment(database: str, tmp_path: Path, seed: int) -> None:
    moments = random.Random(seed)
    (tmp_path / "cdc.toml").write_text(f"[source]\nconninfo = {json.dumps(database)}\n", encoding="utf-8")
    with psycopg.connect(database, autocommit=True) as conn:
        for name in ("one", "two"):
            conn.execute(f"create table public.{name} (id int primary key, n int)".encode())
            conn.execute(f"insert into public.{name} select i, 0 from generate_series(1, 1000) i".encode())
    succeeds(tmp_path, "init")
    interrupted = 0
    for number in range(4 * _MOMENTS):  # a command may have ended before its moment
        if interrupted == _MOMENTS:
            break
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute(b"update public.one set n = n + 1")
        command, longest = moments.choice([("run", 25), ("build", 20), ("check", 25), ("repair public.one", 10)])
        process = start(tmp_path, *command.split())
        after = moments.uniform(1, longest)
        out, err = _interrupted(process, after)
        context = f"round {number}, {command}, {after:.2f} s: exit {process.returncode}\n{out}\n{err}"
        ends(process, context)
        if process.returncode == 0:
            continue
        interrupted += 1
        assert process.returncode == 130, context
        assert [line[:16] for line in err.splitlines()] == ["cdc: interrupted"], context
    assert interrupted, "no run was interrupted"
    succeeds(tmp_path, "run")


#: Each stage of each command that has stages of its own; a stage that several have is tried in one of them.
_STAGES = (
    ("init", "starting Spark"),
    ("init --new-generation", "waiting for running transactions"),  # an init that was done leaves nothing for `init`
    ("init --new-generation", "copying"),
    ("drain", "draining"),
    ("drain", "reading the slot"),
    ("build", "starting Spark"),
    ("build", "building"),
    ("check", "reading the source"),
    ("check", "public.one"),
    ("check", "comparing"),
    ("check", "reading small tables of the lake"),
    ("check", "publishing"),
    ("run", "starting Spark"),
    ("run", "building"),
    ("run", "publishing"),
    ("repair public.one", "copying"),
    ("maintain", "maintaining"),
    ("audit", "comparing both captures of 1 tables"),
    ("check --against {database}", "comparing"),
    ("ddl lint {folder}/change.sql", "copying the schema of the source"),
    ("ddl lint {folder}/change.sql", "trying the script"),
    ("rows public.one", "reading public.one"),
    ("models sync", "cdc models sync"),
    ("status", "cdc status"),
    ("doctor", "cdc doctor"),
    ("uninstall --yes", "taking the triggers off"),
)


@pytest.mark.long
@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_ctrl_c_in_each_stage_of_each_command(database: str, tmp_path: Path, seed: int) -> None:
    """One line, exit code 130, no process left; and after all of them a run is green."""
    moments = random.Random(seed)
    both = '[table."public.both"]\ncapture = "both"\n'
    (tmp_path / "cdc.toml").write_text(f"[source]\nconninfo = {json.dumps(database)}\n{both}", encoding="utf-8")
    adds = "alter table public.one add column x int;\nalter table public.one add column y int;\n"
    (tmp_path / "change.sql").write_text(adds, encoding="utf-8")
    with psycopg.connect(database, autocommit=True) as conn:
        for name in ("one", "two", "both"):
            conn.execute(f"create table public.{name} (id int primary key, n int)".encode())
            conn.execute(f"insert into public.{name} select i, 0 from generate_series(1, 1000) i".encode())
    missed, before = 0, {"drain": "init", "uninstall --yes": "run"}
    for command, stage in _STAGES:
        if command in before:
            succeeds(tmp_path, before.pop(command))
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute(b"update public.one set n = n + 1; update public.both set n = n + 1")
        words = [word.format(database=database, folder=tmp_path) for word in command.split()]
        process, seen = start_until(tmp_path, *words, stage=stage)
        after = moments.uniform(0, 0.3)
        out, err = _interrupted(process, after)
        context = f"{command}, {stage}, {after:.2f} s: exit {process.returncode}, stages {seen}\n{out}\n{err}"
        assert seen[-1:] == [stage], context
        ends(process, context)
        if process.returncode == 130:
            assert [line[:16] for line in err.splitlines()] == ["cdc: interrupted"], context
        else:  # it was done before the signal came
            missed += 1
            assert process.returncode == 0, context
    assert missed < len(_STAGES) / 3
    succeeds(tmp_path, "init", "--new-generation")
    _runs_on_one_jvm(tmp_path)


def _runs_on_one_jvm(folder: Path) -> None:
    """Drain, build and check share one JVM. Other Java processes, with other heaps, only find out how to start it."""
    succeeds(folder, "run", JDK_JAVA_OPTIONS=f"-Xlog:gc+init:file={folder}/jvm-%p.log")
    logs = [log.read_text(encoding="utf-8") for log in folder.glob("jvm-*.log")]
    heaps = re.findall(r"Heap Max Capacity: (\w+)", "\n".join(logs))
    assert heaps.count("2G") == 1, heaps

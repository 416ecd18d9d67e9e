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
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}


def _start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, as a terminal does."""
    return subprocess.Popen(
        [sys.executable, "-m", "toolkit.cli", *words],
        cwd=folder,
        env=ENVIRONMENT,
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


def succeeds(folder: Path, *words: str) -> None:
    process = _start(folder, *words)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err


def ends(process: subprocess.Popen[str], context: str) -> None:
    """Nothing of the process is left, its JVM and its workers neither."""
    deadline = time.monotonic() + 20
    while _group(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)  # the kernel ends what the command has ended
    assert _group(process.pid) == [], context


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
    for number in range(_MOMENTS):
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute(b"update public.one set n = n + 1")
        command, longest = moments.choice([("run", 25), ("build", 20), ("check", 25), ("repair public.one", 10)])
        process = _start(tmp_path, *command.split())
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


#: A command that writes which of its stages begins.
ANNOUNCING = """
import contextlib, os, sys
from toolkit.values import progress

class Announced:
    def begin(self, stage):
        with contextlib.suppress(BrokenPipeError):  # the reader has what it waits for
            os.write(int(os.environ["STAGES"]), f"{stage.what}\\n".encode())
    update = end = lambda self, stage: None
    result = lambda self: None

progress.show_on(Announced())
sys.argv[0] = "cdc"
from toolkit.cli import run
run()
"""
#: Each stage of each command that has stages of its own; a stage that several have is tried in one of them.
_STAGES = (
    ("init", "starting Spark"),
    ("init", "waiting for running transactions"),
    ("init", "copying"),
    ("drain", "draining"),
    ("drain", "reading the slot"),
    ("build", "starting Spark"),
    ("build", "building"),
    ("check", "reading the source"),
    ("check", "public.one"),
    ("check", "comparing"),
    ("check", "reading 3 tables of the lake"),
    ("check", "publishing"),
    ("run", "building"),
    ("run", "publishing"),
    ("repair public.one", "copying"),
    ("maintain", "maintaining"),
    ("audit", "comparing both captures of 1 tables"),
    ("check --against {database}", "comparing"),
    ("ddl lint {folder}/change.sql", "copying the schema of the source"),
    ("ddl lint {folder}/change.sql", "trying the script"),
    ("rows public.one", "starting Spark"),
    ("models sync", "cdc models sync"),
    ("status", "cdc status"),
    ("doctor", "cdc doctor"),
    ("uninstall --yes", "taking the triggers off"),
)


def begun(process: subprocess.Popen[str], stages: int, wanted: str) -> list[str]:
    """Wait until a stage begins, or until the process has closed its end."""
    seen = []
    with os.fdopen(stages, encoding="utf-8") as lines:
        for line in lines:
            seen.append(line.rstrip("\n"))
            if seen[-1] == wanted:
                break
    return seen


@pytest.mark.long
@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_ctrl_c_in_each_stage_of_each_command(database: str, tmp_path: Path, seed: int) -> None:
    """One line, exit code 130, no process left; and after all of them a run is green."""
    moments = random.Random(seed)
    both = '[table."public.both"]\ncapture = "both"\n'
    (tmp_path / "cdc.toml").write_text(f"[source]\nconninfo = {json.dumps(database)}\n{both}", encoding="utf-8")
    (tmp_path / "change.sql").write_text("alter table public.one add column x int;\n" * 2, encoding="utf-8")
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
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", ANNOUNCING, *words],
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
    succeeds(tmp_path, "run")

"""Each schedule that `cdc new` writes makes a failed and a red run loud: exit code, standard error and notification."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support_airflow import Dag, plant_airflow
from toolkit.demo.server import EmbeddedServer
from toolkit.ops import new_project
from toolkit.values.resources import SCAFFOLD

pytestmark = pytest.mark.e2e

#: Each schedule, with the word of its limit of time. Cron has none.
_SCHEDULES = {
    "airflow_dag.py": "execution_timeout",
    "cdc.service": "TimeoutStartSec",
    "cronjob.yaml": "activeDeadlineSeconds",
    "crontab": "",
    "github.yml": "timeout-minutes",
    "gitlab-ci.yml": "timeout:",
}
#: Stands for a whole run whose check found a difference: neither a source nor Spark is needed for what follows it.
_RED = """
import sys
from toolkit.api import RunResult, Toolkit
from toolkit.build.dbt_run import BuildResult
from toolkit.capture.drain_loop import DrainResult
from toolkit.cli import main
from toolkit.quality.report import CheckReport, CheckStatus, TableCheck
from toolkit.values.lsn import Lsn

at = Lsn(8)
report = CheckReport(at, (TableCheck("public.t", 1, CheckStatus.DIFFERENT, reason="planted"),))
done = RunResult(DrainResult(1, 1, at, at), None, BuildResult(at, 1, 1, "current", ()), report)
Toolkit.run = lambda self, **options: done
main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A new folder whose source is not there and whose notifications go to the file `reported`."""
    made = tmp_path / "shop-lake"
    new_project.create(made)
    page_us = made / "page-us"
    page_us.write_text(f"#!/bin/sh\n(cat; echo) >> {shlex.quote(str(made / 'noticed'))}\n", encoding="utf-8")
    page_us.chmod(0o700)
    settings = made / "cdc.toml"
    text = settings.read_text(encoding="utf-8").replace('"service=shop"', '"host=127.0.0.1 port=1"')
    text = text.replace("# [notify]\n# command", "[notify]\ncommand").replace("/usr/local/bin/page-us", str(page_us))
    settings.write_text(text, encoding="utf-8")
    return made


def _plant(folder: Path, run: str) -> None:
    """Make `.venv/bin/cdc` of the folder."""
    (folder / "red.py").write_text(_RED, encoding="utf-8")
    program = folder / ".venv" / "bin" / "cdc"
    program.parent.mkdir(parents=True)
    words = ["-m", "toolkit.cli"] if run == "down" else [str(folder / "red.py")]
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *words])} "$@"\n', encoding="utf-8")
    program.chmod(0o700)


def _lines(path: Path) -> Iterator[str]:
    """The command lines of a schedule that run the pipeline."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yml":
        yield from (line for line in _strings(yaml.safe_load(text)) if " run" in line and "cdc" in line)
    elif path.suffix == ".yaml":
        (container,) = yaml.safe_load(text)["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        yield shlex.join([".venv/bin/cdc", *container["args"]])  # the image's entry point
    elif path.suffix == ".py":
        runpy.run_path(str(path))
        yield from (task.bash_command for task in Dag.made[-1].tasks)
    elif path.suffix == ".service":
        yield from re.findall("^ExecStart=(.*)$", text, re.MULTILINE)
    elif path.name == "crontab":
        yield from re.findall(r"^\S+ \S+ \S+ \S+ \S+ +(.*cdc run.*)$", text, re.MULTILINE)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("run", ["down", "red"])
@pytest.mark.parametrize("name", _SCHEDULES)
def test_a_schedule_makes_a_bad_run_loud(folder: Path, name: str, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_airflow(monkeypatch)
    _plant(folder, run)
    (line,) = _lines(folder / "schedule" / name)
    words = ["sh", "-e", "-c", line]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == (1 if run == "down" else 3)
    assert ("127.0.0.1" if run == "down" else "the check failed: 1 different") in done.stderr
    (notice,) = (folder / "noticed").read_text(encoding="utf-8").splitlines()
    assert json.loads(notice)["exit_code"] == done.returncode


def test_the_schedules_are_all_run_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_airflow(monkeypatch)
    found = {p.name for p in (folder / "schedule").iterdir() if any(" run" in line for line in _lines(p))}
    assert found == set(_SCHEDULES)
    assert len(list((SCAFFOLD / "schedule").iterdir())) == len(found) + 2  # the timer, and the unit that reports


def test_no_schedule_waits_for_ever(folder: Path) -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in (folder / "schedule").iterdir()}
    limits = {name: word for name, word in _SCHEDULES.items() if word}
    assert [name for name, word in limits.items() if word not in texts[name]] == []


def test_systemd_takes_the_units(folder: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    _plant(folder, "down")
    units = folder.parent / "units"
    shutil.copytree(folder / "schedule", units, ignore=shutil.ignore_patterns("*.yml", "*.yaml", "*.py", "crontab"))
    for unit in units.iterdir():
        text = unit.read_text(encoding="utf-8").replace("/usr/local/bin/page-us", "/bin/true")
        unit.write_text(text, encoding="utf-8")
    (units / "page-us@.service").rename(units / "page-us@cdc.service.service")
    names = [str(path) for path in sorted(units.iterdir())]
    done = subprocess.run(["systemd-analyze", "verify", *names], capture_output=True, text=True, check=False)
    reported = [line for line in done.stderr.splitlines() if str(units) in line or "cdc" in line]
    assert reported == [] and "page-us@%n.service" in (units / "cdc.service").read_text(encoding="utf-8")


@pytest.mark.wide
@pytest.mark.postgres
@pytest.mark.spark
def test_init_works_in_a_new_folder(folder: Path, pg16: EmbeddedServer) -> None:
    from psycopg import connect

    from tests.support_postgres import fresh_database

    with fresh_database(pg16) as conninfo:
        with connect(conninfo, autocommit=True) as conn:
            conn.execute("create table public.t (id int primary key); insert into public.t values (1), (2)")
        settings = folder / "cdc.toml"
        text = settings.read_text(encoding="utf-8").replace("host=127.0.0.1 port=1", conninfo.replace("'", "\\'"))
        settings.write_text(text, encoding="utf-8")
        words = [sys.executable, "-m", "toolkit.cli", "init"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0 and "public.t=2" in done.stdout, done.stdout + done.stderr

"""What the commands say while they work: bars on a terminal, and only JSON on standard error where the log is JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.support_processes import scheduled
from tests.support_terminal import on_a_terminal, screen

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]

DRAIN = ("draining", "bytes of WAL", "reading the slot")
BUILD = ("starting Spark", "building", "models")
CHECK = ("reading the source", "public.item", "of the lake", "publishing")


def _json_lines(folder: Path, *words: str) -> list[str]:
    """Run a command as a scheduler does; each line of its standard error must be a JSON object. Give their events."""
    done = subprocess.run(
        [sys.executable, "-m", "toolkit.cli", *words, "--verbose"],
        cwd=folder,
        env=scheduled(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["event"] for line in done.stderr.splitlines()]


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_each_command_shows_what_it_does(database: str, tmp_path: Path) -> None:
    configuration = f"[source]\nconninfo = {json.dumps(database)}\n[drain]\nmax_changes = 500\n"
    configuration += '[table."public.both"]\ncapture = "both"\n'
    (tmp_path / "cdc.toml").write_text(configuration, encoding="utf-8")
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(b"create table public.item (id int primary key, n int)")
        conn.execute(b"insert into public.item select i, 0 from generate_series(1, 5000) i")
        conn.execute(b"analyze public.item")
        conn.execute(b"create table public.both (id int primary key)")
    for command, words in (
        ("init", ["copying"]),
        ("run", [*DRAIN, *BUILD, *CHECK]),
        ("maintain", ["maintaining", "tables"]),
        ("drain --max-changes 1000000", ["draining"]),  # what the audit compares, in several jobs
        ("audit", ["starting Spark", "comparing both captures of 1 tables", " events, ", "/s", " left"]),
        ("rows public.item --limit 0", ["reading public.item"]),
    ):
        with psycopg.connect(database, autocommit=True) as conn:
            for _ in range(2):  # one transaction and one batch each
                conn.execute(b"update public.item set n = n + 1 where id < 700")
                conn.execute(b"insert into public.both select count(*) from public.both")
            if command.startswith("drain"):
                for low in range(0, 180_000, 60_000):
                    conn.execute(f"insert into public.both select -{low} - generate_series(1, 60000)".encode())
        line = [sys.executable, "-m", "toolkit.cli", *command.split()]
        with (tmp_path / "rows").open("wb") as file:  # rows on the terminal show themselves
            output = file if command.startswith("rows") else None
            code, shown = on_a_terminal(line, folder=tmp_path, output=output)
        assert code == 0, shown
        assert [word for word in words if word not in shown] == [], shown
        left = screen(shown)
        assert not any("\u2501" in line for line in left), left
    assert len((tmp_path / "rows").read_text(encoding="utf-8").splitlines()) == 5001
    configuration += '[log]\nformat = "json"\nlevel = "info"\n'
    (tmp_path / "cdc.toml").write_text(configuration, encoding="utf-8")
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(b"alter table public.item add column t text default 'x'")
        conn.execute(b"update public.item set n = n + 1 where id < 2000")
    assert {"drained", "building", "parity cut"} <= {*_json_lines(tmp_path, "run")}

"""How long small commands take as whole processes, on a lake of a few small tables. None of them starts a JVM.

`python -m tests.benchmarks.startup`; `make bench` runs it too. One JSON line a figure, as in `bench`: the median of
`--repeat` runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg

from tests import commands
from tests.benchmarks.bench import print_figure
from tests.benchmarks.processes import Meter, Usage
from toolkit.build import project
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import session
from toolkit.values import config as configuration

_TABLES, _ROWS = 10, 1000


def main() -> None:
    """Run all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="runs of each command")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name, EmbeddedServer(None, 16) as server:
        file = Path(name) / "cdc.toml"
        file.write_text(
            f'[source]\nconninfo = {json.dumps(server.conninfo())}\ntables = ["public.*"]\n', encoding="utf-8"
        )
        config = configuration.load(str(file))
        project.ensure(config.dbt_project)
        with psycopg.connect(server.conninfo(), autocommit=True) as conn:
            conn.execute("create schema private")  # not captured: what is written here makes WAL and no change
            conn.execute("create table private.other (id integer)")
            for n in range(_TABLES):
                conn.execute(f"create table public.t{n} (id int primary key, v text, at timestamptz)".encode())
                conn.execute(
                    f"insert into public.t{n} select i, 'v' || i, now() from generate_series(1, {_ROWS}) i".encode()
                )
            try:
                commands.init(config)
                commands.build(config)
            finally:
                session.stop_session()
            for figure, *command in (
                ("help", "--help"),
                ("status", "status"),
                ("schema_history", "schema", "history", "public.t1"),
                ("rows_key", "rows", "public.t1", "--key", "id=7"),
                ("empty_drain", "drain"),
            ):
                runs = []
                for n in range(arguments.repeat + 1):
                    conn.execute("insert into private.other values (%s)", [n])  # else there is nothing to advance over
                    runs.append(_run(server, command if figure == "help" else [*command, "--config", str(file)]))
                _print(figure, runs[1:])  # the first one also fills the cache of files


def _run(server: EmbeddedServer, arguments: list[str]) -> Usage:
    with Meter(server, jvm=True) as meter:
        process = subprocess.Popen([sys.executable, "-m", "toolkit.cli", *arguments], stdout=subprocess.DEVNULL)
        meter.root = process.pid
        code = process.wait()
    if code != 0:
        raise SystemExit(f"bench: {' '.join(arguments)} ended with {code}")
    return meter.usage


def _print(name: str, runs: list[Usage]) -> None:
    """Print the median run, and the median of the processor time."""
    median = sorted(runs, key=lambda usage: usage.seconds)[len(runs) // 2]
    cpu = statistics.median(usage.cpu_seconds for usage in runs)
    print_figure(name, round(median.seconds, 3), "s", median, None, median_cpu_seconds=round(cpu, 2))


if __name__ == "__main__":
    main()

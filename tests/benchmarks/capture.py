"""What capture costs the writer, beside the same writes without it, and how fast ticks are drained.

`python -m tests.benchmarks.capture`; `make bench` runs it too. One JSON line a figure, as in `bench`. Server CPU
a change is the figure to trust on a busy machine: it counts what the triggers do and not who else ran meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests import commands
from tests.benchmarks.processes import Meter, Usage
from toolkit.demo.server import EmbeddedServer
from toolkit.source import connection, install
from toolkit.values import config as configuration

_SINGLE = "\\set k random(1, {rows})\nupdate w set v = v + 1, note = 'n' || :k where id = :k;\n"
_ALTERED = 100
_MODES = {
    "none": None,
    "row_triggers": 'capture = "change_log"\ntriggers = "row"\n',
    "statement_triggers": 'capture = "change_log"\ntriggers = "statement"\n',
}


def main() -> None:
    """Run all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the bulk update (default: 100,000)")
    parser.add_argument("--seconds", type=int, default=5, help="of single-row updates, per mode")
    parser.add_argument("--changes", type=int, default=1_000_000, help="row changes of W1 drained as one tick")
    parser.add_argument("--tables", type=int, default=2000, help="captured tables beside one that is altered")
    parser.add_argument("--postgres", type=int, default=16, choices=(16, 18))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
        for mode in _MODES:
            with EmbeddedServer(None, arguments.postgres) as server:
                _writer(Path(name), server, mode, arguments.rows, arguments.seconds)
        with EmbeddedServer(None, arguments.postgres) as server:
            _ddl(Path(name), server, arguments.tables)
        with EmbeddedServer(None, arguments.postgres, settings={"wal_level": "replica"}) as server, _spark():
            _ticks(Path(name), server, arguments.changes // 100)


def _writer(folder: Path, server: EmbeddedServer, mode: str, rows: int, seconds: int) -> None:
    """Single-row and bulk updates of one table of four columns and about 80 bytes a row."""
    with psycopg.connect(server.conninfo(), autocommit=True) as conn:
        conn.execute("create table w (id int primary key, v int, note text, at timestamptz default now())")
        conn.execute("insert into w select i, i, md5(i::text) from generate_series(1, %s) as i", [rows])
        table = _MODES[mode]
        if table is not None:
            config = _config(folder, server, f'[table."public.w"]\n{table}')
            with connection.connect(config.source) as other:
                install.install(other, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
        conn.execute("vacuum analyze w")
        runs = []
        for _ in range(3):
            with Meter(server, os.getpid()) as meter:
                conn.execute("update w set v = v + 1")
            runs.append(meter.usage)
            conn.execute("vacuum w")
        bulk = min(runs, key=lambda usage: usage.server_cpu_seconds)
        _print(f"bulk_update_{mode}", rows, bulk)
    script = folder / "single.sql"
    script.write_text(_SINGLE.format(rows=rows))
    command = [server.program("pgbench"), "-n", "-M", "prepared", "-c", "4", "-T", str(seconds), "-f", str(script)]
    with Meter(server) as meter:
        done = subprocess.run([*command, server.conninfo()], capture_output=True, text=True, check=True)
    count = next(line for line in done.stdout.splitlines() if "actually processed" in line).rpartition(":")[2]
    _print(f"single_update_{mode}", int(count.partition("/")[0]), meter.usage)


def _ddl(folder: Path, server: EmbeddedServer, tables: int) -> None:
    """What one DDL command takes beside many captured tables, with and without capture."""
    config = _config(folder, server, "")
    with psycopg.connect(server.conninfo(), autocommit=True) as conn:
        for n in range(tables):
            conn.execute(f"create table t{n} (id int primary key, v int, note text, at timestamptz)".encode())
        for mode in ("plain", "captured"):
            if mode == "captured":
                with connection.connect(config.source) as other:
                    install.install(
                        other, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds
                    )
            with Meter(server, os.getpid()) as meter:
                for n in range(_ALTERED):
                    conn.execute(f"alter table t{n % tables} add column further int".encode())
                    conn.execute(f"alter table t{n % tables} drop column further".encode())
            _print_ddl(f"ddl_{mode}_of_{tables}", 2 * _ALTERED, meter.usage)
        with Meter(server, os.getpid()) as meter:
            conn.execute("alter publication cdc set (publish = 'insert, update, delete, truncate')")
        _print_ddl(f"alter_publication_of_{tables}", 1, meter.usage)


def _print_ddl(name: str, commands: int, usage: Usage) -> None:
    figure = {
        "name": name,
        "value": round(1e3 * usage.seconds / commands, 2),
        "unit": "ms/command",
        "server_cpu_ms_per_command": round(1e3 * usage.server_cpu_seconds / commands, 2),
    }
    print(json.dumps(figure), flush=True)


def _ticks(folder: Path, server: EmbeddedServer, transactions: int) -> None:
    """W1 under row triggers, then one tick with all of it."""
    config = _config(folder, server, 'capture = "change_log"\n')
    with psycopg.connect(server.conninfo(), autocommit=True) as conn:
        conn.execute(Path(__file__).with_name("w1.sql").read_bytes())
        commands.init(config)
        conn.execute("insert into public.fence select -n, 'warm' from generate_series(1, 30000) as n")
        commands.drain(config)
        conn.execute("set synchronous_commit = off")
        with Meter(server, os.getpid()) as meter:
            conn.execute("call public.load_w1(%s)", [transactions])
        _print("w1_written_row_triggers", transactions * 100, meter.usage)
        with Meter(server, os.getpid()) as meter:
            changes = commands.drain(config).changes
    if changes != transactions * 100:
        raise SystemExit(f"bench: the tick brought {changes:,} changes, {transactions * 100:,} were made")
    _print("drain_w1_tick", changes, meter.usage)


def _config(folder: Path, server: EmbeddedServer, text: str) -> configuration.Config:
    home = folder / f"{server.data.name}-{time.monotonic_ns()}"
    home.mkdir()
    file = home / "cdc.toml"
    file.write_text(f"[source]\nconninfo = {json.dumps(server.conninfo())}\n{text}", encoding="utf-8")
    return configuration.load(str(file))


@contextmanager
def _spark() -> Iterator[None]:
    try:
        yield
    finally:
        from toolkit.lake import session

        session.stop_session()


def _print(name: str, changes: int, usage: Usage) -> None:
    figure = {
        "name": name,
        "value": round(changes / usage.seconds),
        "unit": "changes/s",
        "seconds": round(usage.seconds, 3),
        "cpu_seconds": round(usage.cpu_seconds, 2),
        "server_cpu_us_per_change": round(1e6 * usage.server_cpu_seconds / changes, 1),
        "rss_mb": round(usage.rss_mb),
    }
    print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()

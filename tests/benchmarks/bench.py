"""Speeds of drain, snapshot and parity, beside limits of the same run: the server's own COPY of the same peek into
nothing, its own hash of every row.

`make bench`, or `python -m tests.benchmarks.bench --changes 100000` for a short one. One JSON line a figure on stdout:
name, value, unit, CPU seconds of the toolkit's processes (JVM included) and of the server, ratio to the limit, and the
peak memory outside the JVM. A line on stderr names each ratio that is more than a fifth below the kept one
(`tests/benchmarks/ratios.json`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests import commands
from tests.benchmarks import ratios
from tests.benchmarks.processes import Meter, Usage
from tests.benchmarks.workloads import WORKLOADS, load
from toolkit.build import project
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import pandas_on_demand
from toolkit.values import config as configuration
from toolkit.values.lsn import Lsn

_CHANGES_PER_TRANSACTION = 100
_LIMIT_SLOT = "bench_limit"
_WARM = 30_000  # rows: enough for every partition to be used
ROWS_SQL = """
insert into public.compared
select i, i * 7457 %% 999983, i * 13 %% 1009, 'sku-' || to_char(i, 'FM0000000000'), md5((i * 3)::text),
       (i * 7919 %% 9999991) / 100.0, '2026-01-01 00:00:00+00'::timestamptz + make_interval(secs => i * 0.001237),
       case when i %% 5 = 0 then '2026-01-01 00:00:00+00'::timestamptz + make_interval(secs => i * 0.001239) end,
       i %% 3 = 1, jsonb_build_object('r', left(md5((i + 5)::text), 8), 'c', i %% 1000, 'b', i / 50)
from generate_series(1::bigint, %s) as i
"""
_PEEK = """
copy (
    select lsn, xid, data from pg_logical_slot_peek_binary_changes(
        {slot}, {upto}, null, 'proto_version', '1', 'publication_names', {publication}, 'messages', 'true')
) to stdout (format binary)
"""


def main() -> None:
    """Run all figures."""
    pandas_on_demand.enable()  # as `cdc` does
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=1_000_000, help="row changes of W1 (default: a million)")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the snapshot (default: two million)")
    parser.add_argument("--parity-rows", type=int, default=1_000_000, help="rows of W1's shape that a check compares")
    parser.add_argument("--max-changes", type=int, default=2_000_000, help="messages of a peek (default: two million)")
    parser.add_argument("--postgres", type=int, default=16, choices=(16, 18))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name, EmbeddedServer(None, arguments.postgres) as server:
        try:
            changes = arguments.changes // _CHANGES_PER_TRANSACTION
            _bench(Path(name), server, changes, arguments.max_changes, arguments.parity_rows, arguments.rows)
        finally:
            from toolkit.lake import session

            session.stop_session()


def _bench(
    folder: Path, server: EmbeddedServer, transactions: int, most: int, parity_rows: int, rows_wanted: int
) -> None:
    file = folder / "cdc.toml"
    file.write_text(
        f'[source]\nconninfo = {json.dumps(server.conninfo())}\ntables = ["public.*"]\n[drain]\nmax_changes = {most}\n',
        encoding="utf-8",
    )
    config = configuration.load(str(file))
    project.ensure(config.dbt_project)
    changes = transactions * _CHANGES_PER_TRANSACTION
    with psycopg.connect(server.conninfo(), autocommit=True) as conn:
        conn.execute(WORKLOADS["w1"].sql)
        conn.execute("create table public.compared (like public.w1 including all)")
        commands.init(config)  # the JVM is up from here on
        _warm_up(conn, config)
        # A second slot at the same position, made before the load: both read exactly the same WAL.
        conn.execute("select pg_copy_logical_replication_slot(%s, %s)", [config.source.slot, _LIMIT_SLOT])
        started = time.monotonic()
        upto = load(conn, WORKLOADS["w1"], changes)
        _say(f"W1: {changes:,} changes made in {time.monotonic() - started:.1f} s, up to {upto}")

        copy_to_nothing(conn, config, upto)  # the first one also pays for a cold cache
        runs = [measured(server, copy_to_nothing, conn, config, upto) for _ in range(2)]
        limit = _rate("copy_null", changes, min(runs, key=lambda usage: usage.seconds))
        _rate("drain_w1", changes, measured(server, commands.drain, config, upto), limit)
        _require_whole(config, _WARM + changes + 1)

        rows = _grow(conn, rows_wanted)
        # Past the WAL of making it, which is no part of a snapshot. A slot reads on from the last record of what was
        # running, which the server writes each 15 seconds.
        commands.drain(config)
        conn.execute("select pg_log_standby_snapshot()")
        commands.drain(config)
        runs = [measured(server, _table_to_nothing, conn) for _ in range(2)]
        limit = _rate("copy_table_null", rows, min(runs, key=lambda usage: usage.seconds), unit="rows/s")
        _rate("snapshot_w1", rows, measured(server, commands.repair, config, ["public.w1_rows"]), limit, unit="rows/s")
        _parity(server, conn, config, parity_rows)  # brings dbt into this process: after all that measures its memory
    _ddl_cost(server, commands=400)


def _ddl_cost(server: EmbeddedServer, commands: int) -> None:
    """What capture adds to one ALTER TABLE of the user, beside the same command without it."""
    from toolkit.source import install
    from toolkit.source.connection import connect

    def alter(conn: psycopg.Connection[Any]) -> None:
        for n in range(commands // 2):
            conn.execute(f"alter table public.altered add column c{n} int default 1".encode())
            conn.execute(f"alter table public.altered drop column c{n}".encode())

    with psycopg.connect(server.conninfo(), autocommit=True) as admin:
        admin.execute("create database bench_ddl")
    config = configuration.Config(source=configuration.SourceConfig(conninfo=server.conninfo("bench_ddl")))
    with psycopg.connect(server.conninfo("bench_ddl"), autocommit=True) as conn:
        conn.execute("create table public.altered (id int primary key, a text, b numeric(10,2), d date)")
        alter(conn)
        plain = measured(server, alter, conn)
        with connect(config.source) as own:
            install.install(own, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
        captured = measured(server, alter, conn)
    for name, usage, ratio in (
        ("ddl_plain", plain, None),
        ("ddl_captured", captured, plain.seconds / captured.seconds),
    ):
        print_figure(name, round(usage.seconds / commands * 1000, 3), "ms/command", usage, ratio and round(ratio, 3))


def _parity(server: EmbeddedServer, conn: psycopg.Connection[Any], config: configuration.Config, rows: int) -> None:
    """A whole check without drain and build, beside what the source needs to count the rows and to hash them itself."""
    conn.execute(ROWS_SQL, [rows])
    conn.execute("vacuum analyze public.compared")
    commands.drain(config)
    commands.build(config, select=("public__compared",))

    def check() -> None:
        report = commands.compare(config, ("public.compared",), full=True)
        if not report.green or report.tables[0].rows != rows:
            raise SystemExit(f"bench: {report.to_dict()}")

    check()  # the first one also compiles
    counted = measured(server, conn.execute, "select count(*) from public.compared")
    _rate("parity_count", rows, counted, unit="rows/s")
    hashed = "select sum(hashtextextended(c::text, 0)) from public.compared as c"
    limit = _rate("parity_row_hash", rows, measured(server, conn.execute, hashed), unit="rows/s")
    runs = [measured(server, check) for _ in range(2)]
    _rate("parity_check", rows, min(runs, key=lambda usage: usage.seconds), limit, unit="rows/s")


def copy_to_nothing(
    conn: psycopg.Connection[Any], config: configuration.Config, upto: Lsn, slot: str = _LIMIT_SLOT
) -> int:
    """Peek at all changes and send them, which is the limit of a drain."""
    statement = sql.SQL(_PEEK).format(
        slot=sql.Literal(slot),
        upto=sql.Literal(str(upto)),
        publication=sql.Literal(config.source.publication_names),
    )
    size = 0
    with conn.cursor() as cursor, cursor.copy(statement) as copy:
        for block in copy:
            size += len(block)
    return size


def _table_to_nothing(conn: psycopg.Connection[Any]) -> None:
    """The bare COPY of a table, one session: the limit of one core of the server."""
    with conn.cursor() as cursor, cursor.copy("copy public.w1_rows to stdout") as copy:
        for _ in copy:
            pass


def _grow(conn: psycopg.Connection[Any], rows: int) -> int:
    """A table of W1's rows, again and again until there are about `rows`; published once it is full."""
    conn.execute("create table public.w1_rows (like public.w1 including all)")
    copies = max(1, rows // max(1, _count(conn, "public.w1")))
    conn.execute(
        "insert into public.w1_rows select n * 1000000000::bigint + id, customer, quantity, sku, remark, price,"
        " ordered_at, changed_at, paid, extra from public.w1, generate_series(1, %s) as n",
        [copies],
    )
    conn.execute("vacuum analyze public.w1_rows")
    conn.execute("alter publication cdc add table public.w1_rows")
    return _count(conn, "public.w1_rows")


def _count(conn: psycopg.Connection[Any], table: str) -> int:
    row = conn.execute(f"select count(*) from {table}").fetchone()
    assert row is not None
    return int(row[0])


def _warm_up(conn: psycopg.Connection[Any], config: configuration.Config) -> None:
    """One small drain through all stages: the JVM has compiled them, and Python workers are there."""
    conn.execute("insert into public.fence select -n, 'warm' from generate_series(1, %s) as n", [_WARM])
    commands.drain(config)


def _require_whole(config: configuration.Config, wanted: int) -> None:
    """A speed of something incomplete is worth nothing."""
    from toolkit.lake import session

    rows = session.own_session(config.lake_access).sql(
        "SELECT count(*) FROM raw.events WHERE kind = 'row' AND op IN ('I', 'U', 'D')"
    )
    found = rows.collect()[0][0]
    if found != wanted:
        raise SystemExit(f"bench: {found:,} changes are in raw.events, {wanted:,} were made")


def measured(server: EmbeddedServer, function: Any, *arguments: Any) -> Usage:
    with Meter(server, os.getpid()) as meter:
        function(*arguments)
    return meter.usage


def _rate(name: str, changes: int, usage: Usage, limit: float | None = None, *, unit: str = "changes/s") -> float:
    value = changes / usage.seconds
    print_figure(name, round(value), unit, usage, None if limit is None else round(value / limit, 3))
    return value


def print_figure(name: str, value: float, unit: str, usage: Usage, ratio: float | None, **more: Any) -> None:
    """Print one figure as a line of JSON."""
    figure = {
        "name": name,
        "value": value,
        "unit": unit,
        "seconds": round(usage.seconds, 3),
        "cpu_seconds": round(usage.cpu_seconds, 2),
        "server_cpu_seconds": round(usage.server_cpu_seconds, 2),
        "limit_ratio": ratio,
        "rss_mb": round(usage.rss_mb),
        **more,
    }
    print(json.dumps(figure), flush=True)
    said = ratios.fallen(name, ratio)
    if said is not None:
        _say(said)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

"""Speeds with many small tables: the first build, then drain, build and check after changes in some of them.

`python -m tests.benchmarks.many --tables 200 --changed 200`. One JSON line a figure on stdout, as in `bench`. Every run
ends with a check that must be green.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from tests import commands
from tests.benchmarks.bench import measured, print_figure
from toolkit.build import project
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import pandas_on_demand
from toolkit.values import config as configuration

_TABLE = """
create table public.t{n} (
    id bigint primary key, customer int not null, sku text, price numeric(12,2), ordered_at timestamptz,
    paid boolean, extra jsonb
)
"""
_ROWS = """
insert into public.t{n}
select i, i * 7919 % 1009, 'sku-' || i, (i % 9973) / 100.0,
       '2026-01-01 00:00:00+00'::timestamptz + make_interval(secs => i), i % 3 = 1,
       jsonb_build_object('r', left(md5(i::text), 8), 'c', i)
from generate_series(1, {rows}) as i
"""
_CHANGES = """
update public.t{n} set price = price + 1, paid = not paid
where id in (select generate_series({round}, {round} + {changes} * 7 - 1, 7))
"""


def main() -> None:
    """Run all figures."""
    pandas_on_demand.enable()  # as `cdc` does
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1000, help="rows of each table")
    parser.add_argument("--changed", type=int, default=None, help="tables with changes (default: all)")
    parser.add_argument("--changes", type=int, default=50, help="changes in each of them")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of changes")
    parser.add_argument("--spark", action="append", default=[], help="a line of [spark], such as '\"a.b\" = 1'")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name, EmbeddedServer(None, 16) as server:
        try:
            _bench(Path(name), server, arguments)
        finally:
            from toolkit.lake import session

            session.stop_session()


def _bench(folder: Path, server: EmbeddedServer, arguments: argparse.Namespace) -> None:
    file = folder / "cdc.toml"
    spark = "".join(f"{line}\n" for line in arguments.spark)
    file.write_text(
        f'[source]\nconninfo = {json.dumps(server.conninfo())}\ntables = ["public.*"]\n'
        f"[check]\nfull_hours = 24\n[spark]\n{spark}",
        encoding="utf-8",
    )
    config = configuration.load(str(file))
    project.ensure(config.dbt_project)
    changed = range(arguments.tables if arguments.changed is None else arguments.changed)
    with psycopg.connect(server.conninfo(), autocommit=True) as conn:
        for n in range(arguments.tables):
            conn.execute(_TABLE.format(n=n).encode())
            conn.execute(_ROWS.format(n=n, rows=arguments.rows).encode())
        _print("many_init", server, commands.init, config)
        _print("many_first_build", server, commands.build, config)
        for number in range(arguments.rounds):
            for n in changed:
                conn.execute(_CHANGES.format(n=n, round=1 + number, changes=arguments.changes).encode())
            _print("many_drain", server, commands.drain, config)
            _print("many_build", server, commands.build, config)
            _print("many_check", server, _check, config)


def _check(config: configuration.Config) -> None:
    report = commands.check(config)
    if not report.green:
        raise SystemExit(f"bench: {report.to_dict()}")


def _print(name: str, server: EmbeddedServer, function: Any, config: configuration.Config) -> None:
    usage = measured(server, function, config)
    print_figure(name, round(usage.seconds, 1), "s", usage, None)


if __name__ == "__main__":
    main()

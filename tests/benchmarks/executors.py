"""Drain, build and check on a standalone cluster of 1, 2 and 4 executors, beside local mode on the same machine.

`python -m tests.benchmarks.executors`, or with names of setups for a part of it. All lakes but that of `sqlite` are in
the same object store with a catalog in PostgreSQL, so that only the place where Spark's tasks run differs. Spark runs
before the first figure, for as many changes an executor as in local mode: each compiles its own code. So does the
store, which stands in for one that has run for long. One JSON line a figure, as in `bench`, the median of all rounds;
its ratio is the time in `local` over this time, so that 0.80 is an overhead of a quarter. The processor time is that of
all processes but PostgreSQL's.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from tests import commands
from tests.benchmarks.bench import print_figure
from tests.benchmarks.processes import Meter, Usage
from tests.benchmarks.workloads import WORKLOADS, load
from toolkit.build import project
from toolkit.demo.lake_sections import on_servers
from toolkit.demo.loopback import Standalone, object_store, standalone
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import pandas_on_demand, session, storage
from toolkit.values import config as configuration
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn
from toolkit.values.process_env import environment

#: The cores of each executor; none is local mode.
SETUPS: Mapping[str, Sequence[int]] = {
    "sqlite": (), "local": (), "one_of_two_cores": (2,), "two_of_one_core": (1, 1), "four_of_one_core": (1,) * 4,
}  # fmt: skip
_STAGES = ("drain", "build", "check")
_WARM = 50_000  # changes an executor
_STORE_WARM = 200  # objects of eight megabytes


def main() -> None:
    """Run all figures."""
    pandas_on_demand.enable()  # as `cdc` does
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("setups", nargs="*", choices=(*SETUPS, []), help="default: all")
    parser.add_argument("--changes", type=int, default=1_000_000, help="row changes of W1 (default: a million)")
    parser.add_argument("--warm", type=int, default=2, help="rounds of drain, build and check before the first figure")
    parser.add_argument("--stages", nargs="*", choices=_STAGES, default=_STAGES, help="what runs (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that are measured (default: 3)")
    arguments = parser.parse_args()
    local: dict[str, float] = {}
    for name in arguments.setups or SETUPS:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cdc-bench-")))
            server = stack.enter_context(EmbeddedServer(None, 16))
            stack.callback(session.stop_session)
            config = _configured(stack, folder, server, name)
            taken = _measure(config, server, name, local, arguments)
        if name == "local":
            local = taken


def _configured(stack: ExitStack, folder: Path, server: EmbeddedServer, name: str) -> Config:
    """Start what a setup needs, and give a configuration with an empty lake."""
    with psycopg.connect(server.conninfo(), autocommit=True) as admin:
        admin.execute("create database catalog")
    sections = ""
    if name != "sqlite":
        store = stack.enter_context(object_store(folder, options=()))
        stack.enter_context(environment(store.environment))
        spark = Standalone("", "", [])
        if SETUPS[name]:
            spark = stack.enter_context(standalone(folder, SETUPS[name]))
        sections = on_servers(server, "catalog", store, spark)
        lines = sections.splitlines(keepends=True)  # every JVM is to compile as it does for a user
        sections = "".join(line for line in lines if "TieredStopAtLevel" not in line)
        if not SETUPS[name]:
            sections = sections.partition("[spark]")[0]
    file = folder / "cdc.toml"
    source = f'[source]\nconninfo = {json.dumps(server.conninfo())}\ntables = ["public.*"]\n'
    file.write_text(f"{source}[drain]\nmax_changes = 2_000_000\n{sections}", encoding="utf-8")
    return configuration.load(str(file))


def _measure(
    config: Config, server: EmbeddedServer, name: str, local: Mapping[str, float], arguments: argparse.Namespace
) -> dict[str, float]:
    project.ensure(config.dbt_project)
    if name != "sqlite":
        _warm_up_store(config)
    stages: dict[str, Callable[[Lsn], object]] = {
        "drain": lambda upto: commands.drain(config, upto),
        "build": lambda upto: commands.build(config),
        "check": lambda upto: _require_green(config),
    }
    found: dict[str, list[Usage]] = {stage: [] for stage in arguments.stages}
    with psycopg.connect(server.conninfo(), autocommit=True) as conn:
        conn.execute(WORKLOADS["w1"].sql)
        # A vacuum of the emptied table would let the last load read all of it for each change.
        conn.execute("set enable_seqscan = off")
        commands.init(config)
        for number in range(arguments.warm + arguments.rounds):
            warm = number < arguments.warm
            _empty(conn, config)
            if "build" in found:
                commands.build(config)
            changes = _WARM * max(1, len(SETUPS[name])) if warm else arguments.changes
            upto = load(conn, WORKLOADS["w1"], changes)
            for stage, usages in found.items():
                with Meter(server) as meter:  # without memory: to read it of all executors takes half a core
                    stages[stage](upto)
                if not warm:
                    usages.append(meter.usage)
    taken = {}
    for stage, usages in found.items():
        usage = sorted(usages, key=lambda one: one.seconds)[len(usages) // 2]
        taken[stage] = usage.seconds
        ratio = round(local[stage] / usage.seconds, 3) if stage in local else None
        changed = round(arguments.changes / usage.seconds)
        all_seconds = [round(one.seconds, 2) for one in usages]
        print_figure(
            f"{stage}_{name}", changed, "changes/s", usage, ratio, cores=os.cpu_count(), all_seconds=all_seconds
        )
    return taken


def _empty(conn: psycopg.Connection[Any], config: Config) -> None:
    """Empty the table, and let the next peek begin with what is written from now on."""
    conn.execute("delete from public.w1")
    conn.execute("delete from public.fence")
    for _ in range(2):  # a slot decodes from a position that a checkpoint writes, and that a drain has passed
        conn.execute("checkpoint")
        commands.drain(config)


def _warm_up_store(config: Config) -> None:
    """Have the store compile its code."""
    access = config.lake_access
    properties, place = storage.file_properties(access), f"{access.warehouse}/warm"
    for _ in range(_STORE_WARM):
        with storage.create(place, properties) as file:
            file.write(b"\0" * (8 << 20))
        storage.read(place, properties)
    storage.delete(place, properties)


def _require_green(config: Config) -> None:
    report = commands.compare(config, full=True)
    if not report.green:
        raise SystemExit(f"executors: {report.to_dict()}")


if __name__ == "__main__":
    main()

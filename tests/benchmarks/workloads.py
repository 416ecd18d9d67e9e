"""The workloads W1 to W7, and worlds in which several lakes read exactly the same WAL of one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests import commands
from toolkit.build import project
from toolkit.demo.server import EmbeddedServer
from toolkit.values import config as configuration
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn

_WARM = 30_000  # rows: enough for every partition of a drain to be used


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload: `<name>.sql` beside this file makes its tables, and the procedure that makes its changes.

    Attributes:
        replays: the log alone gives the rows of the source, since no DDL of the workload rewrites a table.
    """

    name: str
    title: str
    tables: tuple[str, ...]
    call: str = "call public.load_{name}({changes})"
    replays: bool = True

    @property
    def sql(self) -> bytes:
        """Give the statements that make the workload's tables and its procedure."""
        return Path(__file__).with_name(f"{self.name}.sql").read_bytes()


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("w1", "mixed changes, 100 a transaction", ("w1",), "call public.load_w1({changes} / 100)"),
        Workload("w2", "two changes a transaction", ("account", "movement")),
        Workload("w3", "one transaction", ("bulk",)),
        Workload("w4", "values of 20 kB, seldom changed", ("document",)),
        Workload("w5", "DDL after every 1,000 changes", ("shape",), replays=False),
        Workload("w6", "200 tables", tuple(f"small{n}" for n in range(1, 201))),
        Workload("w7", "36 % of the changes rolled back", ("attempt",)),
    )
}


@dataclass(frozen=True, slots=True)
class World:
    """A loaded workload: one configuration for each lake, and the LSN to which all changes are flushed."""

    conn: psycopg.Connection[Any]
    configs: tuple[Config, ...]
    upto: Lsn


@contextmanager
def world(
    folder: Path, server: EmbeddedServer, workload: Workload, changes: int, lakes: int, slots: Sequence[str] = ()
) -> Iterator[World]:
    """Make a database with a workload, and lakes that have drained everything before its changes.

    Args:
        lakes: number of lakes, each with a slot of its own.
        slots: further slots, at the position of the lakes' slots.
    """
    with psycopg.connect(server.conninfo(), autocommit=True) as admin:
        admin.execute(f"create database {workload.name}".encode())
    conninfo = server.conninfo(workload.name)
    with psycopg.connect(conninfo, autocommit=True) as conn:
        conn.execute(workload.sql)
        conn.execute("create table if not exists public.fence (id integer primary key, note text)")
        configs = tuple(_lake(folder / workload.name / f"lake{n}", conninfo, workload, n) for n in range(lakes))
        conn.execute("insert into public.fence select -n, 'warm' from generate_series(1, %s::integer) as n", [_WARM])
        for config in configs:
            commands.drain(config)
        for slot in slots:
            conn.execute("select pg_copy_logical_replication_slot(%s, %s)", [configs[0].source.slot, slot])
        yield World(conn, configs, load(conn, workload, changes))


def _lake(folder: Path, conninfo: str, workload: Workload, number: int) -> Config:
    folder.mkdir(parents=True)
    file = folder / "cdc.toml"
    name = f"{workload.name}_{number}"
    tables = [f"public.{table}" for table in (*workload.tables, "fence")]
    file.write_text(
        f"[source]\nconninfo = {json.dumps(conninfo)}\nslot = {json.dumps(name)}\npublication = {json.dumps(name)}\n"
        f"tables = {json.dumps(tables)}\n[drain]\nmax_changes = 2_000_000\n",
        encoding="utf-8",
    )
    config = configuration.load(str(file))
    project.ensure(config.dbt_project)
    commands.init(config)
    return config


def load(conn: psycopg.Connection[Any], workload: Workload, changes: int) -> Lsn:
    """Make the changes. The fence after them is flushed, and with it everything before."""
    conn.execute("set synchronous_commit = off")
    conn.execute(workload.call.format(name=workload.name, changes=changes).encode())
    conn.execute("set synchronous_commit = on")
    conn.execute("insert into public.fence values (1, 'end of the workload')")
    row = conn.execute("select pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


__all__ = ["WORKLOADS", "Workload", "World", "load", "world"]

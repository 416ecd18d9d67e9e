"""Transaction ids beyond 31 and 32 bits: clusters that were moved there, with tables that were made long before."""

from __future__ import annotations

import json
import os
import subprocess

import psycopg
import pytest

from tests import commands
from tests.postgres.test_snapshot_log import current, on_source, sql
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from tests.support_moved import both_sources, configured
from tests.support_postgres import fresh_database, programs
from toolkit.demo.server import EmbeddedServer
from toolkit.rawlog import states
from toolkit.source import exact_cut
from toolkit.source.connection import connect
from toolkit.values.config import Config, SourceConfig
from toolkit.values.lsn import Lsn
from toolkit.values.modes import Capture, LogDrain
from toolkit.values.visibility import Visibility, full_xid

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.wide]

_STEP = 1_500_000_000  # ids that may pass before every table must be frozen
_SEGMENT = 1 << 20  # transactions in a file of pg_xact, which has 256 kB


def _move(server: EmbeddedServer, target: int) -> None:
    """Let the next transaction have the id `target`, as if all before it had been used, and every table frozen."""
    at = 0
    while at < target:
        at = min(at + _STEP, target)
        for (name,) in _run(server, "postgres", "update pg_database set datallowconn = true returning datname"):
            _run(server, str(name), "vacuum (freeze)")
        _run(server, "postgres", "checkpoint")
        server.stop()
        low = at % (1 << 32)
        command = [server.program("pg_resetwal"), "-x", str(low), "-e", str(at >> 32), str(server.data)]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **server._identity())
        owner = server.data.stat()
        for segment in (low // _SEGMENT, (low // _SEGMENT + 1) % (1 << 12)):
            file = server.data / "pg_xact" / f"{segment:04X}"
            if not file.exists():
                file.write_bytes(bytes(1 << 18))
                os.chown(file, owner.st_uid, owner.st_gid)
                file.chmod(0o600)
        server.start()


def _run(server: EmbeddedServer, database: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.conninfo(database), autocommit=True) as conn:
        cursor = conn.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize("major", [15, 16, 18])
@pytest.mark.parametrize("start", [2**31 + 2000, 2**32 - 10, 2**32 - 500], ids=["2^31", "2^32 in init", "2^32 later"])
def test_tables_of_another_half_of_the_ids(plain_lake: Config, major: int, start: int) -> None:
    with (
        EmbeddedServer(None, major, bindir=programs(major)) as server,
        fresh_database(server) as one,
        fresh_database(server) as other,
    ):
        by_slot, by_tick = map(_with_tables, both_sources(plain_lake.root, one, other))
        _move(server, start)
        for config in (by_slot, by_tick):
            commands.init(config)
        for round_ in range(3):
            for config in (by_slot, by_tick):
                _change(config, round_)
                commands.drain(config)
                _require_right(config)
            _burn(by_slot, 200)
        assert start == 2**31 + 2000 or _next(by_slot) > 2**32


def _with_tables(config: Config) -> Config:
    sql(
        config,
        "create table public.a (id int primary key, x text)",
        "insert into public.a values (0, 'old')",
        "create table public.apart (id int primary key)",
        "create table public.root (id int primary key) partition by range (id)",
        *(f"create table public.part{n} partition of public.root for values from ({n}) to ({n + 1})" for n in range(4)),
    )
    return config


def _change(config: Config, number: int) -> None:
    """DDL of tables with rows, in a transaction and in a part of one, beside rows that hold their transaction's id."""
    row = f"insert into public.a (id, x) values (%s{number}, pg_current_xact_id()::text)"
    sql(
        config,
        row % 1,
        f"alter table public.a add column c{number} int default {number}",
        row % 2,
        f"begin; savepoint s; alter table public.a add column d{number} text; release s; {row % 3}; commit",
        f"begin; savepoint s; alter table public.a add column e text; rollback to s; {row % 4}; commit",
        f"alter table public.root detach partition public.part{number}",
        f"update public.a set x = x || ' changed' where id = 1{number}",
    )


def _require_right(config: Config) -> None:
    stale = {s.table: s.reason for s in states.table_states(ledger_of(config)) if s.state != "ok"}
    assert {name: reason for name, reason in stale.items() if "root" not in name and "part" not in name} == {}
    found = [json.loads(e["payload"]) for e in rows_in_log(config, "kind = 'ddl'")]
    assert {message["event"] for message in found} == {"ddl_command_end"}
    names = {table["name"] for m in found if "detach" in m["sql"] for table in m["tables"]}
    assert names == {"root", *(name for name in names if name.startswith("part"))}
    ours, theirs = current(config, "a"), on_source(config, "a")
    assert {key: row[:2] for key, row in ours.items()} == {key: row[:2] for key, row in theirs.items()}
    rows = [e for e in rows_in_log(config) if e["op"] == "I"]
    assert [e["xid"] for e in rows] == [int(e["new"][1]) for e in rows]


def _burn(config: Config, count: int) -> None:
    with psycopg.connect(config.source.conninfo, autocommit=True) as conn:
        for _ in range(count):
            conn.execute("select pg_current_xact_id()")


def _next(config: Config) -> int:
    with connect(config.source) as conn:
        (row,) = conn.execute("select pg_snapshot_xmax(pg_current_snapshot())::text").fetchall()
    return int(row[0])


def test_an_old_row_that_is_deleted_is_not_taken_for_one_of_its_transaction(plain_lake: Config) -> None:
    """By its 32 bits, a row of more than 2^31 ids ago came after the transaction that deletes it."""
    major = 16
    with EmbeddedServer(None, major, bindir=programs(major)) as server, fresh_database(server) as conninfo:
        source = SourceConfig(
            conninfo=conninfo, slot="cdc_t", capture=Capture.CHANGE_LOG, change_log_drain=LogDrain.TICK
        )
        config = _with_tables(configured(plain_lake.root / "tick", source))
        _move(server, 2**31 + 2000)
        commands.init(config)
        # What is logged late is read again by this function; here it cannot.
        refusing = "create or replace function cdc.log_present(relid oid, touched text) returns text language plpgsql"
        sql(config, f"{refusing} as 'begin raise exception ''late''; end'")
        sql(
            config,
            "begin; insert into public.a values (1, 'new'); savepoint s; insert into public.a values (2, 'new');"
            " release s; delete from public.a; commit",
        )
        with psycopg.connect(conninfo) as conn:
            query = "select op::text, old from cdc.change_log where relid = 'public.a'::regclass order by lsn"
            logged = conn.execute(query).fetchall()
    assert [row for row in logged if row[0] == "D"] == [("D", "(0,old)")]
    assert [op for op, _ in logged].count("F") == 2  # the two rows of this transaction


def test_a_snapshot_before_the_epoch_shows_no_transaction_after_it() -> None:
    seen = Visibility.parse(f"{2**32 - 10}:{2**32 - 5}:{2**32 - 8}")
    sent = [(2**32 - 9, 60, 68), (2**32 - 8, 70, 78), (3, 80, 88)]
    commits = [exact_cut.Commit(full_xid(low, seen.xmax), Lsn(at), Lsn(end)) for low, at, end in sent]
    assert exact_cut.position(seen, commits, Lsn(50)) == 68

"""Traps 30 and 31: a value whose text no server can make, and a transaction larger than memory should be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import commands
from tests.postgres.test_snapshot_log import current, of, on_source, sql
from tests.support_lake import plain_lake
from tests.support_ledger import ledger_of
from toolkit.rawlog import states
from toolkit.rawlog.event import StreamMessage
from toolkit.values import config as configuration
from toolkit.values.config import Config
from toolkit.values.errors import UnreadableChange
from toolkit.values.lsn import Lsn
from toolkit.values.modes import Capture

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.long, pytest.mark.parametrize("pg", ["pg18"], indirect=True)]
_ROOT = Path(__file__).parents[2]
_ROWS = 1_500_000
#: 600 MB, of which hex makes 1.2 GB: more than one allocation of the server may have.
_POISON = "insert into public.t values (2, convert_to(repeat('x', 600000000), 'UTF8'))"


def _config(database: str, lake: Config, more: str) -> Config:
    name = conninfo_to_dict(database)["dbname"]
    file = lake.root / "cdc.toml"
    file.write_text(f"[source]\nconninfo = {json.dumps(database)}\nslot = 'cdc_{name}'\n{more}", encoding="utf-8")
    return configuration.load(str(file))


@pytest.fixture(params=["slot", "tick"])
def config(request: pytest.FixtureRequest, database: str, plain_lake: Config) -> Config:
    """By the slot, and by ticks of the change log."""
    ticks = 'capture = "change_log"\nchange_log_drain = "tick"\n'
    return _config(database, plain_lake, ticks if request.param == "tick" else "")


def test_trap_030_a_value_too_large_for_its_text(config: Config) -> None:
    sql(
        config,
        "create table public.t (id int primary key, b bytea)",
        "create table public.other (id int primary key)",
        "insert into public.t values (1, 'small')",
    )
    commands.init(config)
    sql(config, "insert into public.other values (1)", _POISON, "insert into public.other values (2)")
    if config.source.capture == Capture.SLOT:
        last = ledger_of(config).last()
        with pytest.raises(
            UnreadableChange, match=r"invalid memory alloc request size \d+ at [0-9A-F]+/[0-9A-F]+: .*too large"
        ) as refused:
            commands.drain(config)
        assert ledger_of(config).last() == last, "nothing is skipped unasked"
        assert refused.value.lsn is not None and f"`cdc drain --skip {refused.value.lsn}`" in str(refused.value)
        commands.skip(config, Lsn(refused.value.lsn))
    commands.drain(config)
    assert of(config, "t").state == "stale"
    left = commands.repair(config, ["public.t"]).left_out
    assert "invalid memory alloc request size" in left["public.t"]
    sql(config, "delete from public.t where id = 2")
    assert commands.repair(config, ["public.t"]).rows == {"public.t": 1}
    assert of(config, "other").state == "ok"
    commands.drain(config)
    for name in ("t", "other"):
        assert set(current(config, name)) == set(on_source(config, name))


def _drain(config: Config) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.postgres.drain_process", str(config.root / "cdc.toml")]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_trap_031_a_huge_transaction_in_bounded_memory(config: Config) -> None:
    """One transaction of rows that are a few hundred MB together; peaks are those of the process, without a JVM."""
    sql(config, "create table public.t (id int primary key, a text, n int)")
    commands.init(config)
    sql(config, "insert into public.t values (0, 'x', 0)")
    small = _drain(config)
    with psycopg.connect(config.source.conninfo) as conn:
        conn.execute("set local synchronous_commit = off")
        conn.execute("insert into public.t select i, repeat('x', 150), i from generate_series(1, %s) as i", [_ROWS])
    large = _drain(config)
    print(small, large)
    assert (small["changes"], large["changes"]) == (1, _ROWS)
    assert large["peak_mb"] < 600


def test_a_server_without_room_is_read_in_smaller_steps(config: Config) -> None:
    """Below temp_file_limit of the runner's role a drain goes on by itself, by streaming one transaction above it."""
    if config.source.capture != Capture.SLOT:
        pytest.skip("ticks are not decoded")
    sql(config, "create table public.t (id int primary key, a text)")
    commands.init(config)
    fill = "insert into public.t select %s00 + i, repeat('x', 20000) from generate_series(1, 20) as i"
    limit = f"alter database {conninfo_to_dict(config.source.conninfo)['dbname']} set temp_file_limit = "
    sql(config, *(fill % number for number in range(30)), limit + "'2MB'")
    done = commands.drain(config)
    assert (done.changes, done.batches > 2) == (600, True)
    sql(config, "insert into public.t select -i, repeat('x', 20000) from generate_series(1, 600) as i")
    assert commands.drain(config).changes == 600
    assert set(current(config, "t")) == set(on_source(config, "t"))


def test_messages_of_any_role_cost_a_count_and_a_hash(config: Config) -> None:
    """Of 200 MB, 2,000 of 60 kB, with our prefix too, and a prefix of 50 MB: none of it gets to the lake."""
    if config.source.capture != Capture.SLOT:
        pytest.skip("ticks read no logical messages")
    sql(config, "create table public.t (id int primary key)")
    commands.init(config)
    sql(config, "insert into public.t values (0)")
    small = _drain(config)
    sql(
        config,
        "insert into public.t values (1)",
        "select pg_logical_emit_message(true, 'app', repeat('x', 200000000))",
        "select pg_logical_emit_message(true, 'cdc.ddl', repeat('x', 200000000))",
        "select pg_logical_emit_message(true, repeat('p', 50000000), 'x')",
        "select pg_logical_emit_message(true, p, repeat('x', 60000))"
        " from generate_series(1, 1000), unnest(array['cdc.beacon', 'app']) as p",
    )
    before = sum(file.stat().st_size for file in config.root.rglob("*") if file.is_file())
    large = _drain(config)
    print(small, large)
    assert (small["changes"], large["changes"]) == (1, 1)
    assert large["peak_mb"] < small["peak_mb"] + 50
    assert sum(file.stat().st_size for file in config.root.rglob("*") if file.is_file()) < before + 200_000
    reading = ledger_of(config)
    assert {s.state for s in states.table_states(reading)} == {"ok"}
    assert reading._events.keys() == {"batch", "schema", "baseline"}, "what anybody can write many of is not read"
    found = [m.payload for m in reading.messages() if isinstance(m.payload, StreamMessage)][-6:]
    assert sorted((m.prefix, m.refused, m.count) for m in found if m.prefix != "cdc.beacon" or m.refused) == [
        ("...", None, 1),
        ("app", None, 1),
        ("app", None, 1000),
        ("cdc.beacon", "signature does not verify", 1000),
        ("cdc.ddl", "signature does not verify", 1),
    ]

"""Trap 16: commits whose times are equal or run backwards, on the whole path; the order is that of LSNs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests import commands
from tests.support_postgres import run_sql
from toolkit.lake import session
from toolkit.source import peek
from toolkit.values.config import Config
from toolkit.values.spool import ROW_HEADER, Spool

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.parametrize("pg", ["pg18"], indirect=True)]
_TABLES = """
create table public.t (id int primary key, v int);
create table public.bag (v int);
alter table public.bag replica identity full;
insert into public.t select i, 0 from generate_series(1, 5) as i;
"""
_CHANGES = (
    *(f"update public.t set v = {n} where id = 1" for n in range(1, 4)),
    "delete from public.t where id = 2",
    "insert into public.t values (2, 100)",
    "update public.t set id = 30 where id = 3",
    "update public.t set id = 31 where id = 30",
    "insert into public.bag values (1), (1)",
    "delete from public.bag where ctid = (select max(ctid) from public.bag where v = 1)",
)


def _timed(spool: Spool, time: Callable[[int], int]) -> Spool:
    """The same stream from a server whose clock said something else: microseconds since 2000 of the n-th commit."""
    data, n = bytearray(spool.path.read_bytes()), 0
    for at in spool.offsets[:-1].tolist():
        kind = data[at + ROW_HEADER : at + ROW_HEADER + 1]
        place = at + ROW_HEADER + {b"B": 9, b"C": 18}.get(bytes(kind), 0)
        if bytes(kind) in (b"B", b"C"):
            struct.pack_into(">q", data, place, time(n))
        n += bytes(kind) == b"C"
    spool.path.write_bytes(data)
    return spool


def test_trap_016_equal_and_reversed_times(database: str, lake: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    config = lake.model_copy(update={"source": lake.source.model_copy(update={"conninfo": database})})
    run_sql(config, _TABLES)
    commands.init(config)
    commands.build(config)
    whole, start = peek.peek, 800_000_000_000_000
    clocks: tuple[Callable[[int], int], ...] = (lambda n: start - n * 1_000_000, lambda n: start - 10**12)
    for clock in clocks:  # backwards within one drain; then all equal, and before everything that was there
        run_sql(config, *_CHANGES)

        def timed(*arguments: Any, clock: Callable[[int], int] = clock, **named: Any) -> Spool:
            return _timed(whole(*arguments, **named), clock)

        monkeypatch.setattr(peek, "peek", timed)
        commands.drain(config)
        monkeypatch.setattr(peek, "peek", whole)
        commands.build(config)
        report = commands.check(config, ())
        assert {t.table: t.status for t in report.tables} == dict.fromkeys(("public.t", "public.bag"), "identical")
        run_sql(config, "delete from public.t where id > 5; insert into public.t values (3, 0)")
        commands.drain(config)
    spark = session.own_session(config.lake_access)
    times = "select count(distinct commit_lsn), count(distinct committed_at) from raw.events where origin = 'slot'"
    commits, distinct = spark.sql(times + " and kind = 'row'").collect()[0]
    assert commits - distinct >= len(_CHANGES) - 1, "the times of the second drain are equal"
    # The planted fault: rows by time end elsewhere than rows by position.
    last = "select max_by(new[1], {}) from raw.events where kind = 'row' and new[0] = '1' and op = 'U'"
    first, by_time = (spark.sql(last.format(o)).collect()[0][0] for o in ("commit_lsn", "committed_at"))
    assert first == "3" and by_time != first

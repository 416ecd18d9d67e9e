"""The whole path on real servers: init, drain, build, check, as people run it and as it may go wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import commands
from tests.support_ledger import ledger_of
from tests.support_postgres import mostly_one_server, run_sql
from toolkit.lake import reads, session
from toolkit.quality.report import CheckReport
from toolkit.rawlog import states
from toolkit.source import connection, slot
from toolkit.values.config import Config
from toolkit.values.errors import CdcError, HistoryDiverged
from toolkit.values.lsn import Lsn

pytestmark = pytest.mark.e2e


@pytest.fixture
def source(database: str, lake: Config) -> Config:
    """A configuration with a small table, captured."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table public.item (id bigint primary key, name text, big text, price numeric(10,2))")
        conn.execute("alter table public.item alter big set storage external")
        conn.execute("insert into public.item select i, 'n' || i, repeat('x', 3000), i from generate_series(1, 50) i")
    config = lake.model_copy(
        update={"source": lake.source.model_copy(update={"conninfo": database, "new_tables": "publish"})}
    )
    commands.init(config)
    return config


def _events(config: Config, where: str = "true") -> list[tuple[Any, ...]]:
    spark = session.own_session(config.lake_access)
    return [
        tuple(r)
        for r in spark.sql(
            f"select generation, commit_lsn, ordinal, kind, relid from raw.events where {where}"
        ).collect()
    ]


def complete_to(config: Config) -> Lsn:
    last = ledger_of(config).last()
    assert last is not None
    return last.complete_to


def _check(config: Config, *tables: str) -> CheckReport:
    return commands.check(config, tables)


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_init_is_idempotent_and_copies_every_row_once(source: Config) -> None:
    assert len(_events(source, "op = 'R'")) == 50
    assert commands.init(source).rows == {}
    assert len(_events(source, "op = 'R'")) == 50


def test_every_change_arrives_once_and_the_slot_follows(source: Config) -> None:
    run_sql(
        source,
        "insert into item values (100, 'a', null, 1)",
        "update item set name = 'b' where id = 1",
        "delete from item where id = 2",
    )
    first = commands.drain(source)
    assert first.changes == 3
    again = commands.drain(source)
    assert again.changes == 0
    keys = _events(source, "kind = 'row' and op <> 'R'")
    assert len(keys) == len(set(keys)) == 3
    with connection.connect(source.source) as conn:
        state = slot.require_slot(conn, source.source)
        assert state.confirmed_flush_lsn == complete_to(source)


def test_killed_between_commit_and_advance_the_next_drain_reads_nothing_twice(
    source: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sql(source, "insert into item values (100, 'a', null, 1)")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(slot, "advance", killed)
        with pytest.raises(KeyboardInterrupt):
            commands.drain(source)
    assert len(_events(source, "op = 'I'")) == 1
    run_sql(source, "insert into item values (101, 'a', null, 1)")
    commands.drain(source)
    assert len(_events(source, "op = 'I'")) == 2


def test_killed_before_commit_nothing_is_lost(source: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolkit.lake import staging

    run_sql(source, "insert into item values (100, 'a', null, 1)")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(staging, "commit_batch", killed)
        with pytest.raises(KeyboardInterrupt):
            commands.drain(source)
    assert commands.drain(source).changes == 1


def test_many_small_batches_hold_what_one_large_batch_holds(source: Config) -> None:
    for i in range(200, 210):
        run_sql(source, f"insert into item values ({i}, 'a', null, 1)")
    small = source.model_copy(update={"drain": source.drain.model_copy(update={"batch_changes": 6})})
    result = commands.drain(small)
    assert result.changes == 10
    assert result.batches > 2
    keys = _events(source, "op = 'I'")
    assert len(set(keys)) == 10


def test_a_bounded_drain_stops_early_and_says_where(source: Config) -> None:
    run_sql(source, *(f"insert into item values ({i}, 'a', null, 1)" for i in range(300, 305)))
    part = commands.drain(source, max_changes=6)  # the beacon of the drain before is three
    assert 0 < part.changes < 5
    rest = commands.drain(source)
    assert part.changes + rest.changes == 5
    assert rest.from_lsn == part.committed_lsn


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_trap_009_a_slot_recreated_behind_the_ledger_is_refused(source: Config) -> None:
    with psycopg.connect(source.source.conninfo, autocommit=True) as conn:
        conn.execute("select pg_drop_replication_slot('cdc')")
        conn.execute("insert into item values (900, 'lost', null, 1)")
        conn.execute("select pg_create_logical_replication_slot('cdc', 'pgoutput')")
    with pytest.raises(HistoryDiverged, match="ahead of the ledger"):
        commands.drain(source)


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_trap_014_an_idle_table_lets_the_slot_pass_foreign_wal(source: Config) -> None:
    commands.drain(source)
    before = complete_to(source)
    with psycopg.connect(source.source.conninfo, autocommit=True) as conn:
        conn.execute("create schema elsewhere")
        conn.execute("create table elsewhere.noise as select generate_series(1, 20000) i")
    commands.drain(source)
    after = complete_to(source)
    assert after - before > 500_000
    with connection.connect(source.source) as conn:
        assert slot.require_slot(conn, source.source).confirmed_flush_lsn == after


@mostly_one_server
def test_parity_is_green_through_changes_and_ddl_and_finds_a_planted_fault(source: Config) -> None:
    run_sql(
        source,
        "update item set name = name || '!' where id % 3 = 0",  # big stays an unchanged TOAST value
        "update item set id = id + 1000 where id % 7 = 0",
        "alter table item rename column name to title",
        "alter table item add column stock int default 42",
        "insert into item values (5000, 'new', null, 1.10, 7)",
        "delete from item where id = 1",
        "create table public.late (k text primary key, v int)",
        "insert into late values ('a', 1), ('', 2)",
    )
    green = _check(source)
    assert {t.table: t.status for t in green.tables} == {"public.item": "identical", "public.late": "identical"}
    assert green.green
    session.own_session(source.lake_access).sql("update current.public__item set title = 'tampered' where id = 3")
    red = _check(source, "public.item")
    assert not red.green
    found = next(t for t in red.tables if t.table == "public.item")
    assert (found.status, found.modified, found.added, found.removed) == ("different", 1, 0, 0)
    assert "title" in json.dumps(found.to_dict())


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_a_silent_rewrite_turns_the_table_red_until_repaired(source: Config) -> None:

    run_sql(source, "alter table item alter price type text using price || '!'")
    commands.drain(source)
    state = {s.table: s for s in states.table_states(ledger_of(source))}["public.item"]
    assert state.state == "stale"
    assert state.remedy == "cdc repair public.item"
    report = _check(source)
    assert [t.status for t in report.tables] == ["stale"]
    assert not report.green
    commands.repair(source, ["public.item"])
    assert _check(source).green


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_ddl_past_the_event_triggers_is_found_by_the_catalog_comparison(source: Config) -> None:
    with psycopg.connect(source.source.conninfo, autocommit=True) as conn:
        found = conn.execute("select evtname from pg_event_trigger where evtevent = 'ddl_command_end'").fetchone()
        assert found is not None
        conn.execute(f'alter event trigger "{found[0]}" disable')
        conn.execute("alter table item add column sneaked int")
        conn.execute(f'alter event trigger "{found[0]}" enable always')
    commands.drain(source)
    state = {s.table: s for s in states.table_states(ledger_of(source))}["public.item"]
    assert state.state == "stale"
    assert state.reason is not None and "without a captured event" in state.reason


def test_an_error_names_the_thing_and_leaves_the_lake_alone(tmp_path: Path, lake: Config) -> None:
    config = lake.model_copy(
        update={"source": lake.source.model_copy(update={"conninfo": "host=127.0.0.1 port=1 dbname=x"})}
    )
    with pytest.raises(CdcError, match=r"127\.0\.0\.1"):
        commands.init(config)
    assert ledger_of(config).last() is None


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_as_of_an_earlier_lsn_equals_what_select_showed_at_it(source: Config) -> None:
    with (
        slot.create_slot(source.source, cut_seconds=source.check.cut_seconds) as cut,
        psycopg.connect(source.source.conninfo) as conn,
    ):
        conn.execute("set transaction isolation level repeatable read")
        conn.execute(f"set transaction snapshot '{cut.snapshot_name}'")
        then = sorted(conn.execute("select id, name, price::text from item").fetchall())
        at = Lsn(cut.lsn)
    run_sql(source, "update item set name = 'changed'", "delete from item where id > 10")
    commands.drain(source)
    commands.build(source)
    commands.build(source, as_of=at)
    spark = session.own_session(source.lake_access)
    shown = spark.sql(f"select id, name, cast(price as string) from asof_{at.tag}.public__item").collect()
    assert sorted(tuple(r) for r in shown) == then
    summary = reads.snapshot_summary(source.lake_access, "current.public__item")
    assert summary is not None and summary["cdc.applied-lsn"] > str(0)

"""The change log on real servers, end to end: init, tick drain, build, check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager

import psycopg
import pytest

from tests import commands
from tests.support_change_log import PARTITIONED
from tests.support_ledger import ledger_of
from tests.support_postgres import run_sql
from tests.support_writers import TABLES, Writers, folded_rows, journal_inserts, source_rows, writing
from toolkit.cli.output import plain
from toolkit.demo.server import EmbeddedServer
from toolkit.ops import diagnosis, status_report
from toolkit.quality.report import CheckReport
from toolkit.rawlog import states
from toolkit.source import ticks as tick
from toolkit.source.slot import Cut
from toolkit.values.config import Config, SourceConfig, TableConfig
from toolkit.values.errors import HistoryDiverged, UnknownTable
from toolkit.values.lsn import Lsn
from toolkit.values.modes import Capture, Triggers

pytestmark = [pytest.mark.e2e, pytest.mark.wide]

_TABLES = """
create table public.item (
  id bigint primary key, name text, price numeric(10, 2), tags text[], raw json,
  twice numeric generated always as (price * 2) stored
);
create table public.bag (a int, b text);
create table public.bulk (id int primary key, v text);
create table public.m (id int, d int, v text, primary key (id, d)) partition by range (d);
create table public.m1 partition of public.m for values from (0) to (10);
create table public.m2 partition of public.m for values from (10) to (20);
insert into public.item
select i, 'n' || i, i, array['x', 'y "z"'], '{"a": 1, "a": 2}' from generate_series(1, 50) as i;
insert into public.bag values (1, 'x'), (1, 'x'), (2, null);
insert into public.m values (1, 1, 'a'), (2, 11, 'b');
"""
_ROWS = {"public.item": 50, "public.bag": 3, "public.bulk": 0, "public.m1": 1, "public.m2": 1}


def _config(lake: Config, conninfo: str, drain: str, **more: object) -> Config:
    source: dict[str, object] = {"conninfo": conninfo, "capture": "change_log", "change_log_drain": drain}
    source |= more
    return lake.model_copy(update={"source": lake.source.model_copy(update=source)})


def _check(config: Config, *tables: str) -> CheckReport:
    return commands.check(config, tables)


@pytest.fixture(params=["tick", "slot"])
def by(request: pytest.FixtureRequest) -> str:
    """Each way to drain the change log in turn."""
    return str(request.param)


def _prove(config: Config, seconds: float, seed: int) -> dict[str, int]:
    """Drain again and again under eight writers; then everything must be there once. Gives counts for the report."""
    conninfo = config.source.conninfo
    run_sql(config, TABLES)
    commands.init(config)
    drains, until = 0, time.monotonic() + seconds
    with writing(conninfo, seed=seed) as writers:
        while drains < 2 or time.monotonic() < until:
            commands.drain(config)
            drains += 1
    commands.drain(config)
    return _everything_once(config, writers) | {"drains": drains}


def _everything_once(config: Config, writers: Writers) -> dict[str, int]:
    conninfo = config.source.conninfo
    with psycopg.connect(conninfo, autocommit=True) as conn:
        writers.poll_watermark(conn)
        written = {row[0] for row in conn.execute("select seq from journal").fetchall()}
    inserts = journal_inserts(config)
    assert written - inserts.keys() == set(), "missed"
    assert [seq for seq, n in inserts.items() if n > 1 or seq not in written] == [], "doubled or never committed"
    folded = folded_rows(config)
    for table in ("public.item", "public.bag", "public.journal"):
        assert folded[table] == source_rows(conninfo, table), table
    missed = len(written - writers.seen_by_watermark)
    return {"transactions": len(written), "missed by a sequence watermark": missed}


def test_trap_121_eight_writers_nothing_is_missed_or_doubled(database: str, lake: Config, by: str, seed: int) -> None:
    report = _prove(_config(lake, database, by), 3, seed)
    print(report)
    assert report["missed by a sequence watermark"] > 0, "this run could not have caught a drain by sequence"


@pytest.mark.long
def test_trap_121_eight_writers_for_a_minute(database: str, lake: Config, by: str, seed: int) -> None:
    report = _prove(_config(lake, database, by), 60, seed)
    print(report)
    assert report["missed by a sequence watermark"] > 0


@pytest.mark.parametrize(("pg", "by"), [("pg16", "tick"), ("pg18", "slot")], indirect=True)
def test_the_whole_path(database: str, lake: Config, by: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(_TABLES)
    config = _config(lake, database, by)
    config = config.model_copy(update={"table": {"public.bulk": TableConfig(triggers=Triggers.STATEMENT)}})
    assert commands.init(config).rows == _ROWS
    start = ledger_of(config).last()
    assert start is not None and (start.tick is not None) == (by == "tick")
    run_sql(
        config,
        """insert into item values (100, E'a\\\\b "c", (d)', 1.5, null, '"\\u0000"')""",
        "update item set name = '' where id = 1",
        "begin; update item set id = 200 where id = 2; savepoint s; delete from item; rollback to s; commit",
        "delete from item where id = 3",
        "insert into bag values (1, 'x'), (3, '')",
        "delete from bag where a = 2",
        "update bag set b = 'y' where a = 3",
        "update m set d = 12 where id = 1",
        "insert into bulk select i, 'x' from generate_series(1, 100) as i",
        "update bulk set id = id + 1000",
        "truncate m2",
        "insert into m values (7, 17, 'after')",
    )
    assert commands.drain(config).changes == 8 + 2 + 100 + 200 + 1 + 1
    middle = ledger_of(config).last()
    assert middle is not None
    run_sql(
        config,
        "alter table item add column more int default 7",
        "alter table item rename column name to title",
        "insert into item (id, title, more) values (300, 'new', 8)",
        "alter table item drop column tags",
        "update item set more = 9 where id = 5",
    )
    report = _check(config)
    assert [(t.table, t.status, t.reason) for t in report.tables if t.status != "identical"] == []
    assert {t.table for t in report.tables} == _ROWS.keys()
    assert {s.state for s in states.table_states(ledger_of(config))} == {"ok"}
    # What is in the lake is purged on the source, and nothing was counted twice on the way.
    for _ in range(2):
        assert commands.drain(config).changes == 0
    with psycopg.connect(database) as conn:
        assert conn.execute("select count(*) from cdc.change_log").fetchone() == (0,)
    # As of a position between two ticks is as of the tick below it, and says so.
    between = Lsn(int(middle.complete_to) - 8)
    assert ledger_of(config).exact_at(between) == (start.complete_to if by == "tick" else between)
    assert ledger_of(config).exact_at(middle.complete_to) == middle.complete_to


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_trap_036_copies_and_ticks_meet_without_a_seam_under_writers(
    database: str, lake: Config, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First copies and a repair: changes between the last tick and that of the copy were there twice, or came back."""
    config = _config(lake, database, "tick")
    run_sql(config, TABLES, "create table public.emptied (id int primary key)")
    cut_of = tick.tick_cut

    def late(source: SourceConfig) -> AbstractContextManager[Cut]:
        run_sql(
            config,
            "insert into bag values (7, 'late'), (7, 'late'); delete from bag where a = 6",
            "insert into emptied values (1); truncate emptied; insert into emptied values (2)",
        )
        return cut_of(source)

    with writing(database, seed=seed) as writers:
        commands.init(config)
        commands.drain(config)
        monkeypatch.setattr(tick, "tick_cut", late)
        commands.repair(config, ["public.item", "public.bag", "public.emptied"])
        monkeypatch.undo()
        commands.drain(config)
    report = _check(config)
    assert {t.table: t.status for t in report.tables} == dict.fromkeys(
        ("public.bag", "public.emptied", "public.item", "public.journal"), "identical"
    )
    folded = folded_rows(config)
    for table in folded:
        assert folded[table] == source_rows(database, table), table
    assert not writers.errors


@pytest.mark.parametrize("pg", ["pg15"], indirect=True)
def test_trap_036_handover_to_the_slot_and_back_under_writers(database: str, lake: Config, seed: int) -> None:
    ticks, by_slot = _config(lake, database, "tick"), _config(lake, database, "slot")
    run_sql(ticks, TABLES)
    commands.init(ticks)
    with writing(database, seed=seed) as writers:
        commands.drain(ticks)
        commands.init(by_slot)
        commands.drain(by_slot)
        with pytest.raises(HistoryDiverged, match="run `cdc init` to hand over"):
            commands.drain(ticks)
        commands.init(ticks)
        commands.drain(ticks)
    commands.drain(ticks)
    _everything_once(ticks, writers)
    origins = [record.slot for record in ledger_of(ticks).batches() if record.changes]
    assert set(origins) == {"", by_slot.source.slot}, "both brought changes"


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_trap_036_a_table_moves_to_the_change_log_and_back_under_writers(
    database: str, lake: Config, seed: int
) -> None:
    plain = _config(lake, database, "auto", capture="slot")
    run_sql(plain, TABLES, "alter table bag replica identity full")
    commands.init(plain)
    logged = plain.model_copy(
        update={"table": {t: TableConfig(capture=Capture.CHANGE_LOG) for t in ("public.item", "public.bag")}}
    )
    with writing(database, count=4, seed=seed):
        for config in (logged, plain):
            assert set(commands.init(config).rows) == {"public.item", "public.bag"}, "a handover is a baseline"
            commands.drain(config)
            captures = {v.table.name: v.table.capture for v in ledger_of(config).latest_versions().values()}
            wanted = "change_log" if config is logged else "slot"
            assert (captures["item"], captures["bag"], captures["journal"]) == (wanted, wanted, "slot")
    commands.drain(plain)
    folded = folded_rows(plain)
    for table in ("public.item", "public.bag", "public.journal"):
        assert folded[table] == source_rows(database, table), table
    gaps = {gap.payload.reason for gap in ledger_of(plain).gaps()}
    assert any("capture moved from both to change_log" in reason for reason in gaps)
    assert any("capture moved from change_log to both" in reason for reason in gaps)
    assert [s.table for s in states.table_states(ledger_of(plain)) if s.state != "ok" and not s.repaired_lsn] == []


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_two_captures_of_one_table_prove_each_other(database: str, lake: Config, seed: int) -> None:
    config = _config(lake, database, "auto", capture="slot")
    config = config.model_copy(update={"table": {"public.item": TableConfig(capture=Capture.BOTH)}})
    run_sql(config, TABLES, "alter table bag replica identity full", "alter table item add big text")
    run_sql(config, "alter table item alter big set storage external")
    commands.init(config)
    with writing(database, count=4, seed=seed) as writers:
        run_sql(
            config, "insert into item values (1000, 0, '', repeat('x', 5000))", "update item set v = 1 where id = 1000"
        )
        commands.drain(config)
        while writers.last < 100 and not writers.errors:  # transactions; a drain alone may be over sooner
            time.sleep(0.02)
    run_sql(config, "truncate item", "insert into item values (1, 1, 'one')", "alter table item add more int default 3")
    commands.drain(config)
    assert folded_rows(config)["public.item"] == source_rows(database, "public.item", "id, v, note, big")
    (table,) = commands.audit(config).tables
    assert (table.table, table.status) == ("public.item", "identical") and table.changes > 50
    with pytest.raises(UnknownTable, match="never captured twice"):
        commands.audit(config, ["public.bag"])
    # The planted fault: a change that only one side has.
    with psycopg.connect(database) as conn:
        fake = (
            "insert into cdc.change_log (part, lsn, relid, op, new) values (0, '0/0', 'public.item'::regclass, 'I', %s)"
        )
        conn.execute(fake, ["(9,9,x,,3)"])
        xid = conn.execute("select pg_current_xact_id()::text::bigint").fetchone()
    commands.drain(config)
    report = commands.audit(config, ["public.item"])
    assert report.differs and [(d.xid, d.slot_op, d.logged_op) for d in report.differences] == [
        (*(xid or ()), None, "I")
    ]
    assert writers.last
    command = [sys.executable, "-m", "toolkit.cli", "audit", "--output", "json"]
    environment = os.environ | {"CDC_SOURCE__CONNINFO": database}
    done = subprocess.run(command, cwd=config.root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["differences"] == [plain(difference) for difference in report.differences]


@pytest.mark.parametrize("pg", ["pg15"], indirect=True)
def test_trap_129_a_partition_that_comes_or_goes_is_logged_or_stale_until_it_is_copied(
    database: str, lake: Config, by: str
) -> None:
    config = _config(lake, database, by)
    run_sql(config, PARTITIONED)
    commands.init(config)
    run_sql(
        config,
        "create table public.m3 partition of public.m for values from (20) to (30)",
        "insert into m values (3, 21, 'gone')",
        "truncate m3",
        "insert into m values (4, 22, 'kept')",
        "alter table public.m detach partition public.m1",
        "insert into m1 values (5, 5, 'captured')",
        "create table m4 (like m including all)",
        "insert into m4 values (8, 31, 'unexplained')",
        "alter table public.m attach partition m4 for values from (30) to (40)",
    )
    commands.drain(config)
    whole = dict.fromkeys(("public.m1", "public.m2", "public.m3"), "ok")
    assert _states(config) == whole | {"public.m4": "stale", "public.m": "stale"}  # the root is a view over them
    commands.repair(config, ["public.m4"])
    run_sql(
        config, "insert into m values (6, 23, 'captured')", "insert into m1 values (7, 7, 'captured')", "truncate m2"
    )
    commands.drain(config)
    folded = folded_rows(config)
    for table in (*whole, "public.m4"):
        assert folded[table] == source_rows(database, table), table
    tables = dict.fromkeys((*whole, "public.m4"), "identical")
    assert {t.table: t.status for t in _check(config).tables} == tables


def _states(config: Config) -> dict[str, str]:
    return {s.table: s.state for s in states.table_states(ledger_of(config))}


def test_a_server_without_logical_decoding(lake: Config) -> None:
    """What the log survives there: prepared transactions, a restart, and 32 bits of xid running over."""
    settings = {"wal_level": "replica", "max_prepared_transactions": "5"}
    with EmbeddedServer(None, 18, settings=settings) as server:
        config = lake.model_copy(
            update={"source": lake.source.model_copy(update={"conninfo": server.conninfo(), "capture": "change_log"})}
        )
        run_sql(config, "create table public.t (id int primary key, v text)", "insert into t values (0, 'copied')")
        assert commands.init(config).rows == {"public.t": 1}
        run_sql(
            config,
            "begin; insert into t values (1, 'prepared'); prepare transaction 'p'",
            "insert into t values (2, '')",
        )
        assert commands.drain(config).changes == 1
        server.restart()
        run_sql(config, "commit prepared 'p'")
        assert commands.drain(config).changes == 1
        server.stop()
        command = [server.program("pg_resetwal"), "--epoch=1", str(server.data)]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **server._identity())
        server.start()
        run_sql(config, "insert into t values (3, 'wrapped')")
        with psycopg.connect(server.conninfo()) as conn:
            assert conn.execute("select max(xid) > '4294967296'::xid8 from cdc.change_log").fetchone() == (True,)
        assert commands.drain(config).changes == 1
        shown = status_report.status(config)
        assert (shown.slot, shown.problem, shown.failing) == (None, None, False)
        assert [d for d in diagnosis.doctor(config) if d.level == "error"] == []
        assert folded_rows(config)["public.t"] == source_rows(server.conninfo(), "public.t")
        assert commands.drain(config).changes == 0
        # A restore to before the last tick is reported from the same history.
        run_sql(config, "delete from cdc.tick")
        with pytest.raises(HistoryDiverged, match="does not know the tick"):
            commands.drain(config)

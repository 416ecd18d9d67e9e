"""A real standby, made by pg_basebackup, that is promoted: another history, by whichever way the changes come."""

from __future__ import annotations

import itertools
import time

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests import commands
from tests.postgres.test_snapshot_log import current, on_source, sql
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import lake_of, ledger_of
from tests.support_moved import both_sources, captured, configured, on_server
from tests.support_postgres import copy_of, fresh_database, programs, replayed, standby_of
from toolkit.demo.server import EmbeddedServer
from toolkit.ops import diagnosis, status_report
from toolkit.source import connection, install, slot
from toolkit.source import ticks as tick
from toolkit.values.config import CheckConfig, Config, SourceConfig
from toolkit.values.errors import HistoryDiverged, SlotError, SourceUnavailable
from toolkit.values.lsn import Lsn
from toolkit.values.modes import Capture, LogDrain

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.wide]


@pytest.mark.parametrize("lag", [False, True], ids=["caught up", "behind the lake"])
@pytest.mark.parametrize("major", [15, 16, 18])
def test_trap_027_a_promoted_standby_is_another_history(plain_lake: Config, major: int, lag: bool) -> None:
    """Once with everything that the lake has, once without its last rows; both drains, and what init then does."""
    with (
        EmbeddedServer(None, major, bindir=programs(major)) as primary,
        fresh_database(primary) as one,
        fresh_database(primary) as other,
    ):
        by_slot, by_tick = map(captured, both_sources(plain_lake.root, one, other))
        with standby_of(primary) as standby:
            _drained(by_slot, by_tick, 2)
            replayed(standby, primary)
            if lag:
                standby.stop()
                _drained(by_slot, by_tick, 3)
                primary.stop()
                standby.start()
            else:
                primary.stop()
            configs = [on_server(config, standby) for config in (by_slot, by_tick)]
            before = [ledger_of(config).last() for config in configs]
            for config in configs:
                with pytest.raises(SlotError, match="the source is a standby; connect to the primary"):
                    commands.drain(config)
                assert any("is a standby" in str(found) for found in diagnosis._source(config, lake_of(config)))
            with psycopg.connect(standby.conninfo(), autocommit=True) as conn:
                assert conn.execute("select pg_promote()").fetchone() == (True,)
            for config in configs:
                sql(config, "insert into public.a values (4, 'new timeline')")
            moved, ticking = configs
            with pytest.raises(HistoryDiverged, match=r"timeline was 1 .* is 2 now"):
                commands.drain(ticking)
            with pytest.raises(SlotError, match=r"does not exist .*--new-generation"):
                commands.drain(moved)
            with slot.create_slot(moved.source, "cdc_s", cut_seconds=moved.check.cut_seconds):
                pass  # another person means well
            refused = r"timeline was 1 .* is 2 now, which left it at" if lag else "slot 'cdc_s' is at .*, ahead of the"
            with pytest.raises(HistoryDiverged, match=refused):
                commands.drain(moved)
            for config in configs:
                with pytest.raises(HistoryDiverged, match="--new-generation"):
                    commands.init(config)
            assert [ledger_of(config).last() for config in configs] == before, "nothing of the other history came in"
            for config in configs:
                assert commands.init(config, new_generation=True).generation == 2
                sql(config, "insert into public.a values (5, 'captured')", "delete from public.a where id = 1")
                commands.drain(config)
                assert current(config, "a") == on_source(config, "a")
                assert {e["op"] for e in rows_in_log(config, "kind = 'row' and generation = 2")} == {"R", "I", "D"}


@pytest.mark.parametrize("lag", [False, True], ids=["caught up", "behind the lake"])
def test_trap_027_a_synchronized_slot_goes_on_where_the_timeline_proves_it(plain_lake: Config, lag: bool) -> None:
    """PostgreSQL 17 and later keep a failover slot on the standby: with all that the lake has, nothing is lost."""
    with EmbeddedServer(None, 18) as primary, fresh_database(primary) as conninfo:
        with psycopg.connect(conninfo, autocommit=True) as conn:
            conn.execute("create role looker login")
        source = SourceConfig(conninfo=conninfo, slot="cdc_f", reader="looker")
        config = captured(configured(plain_lake.root / "slot", source))
        with connection.connect(config.source, replication=True) as session:
            session.execute("ALTER_REPLICATION_SLOT cdc_f (FAILOVER true)")
        with psycopg.connect(primary.conninfo(), autocommit=True) as conn:
            conn.execute("select pg_create_physical_replication_slot('standby', true)")
        with copy_of(primary, "-R", "-S", "standby", "-d", conninfo) as standby:
            with (standby.data / "postgresql.auto.conf").open("a", encoding="utf-8") as file:
                file.write("hot_standby_feedback = on\nsync_replication_slots = on\n")
            standby.start()
            _synchronized(config, primary, standby)
            sql(config, "alter table public.a add column y int", "insert into public.a values (4, 'before', 1)")
            replayed(standby, primary)
            if lag:  # the standby has what the ledger has, and not the beacon
                with psycopg.connect(standby.conninfo()) as conn:
                    (end,) = conn.execute("select pg_last_wal_replay_lsn()::text").fetchone() or ("",)
                standby.stop()
                commands.drain(config, upto=Lsn.parse(end))
            primary.stop()
            standby.start()
            with psycopg.connect(standby.conninfo(), autocommit=True) as conn:
                assert conn.execute("select pg_promote()").fetchone() == (True,)
            moved, before = on_server(config, standby), ledger_of(config).last()
            sql(moved, "update public.a set x = 'after' where id = 1", "delete from public.a where id = 102")
            if lag:
                refused = r"timeline was 1 .* is 2 now, which left it at \S+; .* need it to \S+: .*--new-generation"
                for command in (commands.drain, commands.init):
                    with pytest.raises(HistoryDiverged, match=refused):
                        command(moved)
                assert ledger_of(config).last() == before
                assert before is not None
                assert before.complete_to == Lsn.parse(end)
                return
            seen = moved.source.model_copy(update={"conninfo": make_conninfo(moved.source.conninfo, user="looker")})
            found = status_report.status(moved.model_copy(update={"source": seen}))
            assert found.problem is not None
            assert "role 'looker' has no REPLICATION right and cannot read where the one left" in found.problem
            assert {t.reason for t in found.tables} == {"it is not known whether a drain refuses the source"}
            assert status_report.status(moved).problem is None  # the role that drains sees it
            history = next(standby.data.glob("pg_wal/*.history"))
            history.rename(history.with_suffix(".away"))
            with pytest.raises(SourceUnavailable, match=r"does not have 00000002\.history"):
                commands.drain(moved)
            history.with_suffix(".away").rename(history)
            assert ledger_of(config).last() == before, "nothing moves before the history is proven"
            assert commands.init(moved).rows == {}
            assert commands.drain(moved).changes == 3
            last = ledger_of(moved).last()
            assert last is not None
            assert (last.identity.timeline, last.generation) == (2, 1)
            padded = {key: [*row, None][:3] for key, row in current(moved, "a").items()}  # rows from before the column
            assert padded == on_source(moved, "a")
            sql(moved, "insert into public.a values (6, 'later', 2)")
            assert commands.drain(moved).changes == 1
            assert commands.init(moved).rows == {}
            primary.start()
            sql(config, "insert into public.a values (7, 'on the old primary', 1)")
            with pytest.raises(HistoryDiverged, match=r"timeline was 2 .* is 1 now"):
                commands.drain(config)


def test_trap_027_a_handover_to_ticks_stays_on_the_new_timeline(plain_lake: Config) -> None:
    """The handover drains the slot on the timeline that it proves; the ledger row for the ticks must not go back."""
    with EmbeddedServer(None, 18) as server, fresh_database(server) as conninfo:
        source = SourceConfig(conninfo=conninfo, slot="cdc_h", capture=Capture.CHANGE_LOG)
        config = captured(configured(plain_lake.root / "handover", source))
        commands.drain(config)
        server.stop()
        (server.data / "standby.signal").touch()  # a standby at the end of its own WAL, with its slots
        server.start()
        with psycopg.connect(server.conninfo(), autocommit=True) as conn:
            assert conn.execute("select pg_promote()").fetchone() == (True,)
        sql(config, "insert into public.a values (2, 'new timeline')")
        by_ticks = config.source.model_copy(update={"change_log_drain": LogDrain.TICK})
        config = config.model_copy(update={"source": by_ticks})
        commands.init(config)
        sql(config, "insert into public.a values (3, 'in a tick')")
        assert commands.drain(config).changes == 1
        last = ledger_of(config).last()
        assert last is not None
        assert (last.identity.timeline, last.generation) == (2, 1)
        assert current(config, "a") == on_source(config, "a")


def _synchronized(config: Config, primary: EmbeddedServer, standby: EmbeddedServer) -> None:
    """Drain until the standby would keep the slot after a promotion.

    It does so once the slot's restart_lsn and catalog_xmin have passed what the standby reserved when it saw the slot.
    They move where a drain passes a record of the running transactions, which an idle server writes seldom.
    """
    deadline = time.monotonic() + 120
    for key in itertools.count(102):
        sql(config, f"insert into public.a values ({key}, 'drained')", "select pg_log_standby_snapshot()")
        commands.drain(config)
        replayed(standby, primary)
        with psycopg.connect(standby.conninfo(), autocommit=True) as conn:
            found = conn.execute("select synced and not temporary from pg_replication_slots").fetchone()
        if found == (True,):
            return
        assert time.monotonic() < deadline, f"the standby does not keep the slot: {standby.log.read_text()[-2000:]}"


def test_a_tick_is_of_one_server_and_that_is_the_primary() -> None:
    """The snapshot of a hot standby lists none of the transactions under way: a tick would count them as drained."""
    with (
        EmbeddedServer(None, 18) as primary,
        fresh_database(primary) as one,
        psycopg.connect(one) as writer,
        standby_of(primary) as standby,
    ):
        here, there = (conninfo_to_dict(conninfo) for conninfo in (one, standby.conninfo()))
        both = {key: f"{here[key]},{there[key]}" for key in ("host", "port")}
        balanced = make_conninfo(one, **both, load_balance_hosts="random")
        source = SourceConfig(conninfo=one, slot="cdc_t", capture=Capture.CHANGE_LOG, change_log_drain=LogDrain.TICK)
        config = Config(source=source, check=CheckConfig(cut_seconds=20.0))
        sql(config, "create table public.a (id int primary key, x text)")
        with connection.connect(config.source) as conn:
            install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
        replayed(standby, primary)
        writer.execute("insert into public.a values (1, 'open')")
        xid = writer.execute("select pg_current_xact_id()::text").fetchone()
        config = config.model_copy(update={"source": source.model_copy(update={"conninfo": balanced})})
        seen: set[str] = set()
        while len(seen) < 3:
            try:
                with tick.tick_cut(config.source) as cut:
                    assert "standby" not in cut.server
                    row = writer.execute("select pg_visible_in_snapshot(%s::xid8, %s)", [*(xid or ()), cut.tick])
                    assert row.fetchone() == (False,)
                    seen.add("taken")
            except (SlotError, SourceUnavailable) as refused:
                seen.add(str(refused))
        assert sum("is a standby" in text for text in seen) == sum("another server" in text for text in seen) == 1


def _drained(by_slot: Config, by_tick: Config, key: int) -> None:
    for config in (by_slot, by_tick):
        sql(config, f"insert into public.a values ({key}, 'drained')")
        assert commands.drain(config).changes == 1

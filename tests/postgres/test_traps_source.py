"""Traps 1 to 35 about positions, slots and the life of the source: crash, restore, promotion, other servers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import commands
from tests.postgres.test_snapshot_log import Killed, current, on_source, sql
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import lake_of, ledger_of
from tests.support_postgres import fresh_database, programs, waiting_for_a_standby
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import staging
from toolkit.ops import diagnosis, status_report
from toolkit.source import connection, install, peek, preflight, slot, ticks
from toolkit.source.spooling import spool_directory
from toolkit.values.config import CheckConfig, Config, SourceConfig
from toolkit.values.errors import CommitConflict, HistoryDiverged, SlotError
from toolkit.values.lake_access import LakeAccess
from toolkit.values.lsn import Lsn

__all__ = ["plain_lake"]
pytestmark = pytest.mark.postgres
commit_batch = staging.commit_batch


@pytest.fixture(scope="module", params=[15, 16, 18])
def own(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A server that may be stopped, restored and promoted."""
    major = request.param
    settings = {"min_wal_size": "32MB", "max_wal_size": "64MB"}
    with EmbeddedServer(None, major, settings, bindir=programs(major)) as server:
        yield server


def captured(conninfo: str, lake: Config) -> Config:
    """A small table, captured."""
    name = conninfo_to_dict(conninfo)["dbname"]
    config = Config(
        root=lake.root,
        source=SourceConfig(conninfo=conninfo, slot=f"cdc_{name}"),
        check=CheckConfig(cut_seconds=20.0),
    )
    sql(config, "create table public.a (id int primary key, x text)", "insert into public.a values (1, 'one')")
    commands.init(config)
    return config


@pytest.fixture
def config(database: str, plain_lake: Config) -> Config:
    """On the servers of the session."""
    return captured(database, plain_lake)


def changes(config: Config) -> list[tuple[Any, ...]]:
    """What the log holds of the stream, in the order of effects."""
    rows = rows_in_log(config, "kind = 'row' and op in ('I', 'U', 'D')")
    return [(e["op"], (e["new"] or e["old"])[0], e["commit_lsn"], e["ordinal"]) for e in rows]


def slot_at(config: Config) -> Lsn:
    with connection.connect(config.source) as conn:
        state = slot.read_slot(conn, config.source.slot)
    assert state is not None
    return state.confirmed_flush_lsn


def test_trap_012_killed_at_each_edge_every_change_is_there_once(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    wholes = {(peek, "peek"): 0, (staging, "commit_batch"): 0, (slot, "advance"): 0}
    number = 1
    for owner, name in wholes:
        for after in (False, True):
            number += 1
            sql(config, f"insert into public.a values ({number}, 'x')")
            whole = getattr(owner, name)

            def strike(*arguments: Any, _whole: Any = whole, _after: bool = after, **named: Any) -> Any:
                if _after:
                    _whole(*arguments, **named)
                raise Killed

            with monkeypatch.context() as patch:
                patch.setattr(owner, name, strike)
                with pytest.raises(Killed):
                    commands.drain(config)
            confirmed, last = slot_at(config), ledger_of(config).last()
            assert last is not None
            assert confirmed <= last.complete_to  # never beyond what is durable
    commands.drain(config)
    assert sorted(int(c[1]) for c in changes(config)) == list(range(2, number + 1))


def test_trap_013_every_empty_drain_moves_the_slot(config: Config) -> None:
    positions = []
    for n in range(3):
        sql(config, f"create table if not exists public.noise_{n} as select generate_series(1, 1000)")
        commands.drain(config)
        positions.append(slot_at(config))
    assert positions == sorted(set(positions))


def test_trap_019_a_second_drain_wins_or_loses_whole(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    sql(config, "insert into public.a values (2, 'x')")
    inside: list[int] = []

    def commit(access: LakeAccess, record: Any, **more: Any) -> int:
        if not inside:
            inside.append(1)
            assert commands.drain(config).changes == 1  # another runner overtakes
        return commit_batch(access, record, **more)

    monkeypatch.setattr(staging, "commit_batch", commit)
    with pytest.raises(CommitConflict):
        commands.drain(config)
    commands.drain(config)
    assert len(changes(config)) == 1
    assert current(config, "a") == on_source(config, "a")


def test_trap_020_a_client_that_stopped_reading_does_not_hold_the_slot(config: Config) -> None:
    sql(config, "insert into public.a select i, repeat('x', 3000) from generate_series(2, 6000) i")
    with connection.connect(config.source) as stopped, stopped.cursor() as cursor:
        query = peek._query(stopped, config.source, slot.flush_lsn(stopped))
        with cursor.copy(f"copy ({query}) to stdout (format binary)".encode()) as copy:
            copy.read()  # and then nothing more: the server waits with 18 MB to send
            assert commands.drain(config).changes == 5999
            stopped.cancel()
            with pytest.raises(psycopg.errors.QueryCanceled):
                for _ in copy:
                    pass


def test_trap_024_a_dropped_database_takes_its_slot_along(pg: EmbeddedServer, plain_lake: Config) -> None:
    with fresh_database(pg) as conninfo:
        config = captured(conninfo, plain_lake)
        name = conninfo_to_dict(conninfo)["dbname"]
        with psycopg.connect(pg.conninfo(), autocommit=True) as admin:
            admin.execute(f"drop database {name} with (force)")
            admin.execute(f"create database {name}")
        sql(config, "create table public.a (id int primary key, x text)")
        with pytest.raises(SlotError, match=r"does not exist.*--new-generation"):
            commands.drain(config)
        with pytest.raises(HistoryDiverged, match="--new-generation"):  # never made again by itself
            commands.init(config)
        with connection.connect(config.source) as conn:
            assert slot.read_slot(conn, config.source.slot) is None


def test_trap_028_another_cluster_is_another_history(
    pg16: EmbeddedServer, pg18: EmbeddedServer, plain_lake: Config
) -> None:
    """After pg_upgrade, or a dump restored elsewhere: everything is alike but the system identifier."""
    with fresh_database(pg16) as old, fresh_database(pg18) as new:
        config = captured(old, plain_lake)
        upgraded = config.model_copy(update={"source": config.source.model_copy(update={"conninfo": new})})
        sql(upgraded, "create table public.a (id int primary key, x text)", "insert into public.a values (1, 'one')")
        with connection.connect(upgraded.source) as conn:
            install.install(conn, upgraded.capture_rules, ddl=upgraded.ddl, lock_seconds=upgraded.snapshot.lock_seconds)
        with slot.create_slot(upgraded.source, config.source.slot, cut_seconds=upgraded.check.cut_seconds):
            pass
        before = ledger_of(config).last()
        for command, refused in (
            (commands.drain, "system_id was .*--new-generation"),
            (commands.init, "is the log of another database .*--new-generation"),
        ):
            with pytest.raises(HistoryDiverged, match=refused):
                command(upgraded)
        assert ledger_of(config).last() == before
        assert commands.init(upgraded, new_generation=True).generation == 2
        commands.drain(upgraded)
        assert current(upgraded, "a") == on_source(upgraded, "a")


def test_trap_032_spilling_on_the_source_is_reported(config: Config) -> None:
    sql(config, "insert into public.a select i, repeat('x', 100) from generate_series(2, 2000) i")
    with connection.connect(config.source) as conn:
        conn.execute("set logical_decoding_work_mem = '64kB'")
        with spool_directory(config.source_access.spool_dir) as folder:
            peek.peek(conn, config.source, upto=slot.flush_lsn(conn), max_changes=None, directory=folder)
    with connection.connect(config.source) as conn:
        assert slot.spilled(conn, config.source.slot) > 0
    assert any("has spilled" in d.found for d in diagnosis._source(config, lake_of(config)))


# -- servers of their own: each test leaves the server running; the promotion comes last


def test_trap_008_after_a_crash_the_slot_may_be_behind_the_ledger(own: EmbeddedServer, plain_lake: Config) -> None:
    with fresh_database(own) as conninfo:
        config = captured(conninfo, plain_lake)
        for n in range(2, 5):
            sql(config, f"insert into public.a values ({n}, 'x')")
            commands.drain(config)
            own.restart(immediate=True)
            assert slot_at(config) <= ledger_of(config).last().complete_to  # type: ignore[union-attr]
        sql(config, "insert into public.a values (9, 'after')")
        commands.drain(config)
        assert [c[1] for c in changes(config)] == ["2", "3", "4", "9"]
        assert current(config, "a") == on_source(config, "a")


def test_trap_018_a_slow_reader_outlives_the_servers_timeouts(own: EmbeddedServer, plain_lake: Config) -> None:
    """What is read is spooled first; the session that holds a cut open is not streaming."""
    with fresh_database(own) as conninfo:
        config = captured(conninfo, plain_lake)
        names = ("wal_sender_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout")
        with psycopg.connect(own.conninfo(), autocommit=True) as admin:
            for name in names:
                admin.execute(f"alter system set {name} = '300ms'")
            admin.execute("select pg_reload_conf()")
        try:
            with slot.create_slot(config.source, cut_seconds=config.check.cut_seconds) as cut:
                sql(config, "insert into public.a values (2, 'x')")
                commands.drain(config)
                with connection.connect(config.source) as other:
                    other.execute("select pg_sleep(1)")  # three times as long as any of them
                assert commands.copy_tables(config, cut, ["public.a"]).rows == {"public.a": 1}
            assert current(config, "a") == on_source(config, "a")
        finally:
            with psycopg.connect(own.conninfo(), autocommit=True) as admin:
                for name in names:
                    admin.execute(f"alter system reset {name}")
                admin.execute("select pg_reload_conf()")


def test_trap_022_a_server_that_drops_idle_slots(own: EmbeddedServer, plain_lake: Config) -> None:
    if own.major < 18:
        pytest.skip("idle_replication_slot_timeout is a setting of 18 and later")
    with fresh_database(own) as conninfo:
        config = captured(conninfo, plain_lake)
        with connection.connect(config.source) as conn:
            conn.execute("alter system set idle_replication_slot_timeout = '1s'")
            conn.execute("select pg_reload_conf()")
        try:
            with connection.connect(config.source) as conn:
                findings = [str(f) for f in preflight.preflight(conn, config.capture_rules, ddl=config.ddl)]
                assert any("idle_replication_slot_timeout" in f and "drain more often" in f for f in findings)
                for _ in range(100):
                    conn.execute("checkpoint")
                    state = slot.read_slot(conn, config.source.slot)
                    if state is not None and state.lost:
                        break
                    conn.execute(
                        "select pg_sleep(0.2)"
                    )  # the server's own clock runs out here, nothing is proven by it
            with pytest.raises(SlotError, match=r"lost \(idle_timeout\): it was not read .*drain more often"):
                commands.drain(config)
        finally:
            with psycopg.connect(own.conninfo(), autocommit=True) as admin:
                admin.execute("alter system reset idle_replication_slot_timeout")
                admin.execute("select pg_reload_conf()")


def test_trap_023_wal_that_may_go_at_the_next_checkpoint(own: EmbeddedServer, plain_lake: Config) -> None:
    with fresh_database(own) as conninfo:
        config = captured(conninfo, plain_lake)
        with psycopg.connect(own.conninfo(), autocommit=True) as admin:
            admin.execute("alter system set max_slot_wal_keep_size = '1MB'")
            admin.execute("select pg_reload_conf()")
        try:
            with connection.connect(config.source) as conn:
                for _ in range(10):
                    conn.execute("select pg_logical_emit_message(false, 'fill', repeat('x', 9000000)), pg_switch_wal()")
                    state = slot.read_slot(conn, config.source.slot)
                    assert state is not None
                    if state.wal_status == "unreserved":
                        break
                assert state is not None and state.wal_status == "unreserved"
            assert any("run `cdc drain`" in str(d.remedy) for d in diagnosis._source(config, lake_of(config)))
            commands.drain(config)
            with connection.connect(config.source) as conn:
                slot.require_slot(conn, config.source)
        finally:
            with psycopg.connect(own.conninfo(), autocommit=True) as admin:
                admin.execute("alter system reset max_slot_wal_keep_size")
                admin.execute("select pg_reload_conf()")


def _run(config: Config) -> None:
    """What `cdc run` drains: to now, and to the cut of its check."""
    commands.drain(config)
    with ticks.exact_cut(config.capture_rules, cut_seconds=config.check.cut_seconds) as cut:
        commands.drain(config, upto=cut.lsn)


def _copy(source: Any, target: Any) -> None:
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)  # owners and times too


@pytest.mark.parametrize("slots", ["kept", "gone"])
def test_trap_026_a_restored_copy_is_refused_before_and_after_it_overtook(
    own: EmbeddedServer, plain_lake: Config, tmp_path: Any, slots: str
) -> None:
    """Same system identifier and timeline. A volume snapshot keeps the slot, a base backup does not."""
    with fresh_database(own) as conninfo:
        config = captured(conninfo, plain_lake)
        _run(config)
        backup = own.data.parent / f"backup-{slots}"
        own.stop()
        _copy(own.data, backup)
        own.start()
        sql(config, "insert into public.a select i, 'real' from generate_series(100, 600) i")
        _run(config)
        _run(config)
        last = ledger_of(config).last()
        assert last is not None and last.beacon_lsn is not None
        own.stop()
        _copy(backup, own.data)
        shutil.rmtree(backup)
        if slots == "gone":
            for folder in (own.data / "pg_replslot").iterdir():
                shutil.rmtree(folder)
        own.start()
        if slots == "gone":
            with pytest.raises(SlotError, match="--new-generation"):
                commands.drain(config)
            with pytest.raises(HistoryDiverged, match="--new-generation"):
                commands.init(config)
            return
        with pytest.raises(HistoryDiverged, match="restored from an older copy"):
            commands.drain(config)
        assert "restored from" in (status_report.status(config).problem or "")
        with connection.connect(config.source) as conn:
            kept = slot.require_slot(conn, config.source).confirmed_flush_lsn
            assert kept < last.complete_to
            while slot.flush_lsn(conn) <= last.beacon_lsn:  # another history grows over the same positions
                conn.execute("insert into public.a select max(id) + 1, 'other' from public.a")
        refused = partial(pytest.raises, HistoryDiverged, match=r"beacon .* is not in the stream")
        for command in (commands.drain, partial(commands.drain, max_changes=1), commands.repair, commands.init):
            with refused():
                command(config)
        assert "is not in the stream" in (status_report.status(config).problem or "")
        assert ledger_of(config).last() == last  # nothing of the other history came in
        with connection.connect(config.source) as conn:
            assert slot.require_slot(conn, config.source).confirmed_flush_lsn == kept
            # The same where the slot is at the ledger already: an older version moved it before it refused.
            slot.advance(conn, config.source.slot, last.complete_to)
            sql(config, "insert into public.a select i, 'after' from generate_series(-9, -1) i")
        for bounds in ({"max_changes": 1}, {"upto": Lsn(last.complete_to + 8)}):
            with refused():
                commands.drain(config, **bounds)
        assert ledger_of(config).last() == last
        done = commands.init(config, new_generation=True)
        assert done.generation == 2
        commands.drain(config)
        assert current(config, "a") == on_source(config, "a")


def test_trap_009_a_beacon_is_always_outstanding(config: Config) -> None:
    """Also after an empty drain; one that was found before the position noted for it is not asked for again."""
    found = set()
    for _ in range(3):
        commands.drain(config)
        last = ledger_of(config).last()
        assert last is not None and last.beacon_lsn is not None and last.beacon_lsn > last.complete_to
        found.add(last.beacon)
    assert len(found) == 3 and last is not None
    sql(config, "insert into public.a values (10, 'ten')")
    with connection.connect(config.source) as conn:
        noted = replace(last, batch_id=last.batch_id + 1, beacon_lsn=slot.flush_lsn(conn))  # others flushed meanwhile
    ledger_of(config).append_empty(noted)
    sql(config, "insert into public.a values (11, 'eleven')")
    for _ in range(3):
        assert commands.drain(config, max_changes=1).batches == 1
    commands.drain(config)
    assert current(config, "a") == on_source(config, "a")


def test_trap_027_029_a_promotion_with_all_that_the_log_has_goes_on(own: EmbeddedServer, plain_lake: Config) -> None:
    """A commit that waits for a standby is in the stream before anybody sees it; test_promotion.py has one undone."""
    with fresh_database(own) as conninfo:
        config = captured(conninfo, plain_lake)
        insert = "insert into public.a select max(id) + 1, 'unseen' from public.a"
        with waiting_for_a_standby(config.source.conninfo, insert):
            with connection.connect(config.source) as conn:
                seen = conn.execute("select count(*) from public.a where x = 'unseen'").fetchone()
            assert seen is not None
            # The drain's own commits do not wait for the standby.
            assert commands.drain(config).changes == seen[0] + 1
        commands.drain(config)
        before = ledger_of(config).last()
        own.stop()
        (own.data / "standby.signal").touch()
        own.start()
        with connection.connect(config.source) as conn:
            findings = [str(f) for f in preflight.preflight(conn, config.capture_rules, ddl=config.ddl)]
            assert any("is a standby" in f for f in findings)
            with pytest.raises(SlotError, match="is a standby; connect to the primary"):
                commands.drain(config)
            conn.execute("select pg_promote()")
        sql(config, "insert into public.a values (0, 'new timeline')")
        assert commands.drain(config).changes == 1
        last = ledger_of(config).last()
        assert before is not None and last is not None
        assert (last.generation, last.identity.timeline) == (1, before.identity.timeline + 1)
        assert current(config, "a") == on_source(config, "a")

"""Servers that were restored to a point in time, or upgraded with pg_upgrade: refused before anything moves."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import commands
from tests.postgres.test_snapshot_log import current, on_source, sql
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from tests.support_moved import both_sources, captured, configured, on_server
from tests.support_postgres import copy_of, fresh_database, programs
from toolkit.demo.server import EmbeddedServer
from toolkit.history import column_life, versions
from toolkit.ops import status_report
from toolkit.source import connection, slot
from toolkit.values.config import Config, SourceConfig
from toolkit.values.errors import CdcError, HistoryDiverged, SlotError
from toolkit.values.lsn import Lsn

__all__ = ["plain_lake"]
pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("major", [18, *(pytest.param(n, marks=pytest.mark.wide) for n in (15, 16))])
@pytest.mark.parametrize("where", ["before the log", "after the log"])
def test_trap_027_a_restore_to_a_point_in_time_is_refused_by_name(plain_lake: Config, major: int, where: str) -> None:
    """The promoted copy has no slot, or one that was created by hand; its timeline shares WAL with the log's."""
    with (
        _archiving(major) as (primary, archive),
        fresh_database(primary) as one,
        fresh_database(primary) as other,
    ):
        by_slot, by_tick = map(captured, both_sources(plain_lake.root, one, other))
        with copy_of(primary) as restored:
            ends = []
            for key in (2, 3):
                for config in (by_slot, by_tick):
                    sql(config, f"insert into public.a values ({key}, 'drained')")
                    commands.drain(config)
                with connection.connect(by_slot.source) as conn:
                    ends.append(slot.flush_lsn(conn))
                sql(by_slot, "insert into public.a values (10 + (select max(id) from public.a), 'later')")
            sql(by_slot, "select pg_switch_wal()", "checkpoint")
            before = [ledger_of(config).last() for config in (by_slot, by_tick)]
            primary.stop()
            _recover(restored, archive, ends[0 if where == "before the log" else 1])
            moved, ticking = (on_server(config, restored) for config in (by_slot, by_tick))
            _refused(
                moved, r"slot 'cdc_s' does not exist .*--new-generation", r"slot 'cdc_s' is gone .*--new-generation"
            )
            tick = r"timeline was 1 .* is 2 now.*--new-generation"
            _refused(ticking, tick, tick)
            sql(moved, "select pg_create_logical_replication_slot('cdc_s', 'pgoutput')")
            sql(moved, "insert into public.a values (100, 'another history')")
            by_hand = {
                "before the log": r"timeline was 1 .* is 2 now, which left it at \S+; .* need it to \S+: .*--new-gen",
                "after the log": r"slot 'cdc_s' is at \S+, ahead of the ledger at .* re-created; .*--new-generation",
            }[where]
            _refused(moved, by_hand, by_hand)
            assert [ledger_of(config).last() for config in (by_slot, by_tick)] == before
            _goes_on_in_a_new_generation(moved)


@pytest.mark.parametrize(
    ("old", "new"),
    [(18, 18), pytest.param(15, 18, marks=pytest.mark.wide), pytest.param(16, 18, marks=pytest.mark.wide)],
)
def test_trap_028_after_pg_upgrade_a_new_log_is_needed(plain_lake: Config, tmp_path: Path, old: int, new: int) -> None:
    """The upgraded server has another system identifier. From 17 on slots survive, once nothing is left in them."""
    with EmbeddedServer(None, old, bindir=programs(old)) as before, EmbeddedServer(None, 18) as after:
        with psycopg.connect(before.conninfo(), autocommit=True) as conn:
            conn.execute("create database shop")
        source = SourceConfig(conninfo=before.conninfo("shop"), slot="cdc_u")
        config = captured(configured(plain_lake.root / "slot", source))
        sql(config, "alter table public.a add column gone int", "alter table public.a drop column gone")
        sql(config, "insert into public.a values (2, 'drained')")
        commands.drain(config)
        before.stop()
        after.stop()
        if old >= 17:
            # The beacon is outstanding: the slot is never at the end of the WAL.
            assert "cdc_u" in _upgraded(before, after, fails=True)
            before.start()
            sql(config, "select pg_replication_slot_advance('cdc_u', pg_current_wal_flush_lsn())")
            before.stop()
        else:  # initdb of 18 turns checksums on
            unsummed = [after.program("pg_checksums"), "--disable", "--no-sync", "-D", str(after.data)]
            subprocess.run(unsummed, check=True, cwd="/", stdout=subprocess.DEVNULL, **after._identity())
        _upgraded(before, after)
        after.start()
        moved, last = on_server(config, after), ledger_of(config).last()
        sql(moved, "insert into public.a values (3, 'after the upgrade')")
        drain = (
            r"the source's system_id was \d+ at batch \d+ and is \d+ now: .*--new-generation"
            if old >= 17
            else r"slot 'cdc_u' does not exist .*--new-generation"
        )
        _refused(moved, drain, r"is the log of another database .*--new-generation")
        assert ledger_of(config).last() == last
        _goes_on_in_a_new_generation(moved)


@pytest.mark.parametrize("major", [18, *(pytest.param(n, marks=pytest.mark.wide) for n in (15, 16))])
def test_a_name_means_the_table_of_the_new_generation(plain_lake: Config, major: int) -> None:
    """The LSNs of a restored source are below those of its old log, which still named tables, shapes and images."""
    with EmbeddedServer(None, major, bindir=programs(major)) as primary:
        with psycopg.connect(primary.conninfo(), autocommit=True) as conn:
            conn.execute("create database shop")
        config = captured(configured(plain_lake.root / "slot", SourceConfig(conninfo=primary.conninfo("shop"))))
        with copy_of(primary) as restored:
            for _ in range(6):
                sql(config, "select pg_switch_wal()", "create table public.z ()", "drop table public.z")
            sql(config, "alter table public.a add column lost int", "insert into public.a values (2, 'two', 3)")
            sql(config, "drop table public.a", "create table public.a (other int primary key)")
            commands.init(config)
            commands.drain(config)
            old = ledger_of(config)
            before = versions.resolve(old, "public.a")
            primary.stop()
            restored.start()
            moved = on_server(config, restored)
            commands.init(moved, new_generation=True)
            sql(moved, "alter table public.a add column kept int", "insert into public.a values (9, 'nine', 3)")
            commands.drain(moved)
            log = ledger_of(moved)
    last = log.last()
    assert last is not None and last.complete_to < versions.show(old, "public.a").valid_from
    (newest,) = (v.table for v in log.latest_versions().values() if v.table.name == "a")
    assert newest.relid != before.relid
    assert versions.resolve(log, "public.a") == versions.show(log, "public.a").table == newest
    found = versions.versions(log, "public.a")
    assert [[str(c) for c in v.changes] for v in found] == [["created: public.a"], [], ["added kept: integer"]]
    assert [v.valid_to for v in found] == [*(v.valid_from for v in found[1:]), None]
    spans = column_life.explain(log, "public.a")
    assert [(s.name, s.seen and s.seen.rows) for s in spans] == [("id", 3), ("x", 3), ("kept", 1)]


@pytest.mark.parametrize("major", [18, *(pytest.param(n, marks=pytest.mark.wide) for n in (15, 16))])
def test_wal_that_a_slot_needs_and_is_gone_is_not_waited_for(plain_lake: Config, tmp_path: Path, major: int) -> None:
    """A restore kept the slot, or an operator made room in pg_wal. The remedy was to run the drain again, for ever."""
    with EmbeddedServer(None, major, bindir=programs(major)) as server:
        with psycopg.connect(server.conninfo(), autocommit=True) as conn:
            conn.execute("create database shop")
        config = captured(configured(plain_lake.root / "slot", SourceConfig(conninfo=server.conninfo("shop"))))
        sql(config, "select pg_switch_wal()", "insert into public.a values (2, 'later')", "checkpoint")
        server.stop()
        oldest = min((server.data / "pg_wal").glob("0" * 7 + "1" + "[0-9A-F]" * 16))
        oldest.rename(tmp_path / oldest.name)
        server.start()
        gone = f"{oldest.name} .*if the WAL archive has it, copy it there, else .*`cdc init --new-generation`"
        with pytest.raises(SlotError, match=gone):
            commands.drain(config)
        shutil.copy2(tmp_path / oldest.name, oldest)
        oldest.chmod(0o666)
        commands.drain(config)
        assert current(config, "a") == on_source(config, "a")


def _refused(config: Config, drain: str, init: str) -> None:
    """Neither a drain nor init goes on, and status says so."""
    with pytest.raises(CdcError, match=drain):
        commands.drain(config)
    assert "--new-generation" in (status_report.status(config).problem or "")
    with pytest.raises(HistoryDiverged, match=init):
        commands.init(config)


def _goes_on_in_a_new_generation(config: Config) -> None:
    assert commands.init(config, new_generation=True).generation == 2
    sql(config, "insert into public.a values (5, 'captured')", "delete from public.a where id = 1")
    commands.drain(config)
    assert current(config, "a") == on_source(config, "a")
    assert {e["op"] for e in rows_in_log(config, "kind = 'row' and generation = 2")} == {"R", "I", "D"}
    assert rows_in_log(config, "kind = 'row' and generation = 1"), "the old log stays"


@contextmanager
def _archiving(major: int) -> Iterator[tuple[EmbeddedServer, Path]]:
    """A server that archives its WAL, and the archive; the server's user must reach it."""
    with tempfile.TemporaryDirectory(prefix="cdc-archive-") as name:
        archive = Path(name)
        archive.chmod(0o777)
        settings = {"archive_mode": "on", "archive_command": f"cp %p {archive}/%f"}
        with EmbeddedServer(None, major, settings, bindir=programs(major)) as server:
            yield server, archive


def _recover(server: EmbeddedServer, archive: Path, upto: Lsn) -> None:
    """Start a base backup that recovers to an LSN and becomes a primary on a timeline of its own."""
    server.settings |= {
        "archive_mode": "off",
        "restore_command": f"cp {archive}/%f %p",
        "recovery_target_lsn": str(upto),
        "recovery_target_action": "promote",
    }
    signal = server.data / "recovery.signal"
    signal.touch()
    signal.chmod(0o666)
    server.start()
    with psycopg.connect(server.conninfo(), autocommit=True) as conn:
        while conn.execute("select pg_is_in_recovery()").fetchone() != (False,):
            pass


def _upgraded(old: EmbeddedServer, new: EmbeddedServer, fails: bool = False) -> str:
    """Run pg_upgrade on two stopped servers; what it printed."""
    (sockets,) = {conninfo_to_dict(new.conninfo())["host"]}
    command = [new.program("pg_upgrade"), "-b", str(old.bindir), "-B", str(new.bindir), "-d", str(old.data)]
    command += ["-D", str(new.data), "-U", new.user, "-s", str(sockets), "-p", str(old.port), "-P", str(new.port)]
    command += ["-o", "-c wal_level=logical", "-O", "-c wal_level=logical", "--no-sync"]
    done = subprocess.run(command, cwd=str(sockets), capture_output=True, text=True, check=False, **new._identity())
    said: str = done.stdout + done.stderr
    said += "".join(p.read_text(errors="replace") for p in new.data.rglob("invalid_logical_slots.txt"))
    assert (done.returncode != 0) == fails, said
    return said

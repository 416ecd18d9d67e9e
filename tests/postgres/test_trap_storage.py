"""Disks that are full, catalogs that are locked or lost: a refusal in one line, and nothing is lost."""

from __future__ import annotations

import os
import re
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from urllib.parse import urlparse

import psycopg
import pytest
from click.testing import CliRunner, Result

from tests import commands
from tests.postgres.test_snapshot_log import current, on_source, sql
from tests.support_lake import catalog_locked, files_below, plain_lake
from tests.support_ledger import ledger_of
from toolkit.cli import frame, main
from toolkit.lake import reads, sqlite_catalog
from toolkit.lake.lease import LEASE_NAME
from toolkit.lake.sqlite_catalog import SqliteCatalog
from toolkit.ops import diagnosis
from toolkit.source import connection, slot, slot_lease
from toolkit.values import config as configuration
from toolkit.values.config import Config
from toolkit.values.errors import LakeError
from toolkit.values.lsn import Lsn

__all__ = ["plain_lake"]
pytestmark = pytest.mark.postgres
_ROWS = "insert into public.a select i, repeat(md5(i::text), 40) from generate_series(2, 2000) i"


@pytest.fixture
def config(source: Config, plain_lake: Config) -> Config:
    """A captured table, drained."""
    made = source.model_copy(update={"root": plain_lake.root})
    sql(made, "create table public.a (id int primary key, x text)", "insert into public.a values (1, 'one')")
    commands.init(made)
    sql(made, "insert into public.a values (0, 'zero')")
    commands.drain(made)
    return made


def _cdc(config: Config, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.setattr(configuration, "load", lambda _: config)
    monkeypatch.setattr(frame, "_stop_spark", lambda **_: None)
    return CliRunner().invoke(main, arguments)


def _confirmed(config: Config) -> int:
    with connection.connect(config.source) as conn:
        return int(slot.require_slot(conn, config.source).confirmed_flush_lsn)


def test_trap_145_a_spool_on_a_full_disk_is_refused_and_nothing_is_lost(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql(config, _ROWS)
    before, last = _confirmed(config), ledger_of(config).last()
    with files_below(1_000_000):
        done = _cdc(config, monkeypatch, "drain")
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit)
    assert done.output.startswith("cdc: spooling what slot") and done.output.count("\n") == 1
    assert (_confirmed(config), ledger_of(config).last()) == (before, last)
    assert _cdc(config, monkeypatch, "drain").exit_code == 0
    assert current(config, "a") == on_source(config, "a")


def test_trap_145_a_lake_on_a_full_disk_is_refused_and_nothing_is_lost(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql(config, "insert into public.a values (2, 'two')")
    before, last = _confirmed(config), ledger_of(config).last()
    with files_below(4_000):
        done = _cdc(config, monkeypatch, "drain")
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), done.output
    assert done.output.startswith("cdc: ") and done.output.count("\n") == 1
    assert (_confirmed(config), ledger_of(config).last()) == (before, last)
    assert _cdc(config, monkeypatch, "drain").exit_code == 0
    assert current(config, "a") == on_source(config, "a")


def test_trap_145_a_locked_catalog_is_refused_in_one_line(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    sql(config, "insert into public.a values (2, 'two')")
    before, last = _confirmed(config), ledger_of(config).last()
    for module in (sqlite_catalog,):
        monkeypatch.setattr(module, "BUSY_SECONDS", 0.1)
    with catalog_locked(config):
        done = _cdc(config, monkeypatch, "drain")
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit)
    assert "database is locked; end the program" in done.output and done.output.count("\n") == 1
    assert (_confirmed(config), ledger_of(config).last()) == (before, last)
    assert _cdc(config, monkeypatch, "drain").exit_code == 0
    assert current(config, "a") == on_source(config, "a")


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
def test_trap_142_a_lost_catalog_beside_its_files_is_refused_by_name(config: Config, left: str) -> None:
    """Without the refusal `cdc init` began generation 1 once more, over the same warehouse."""
    before, kept = _confirmed(config), config.lake_access.catalog_db.read_bytes()
    config.lake_access.catalog_db.unlink()
    if left == "an empty file":
        config.lake_access.catalog_db.touch()
    for command in (commands.init, commands.drain):
        with pytest.raises(LakeError, match=r"names no raw\.events .* has its files, such as .*\.parquet: .* a backup"):
            command(config)
    assert _confirmed(config) == before
    config.lake_access.catalog_db.write_bytes(kept)
    sql(config, "insert into public.a values (2, 'two')")
    commands.drain(config)
    assert current(config, "a") == on_source(config, "a")


def test_trap_019_runners_on_two_machines_exclude_each_other(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders stand for two machines: they share no file, only the source."""
    there = config.model_copy(update={"root": tmp_path / "elsewhere"})
    with commands.only_runner(there):
        done = _cdc(config, monkeypatch, "drain")
        assert done.exit_code == 4
        assert f"the lease of slot '{config.source.slot}' on the source is held by pid " in done.output
        assert "cdc-toolkit, from" in done.output
    assert _cdc(config, monkeypatch, "drain").exit_code == 0
    assert (
        (config.lake_access.work_dir / LEASE_NAME).stat().st_mode & 0o777
    ) == 0o600  # who cannot open it cannot lock it


def test_trap_012_what_a_commit_wrote_is_on_the_disk_before_the_slot_moves(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data files, manifests, the metadata file, and every folder that names one of them."""
    synced: set[Path] = set()
    moved: list[Lsn] = []
    fsync, advance = os.fsync, slot.advance

    def note_sync(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(Path(f"/proc/self/fd/{descriptor}").resolve())

    def note_advance(conn: connection.Connection, name: str, lsn: Lsn) -> Lsn:
        table = SqliteCatalog(config.lake_access).load_table("raw.events")
        snapshot = table.current_snapshot()
        assert snapshot is not None
        made = {Path(urlparse(table.metadata_location).path), Path(urlparse(snapshot.manifest_list).path)}
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                made.add(Path(urlparse(manifest.manifest_path).path))
                made |= {Path(urlparse(e.data_file.file_path).path) for e in manifest.fetch_manifest_entry(table.io)}
        assert len(made) >= 5 and any(file.suffix == ".parquet" for file in made)
        folders = {
            folder
            for file in made
            for folder in file.parents
            if folder.is_relative_to(Path(config.lake_access.warehouse))
        }
        assert made | folders <= synced
        moved.append(lsn)
        return advance(conn, name, lsn)

    sql(config, "insert into public.a values (2, 'two')")
    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(slot, "advance", note_advance)
    commands.drain(config)
    assert moved


def test_trap_012_a_half_written_metadata_file_has_a_way_out(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The power failed after the catalog named the file, and before the slot moved."""
    sql(config, "insert into public.a values (2, 'two')")
    with monkeypatch.context() as patch:
        patch.setattr(slot, "advance", lambda *_: None)
        commands.drain(config)
    location = reads.metadata_location(config.lake_access, "raw.events")
    assert location is not None
    damaged = Path(urlparse(location).path)
    damaged.write_bytes(damaged.read_bytes()[:1000])
    with pytest.raises(LakeError, match=f"metadata file {damaged} cannot be read: .*; run `cdc doctor`"):
        commands.drain(config)
    (found,) = [d for d in diagnosis.doctor(config) if d.what == "lake raw.events" and d.level == "error"]
    assert str(damaged) in found.found and found.remedy is not None
    command = re.search(r'sqlite3 (\S+) "(update .*?)"; then run `cdc drain`', found.remedy)
    assert command is not None
    with closing(sqlite3.connect(command[1])) as catalog, catalog:
        assert catalog.execute(command[2]).rowcount == 1
    commands.drain(config)
    assert current(config, "a") == on_source(config, "a")


def test_a_command_that_ends_has_freed_the_lease(source: Config) -> None:
    """The server frees the lock of a session that was closed a moment later, and the next command was refused."""
    key = zlib.crc32(source.source.slot.encode()) & 0x7FFFFFFF
    with psycopg.connect(source.source.conninfo, autocommit=True) as other:
        for _ in range(30):
            with slot_lease.hold_slot_lease(source.source):
                pass
            lock = [slot_lease._CLASS, key]
            assert other.execute("select pg_try_advisory_lock(%s::int4, %s::int4)", lock).fetchone() == (True,)
            other.execute("select pg_advisory_unlock(%s::int4, %s::int4)", lock)

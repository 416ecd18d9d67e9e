"""A power cut takes whatever was not forced to the disk. Nothing that the source has forgotten is among it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import commands
from tests.postgres.test_snapshot_log import current, on_source, sql
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from toolkit.lake import durable, sqlite_catalog, storage
from toolkit.ops import diagnosis
from toolkit.source import connection, slot
from toolkit.values import config as configuration
from toolkit.values.config import Config
from toolkit.values.errors import LakeError

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]
_ROOT = Path(__file__).parents[2]


class Killed(BaseException):
    """The process ends here, and the power with it."""


@pytest.fixture
def config(database: str, plain_lake: Config) -> Config:
    """One captured table, in a lake with a file of configuration."""
    file = plain_lake.root / "cdc.toml"
    name = conninfo_to_dict(database)["dbname"]
    file.write_text(f"[source]\nconninfo = {json.dumps(database)}\nslot = 'cdc_{name}'\n", encoding="utf-8")
    config = configuration.load(str(file))
    sql(config, "create table public.a (id int primary key, x text)", "insert into public.a values (1, 'one')")
    commands.init(config)
    return config


def test_trap_012_under_strace_files_are_forced_then_named_then_forgotten(config: Config) -> None:
    """What the server and the kernel see of a drain: fsync of each file and folder, the catalog, then the slot."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: the order of system calls cannot be seen")
    sql(config, "insert into public.a values (2, 'two')")
    before = set(Path(config.lake_access.warehouse).rglob("*"))
    trace = config.root / "trace"
    watched = "trace=fsync,fdatasync,pwrite64,sendto,write,rename,renameat2"
    command = [strace, "-f", "--seccomp-bpf", "-y", "-s", "400", "-e", watched, "-o", str(trace), sys.executable, "-m"]
    command += ["tests.postgres.drain_process", str(config.root / "cdc.toml")]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if "PTRACE" in done.stderr or "ptrace" in done.stderr:
        pytest.skip("this machine lets no process be traced")
    assert done.returncode == 0, done.stderr
    lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
    calls = list(enumerate(lines))
    forced: dict[str, int] = {}
    for number, line in calls:
        if (found := re.search(r" f(?:data)?sync\(\d+<([^>]+)>", line)) is not None:
            forced.setdefault(found[1], number)
    named = next(n for n, line in calls if re.search(r" pwrite64\(\d+<[^>]*/catalog\.db>", line))
    forgotten = next(n for n, line in calls if "pg_replication_slot_advance" in line)
    made = {
        path for path in set(Path(config.lake_access.warehouse).rglob("*")) - before if not path.name.startswith(".")
    }
    assert {path.suffix for path in made if path.is_file()} == {".avro", ".json", ".parquet"}
    for path in made | {Path(config.lake_access.warehouse), Path(config.lake_access.warehouse, "raw")}:
        assert forced.get(str(path), len(lines)) < named, path
    assert named < forced[str(config.lake_access.catalog_db)] < forgotten


def test_a_drain_of_a_few_rows_imports_neither_pyiceberg_nor_spark(config: Config) -> None:
    """It writes and forces its files itself, in half a second less."""
    sql(config, "insert into public.a values (2, 'two')")
    code = (
        "import sys; from toolkit.cli import run\ntry: run()\n"
        "finally: print(*(name in sys.modules for name in ('pyiceberg', 'pandas', 'pyspark', 'numpy.ma')))"
    )
    command = [sys.executable, "-c", code, "drain", "--config", str(config.root / "cdc.toml")]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[-4:]) == (0, ["False"] * 4), done.stderr
    assert current(config, "a") == on_source(config, "a")


class _Disk:
    """Notes what is forced, and takes everything else when the power fails."""

    def __init__(self, config: Config, patch: pytest.MonkeyPatch) -> None:
        self.warehouse, self._fsync = Path(config.lake_access.warehouse), os.fsync
        self.safe = set(self.warehouse.rglob("*"))
        patch.setattr(os, "fsync", self._note)

    def _note(self, descriptor: int) -> None:
        self._fsync(descriptor)
        self.safe.add(Path(f"/proc/self/fd/{descriptor}").resolve())

    def fail(self) -> int:
        """Cut the power: files that were not forced have no bytes, or are not there. Gives their number."""
        lost = [path for path in self.warehouse.rglob("*") if path.is_file() and path not in self.safe]
        for number, path in enumerate(sorted(lost)):
            if number % 2:
                path.unlink()
            else:
                path.write_bytes(b"")
        return len(lost)


def _struck(patch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool) -> None:
    whole = getattr(owner, name)

    def strike(*arguments: Any, **named: Any) -> Any:
        if after:
            whole(*arguments, **named)
        raise Killed

    patch.setattr(owner, name, strike)


def _whole(config: Config) -> None:
    """Drain, and see that each change is in the log once."""
    commands.drain(config)
    assert current(config, "a") == on_source(config, "a")
    positions = [(e["commit_lsn"], e["ordinal"]) for e in rows_in_log(config)]
    assert len(positions) == len(set(positions))
    batches = [b.batch_id for b in ledger_of(config).batches()]
    assert batches == list(range(1, len(batches) + 1))


def test_trap_012_a_power_cut_at_any_step_loses_and_doubles_nothing(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[Any, str, bool]] = [
        (storage, "force", False),
        (storage, "force", True),
        (sqlite_catalog.SqliteCatalog, "swap", False),
        (sqlite_catalog.SqliteCatalog, "swap", True),
        (slot, "advance", False),
        (slot, "advance", True),
    ]
    taken = 0
    for number, (owner, name, after) in enumerate(steps, 2):
        sql(config, f"insert into public.a values ({number}, 'x')", "update public.a set x = 'y' where id = 1")
        with monkeypatch.context() as patch:
            disk = _Disk(config, patch)
            _struck(patch, owner, name, after=after)
            with pytest.raises(Killed):
                commands.drain(config)
        taken += disk.fail()
        _whole(config)
    assert taken, "the power cuts took nothing"


def test_trap_012_a_commit_that_was_named_and_not_forced_is_forced_before_the_slot_moves(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between commit and fsync; the next drain moves the slot over that commit. Then the power fails."""
    sql(config, "insert into public.a values (2, 'two')")
    forced = durable.sync_files
    with monkeypatch.context() as patch:
        disk = _Disk(config, patch)
        patch.setattr(durable, "sync_files", lambda *_: None)  # Spark's catalog names a commit at once
        _struck(patch, slot, "advance", after=False)
        with pytest.raises(Killed):
            commands.drain(config)
        assert ledger_of(config).last().complete_to > _confirmed(config)  # type: ignore[union-attr]
        patch.setattr(durable, "sync_files", forced)
        with pytest.raises(Killed):
            commands.drain(config)  # up to the moment before it moves the slot
    assert disk.fail() == 0
    _whole(config)


@pytest.mark.parametrize("torn", [".json", ".avro", ".parquet"])
def test_trap_012_what_a_power_cut_took_of_an_unforced_commit_is_read_again_as_doctor_says(
    config: Config, monkeypatch: pytest.MonkeyPatch, torn: str
) -> None:
    sql(config, "insert into public.a values (2, 'two')")
    before, confirmed = set(Path(config.lake_access.warehouse).rglob("*")), _confirmed(config)
    with monkeypatch.context() as patch:
        patch.setattr(durable, "sync_files", lambda *_: None)
        _struck(patch, slot, "advance", after=False)
        with pytest.raises(Killed):
            commands.drain(config)
    for path in set(Path(config.lake_access.warehouse).rglob("*")) - before:
        if path.suffix == torn and not path.name.startswith("."):
            path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(LakeError, match="run `cdc doctor`"):
        commands.drain(config)
    assert _confirmed(config) == confirmed
    (diagnosed,) = [d for d in diagnosis.doctor(config) if d.what == "lake raw.events"]
    follow(config, diagnosed)
    assert "lake raw.events" not in [d.what for d in diagnosis.doctor(config)]
    _whole(config)
    assert current(config, "a")["2"] == ["2", "two"]


def follow(config: Config, diagnosed: diagnosis.Diagnosis) -> None:
    """Change the catalog as the remedy says."""
    statement = re.search(r'sqlite3 \S+ "([^"]+)"', diagnosed.remedy or "")
    assert statement is not None, diagnosed
    with closing(sqlite3.connect(config.lake_access.catalog_db)) as catalog, catalog:
        catalog.execute(statement[1])


def _confirmed(config: Config) -> int:
    with connection.connect(config.source) as conn:
        state = slot.read_slot(conn, config.source.slot)
    assert state is not None
    return int(state.confirmed_flush_lsn)

"""Commits that are cut short, repeated, rolled back or made by a wrong clock: each change is there once, or refused."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.table.update import SetSnapshotRefUpdate

from tests import commands
from tests.postgres.test_snapshot_log import by, current, either_way, on_source, sql
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from toolkit.lake import reads
from toolkit.lake.lease import LEASE_NAME, hold_lease
from toolkit.lake.ledger import Ledger
from toolkit.lake.sqlite_catalog import SqliteCatalog
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.batch import BatchRecord
from toolkit.source import connection, slot
from toolkit.values.config import Config
from toolkit.values.errors import CommitConflict, HistoryDiverged, LakeError

__all__ = ["by", "plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]
_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def config(source: Config, plain_lake: Config, by: str) -> Config:
    """Two captured tables, drained."""
    made = source.model_copy(update={"root": plain_lake.root})
    lines = ["[source]", f'conninfo = "{made.source.conninfo}"', f'slot = "{made.source.slot}"']
    if by == "tick":
        chosen = made.source.model_copy(update={"capture": "change_log", "change_log_drain": "tick"})
        made = made.model_copy(update={"source": chosen})
    (made.root / "cdc.toml").write_text("\n".join(lines), encoding="utf-8")
    sql(made, *(f"create table public.{name} (id int primary key, x text)" for name in "ab"))
    sql(made, *(f"insert into public.{name} values (1, 'one'), (2, 'two')" for name in "ab"))
    commands.init(made)
    commands.drain(made)
    return made


def transaction(config: Config, *statements: str) -> None:
    with psycopg.connect(config.source.conninfo) as conn:
        for statement in statements:
            conn.execute(statement.encode())


def faulty(config: Config, fault: str, value: object) -> subprocess.CompletedProcess[str]:
    """Drain in a process of its own, with a fault."""
    command = [sys.executable, "-m", "tests.postgres.faulty_drain", str(config.root / "cdc.toml"), fault, str(value)]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)


def images(config: Config) -> dict[str, Any]:
    return {name: current(config, name) for name in "ab"}


def shown(config: Config) -> dict[str, Any]:
    return {name: on_source(config, name) for name in "ab"}


def require_each_once(config: Config) -> None:
    """Every event has a place of its own, and each batch has exactly the events that its ledger row counts."""
    events = rows_in_log(config, "kind <> ''")
    places = Counter((e["generation"], e["commit_lsn"], e["ordinal"], e["relid"]) for e in events if e["kind"] == "row")
    assert set(places.values()) == {1}
    for record in ledger_of(config).batches():
        found = Counter(e["kind"] for e in events if e["batch_id"] == record.batch_id)
        assert found == Counter(record.counts) + Counter(batch=1)


@pytest.mark.parametrize("point", ["commit", "swap", "answer"])
def test_trap_135_a_drain_killed_in_its_commit_has_all_tables_or_none(config: Config, point: str) -> None:
    """One transaction changes two tables; the drain is killed with its files written, and before or after the swap."""
    before = images(config)
    transaction(config, "update public.a set x = 'new'", "update public.b set x = 'new'")
    assert faulty(config, "kill", point).returncode == -9
    assert images(config) == (shown(config) if point == "answer" else before)
    commands.drain(config)
    assert images(config) == shown(config) != before
    require_each_once(config)


def test_trap_136_a_commit_that_is_replayed_adds_no_file(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same record with the same files again, of the reading that it was made from and of the present one."""
    made: list[tuple[Ledger, BatchRecord, Sequence[Event], Sequence[str]]] = []
    append = Ledger.append

    def keep(self: Ledger, record: BatchRecord, events: Sequence[Event] = (), files: Sequence[str] = ()) -> int:
        reading = ledger_of(config)
        assert reading.snapshot_id() == self.snapshot_id()
        made.append((reading, record, events, files))
        return append(self, record, events, files)

    sql(config, "insert into public.a values (3, 'three')")
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", keep)
        commands.drain(config)
    once = rows_in_log(config, "kind <> ''")
    assert [file for *_, files in made for file in files]
    for old, record, events, files in made:
        for reading in (old, ledger_of(config)):
            with pytest.raises(CommitConflict, match="run it again"):
                reading.append(record, events, files)
    assert rows_in_log(config, "kind <> ''") == once
    named = SqliteCatalog(config.lake_access).load_table("raw.events").inspect.files()["file_path"].to_pylist()
    assert len(named) == len(set(named))
    require_each_once(config)


def test_trap_137_the_log_is_only_added_to(config: Config) -> None:
    """Two updates of a row, and a delete with an insert of its key, in one batch: four events more, no delete file."""
    table = SqliteCatalog(config.lake_access).load_table("raw.events")
    before = set(table.inspect.files()["file_path"].to_pylist())
    transaction(config, "update public.a set x = 'u1' where id = 1", "update public.a set x = 'u2' where id = 1")
    transaction(config, "delete from public.a where id = 2", "insert into public.a values (2, 'again')")
    commands.drain(config)
    files = SqliteCatalog(config.lake_access).load_table("raw.events").inspect.files()
    assert before < set(files["file_path"].to_pylist())
    assert set(files["content"].to_pylist()) == {0}  # data: there is no delete file
    last = rows_in_log(config, "kind = 'row' and op <> 'R'")
    assert [(e["op"], e["new"] and e["new"][1]) for e in last] == [
        ("U", "u1"),
        ("U", "u2"),
        ("D", None),
        ("I", "again"),
    ]
    assert len({e["batch_id"] for e in last}) == 1
    assert images(config) == shown(config)


def test_trap_138_a_key_has_its_operations_in_the_order_of_the_log(config: Config) -> None:
    """A delete has no priority over an insert after it, nor an insert over a delete."""
    made, gone = "insert into public.a values (7, '{}')", "delete from public.a where id = 7"
    transaction(config, made.format("first"), gone, made.format("second"))
    transaction(config, gone, made.format("third"), gone, made.format("fourth"))
    commands.drain(config)
    events = rows_in_log(config, "kind = 'row' and op <> 'R'")
    assert [(e["op"], e["new"] and e["new"][1]) for e in events] == [
        ("I", "first"), ("D", None), ("I", "second"), ("D", None), ("I", "third"), ("D", None), ("I", "fourth"),
    ]  # fmt: skip
    assert len({(e["commit_lsn"], e["ordinal"]) for e in events}) == len(events)
    assert current(config, "a") == on_source(config, "a")
    assert current(config, "a")["7"] == ["7", "fourth"]


def test_trap_140_after_a_failed_batch_none_is_skipped(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three batches of a drain fails: the third does not go before it, and the next drain has both."""
    sizes = config.drain.model_copy(update={"batch_changes": 1})
    small = config.model_copy(update={"drain": sizes})
    for n in (3, 4, 5):
        sql(config, f"insert into public.a values ({n}, 'batch')")
    append, calls = Ledger.append, list[int]()

    def fail(self: Ledger, record: BatchRecord, *arguments: Any) -> int:
        calls.extend([record.batch_id] * bool(record.changes))  # a batch of the beacon alone has none
        if len(calls) == 2:
            raise LakeError("the disk is full")
        return append(self, record, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", fail)
        with pytest.raises(LakeError, match="the disk is full"):
            commands.drain(small)
    last = ledger_of(config).last()
    assert last is not None
    assert calls == [last.batch_id, last.batch_id + 1]
    assert set(current(config, "a")) == {"1", "2", "3"}
    with connection.connect(config.source) as conn:
        assert slot.require_slot(conn, config.source).confirmed_flush_lsn <= last.complete_to
    commands.drain(small)
    batches = ledger_of(config).batches()
    assert [b.batch_id for b in batches] == list(range(batches[0].batch_id, batches[-1].batch_id + 1))
    assert all(b.complete_to == after.from_lsn for b, after in pairwise(batches))
    assert current(config, "a") == on_source(config, "a")
    require_each_once(config)


@either_way
def test_trap_142_a_log_that_was_rolled_back_is_refused(config: Config) -> None:
    """The source has forgotten what the rolled back batch held; nothing may go on as if it never was."""
    before = reads.snapshot_id(config.lake_access, "raw.events")
    assert before is not None
    sql(config, "insert into public.a values (3, 'three')")
    commands.drain(config)
    newest = reads.snapshot_id(config.lake_access, "raw.events")
    assert newest is not None
    for snapshot in (before, newest):
        catalog = SqliteCatalog(config.lake_access)
        update = SetSnapshotRefUpdate.model_validate(
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot}
        )
        catalog.commit_table(catalog.load_table("raw.events"), (), (update,))
        sql(config, f"insert into public.a values ({snapshot % 1_000_000 + 10}, 'later')")
        if snapshot == before:
            with pytest.raises(HistoryDiverged, match="cdc init --new-generation"):
                commands.drain(config)
            assert reads.snapshot_id(config.lake_access, "raw.events") == before
    commands.drain(config)  # put back, it goes on
    assert current(config, "a") == on_source(config, "a")


def test_trap_146_the_lease_is_no_matter_of_time(config: Config) -> None:
    """A holder from the future or a day ago is no reason to take the lease from a process that has it."""
    sql(config, "insert into public.a values (3, 'three')")
    before = ledger_of(config).last()
    for seconds, year in ((-20, 2999), (86_400, 1999)):
        with hold_lease(config.lake_access):
            (config.lake_access.work_dir / LEASE_NAME).write_text(f"pid 1 on elsewhere since {year}-01-01T00:00:00Z\n")
            done = faulty(config, "clock", seconds)
        assert done.returncode == 1 and done.stderr.startswith("LeaseHeld: the lease "), done.stderr
    assert ledger_of(config).last() == before


def test_trap_146_a_clock_that_steps_back_commits_nothing(config: Config) -> None:
    """Iceberg's Java library opens no table with such a commit, so it may not be made; a small step is harmless."""
    last = ledger_of(config).last()
    sql(config, "insert into public.a values (3, 'three')")
    done = faulty(config, "clock", -3600)
    assert done.returncode == 1, done.stdout
    assert "LakeError: committing to raw.events: the clock of this machine is 3" in done.stderr, done.stderr
    assert "correct the clock" in done.stderr and done.stderr.count("\n") == 1
    assert ledger_of(config).last() == last
    assert faulty(config, "clock", -20).stdout == "1\n"
    sql(config, "insert into public.a values (4, 'four')")
    commands.drain(config)
    assert current(config, "a") == on_source(config, "a")
    require_each_once(config)
    times = [s.timestamp_ms for s in SqliteCatalog(config.lake_access).load_table("raw.events").snapshots()]
    assert all(after - one > -60_000 for one, after in pairwise(times))

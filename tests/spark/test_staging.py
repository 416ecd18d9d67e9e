"""Commits of batches on real Spark and Iceberg: what a retry, a second runner and a kill leave behind.

Each test decodes in tasks of Spark and in this process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support_ledger import ledger_of
from tests.support_spark import EVENT_SCHEMA, STUB_DECODE, StubTask, batch_record, row_event
from toolkit.lake import reads, scans, staging
from toolkit.lake.spark_tasks import run_in_tasks
from toolkit.rawlog.arrow import to_arrow
from toolkit.rawlog.event import Gap
from toolkit.values.config import Config
from toolkit.values.errors import CommitConflict, DecodeError, LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
Commit = Callable[..., int]


@pytest.fixture(params=["here", "spark"])
def commit(request: pytest.FixtureRequest, spark: SparkSession, lake: Config) -> Commit:
    """Commit stub tasks as a batch against the ledger as it is now, or against `base`."""

    def run(batch_id: int, *tasks: StubTask, base: int | None = -1, mark: str = "", **more: object) -> int:
        base = ledger_of(lake).snapshot_id() if base == -1 else base
        record = batch_record(batch_id, changes=sum(t.rows for t in tasks), mark=mark)
        options = {"tasks": tasks, "events": [], "base_snapshot": base, "decode": STUB_DECODE} | more
        options["spark"] = spark if request.param == "spark" else None
        return staging.commit_batch(lake.lake_access, record, **options, rules=lake.capture_rules)  # type: ignore[arg-type]

    return run


def contents(spark: SparkSession) -> list[tuple[object, ...]]:
    """All of the log that makes two logs equal, in log order."""
    names = ("batch_id", "kind", "commit_lsn", "ordinal", "end_lsn", "relid", "op", "new", "old", "unchanged")
    frame = spark.table("raw.events").select(*names).orderBy("commit_lsn", "ordinal", "relid")
    return [tuple(row) for row in frame.collect()]


def test_rows_arrive_as_they_were_decoded(spark: SparkSession, lake: Config, commit: Commit) -> None:
    commit(1, StubTask(1, 3), StubTask(1, 2, first=3))
    table = scans.scan_arrow(lake.lake_access, "raw.events", where="kind = 'row'")
    assert table is not None
    expected = to_arrow([row_event(1, n) for n in range(5)])
    assert table.sort_by("ordinal").to_pylist() == expected.to_pylist()
    assert contents(spark)[0][7:] == (["0", None, "", "a\\b\U0001f600"], None, [2])


def test_a_worker_is_started_once_for_all_of_its_calls(spark: SparkSession) -> None:
    slots = spark.sparkContext.defaultParallelism
    found = run_in_tasks(spark, range(3 * slots), lambda number: (number, os.getpid()), "counting")
    assert [number for number, _ in found] == list(range(3 * slots))
    assert len({worker for _, worker in found}) <= slots


def test_a_worker_receives_its_own_inputs_only(spark: SparkSession) -> None:
    """An input is unpickled in the worker that is called with it."""
    slots = spark.sparkContext.defaultParallelism
    found = run_in_tasks(spark, [_Counted() for _ in range(3 * slots)], lambda _: _Counted.unpickled, "counting")
    assert max(found) <= 3


class _Counted:
    """Counts in its class how many were unpickled in this process."""

    unpickled = 0

    def __setstate__(self, state: object) -> None:
        _Counted.unpickled += 1

    def __getstate__(self) -> object:
        return 1


def test_a_changed_row_is_noticed(spark: SparkSession, commit: Commit) -> None:
    """Planted fault: the comparison that the other tests rest on must see one wrong cell."""
    commit(1, StubTask(1, 3))
    before = contents(spark)
    spark.sql("UPDATE raw.events SET new = array('0', NULL, NULL, 'a') WHERE kind = 'row' AND ordinal = 0")
    assert contents(spark) != before


def test_trap_139_a_retry_of_a_committed_batch_is_refused(spark: SparkSession, lake: Config, commit: Commit) -> None:
    commit(1, StubTask(1, 2))
    commit(2, StubTask(2, 4))
    once = contents(spark)
    with pytest.raises(CommitConflict, match=r"committing batch 2: the ledger is at batch 2 already"):
        commit(2, StubTask(2, 4), mark="again")
    assert contents(spark) == once
    assert [b.batch_id for b in ledger_of(lake).batches()] == [1, 2]


def test_trap_012_a_commit_is_on_the_disk_when_it_returns(
    lake: Config, commit: Commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither Parquet's writer nor Iceberg's forces a file to the disk. The toolkit does, and each folder of one."""
    synced: set[Path] = set()
    fsync = os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(Path(f"/proc/self/fd/{descriptor}").resolve())

    monkeypatch.setattr(os, "fsync", note)
    before = set(Path(lake.lake_access.warehouse).glob("raw/**/*"))
    commit(1, StubTask(1, 3), StubTask(1, 2, first=3))
    made = {
        path
        for path in set(Path(lake.lake_access.warehouse).glob("raw/**/*")) - before
        if not path.name.startswith(".")
    }
    assert {path.suffix for path in made} == {"", ".avro", ".json", ".parquet"}
    assert made | {Path(lake.lake_access.warehouse), Path(lake.lake_access.warehouse, "raw")} <= synced


def test_trap_132_a_lost_answer_leaves_the_same_rows(spark: SparkSession, lake: Config, commit: Commit) -> None:
    """The process is killed after the commit landed. Whoever runs the batch again is refused, and reads the ledger."""
    base = ledger_of(lake).snapshot_id()
    commit(1, StubTask(1, 4), base=base)
    once = contents(spark)
    with pytest.raises(CommitConflict):
        commit(1, StubTask(1, 4), base=base)
    assert contents(spark) == once
    assert ledger_of(lake).last() == batch_record(1, changes=4)


@pytest.mark.parametrize("commit", ["here"], indirect=True)
def test_files_without_a_commit_are_deleted(lake: Config, commit: Commit) -> None:
    """A runner that lost the race has written its files already."""
    commit(1, StubTask(1, 2))
    before = _data_files(lake)
    with pytest.raises(CommitConflict):
        commit(1, StubTask(1, 2), mark="second")
    with pytest.raises(DecodeError):
        commit(2, StubTask(2, 2), StubTask(2, 2, fail="cut short"))
    assert _data_files(lake) == before


def _data_files(lake: Config) -> set[Path]:
    return {path for path in Path(lake.lake_access.warehouse).glob("raw/**/*.parquet") if not path.name.startswith(".")}


def test_trap_133_a_second_runner_from_the_same_base_fails(spark: SparkSession, lake: Config, commit: Commit) -> None:
    commit(1, StubTask(1, 2))
    base = ledger_of(lake).snapshot_id()
    commit(2, StubTask(2, 3), base=base, mark="first")
    won = contents(spark)
    with pytest.raises(CommitConflict, match=r"committing batch 2: another runner") as refused:
        commit(2, StubTask(2, 9), base=base, mark="second")
    assert "\n" not in str(refused.value)
    assert contents(spark) == won
    commit(3, StubTask(3, 1))
    assert [b.batch_id for b in ledger_of(lake).batches()] == [1, 2, 3]


def test_trap_146_a_clock_that_is_behind_the_last_commit_is_named(
    lake: Config, commit: Commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last commit came from a clock an hour ahead. Iceberg calls a step back a bug of its own."""
    commit(1, StubTask(1, 2))
    now = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now() + 3600)
        ledger_of(lake).append_empty(batch_record(2))
    with pytest.raises(LakeError, match=r"^committing to raw\.events: the clock of this machine is 3\d{3} s behind"):
        commit(3, StubTask(3, 2))
    assert [b.batch_id for b in ledger_of(lake).batches()] == [1, 2]


def test_two_first_batches_conflict(lake: Config, commit: Commit) -> None:
    base = ledger_of(lake).snapshot_id()
    commit(1, StubTask(1, 2), base=base, mark="first")
    with pytest.raises(CommitConflict):
        commit(1, StubTask(1, 5), base=base, mark="second")
    assert ledger_of(lake).last() == batch_record(1, changes=2, mark="first")


def test_trap_133_a_zombie_cannot_overtake_an_empty_batch(lake: Config, commit: Commit) -> None:
    base = ledger_of(lake).snapshot_id()
    ledger_of(lake).append_empty(batch_record(1))
    with pytest.raises(CommitConflict):
        commit(1, StubTask(1, 2), base=base, mark="zombie")
    assert ledger_of(lake).batches() == (batch_record(1),)


def test_a_batch_planned_before_another_commit_is_refused(spark: SparkSession, lake: Config, commit: Commit) -> None:
    """The other commit may be no batch: what was planned from an older state is planned again."""
    base = ledger_of(lake).snapshot_id()
    spark.table("raw.events").where("false").writeTo("raw.events").append()
    with pytest.raises(CommitConflict):
        commit(1, StubTask(1, 2), base=base)
    assert ledger_of(lake).last() is None


def test_driver_events_and_files_are_in_the_same_commit(
    spark: SparkSession, lake: Config, commit: Commit, tmp_path: Path
) -> None:
    rows = to_arrow([row_event(1, n, relid=9) for n in range(3)])
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, EVENT_SCHEMA) as writer:
        writer.write_table(rows)
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as sink, pa.ipc.new_file(sink, EVENT_SCHEMA) as writer:
        writer.write_table(rows)
    pq.write_table(rows, tmp_path / "c.parquet")
    gap = row_event(1, 99)
    gap = type(gap)(**{f: getattr(gap, f) for f in gap.__slots__} | {"kind": "gap", "payload": '{"reason": "x"}'})
    before = reads.snapshot_id(lake.lake_access, "raw.events")
    files = [tmp_path / "a.arrow", tmp_path / "b.arrow", tmp_path / "c.parquet"]
    commit(1, StubTask(1, 2), events=[gap], arrow_files=files)
    counts: dict[str, int] = dict(spark.table("raw.events").groupBy("kind").count().collect())
    assert counts == {"row": 11, "gap": 1, "batch": 1}
    parents = spark.table("raw.events.snapshots").where(f"parent_id = {before}").count()
    assert parents == 1
    assert [g.payload for g in ledger_of(lake).gaps()] == [Gap("x")]


def test_a_refusal_in_a_worker_is_one_line_and_writes_nothing(lake: Config, commit: Commit) -> None:
    before = reads.snapshot_id(lake.lake_access, "raw.events")
    with pytest.raises(DecodeError, match=r"^committing batch 1: message at 0/12 is cut short; nothing was consumed"):
        commit(1, StubTask(1, 2), StubTask(1, 2, fail="message at 0/12 is cut short"))
    assert reads.snapshot_id(lake.lake_access, "raw.events") == before
    assert ledger_of(lake).last() is None


def test_an_event_of_another_batch_is_refused(lake: Config, commit: Commit) -> None:
    with pytest.raises(LakeError, match="a row event of batch 2"):
        commit(1, events=[row_event(2, 0)])
    assert ledger_of(lake).last() is None

"""The ledger without a JVM, beside Spark on the same table."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from tests.support_ledger import ledger_of
from tests.support_spark import STUB_DECODE, StubTask, batch_record, row_event
from toolkit.lake import reads, scans, staging, tables
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Gap
from toolkit.values.config import Config
from toolkit.values.errors import CommitConflict, LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def event(kind: str, batch_id: int = 1, ordinal: int = 0, **more: object) -> Event:
    """A driver-made event."""
    at = 1000 * batch_id
    base: dict[str, object] = {"batch_id": batch_id, "generation": 1, "commit_lsn": at, "end_lsn": at + 8}
    return Event(**base | {"ordinal": ordinal, "kind": kind, "payload": "{}"} | more)  # type: ignore[arg-type]


def test_nothing_is_there_yet(lake: Config) -> None:
    ledger = ledger_of(lake)
    assert (ledger.last(), ledger.snapshot_id(), ledger.batches(), ledger.gaps()) == (None, None, (), ())
    assert (ledger.latest_versions(), ledger.schema_versions(), list(scans.scan(lake.lake_access, "ops.none"))) == (
        {},
        (),
        [],
    )
    assert not lake.lake_access.catalog_db.exists()
    with pytest.raises(LakeError, match="cdc init"):
        ledger.append_empty(batch_record(1))


def test_ensure_twice_keeps_one_empty_snapshot(spark: SparkSession, lake: Config) -> None:
    first = ledger_of(lake).snapshot_id()
    tables.ensure(spark, lake.lake_access)
    assert first is not None
    assert ledger_of(lake).snapshot_id() == first
    assert ledger_of(lake).last() is None
    assert reads.properties(lake.lake_access, "raw.events")["write.distribution-mode"] == "none"


def test_ensure_gives_an_older_log_its_retries_back(spark: SparkSession, lake: Config) -> None:
    """The first batch of earlier versions set them to 0 for good, and a compaction that met a drain failed."""
    spark.sql("ALTER TABLE raw.events SET TBLPROPERTIES ('commit.retry.num-retries' = '0')")
    tables.ensure(spark, lake.lake_access)
    assert reads.properties(lake.lake_access, "raw.events")["commit.retry.num-retries"] == "5"


def test_both_writers_see_each_other(spark: SparkSession, lake: Config) -> None:
    ledger_of(lake).append_empty(batch_record(1), [event("gap", relid=7, payload='{"reason": "rewrite"}')])
    assert {r["kind"] for r in spark.table("raw.events").collect()} == {"gap", "batch"}
    base = ledger_of(lake).snapshot_id()
    record = batch_record(2, changes=2)
    staging.commit_batch(
        lake.lake_access,
        record,
        tasks=[StubTask(2, 2)],
        events=[],
        base_snapshot=base,
        decode=STUB_DECODE,
        rules=lake.capture_rules,
    )
    assert ledger_of(lake).last() == record
    ledger_of(lake).append_empty(batch_record(3))
    assert ledger_of(lake).batches() == (batch_record(1), record, batch_record(3))
    assert spark.table("raw.events").count() == 6
    assert [(g.relid, g.payload, g.batch_id) for g in ledger_of(lake).gaps()] == [(7, Gap("rewrite"), 1)]
    partitions = spark.table("raw.events.partitions").select("partition.kind", "partition.batch_id_trunc").collect()
    assert {tuple(p) for p in partitions} == {("gap", 0), ("batch", 0), ("row", 0)}


def test_partition_boundaries_are_the_same_in_both_writers(spark: SparkSession, lake: Config) -> None:
    ledger_of(lake).append_empty(batch_record(999))
    ledger_of(lake).append_empty(batch_record(1000))
    assert spark.table("raw.events").where("batch_id = 1000 AND kind = 'batch'").count() == 1
    truncated = spark.sql("SELECT partition.batch_id_trunc AS t FROM raw.events.partitions ORDER BY t").collect()
    assert [r["t"] for r in truncated] == [0, 1000]


def test_an_append_from_a_stale_reading_fails(spark: SparkSession, lake: Config) -> None:
    """pyiceberg repeats a lost commit on top of the winner unless it is configured not to."""
    late = ledger_of(lake)
    assert late.last() is None
    ledger_of(lake).append_empty(batch_record(1, mark="first"))
    with pytest.raises(CommitConflict, match="committing batch 1"):
        late.append_empty(batch_record(1, mark="late"))
    assert ledger_of(lake).batches() == (batch_record(1, mark="first"),)


def test_an_append_overtaken_while_it_writes_fails(
    spark: SparkSession, lake: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolkit.lake import ledger as module

    write = module._write

    def overtaken(*args: object) -> object:
        monkeypatch.setattr(module, "_write", write)
        ledger_of(lake).append_empty(batch_record(1, mark="first"))
        return write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_write", overtaken)
    with pytest.raises(CommitConflict):
        ledger_of(lake).append_empty(batch_record(1, mark="late"))
    assert ledger_of(lake).batches() == (batch_record(1, mark="first"),)


def test_of_many_appends_from_one_base_one_wins(spark: SparkSession, lake: Config) -> None:
    ledgers = [ledger_of(lake) for _ in range(4)]
    assert len({ledger.snapshot_id() for ledger in ledgers}) == 1
    outcomes: list[str] = []

    def run(number: int) -> None:
        try:
            ledgers[number].append_empty(batch_record(1, mark=str(number)))
            outcomes.append("won")
        except CommitConflict:
            outcomes.append("lost")

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost", "lost", "lost", "won"]
    assert len(ledger_of(lake).batches()) == 1


def test_the_log_outlives_the_cache(spark: SparkSession, lake: Config) -> None:
    """Compaction makes a snapshot without the record: the `batch` event is what counts."""
    for number in (1, 2, 3):
        ledger_of(lake).append_empty(batch_record(number))
    spark.sql(
        "CALL lake.system.rewrite_data_files(table => 'raw.events', options => map('rewrite-all', 'true'))"
    ).collect()
    assert "cdc.batch" not in (reads.snapshot_summary(lake.lake_access, "raw.events") or {})
    assert ledger_of(lake).last() == batch_record(3)
    ledger_of(lake).append_empty(batch_record(4))
    assert [b.batch_id for b in ledger_of(lake).batches()] == [1, 2, 3, 4]


def test_a_reading_does_not_move(spark: SparkSession, lake: Config) -> None:
    ledger_of(lake).append_empty(batch_record(1))
    ledger = ledger_of(lake)
    assert ledger.last() == batch_record(1)
    ledger_of(lake).append_empty(batch_record(2))
    assert ledger.batches() == (batch_record(1),)
    ledger.refresh()
    assert len(ledger.batches()) == 2


def test_a_batch_in_the_ledger_is_not_appended_again(spark: SparkSession, lake: Config) -> None:
    ledger_of(lake).append_empty(batch_record(2))
    with pytest.raises(CommitConflict, match="at batch 2 already"):
        ledger_of(lake).append_empty(batch_record(1))
    with pytest.raises(LakeError, match="a row event of batch 9"):
        ledger_of(lake).append_empty(batch_record(3), [row_event(9, 0)])


def test_tags_and_tables(spark: SparkSession, lake: Config) -> None:
    spark.sql("CREATE TABLE current.t (id INT) USING iceberg")
    spark.sql("INSERT INTO current.t VALUES (1), (2)")
    spark.sql("ALTER TABLE current.t CREATE TAG g1_lsn_10")
    assert reads.tags(lake.lake_access, "current.t") == {"g1_lsn_10": reads.snapshot_id(lake.lake_access, "current.t")}
    assert reads.tables(lake.lake_access, "current") == ("t",)
    assert sorted(r["id"] for r in scans.scan(lake.lake_access, "current.t", ("id",))) == [1, 2]


def test_the_newest_batch_is_read_without_pyiceberg(spark: SparkSession, lake: Config) -> None:
    """`cdc status` reads it on every call: importing pyiceberg alone takes a second."""
    ledger_of(lake).append_empty(batch_record(1))
    program = (
        "import sys; from pathlib import Path; from toolkit.values.config import Config\n"
        "from tests.support_ledger import ledger_of\n"
        "print(ledger_of(Config(root=Path(sys.argv[1]))).last().batch_id, 'pyiceberg' in sys.modules,"
        " 'pyspark' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, str(lake.root)], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.split() == ["1", "False", "False"]


def test_a_damaged_catalog_is_one_line(lake: Config) -> None:
    lake.lake_access.catalog_db.parent.mkdir(parents=True)
    lake.lake_access.catalog_db.write_text("this is not SQLite" * 100)
    with pytest.raises(LakeError, match="reading the catalog") as refused:
        ledger_of(lake).last()
    assert "\n" not in str(refused.value)

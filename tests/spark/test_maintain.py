"""Upkeep of the lake: no row that a reader sees changes."""

from __future__ import annotations

import errno
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pytest

from tests import commands
from tests.support_ledger import lake_of, ledger_of
from tests.support_spark import STUB_DECODE, StubTask, batch_record
from toolkit.lake import applied, check_results, reads, scans, session, staging, storage, tables, upkeep
from toolkit.lake.upkeep import Upkeep
from toolkit.ops import diagnosis, maintenance
from toolkit.values.config import Config
from toolkit.values.errors import CdcError, CommitConflict, LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.values.lake_access import LakeAccess

pytestmark = [pytest.mark.spark, pytest.mark.embedded]


def _at_once(lake: Config) -> Config:
    """Nothing is kept for its age alone."""
    return lake.model_copy(update={"lake": lake.lake.model_copy(update={"keep_days": 0.0})})


def _commit(spark: SparkSession, lake: Config, batch_id: int, base: int | None) -> None:
    record = batch_record(batch_id, changes=2)
    tasks = [StubTask(batch_id, 2)]
    staging.commit_batch(
        lake.lake_access,
        record,
        tasks=tasks,
        events=[],
        base_snapshot=base,
        decode=STUB_DECODE,
        rules=lake.capture_rules,
    )


def _maintained(lake: Config, table: str) -> Upkeep:
    return next(one for one in commands.maintain(_at_once(lake)) if one.table == table)


@pytest.mark.wide
def test_trap_134_the_ledger_outlives_compaction_and_expiry(
    spark: SparkSession, lake: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch_id in range(1, 4):
        _commit(spark, lake, batch_id, ledger_of(lake).snapshot_id())
    late = ledger_of(lake)
    late_base = late.snapshot_id()
    for batch_id in range(4, 26):
        ledger_of(lake).append_empty(batch_record(batch_id))
    rows = sorted(map(str, spark.table("raw.events").collect()))
    last, batches = (ledger_of(lake).last(), ledger_of(lake).batches())
    location = Path(str(reads.metadata_location(lake.lake_access, "raw.events")).removeprefix("file:")).parent.parent
    stray = location / "data" / "left-by-a-killed-drain.parquet"
    stray.write_bytes(b"x")
    fresh = location / "data" / "being-written.parquet"
    fresh.write_bytes(b"x")
    os.utime(stray, (time.time() - 4 * 86400,) * 2)

    monkeypatch.setattr(diagnosis, "_MANY_SNAPSHOTS", 25)
    assert [d.remedy for d in diagnosis._due_maintenance(ledger_of(lake))] == ["run `cdc maintain`, once a day"]
    done = _maintained(lake, "raw.events")
    assert diagnosis._due_maintenance(ledger_of(lake)) == []

    assert done.merged == 25 and done.into == 1 and done.snapshots > 20 and done.orphans == 1
    assert (stray.exists(), fresh.exists()) == (False, True)
    assert sorted(map(str, spark.table("raw.events").collect())) == rows
    ledger = ledger_of(lake)
    assert (ledger.last(), ledger.batches()) == (last, batches)
    assert "cdc.batch" in (
        reads.snapshot_summary(lake.lake_access, "raw.events") or {}
    )  # else every drain scans the log for it
    assert spark.table("raw.events.manifests").count() < 10
    # Whoever planned on a table snapshot that is gone is refused, as he would be on any other.
    with pytest.raises(CommitConflict):
        late.append_empty(batch_record(4))
    with pytest.raises(CdcError):
        _commit(spark, lake, 4, late_base)
    _commit(spark, lake, 26, ledger_of(lake).snapshot_id())
    assert spark.table("raw.events").count() == len(rows) + 3
    assert _maintained(lake, "raw.events").merged == 0


def test_erased_rows_stay_when_another_process_commits_meanwhile(
    spark: SparkSession, lake: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _commit(spark, lake, 1, ledger_of(lake).snapshot_id())
    rows = spark.table("raw.events").where("kind = 'row'").count()
    armed, reached, go = (tmp_path / name for name in ("armed", "reached", "go"))
    position = applied.position

    def arm(metadata: dict[str, Any]) -> dict[str, str]:
        armed.touch()  # what counts the rows has run
        return position(metadata)

    def hold(_: int) -> bool:
        if armed.exists():
            reached.touch()
            while not go.exists():
                time.sleep(0.05)
        return True

    def commit() -> None:
        while not reached.exists():
            time.sleep(0.05)
        try:
            _commit(spark, lake, 2, ledger_of(lake).snapshot_id())
        finally:
            go.touch()

    monkeypatch.setattr(applied, "position", arm)
    spark.udf.register("cdc_hold", hold, "boolean")
    other = threading.Thread(target=commit)
    other.start()
    with pytest.raises(CommitConflict, match="another process changed it meanwhile; run `cdc maintain` again"):
        upkeep.delete_erased(spark, lake.lake_access, "kind = 'row' and cdc_hold(batch_id)")
    other.join()
    assert spark.table("raw.events").where("kind = 'row'").count() == 2 * rows
    assert upkeep.delete_erased(spark, lake.lake_access, "kind = 'row' and batch_id = 1") == rows
    assert spark.table("raw.events").where("kind = 'row'").count() == rows
    assert (last := ledger_of(lake).last()) is not None and last.batch_id == 2
    assert "cdc.batch" in (reads.snapshot_summary(lake.lake_access, "raw.events") or {})


def test_an_orphan_counts_as_removed_when_it_is_gone(
    spark: SparkSession, lake: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_of(lake).append_empty(batch_record(1))
    location = Path(str(reads.metadata_location(lake.lake_access, "raw.events")).removeprefix("file:")).parent.parent
    stray, fresh, hadoop_s = (
        location / "data" / name for name in ("left.parquet", "fresh.parquet", ".left.parquet.crc")
    )
    for file in (stray, fresh, hadoop_s):
        file.write_bytes(b"x")
    for file in (stray, hadoop_s):
        os.utime(file, (time.time() - 4 * 86400,) * 2)
    before = {place for place, _ in storage.files_in(str(location), {})}
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", lambda path, **_: (_ for _ in ()).throw(PermissionError(1, "no", str(path))))
        # Iceberg would say nothing of those that it cannot delete, and their rows would stay where all was erased.
        expired = r"raw\.events: \S+ is only of expired table snapshots and cannot be removed"
        with pytest.raises(LakeError, match=expired) as kept:
            commands.maintain(_at_once(lake))
        assert "run `cdc maintain` again in three days" in str(kept.value)  # the next run does not look for them
        with pytest.raises(LakeError, match=r"raw\.events: /\S+/left\.parquet is of a killed run and cannot be remo"):
            commands.maintain(_at_once(lake))
    assert stray.exists()
    assert _maintained(lake, "raw.events").orphans == 1
    gone = before - {place for place, _ in storage.files_in(str(location), {})}
    assert gone >= {str(stray), str(hadoop_s)} and fresh.exists()


def test_a_damaged_table_does_not_keep_the_others_from_upkeep(
    spark: SparkSession, lake: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cdc maintain` stopped at the first one, and what follows it grew until that table was mended."""
    ledger_of(lake).append_empty(batch_record(1))
    spark.sql("create namespace if not exists history")
    for name in "abcdef":
        spark.sql(f"create table history.{name} as select 1 as n")
        spark.sql(f"insert into history.{name} select 2")

    def files(name: str) -> list[Path]:
        place = str((reads.metadata(lake.lake_access, f"history.{name}") or {})["location"]).removeprefix("file:")
        return sorted(Path(place).rglob("*.parquet"), key=lambda file: file.stat().st_mtime)

    def snapshots() -> list[int]:
        return [len((reads.metadata(lake.lake_access, f"history.{name}") or {})["snapshots"]) for name in "abcdef"]

    (*_, lost) = files("b")
    lost.rename(lost.with_suffix(".away"))
    missing = (
        rf"^forcing the files of history\.b to the disk: {lost} No such file or directory; correct the disk and build"
        r" the table again: `cdc build -- --full-refresh --select current__b history__b`$"
    )
    with pytest.raises(LakeError, match=missing):
        commands.maintain(_at_once(lake))
    assert snapshots() == [1, 2, 1, 1, 1, 1]
    lost.with_suffix(".away").rename(lost)
    for number in range(3, 6):
        spark.sql(f"insert into history.b select {number}")
    older = files("b")[0]
    older.unlink()
    with pytest.raises(LakeError, match=rf"^history\.b cannot be maintained: .*{older.name}.*; build the table again"):
        commands.maintain(_at_once(lake))

    spark.sql("insert into history.f select 3")
    for name in "cd":
        files(name)[-1].unlink()
    several = (
        r"^these tables could not be maintained: history\.b, history\.c, history\.d, and 4 more were not tried;"
        r" the first: history\.b cannot be maintained"
    )
    with monkeypatch.context() as patched:  # a store that is away is not waited for once a table
        patched.setattr(tables, "require_writable", lambda _: (_ for _ in ()).throw(LakeError("away; wait for it")))
        with pytest.raises(LakeError, match=r"^these tables could not be maintained: history\.b, and 6 more were not"):
            commands.maintain(_at_once(lake))
    with pytest.raises(LakeError, match=several):  # a store that refuses everything is not asked a thousand times
        commands.maintain(_at_once(lake))
    assert snapshots()[-1] == 2


def test_a_table_without_its_metadata_does_not_keep_the_others_from_upkeep(spark: SparkSession, lake: Config) -> None:
    """It ended before the first table. The place of the damaged one is still known, so that no other shares it."""
    ledger_of(lake).append_empty(batch_record(1))
    spark.sql("create namespace if not exists history")
    for name in "abc":
        spark.sql(f"create table history.{name} as select 1 as n")
        spark.sql(f"insert into history.{name} select 2")
    damaged = Path(str(reads.metadata_location(lake.lake_access, "history.b")).removeprefix("file:"))
    damaged.write_bytes(b"")
    with pytest.raises(
        LakeError, match=rf"^table history\.b: metadata file {damaged} cannot be read: .*; run `cdc doc"
    ):
        commands.maintain(_at_once(lake))
    kept = [reads.metadata(lake.lake_access, f"history.{name}") or {} for name in "ac"]
    assert [len(one["snapshots"]) for one in kept] == [1, 1]
    maintenance._require_own_folders(lake.lake_access, ["history.a", "history.b", "history.c"])
    spark.sql(f"create table history.inside (n int) using iceberg location '{damaged.parent.parent}/inside'")
    with pytest.raises(LakeError, match=r"^tables history\.b and history\.inside share the folder "):
        commands.maintain(_at_once(lake))


def test_a_new_log_is_merged_though_the_one_before_lacks_a_file(spark: SparkSession, lake: Config) -> None:
    """`cdc init --new-generation` is what is left to do where a file of the log is lost for good."""
    for batch_id in range(1, 12):
        if batch_id == 6:
            rows = spark.sql("select distinct _file from raw.events where kind = 'row' and batch_id = 2").collect()
            (lost,) = (Path(row["_file"].removeprefix("file:")) for row in rows)
            lost.unlink()
            with pytest.raises(
                LakeError, match=rf"^raw\.events cannot be maintained: .*{lost.name}; run `cdc doctor`$"
            ):
                commands.maintain(_at_once(lake))
        generation = 1 if batch_id < 6 else 2
        record = replace(batch_record(batch_id, changes=2), generation=generation)
        staging.commit_batch(
            lake.lake_access, record, tasks=[StubTask(batch_id, 2, generation=generation)], events=[],
            base_snapshot=ledger_of(lake).snapshot_id(), decode=STUB_DECODE, rules=lake.capture_rules,
        )  # fmt: skip
    assert _maintained(lake, "raw.events").merged >= 6
    assert spark.table("raw.events").where("kind = 'row' and generation = 2").count() == 12
    lost_of = [scans.lost_files(lake.lake_access, "raw.events", ((("generation", "=", n),),)) for n in (1, 2)]
    assert [Path(one).name for one in lost_of[0]] == [lost.name] and lost_of[1] == []
    assert diagnosis._lost_of_log(lake_of(lake)) == []  # it advised to begin a new log, again and again


@pytest.mark.parametrize("full", [False, True], ids=["a good disk", "a disk that refuses"])
def test_trap_012_what_compaction_made_is_on_the_disk_before_the_old_files_go(
    spark: SparkSession, lake: Config, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    for batch_id in range(1, 11):
        ledger_of(lake).append_empty(batch_record(batch_id))
    old = {path for path in Path(lake.lake_access.warehouse).glob("raw/**/*.*") if path.suffix in (".avro", ".parquet")}
    batches, synced, late = ledger_of(lake).batches(), set[Path](), set[Path]()
    fsync = os.fsync

    def note(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if path.suffix == ".parquet" and path not in {*old, *synced} and not all(file.exists() for file in old):
            late.add(path)
        if full and path.suffix == ".parquet" and path not in old:
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)
        synced.add(path)

    monkeypatch.setattr(os, "fsync", note)
    if full:
        with pytest.raises(LakeError, match=r"raw\.events to the disk: .*Input/output error"):
            commands.maintain(_at_once(lake))
        assert all(file.exists() for file in old)
        assert ledger_of(lake).batches() == batches
        return
    done = _maintained(lake, "raw.events")
    assert done.merged == 10 and done.snapshots == 11
    assert not all(file.exists() for file in old)
    files = {
        path for path in Path(lake.lake_access.warehouse).glob("raw/**/*.*") if not path.name.startswith(".")
    } - old
    newest = Path(urlparse(reads.metadata_location(lake.lake_access, "raw.events") or "").path)
    named = {path for path in files if path.suffix != ".json"} | {newest}
    assert {path.suffix for path in named} == {".avro", ".json", ".parquet"}
    assert named <= synced
    assert not late  # every new data file was forced while all old files were there


def test_what_is_published_stays_and_what_others_wrote_is_left_alone(spark: SparkSession, lake: Config) -> None:
    spark.conf.set("spark.sql.iceberg.snapshot-property.cdc.applied-batch", "7")
    try:
        for name in ("kept", "touched"):
            spark.sql(f"CREATE TABLE current.{name} (a INT) USING iceberg TBLPROPERTIES ('format-version' = '3')")
            for value in range(6):
                spark.sql(f"INSERT INTO current.{name} VALUES ({value})")
                spark.sql(f"ALTER TABLE current.{name} CREATE TAG g1_lsn_{value}")
        for branch in ("cdc_build_0123", "of_another_program"):
            spark.sql(f"ALTER TABLE current.kept CREATE BRANCH {branch}")
        for tag in ("month_end", "outdated"):
            spark.sql(f"ALTER TABLE current.kept CREATE TAG {tag}")
        java: Any = spark._jvm
        kept = java.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, "current.kept")
        kept.manageSnapshots().setMaxRefAgeMs("outdated", 1).commit()
    finally:
        spark.conf.unset("spark.sql.iceberg.snapshot-property.cdc.applied-batch")
    spark.sql("INSERT INTO current.touched VALUES (99)")
    spark.sql("CREATE VIEW published.kept AS SELECT a FROM current.kept VERSION AS OF 'g1_lsn_2'")
    spark.sql("CREATE TABLE ops.published (tag STRING) USING iceberg")
    spark.sql("INSERT INTO ops.published VALUES ('g1_lsn_2'), (NULL)")

    done = {one.table: one for one in commands.maintain(_at_once(lake))}

    assert (done["current.kept"].merged, done["current.kept"].tags) == (6, 5)
    assert reads.tags(lake.lake_access, "current.kept").keys() == {"g1_lsn_2", "month_end"}
    assert (reads.metadata(lake.lake_access, "current.kept") or {})["refs"].keys() == {
        "main",
        "g1_lsn_2",
        "month_end",
        "of_another_program",
    }
    assert spark.table("published.kept").count() == 3
    assert spark.table("current.kept").count() == 6
    assert (reads.snapshot_summary(lake.lake_access, "current.kept") or {})["cdc.applied-batch"] == "7"
    assert "another process wrote to it" in (done["current.touched"].skipped or "")
    assert len(reads.tags(lake.lake_access, "current.touched")) == 6


def test_a_proof_that_is_published_during_maintenance_stays(
    spark: SparkSession, lake: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a check on another machine, of rows that were built long ago: the tag that keeps them was removed."""
    spark.conf.set("spark.sql.iceberg.snapshot-property.cdc.applied-batch", "7")
    try:
        spark.sql("CREATE TABLE current.old (a INT) USING iceberg")
        spark.sql("INSERT INTO current.old VALUES (1)")
    finally:
        spark.conf.unset("spark.sql.iceberg.snapshot-property.cdc.applied-batch")
    own_session = session.own_session

    def published_meanwhile(access: LakeAccess) -> SparkSession:
        spark.sql("ALTER TABLE current.old CREATE TAG proven_g1_7")  # the tags to keep were read before
        return own_session(access)

    with monkeypatch.context() as patched:
        patched.setattr(session, "own_session", published_meanwhile)
        done = {one.table: one for one in commands.maintain(_at_once(lake))}
    assert done["current.old"].skipped is None and done["current.old"].tags == 0
    assert reads.tags(lake.lake_access, "current.old").keys() == {"proven_g1_7"}


def test_young_snapshots_and_tags_stay_but_those_of_the_log(
    spark: SparkSession, lake: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.sql("CREATE TABLE ops.young (a INT) USING iceberg")
    for value in range(3):
        spark.sql(f"INSERT INTO ops.young VALUES ({value})")
        spark.sql(f"ALTER TABLE ops.young CREATE TAG t{value}")
    ledger_of(lake).append_empty(batch_record(1))
    monkeypatch.setattr(maintenance, "_LOG_DAYS", 0.0)
    done = {one.table: one for one in commands.maintain(lake)}
    assert done["ops.young"] == Upkeep("ops.young")
    assert len(reads.tags(lake.lake_access, "ops.young")) == 3
    assert done["raw.events"].snapshots == 1


def test_folders_that_tables_could_share_are_refused(spark: SparkSession, lake: Config) -> None:
    setting = {f"spark.sql.catalog.{lake.lake.catalog}.unique-table-location": "false"}
    with pytest.raises(LakeError, match="unique-table-location is off"):
        commands.maintain(lake.model_copy(update={"spark": {**lake.spark, **setting}}))


def test_a_catalog_whose_name_must_be_quoted_is_maintained(lake: Config) -> None:
    named = lake.model_copy(update={"lake": lake.lake.model_copy(update={"catalog": "my-lake"})})
    tables.ensure(session.own_session(named.lake_access), named.lake_access)
    (done,) = (one for one in commands.maintain(named) if one.table == "raw.events")
    assert done.skipped is None


def test_without_a_log_it_says_so(lake: Config) -> None:
    with pytest.raises(LakeError, match="cdc init"):
        commands.maintain(lake)


def test_rows_replaced_without_pyiceberg_are_those_that_spark_reads_and_their_old_files_expire(
    spark: SparkSession, lake: Config
) -> None:
    access, name = lake.lake_access, "ops.plans"
    location = str(reads.metadata_location(access, name)).removeprefix("file:")
    data = Path(location).parent.parent / "data"

    def write(number: int) -> int:
        rows = [
            {"layer": "current", "relid": n, "plan": f"{number}", "generation": 1, "batch_id": number, "upto": number}
            for n in range(number)
        ]
        check_results.write(access, name, rows, overwrite=True)
        return reads.snapshot_id(access, name) or 0

    made = {write(number): number for number in range(1, 9)}
    for snapshot, number in made.items():
        found = spark.sql(f"SELECT batch_id, plan FROM {name} VERSION AS OF {snapshot}").collect()
        assert [tuple(row) for row in found] == [(number, str(number))] * number
    assert [row["operation"] for row in spark.table(f"{name}.snapshots").collect()][1 - len(made) :] == [
        "overwrite"
    ] * (len(made) - 1)
    assert len(list(data.glob("*.parquet"))) == 8
    done = _maintained(lake, name)
    assert done.snapshots >= 7
    # The file that the newest table snapshot deleted goes when that table snapshot expires, as Iceberg does it.
    assert len(list(data.glob("*.parquet"))) == 2
    assert spark.table(name).count() == 8
    write(9)
    _maintained(lake, name)
    assert len(list(data.glob("*.parquet"))) == 2
    assert {row["batch_id"] for row in spark.table(name).collect()} == {9}
    spark.sql(f"DELETE FROM {name} WHERE relid = 0")
    write(10)
    assert {row["batch_id"] for row in spark.table(name).collect()} == {10} and spark.table(name).count() == 10


def test_a_lost_file_is_found_where_rows_are_deleted_by_vectors(spark: SparkSession, lake: Config) -> None:
    """Nothing was looked for in such a table, so that a check advised to build it, which failed again."""
    spark.sql("create namespace if not exists current")
    spark.sql(
        "create table current.t tblproperties ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')"
        " as select /*+ repartition(1) */ id from range(5)"
    )
    spark.sql("delete from current.t where id = 3")
    access = lake.lake_access
    assert scans.lost_files(access, "current.t") == []
    scans.require_files(access, "current.t")
    files = spark.sql("select file_path, file_format from current.t.files").collect()
    assert sorted(file["file_format"] for file in files) == ["PARQUET", "PUFFIN"]
    for file in (Path(file["file_path"].removeprefix("file:")) for file in files):
        away = file.rename(file.with_suffix(".away"))
        assert [Path(lost).name for lost in scans.lost_files(access, "current.t")] == [file.name]
        with pytest.raises(LakeError, match=rf"current\.t: a file of it cannot be read: .*{file.name}"):
            scans.require_files(access, "current.t")
        away.rename(file)

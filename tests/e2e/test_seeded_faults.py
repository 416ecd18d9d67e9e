"""Every kind of fault is found, classed and traced to where it arose, on tables with and without a key."""

from __future__ import annotations

import json
import random
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
import pytest
from click.testing import CliRunner

from tests import commands
from tests.dbt.harness import rules
from tests.support_faults import COLUMNS, FAULTS, ROWS, Fault, missed
from tests.support_ledger import ledger_of
from tests.support_postgres import fresh_database
from toolkit.cli import frame, main
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import session
from toolkit.quality import published
from toolkit.quality.report import CheckReport, TableCheck
from toolkit.values.config import CheckConfig, Config, SourceConfig
from toolkit.values.resources import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]

KEYED, BAGS = ("keyed", "keyed_whole"), ("bag", "bag_whole")
COUNT = 120


@dataclass
class Scene:
    """One lake, built and proven once. The tests of this module follow each other in it."""

    config: Config
    last_batch: int  # inserted the last 20 rows and changed the 10 before

    def check(self) -> dict[str, TableCheck]:
        report = self.report()
        return {t.table.removeprefix("public."): t for t in report.tables}

    def report(self) -> CheckReport:
        return commands.check(self.config)


def _sql(scene: Scene, *statements: str) -> None:
    with psycopg.connect(scene.config.source.conninfo, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement)


def _run(scene: Scene, remedy: str | None) -> None:
    """The command as the report prints it."""
    command, *arguments = shlex.split(remedy or "")
    assert command == "cdc"
    file = scene.config.root / "cdc.toml"
    source = scene.config.source
    file.write_text(f"[source]\nconninfo = {json.dumps(source.conninfo)}\nslot = {json.dumps(source.slot)}\n", "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "_stop_spark", lambda **_: None)
        done = CliRunner().invoke(main, arguments, env={"CDC_CONFIG": str(file)})
    assert done.exit_code == 0, (remedy, done.output)


@contextmanager
def _as_a_build(scene: Scene) -> Iterator[SparkSession]:
    """A session whose commits say that they were a build's."""
    last = ledger_of(scene.config).last()
    assert last is not None
    said = {"applied-batch": last.batch_id, "applied-lsn": int(last.complete_to), "generation": last.generation}
    names = {f"spark.sql.iceberg.snapshot-property.cdc.{name}": str(value) for name, value in said.items()}
    spark = session.own_session(scene.config.lake_access)
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield spark
    finally:
        for name in names:
            spark.conf.unset(name)


@pytest.fixture(scope="module")
def scene(pg16: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory, _jvm: None) -> Iterator[Scene]:
    with fresh_database(pg16) as conninfo:
        config = Config(
            root=tmp_path_factory.mktemp("faults"),
            source=SourceConfig(conninfo=conninfo, slot="cdc_faults"),
            check=CheckConfig(samples=1000),
        )
        shutil.copytree(
            ROOT / "dbt_project", config.dbt_project.folder, ignore=shutil.ignore_patterns("target", "logs")
        )
        with psycopg.connect(conninfo, autocommit=True) as conn:
            for table in (*KEYED, *BAGS):
                conn.execute(f"create table public.{table} ({COLUMNS})")
                identity = "full" if table in BAGS else "default"
                if table in KEYED:
                    conn.execute(f"alter table public.{table} add primary key (id)")
                conn.execute(f"alter table public.{table} replica identity {identity}")
                conn.execute(f"insert into public.{table} " + ROWS.format(first=1, last=COUNT - 20))
            commands.init(config)
            for table in (*KEYED, *BAGS):
                conn.execute(f"insert into public.{table} " + ROWS.format(first=COUNT - 19, last=COUNT))
                # `body` is not sent again: an unchanged TOASTed value.
                conn.execute(f"update public.{table} set amount = -id where id between {COUNT - 29} and {COUNT - 20}")
        commands.drain(config)
        last = ledger_of(config).last()
        assert last is not None
        yield Scene(config, last.batch_id)


def test_without_a_fault_it_is_green(scene: Scene) -> None:
    found = scene.report()
    assert found.green, found.to_dict()
    assert {t.rows for t in found.tables} == {COUNT}
    assert {t.full_lsn for t in found.tables} == {found.lsn}


def test_history_is_held_against_what_was_proven(scene: Scene) -> None:
    """A rule of dbt: no check reads `history`, and what it says of a proven LSN is known."""
    spark = session.own_session(scene.config.lake_access)

    def failed() -> list[str]:
        found = {
            model.removeprefix("history__public__"): status
            for name, model, status in rules(scene.config)
            if name.startswith("cdc_as_proven")
        }
        assert found.keys() == {*KEYED, *BAGS} and set(found.values()) <= {"pass", "fail"}, found
        return sorted(table for table, status in found.items() if status == "fail")

    main = "SELECT snapshot_id FROM history.public__{}.refs WHERE name = 'main'"
    good = {table: spark.sql(main.format(table)).collect()[0][0] for table in (*KEYED, *BAGS)}
    # A version ends too early, a cell is another, a row is there once less, and one began too late.
    spark.sql("UPDATE history.public__keyed SET _cdc_to_lsn = _cdc_from_lsn WHERE id = 1 AND _cdc_to_lsn IS NULL")
    spark.sql("UPDATE history.public__keyed_whole SET note = '' WHERE id = 2 AND _cdc_to_lsn IS NULL")
    spark.sql("DELETE FROM history.public__bag WHERE id = 3")
    spark.sql("UPDATE history.public__bag_whole SET _cdc_from_lsn = _cdc_from_lsn << 1 WHERE id = 4")
    assert failed() == sorted((*KEYED, *BAGS))
    for table, snapshot in good.items():
        catalog = scene.config.lake.catalog
        spark.sql(f"CALL {catalog}.system.set_current_snapshot('history.public__{table}', {snapshot}L)")
    # What came since the proof is not held against it, and neither is a table that has another shape since.
    _sql(scene, "update public.keyed set name = 'later' where id = 90")
    _sql(scene, "alter table public.bag add column more int", "alter table public.bag drop column more")
    commands.drain(scene.config)
    commands.build(scene.config)
    assert failed() == []
    spark.sql("UPDATE history.public__keyed SET name = 'wrong' WHERE id = 90 AND _cdc_to_lsn IS NOT NULL")
    assert failed() == ["keyed"]


def test_every_fault_is_found_and_classed(scene: Scene) -> None:
    spark = session.own_session(scene.config.lake_access)
    planted: dict[str, list[Fault]] = {}
    for table in ("keyed", "bag"):
        ids = iter(range(1, COUNT - 30))
        planted[table] = [fault(spark, f"current.public__{table}", ids) for fault in FAULTS]
    # A wrong truncate, by something that says it was a build.
    with _as_a_build(scene):
        for table in ("keyed_whole", "bag_whole"):
            spark.sql(f"DELETE FROM current.public__{table} WHERE length(name) > 0")  # by rows, as a build writes
            planted[table] = [Fault("truncate", {i: ("removed", frozenset()) for i in range(1, COUNT + 1)})]
    # A build comes on top before anybody looks.
    _sql(scene, "update public.keyed set note = 'later' where id = 90")
    commands.drain(scene.config)
    commands.build(scene.config)
    found = scene.check()
    for table, faults in planted.items():
        assert found[table].status == "different"
        assert missed(found[table], faults, keyed=table in KEYED) == [], table
        causes = {s.cause.kind if s.cause else None for s in found[table].samples}
        assert causes == {"build" if table.endswith("whole") else "tampered"}, table
        assert "--full-refresh" in (found[table].remedy or "")
    sample = found["keyed"].samples[0]
    assert sample.cause is not None
    assert "was changed after its build (tag g1_lsn_" in sample.cause.text
    assert (sample.cause.batch_id or scene.last_batch) < scene.last_batch  # that of the first copy
    assert sample.cause.lsn is not None
    # Readers still see what was proven, and see how old that is.
    assert spark.table("published.public__keyed_whole").count() == COUNT
    proofs = {r["table"]: r for r in spark.table("ops.proofs").collect()}
    assert proofs["public.keyed"]["status"] == "different"
    assert proofs["public.keyed"]["proven_lsn"] == str(published.published(ledger_of(scene.config))["public.keyed"])
    assert spark.table("ops.parity_results").where("not published").count() == 4
    for result in found.values():
        _run(scene, result.remedy)
    repaired = scene.report()
    assert repaired.green, repaired.to_dict()


def test_a_batch_lost_from_the_log_is_traced_to_capture(scene: Scene) -> None:
    """And no rebuild shows readers what was not proven, also not one at the LSN of the last proof."""
    spark = session.own_session(scene.config.lake_access)
    spark.sql(f"DELETE FROM raw.events WHERE batch_id = {scene.last_batch} AND kind = 'row' AND op IN ('I', 'U')")
    proven = {table: spark.table(f"published.public__{table}").collect() for table in (*KEYED, *BAGS)}
    commands.build(scene.config, dbt_args=("--full-refresh",))
    assert spark.table("current.public__keyed").count() < len(proven["keyed"])
    assert {table: spark.table(f"published.public__{table}").collect() for table in proven} == proven
    found = scene.check()
    assert {table: spark.table(f"published.public__{table}").collect() for table in proven} == proven
    inserted = {i: ("removed", frozenset[str]()) for i in range(COUNT - 19, COUNT + 1)}
    updated = {i: ("modified", frozenset(["amount"])) for i in range(COUNT - 29, COUNT - 19)}
    for table in (*KEYED, *BAGS):
        assert missed(found[table], [Fault("lost", inserted | updated)], keyed=table in KEYED) == [], table
        causes = {s.cause.kind if s.cause else None for s in found[table].samples if s.kind != "added"}
        assert causes == {"capture"}, table
        assert found[table].remedy == f"cdc repair public.{table}" + " --differing" * (table in KEYED)
    first = next(s.cause for s in found["keyed"].samples if s.kind == "modified")
    assert first is not None
    assert "its newest change of this row is at" in first.text


def test_the_named_command_repairs(scene: Scene) -> None:
    for result in scene.check().values():
        _run(scene, result.remedy)
    assert scene.report().green


@pytest.mark.long
def test_large_tables_are_proved_by_what_the_log_touched(scene: Scene) -> None:
    """Here every table counts as large. Whatever the log cannot vouch for is compared whole again."""
    config = scene.config
    large = Scene(config.model_copy(update={"check": CheckConfig(full_rows=0, full_hours=24)}), scene.last_batch)
    spark = session.own_session(config.lake_access)
    assert scene.report().green
    before = published.published(ledger_of(config))["public.keyed"]
    _sql(
        scene,
        "update public.keyed set name = 'new', id = id + 1000 where id in (1, 2)",
        "delete from public.keyed where id = 3",
        "insert into public.bag (id) values (1)",
    )
    found = large.check()
    assert {t.status for t in found.values()} == {"identical"}
    reported = {name: (t.proof, t.rows, t.full_lsn == before) for name, t in found.items()}
    assert reported["keyed"] == ("incremental", 2, True)
    assert reported["keyed_whole"] == ("carried", 0, True)
    assert reported["bag"] == ("full", COUNT + 1, False)
    assert reported["bag_whole"] == ("carried", 0, True)
    # Among the touched keys a fault is found without reading the others.
    _sql(scene, "update public.keyed set name = 'newer' where id = 1001")
    commands.drain(config)
    commands.build(config, select=("public__keyed",))
    with _as_a_build(scene):
        spark.sql("UPDATE current.public__keyed SET name = 'stale' WHERE id = 1001")
    keyed = large.check()["keyed"]
    assert (keyed.proof, keyed.status, keyed.rows, keyed.modified) == ("incremental", "different", 1, 1)
    # A table that was red, or that someone else wrote to, is compared whole.
    spark.sql("UPDATE current.public__keyed SET name = 'newer' WHERE id = 1001")
    keyed = large.check()["keyed"]
    assert (keyed.proof, keyed.status, keyed.rows) == ("full", "identical", COUNT - 1)
    spark.sql("UPDATE current.public__keyed SET name = 'x' WHERE id = 50")
    keyed = large.check()["keyed"]
    assert (keyed.proof, keyed.status, keyed.modified) == ("full", "different", 1)
    _run(scene, keyed.remedy)


@pytest.mark.long
def test_two_hundred_faults_one_at_a_time(scene: Scene, seed: int) -> None:
    """Each alone in its table, so that none can hide behind another; the table is put back after each check."""
    rng = random.Random(seed)
    spark = session.own_session(scene.config.lake_access)
    assert scene.report().green
    tables = (*KEYED, *BAGS)
    good = {
        t: spark.table(f"current.public__{t}.refs").where("name = 'main'").collect()[0]["snapshot_id"] for t in tables
    }
    count = 0
    while count < 200:
        planted = {}
        for table in tables:
            victims = list(range(4, COUNT - 30))  # the test before has changed the first three
            rng.shuffle(victims)
            planted[table] = rng.choice(FAULTS)(spark, f"current.public__{table}", iter(victims))
        found = scene.check()
        for table, fault in planted.items():
            assert missed(found[table], [fault], keyed=table in KEYED) == [], (fault.name, table)
            catalog = scene.config.lake.catalog
            spark.sql(f"CALL {catalog}.system.set_current_snapshot('current.public__{table}', {good[table]}L)")
            count += 1
    assert scene.report().green

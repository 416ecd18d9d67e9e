"""A check on the whole path: green, each planted fault found, what cannot be compared named, `published` moved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from tests import commands
from tests.support_ledger import lake_of, ledger_of
from tests.support_outside import assert_readers_agree
from tests.support_postgres import fresh_database, run_sql
from toolkit.api import Toolkit
from toolkit.cli import frame, main
from toolkit.demo.server import EmbeddedServer
from toolkit.history.rows_at_lsn import read_rows, rows
from toolkit.lake import reads, session
from toolkit.lake.published_tables import scan_published
from toolkit.lake.scans import scan
from toolkit.lake.sqlite_catalog import SqliteCatalog
from toolkit.ops import diagnosis, status_report
from toolkit.quality import expectations, published, source_rows, trend
from toolkit.quality.report import CheckReport, TableCheck
from toolkit.source import exact_cut, row_lines, slot
from toolkit.values import config as configuration
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError, LakeError, SlotError
from toolkit.values.lsn import Lsn
from toolkit.values.resources import ROOT
from toolkit.values.row_line import Comparison

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt]


@pytest.fixture
def source(pg16: EmbeddedServer, lake: Config) -> Iterator[Config]:
    with fresh_database(pg16) as conninfo:
        shutil.copytree(ROOT / "dbt_project", lake.dbt_project.folder, ignore=shutil.ignore_patterns("target", "logs"))
        config = lake.model_copy(update={"source": lake.source.model_copy(update={"conninfo": conninfo})})
        run_sql(
            config,
            "create table public.item (id bigint primary key, name text, price numeric(10,2))",
            "insert into public.item select i, 'n' || i, i from generate_series(1, 300) i",
            "create table public.bag (line text)",
            "alter table public.bag replica identity full",
            "insert into public.bag values ('a'), ('a'), ('a'), (null), ('')",
            "create table public.empty (id int primary key)",
            "create type public.mood as enum ('well', 'ill')",
            "create table public.felt (id int primary key, mood public.mood)",
            "insert into public.felt values (1, 'ill')",
        )
        commands.init(config)
        yield config


def _check(config: Config, *tables: str) -> CheckReport:
    return commands.check(config, tables)


def _by_name(report: CheckReport) -> dict[str, TableCheck]:
    return {t.table: t for t in report.tables}


def _cdc(config: Config, patch: pytest.MonkeyPatch, *words: str) -> Result:
    patch.setattr(configuration, "load", lambda _: config)
    patch.setattr(frame, "_stop_spark", lambda **_: None)
    return CliRunner().invoke(main, [words[0], "--output", "json", *words[1:]])


def test_green_then_each_fault_is_found(source: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sql(source, "update public.item set name = 'new' where id = 1", "delete from public.item where id = 2")
    run_sql(source, "create table public.kin () inherits (public.empty)", "insert into public.kin values (1)")
    green = _check(source)
    assert green.green, green.to_dict()
    note = "SELECT also shows the rows of public.kin by inheritance; the lake has those of SELECT FROM ONLY"
    assert {t.table: t.reason for t in green.tables if t.reason} == {"public.empty": note}
    assert f"public.empty: {note}\n" in green.text
    assert status_report.status(source).notes == {"public.empty": note}
    assert {t.table: t.rows for t in green.tables} == {
        "public.bag": 5, "public.empty": 0, "public.felt": 1, "public.item": 299,
    }  # fmt: skip
    assert trend.differing(source.lake_access) == []
    assert green.lsn is not None
    assert green.lsn == ledger_of(source).last().complete_to  # type: ignore[union-attr]
    assert published.published_lsn(lake_of(source).ledger) == green.lsn
    assert {"public.bag", "public.item"} <= set(green.published)
    spark = session.own_session(source.lake_access)
    assert spark.table("published.public__item").count() == 299

    first = Lsn(green.lsn)
    history = rows(lake_of(source), "item", key={"id": "1"})
    assert [r["name"] for r in history] == ["n1", "new"]
    assert len(rows(lake_of(source), "item", as_of=first)) == 299
    assert len(list(read_rows(lake_of(source), "item", as_of=first, limit=7))) == 7
    with pytest.raises(ConfigError, match="no column 'nope'"):
        rows(lake_of(source), "item", key={"nope": "1"})

    before = datetime.now(UTC).isoformat(sep=" ")
    run_sql(source, "insert into public.item values (999, 'late', 0)")
    drained = commands.drain(source)
    with pytest.raises(ConfigError, match="not built that far yet"):
        rows(lake_of(source), "item", as_of=drained.committed_lsn)
    commands.build(source)
    assert len(rows(lake_of(source), "item", as_of=drained.committed_lsn)) == 300
    assert len(rows(lake_of(source), "item", as_of=first)) == 299
    # The same on the command line: with a limit, which says so, and by time.
    for words, count, notice in (
        (["--limit", "7"], 7, "cdc: only the first 7 rows are shown; --limit 0 shows all\n"),
        (["--limit", "300"], 300, ""),
        (["--limit", "0"], 300, ""),
        (["--limit", "99999999999999999999"], 300, ""),
        (["--as-of", before], 299, ""),
    ):
        shown_rows = _cdc(source, monkeypatch, "rows", "item", *words)
        assert (shown_rows.exit_code, len(json.loads(shown_rows.stdout)), shown_rows.stderr) == (0, count, notice)
    # Without rows the columns are shown all the same; it was an empty line.
    text = ["--output", "text"]
    assert _cdc(source, monkeypatch, "rows", "empty", *text).stdout == "id\n"
    none = _cdc(source, monkeypatch, "rows", "empty", "--key", "id=1", *text).stdout
    assert none == "id  _cdc_from_lsn  _cdc_to_lsn  _cdc_doubtful\n"
    built = _cdc(source, monkeypatch, "build", "--as-of", before)
    assert built.exit_code == 0, built.output
    assert spark.table(f"{json.loads(built.stdout)['schema']}.public__item").count() == 299

    spark.sql("UPDATE current.public__item SET name = 'N7' WHERE id = 7")
    spark.sql("DELETE FROM current.public__item WHERE id = 8")
    spark.sql("DELETE FROM current.public__bag WHERE line = ''")
    assert assert_readers_agree(source, spark) == {
        "public__bag": 5, "public__empty": 0, "public__felt": 1, "public__item": 299,
    }  # fmt: skip
    red = _check(source)
    found = _by_name(red)
    assert not red.green
    item = found["public.item"]
    assert (item.status, item.identical, item.modified, item.added, item.removed) == ("different", 298, 1, 0, 1)
    causes = [s.cause.kind if s.cause else None for s in item.samples]
    assert causes == ["tampered", "tampered"]
    assert [replace(s, cause=None).to_dict() for s in item.samples] == [
        {"class": "modified", "key": {"id": "7"}, "columns": {"name": {"source": "n7", "lake": "N7"}}},
        {"class": "removed", "key": {"id": "8"}, "columns": {}},
    ]
    assert (found["public.bag"].identical, found["public.bag"].removed) == (4, 1)
    assert found["public.empty"].status == "identical"
    written = expectations.last_report(source.lake_access)
    assert written["green"] is False
    shown = status_report.status(source)
    assert (
        shown.failing and shown.last_check is not None and shown.last_check.results == {"different": 2, "identical": 2}
    )
    assert {t.table for t in shown.tables if t.state != "ok"} == {"public.item", "public.bag"}
    assert {row["table_name"] for row in scan(source.lake_access, "ops.table_states") if row["state"] == "stale"} == {
        "public.item", "public.bag",
    }  # fmt: skip
    assert [d.what for d in diagnosis.doctor(source) if d.level == "error"] == ["table public.bag", "table public.item"]
    # Every row that differs is in a table of its own, with the cells of both sides.
    every = {(r["table"], r["class"]): r for r in spark.table("ops.parity_rows").collect()}
    assert len(every) == spark.table("ops.parity_rows").count() == 3
    modified, removed = every["public.item", "modified"], every["public.item", "removed"]
    assert (modified["key"], modified["columns"]) == ({"id": "7"}, ["name"])
    assert (modified["source"], modified["lake"]) == ({"name": "n7"}, {"name": "N7"})
    assert (removed["source"], removed["lake"]) == ({"id": "8", "name": "n8", "price": "8.00"}, None)
    assert (every["public.bag", "removed"]["key"], every["public.bag", "removed"]["source"]) == (None, {"line": ""})
    checked = {r["checked_at"] for r in spark.table("ops.parity_results").where("status = 'different'").collect()}
    assert {r["checked_at"] for r in every.values()} == checked
    assert [(r["table"], r["class"], r["rows"], r["lsn"]) for r in trend.differing(source.lake_access)] == [
        ("public.bag", "removed", 1, str(red.lsn)),
        ("public.item", "modified", 1, str(red.lsn)),
        ("public.item", "removed", 1, str(red.lsn)),
    ]
    # What was not proven stays where it was last proven.
    assert spark.table("published.public__item").where("id in (7, 8)").count() == 2
    assert published.published(ledger_of(source))["public.item"] == green.lsn

    # Its rows are those of the source, in every column that the source has.
    spark.sql("ALTER TABLE current.public__felt ADD COLUMN margin int")
    spark.sql("UPDATE current.public__felt SET margin = 7")
    felt = _by_name(_check(source, "felt"))["public.felt"]
    assert (felt.status, felt.reason) == (
        "not_taken", "its columns in the lake are not those of the log: margin is of no column of the source",
    )  # fmt: skip
    assert felt.remedy == "cdc build -- --full-refresh --select current__public__felt history__public__felt"
    assert "margin" not in spark.table("published.public__felt").columns


def test_what_cannot_be_compared_is_never_green(source: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def drain_behind_ddl(config: Config, *, upto: Lsn) -> object:
        return commands.drain(config, upto=upto)

    real = source_rows.take

    def altered_first(opened: Any, *rest: object) -> object:
        # After the cut, before the source's figures are read. The snapshot prints old rows by the new label.
        run_sql(source, "truncate public.item", "alter type public.mood rename value 'ill' to 'sick'")
        return real(opened, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(source_rows, "take", altered_first)
        report = commands.compare(source, drain=drain_behind_ddl, build=commands.build)
    found = _by_name(report)
    assert found["public.item"].status == "not_taken"
    assert "truncated" in (found["public.item"].reason or "")
    assert found["public.felt"].status == "not_taken"
    assert "altered while the check was taken" in (found["public.felt"].reason or "")
    assert found["public.felt"].remedy == "cdc run"
    assert found["public.bag"].status == "identical"
    assert not report.green

    read = row_lines.lines

    @contextmanager
    def altered_meanwhile(
        conn: psycopg.Connection[Any], plan: Comparison, **how: Any
    ) -> Iterator[Iterator[Sequence[bytes]]]:
        if plan.table.name == "felt":
            run_sql(source, "alter type public.mood rename value 'sick' to 'unwell'")
        with read(conn, plan, **how) as blocks:
            yield blocks

    with monkeypatch.context() as patch:
        patch.setattr(row_lines, "lines", altered_meanwhile)
        report = commands.compare(source, drain=drain_behind_ddl, build=commands.build)
    found = _by_name(report)
    assert found["public.felt"].status == "not_taken"
    assert "altered while it was read" in (found["public.felt"].reason or "")
    assert found["public.item"].status == "identical"

    def no_slot(*_: object, **__: object) -> object:
        raise SlotError("no slot is free")

    with monkeypatch.context() as patch:
        patch.setattr(slot, "create_slot", no_slot)
        patch.setattr(exact_cut, "position", lambda *_: None)
        hasty = source.model_copy(update={"check": source.check.model_copy(update={"cut_seconds": 0.1})})
        report = _check(hasty)
    assert (report.lsn, report.green) == (None, False)
    assert {t.status for t in report.tables} == {"not_taken"}
    assert "in another order than they committed" in (report.tables[0].reason or "")


def test_a_table_is_stale_since_its_latest_gap(source: Config) -> None:
    """A check named a gap that a repair had closed and a check had proven, where `cdc status` named the new one."""
    altered = [f"alter event trigger _cdc_0_drop {how}" for how in ("disable", "enable always")]
    for row in (1001, 1002):
        run_sql(source, *altered, f"insert into public.item values ({row}, 'new', 1)")
        commands.drain(source)  # compares the catalog
        found = _by_name(_check(source))["public.item"]
        state = next(t for t in status_report.status(source).tables if t.table == "public.item")
        assert found.reason == f"stale since {state.from_lsn}: {state.reason}"
        commands.repair(source)
        assert _check(source).green


@pytest.mark.embedded
def test_a_table_whose_proven_snapshot_is_gone_is_not_ok(source: Config) -> None:
    """A replacement by a JVM that outlived its runner took newer table snapshots away. `cdc status` said proven."""
    access, name = source.lake_access, "current.public__item"
    assert _check(source).green
    before = reads.metadata_location(access, name)
    run_sql(source, "insert into public.item values (999, 'late', 0)")
    assert _check(source).green
    now = reads.metadata_location(access, name)
    assert before is not None and now is not None and before != now
    assert not status_report.status(source).failing
    assert SqliteCatalog(access).swap(name, now, before)  # what such a replacement leaves
    with pytest.raises(LakeError, match="is gone from the lake"):
        scan_published(access, "public.item").to_arrow()
    found = status_report.status(source)
    assert found.failing and {t.table: t.proven_lsn for t in found.tables}["public.item"] is None
    alert = "table public.item: the table snapshot that was proven, which `published` shows, is gone; run `cdc check`"
    assert [str(a) for a in found.alerts] == [alert]
    assert [d.what for d in diagnosis.doctor(source) if d.level == "error"] == ["table public.item"]
    assert _check(source).green
    assert not status_report.status(source).failing
    assert scan_published(access, "public.item").to_arrow().num_rows == 301


@pytest.mark.embedded
def test_a_table_that_cannot_be_built_does_not_keep_the_others_from_their_proof(source: Config) -> None:
    """Nothing was compared, and `published` stood still for all tables. `current` of this one is as it should be."""
    assert _check(source).green
    location = str((reads.metadata(source.lake_access, "history.public__item") or {})["location"])
    for file in Path(location.removeprefix("file:")).rglob("*.parquet"):
        file.unlink()
    run_sql(source, "update public.item set name = name || '!'", "insert into public.bag values ('new')")
    report = _check(source)
    found = _by_name(report)
    assert not report.green and found["public.item"].status == "not_taken"
    assert (found["public.item"].reason or "").startswith("table history.public__item: a file of it cannot be read: ")
    again = "cdc build -- --full-refresh --select current__public__item history__public__item"
    assert found["public.item"].remedy == again
    assert {table.status for name, table in found.items() if name != "public.item"} == {"identical"}
    assert scan_published(source.lake_access, "public.bag").to_arrow().num_rows == 6
    assert [str(a) for a in status_report.status(source).alerts if a.what == "table public.item"] != []
    for report in (_check(source), Toolkit(source).run().check):  # `current` is at the LSN: only `history` is behind
        assert not report.green and _by_name(report)["public.item"].remedy == again
    commands.build(source, dbt_args=again.split()[3:])
    assert _check(source).green
    assert Toolkit(source).run().check.green


@pytest.mark.embedded
def test_a_table_of_which_the_metadata_is_torn_does_not_keep_the_others_from_their_proof(source: Config) -> None:
    """The whole build and the whole check failed with the first such table."""
    assert _check(source).green
    torn = {}
    for name in ("current.public__item", "history.public__bag"):
        path = Path(str(reads.metadata_location(source.lake_access, name)).removeprefix("file:"))
        torn[path] = path.read_bytes()
        path.write_bytes(torn[path][:100])
    session.own_session(source.lake_access).catalog.clearCache()
    run_sql(
        source, "update public.item set name = name || '!'", "insert into public.bag values ('new')",
        "insert into public.empty values (1)", "alter table public.item add column more int",
    )  # fmt: skip
    run = Toolkit(source).run()
    found = _by_name(run.check)
    assert {name for name, table in found.items() if table.status != "identical"} == {"public.item", "public.bag"}
    for name, table in (("public.item", "current.public__item"), ("public.bag", "history.public__bag")):
        assert (found[name].status, found[name].remedy) == ("not_taken", "cdc doctor")
        assert (found[name].reason or "").startswith(f"table {table}: metadata file "), found[name]
    shown = status_report.status(source)
    assert shown.failing and {t.table: t.proven_lsn for t in shown.tables}["public.item"] is None, shown
    assert "metadata file " in (shown.lake or ""), shown
    assert scan_published(source.lake_access, "public.empty").to_arrow().num_rows == 1
    for path, content in torn.items():
        path.write_bytes(content)
    assert Toolkit(source).run().check.green

"""`cdc status` says what a drain or a check would refuse, and no table stays ok then."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests import commands
from tests.postgres.test_snapshot_log import sql
from tests.support_lake import of_others, plain_lake
from tests.support_postgres import reading_beside
from toolkit.api import Toolkit
from toolkit.cli import frame, main
from toolkit.lake import check_results, scans
from toolkit.ops import alerts, diagnosis, last_run, status_report
from toolkit.rawlog.states import UNDER_ITS_NAME, State
from toolkit.source import connection, slot
from toolkit.values import config as configuration
from toolkit.values.config import Config
from toolkit.values.errors import CdcError, LakeError, PreflightFailed

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]


@pytest.fixture
def config(source: Config, plain_lake: Config) -> Config:
    """A captured table, drained."""
    made = source.model_copy(update={"root": plain_lake.root})
    sql(made, "create table public.a (id int primary key, x text)", "insert into public.a values (1, 'one')")
    commands.init(made)
    sql(made, "insert into public.a values (2, 'two')")
    commands.drain(made)
    return made


def _drop_slot(config: Config) -> None:
    with connection.connect(config.source) as conn:
        slot.drop_slot(conn, config.source.slot)


def _remake_slot(config: Config) -> None:
    _drop_slot(config)
    sql(config, "insert into public.a values (3, 'lost')")
    with slot.create_slot(config.source, config.source.slot, cut_seconds=config.check.cut_seconds):
        pass


def _remake_publication(config: Config) -> None:
    (name,) = config.source.publications
    sql(config, f"drop publication {name}", f"create publication {name} for table public.a")


def test_a_source_as_it_should_be_is_ok(config: Config) -> None:
    found = status_report.status(config)
    assert (found.failing, found.problem, found.stage) == (False, None, None)
    assert {t.state for t in found.tables} == {"ok"}
    assert found.summary.startswith("ok: 1 tables ok at")


def test_a_table_of_which_writes_fail_is_an_alert(config: Config) -> None:
    """Also after a command that succeeds: a migration dropped the key, and the application meets the error."""
    sql(config, "alter table public.a drop constraint a_pkey")
    commands.drain(config)
    found = status_report.status(config)
    said = "table public.a: has no replica identity: UPDATE and DELETE fail on the source; add a primary key"
    assert found.failing and said in found.summary
    (alert,) = (str(alert) for alert in alerts.at_the_end(config) if alert.what == "table public.a")
    assert alert.startswith(said)
    sql(config, "alter table public.a replica identity full")
    assert said not in status_report.status(config).summary


@pytest.mark.parametrize("fault", [_drop_slot, _remake_slot, _remake_publication])
def test_what_a_drain_refuses_status_says_too(config: Config, fault: Callable[[Config], None]) -> None:
    """It exited with 0 and every table was `ok`."""
    fault(config)
    with pytest.raises(CdcError) as refused:
        commands.drain(config)
    found = status_report.status(config)
    assert (found.failing, found.problem) == (True, str(refused.value))
    assert {t.state for t in found.tables} == {"stale"} and "not ok: source: " in found.summary
    errors = [f"{one.found}; {one.remedy}" for one in diagnosis.doctor(config) if one.level == "error"]
    assert any(str(refused.value) in one for one in errors)


def test_a_lake_that_was_moved_is_said_to_be(config: Config, tmp_path: Path) -> None:
    """Each table had a remedy of its own, which deleted it from the catalog or asked for a backup."""
    moved = config.model_copy(update={"root": tmp_path / "moved"})
    shutil.move(config.root / "lake", moved.root / "lake")
    errors = [d for d in diagnosis.doctor(moved) if d.level == "error" and d.what.startswith("lake")]
    assert f"warehouse is {moved.lake_access.warehouse}: it was moved" in errors[0].found
    assert not any("sqlite3" in f"{one.remedy}" or "backup" in f"{one.remedy}" for one in errors), errors
    (config.root / "lake").symlink_to(moved.root / "lake")
    assert not [d for d in diagnosis.doctor(moved) if d.level == "error"]


def test_a_running_drain_is_no_problem(config: Config) -> None:
    """A session that reads the slot is what a drain looks like from outside."""
    with reading_beside(config):
        found = status_report.status(config)
    assert found.slot is not None and found.slot.active
    assert not found.failing


def test_a_drain_that_commits_while_the_status_is_read_is_no_problem(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot was read after the ledger. It was called ahead of it, with a new generation as the remedy."""

    def drained(*given: Any) -> Any:
        sql(config, "create table public.meanwhile (id int primary key)", "insert into public.a values (77, 'x')")
        commands.drain(config)
        return real(*given)

    real = alerts.of_tables
    monkeypatch.setattr(alerts, "of_tables", drained)
    found = status_report.status(config)
    assert (found.problem, found.stage) == (None, None)
    assert {table.state for table in found.tables} == {State.OK}


def _cdc(config: Config, monkeypatch: pytest.MonkeyPatch, *words: str) -> Result:
    monkeypatch.setattr(configuration, "load", lambda _: config)
    monkeypatch.setattr(frame, "_stop_spark", lambda **_: None)
    return CliRunner().invoke(main, words)


def test_an_unreachable_source_is_red(config: Config) -> None:
    """Its tables stayed `ok`. What the lake has is right up to where it was drained; what comes after is not known."""
    nowhere = config.model_copy(
        update={"source": config.source.model_copy(update={"conninfo": "host=127.0.0.1 port=1 dbname=x"})}
    )
    found = status_report.status(nowhere)
    assert found.failing and "127.0.0.1" in (found.problem or "")
    (table,) = found.tables
    assert (table.state, table.from_lsn, table.reason) == ("stale", found.committed_lsn, "the source cannot be read")
    assert table.remedy and table.remedy in (found.problem or "")


def test_the_command_line_says_red_in_its_exit_code_and_its_first_line(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = _cdc(config, monkeypatch, "status")
    assert (done.exit_code, done.stdout.splitlines()[0][:28]) == (0, "summary: ok: 1 tables ok at ")
    _drop_slot(config)
    done = _cdc(config, monkeypatch, "status")
    assert (done.exit_code, done.stdout.splitlines()[0][:25]) == (3, "summary: not ok: source: ")
    seen = json.loads(_cdc(config, monkeypatch, "status", "--exit-zero", "--output", "json").stdout)
    assert seen["tables"][0]["remedy"] in seen["problem"] and seen["tables"][0]["remedy"].startswith("run `cdc init`")
    assert _cdc(config, monkeypatch, "status", "--exit-zero").exit_code == 0
    assert _cdc(config, monkeypatch, "doctor").exit_code == 1


def _checked(config: Config, monkeypatch: pytest.MonkeyPatch, age_hours: float = 0.0, **row: Any) -> None:
    """Let `ops.published` say what a check has found."""
    (table,) = status_report.status(config).tables
    now = datetime.now(UTC)
    known = dict.fromkeys(check_results.columns("ops.published")) | {
        "relid": table.relid, "table": table.table, "status": "identical", "checked_at": now, "checked_lsn": 1,
        "lsn": 1, "full_lsn": 1, "tag": "proven_g1_1", "proven_at": now - timedelta(hours=age_hours),
    }  # fmt: skip
    whole = scans.scan
    monkeypatch.setattr(
        scans,
        "scan",
        lambda c, name, *a, **k: iter([known | row]) if name == "ops.published" else whole(c, name, *a, **k),
    )


@pytest.mark.parametrize(
    ("row", "found", "remedy"),
    [
        (
            {"orphans": 2},
            "2 rows reference a row that is missing",
            "correct them at the source, then run `cdc check --full`",
        ),
        (
            {"status": "not_taken", "reason": "pid 1 locks it"},
            "the last check found it not_taken: pid 1 locks it",
            "run `cdc check public.a`",
        ),
        ({"age_hours": 25.0}, "it was proven 25.0 h ago, and [check] fresh_hours is 24", "run `cdc run`, and see why"),
        ({"age_hours": -25.0}, "it was proven 25.0 h from now", "correct the clock of this machine"),
    ],
)
def test_what_a_check_says_status_and_doctor_say_too(
    config: Config, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], found: str, remedy: str
) -> None:
    """Both exited with 0 after a check that was red for orphans or could not be taken, and with a dead scheduler."""
    _checked(config, monkeypatch)
    assert _cdc(config, monkeypatch, "status").exit_code == 0
    monkeypatch.undo()
    _checked(config, monkeypatch, **row)
    shown = _cdc(config, monkeypatch, "status")
    assert (shown.exit_code, found in shown.stdout.splitlines()[0], remedy in shown.stdout) == (3, True, True)
    rows = json.loads(_cdc(config, monkeypatch, "doctor", "--output", "json").stdout)
    assert any(found in r["found"] and remedy in r["remedy"] for r in rows if r["level"] == "error")


def test_without_any_table_status_is_red_as_the_check_is(config: Config) -> None:
    sql(config, "drop table public.a")
    commands.drain(config)
    found = status_report.status(config)
    assert (found.tables, found.failing) == ((), True)
    assert "no table is captured; name tables in [source] tables and run `cdc init`" in found.summary


def test_a_failed_command_is_remembered_until_it_succeeds(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check or a build that raised left nothing behind, and status exited with 0."""

    def failing(*_: object, **__: object) -> None:
        raise LakeError("lake: full; free space")

    with monkeypatch.context() as patch:
        patch.setattr(Toolkit, "check", failing)
        assert _cdc(config, monkeypatch, "check").exit_code == 1
    for code, words in ((3, ["status"]), (1, ["doctor"]), (0, ["drain"]), (3, ["status"])):
        assert _cdc(config, monkeypatch, *words).exit_code == code
    shown = json.loads(_cdc(config, monkeypatch, "status", "--output", "json").stdout)
    assert "the last check: ended with exit code 1 at " in shown["summary"]
    assert shown["summary"].endswith(": lake: full; free space; correct that, then run `cdc check` or `cdc run`")
    assert [(r["command"], r["exit_code"]) for r in shown["last_runs"]] == [("check", 1), ("drain", 0)]
    last_run.remember(config.lake_access, last_run.LastRun("run", 0, "2026-11-24T00:00:00+00:00", None))
    assert _cdc(config, monkeypatch, "status").exit_code == 0


def test_a_table_without_a_key_does_not_stop_the_others(source: Config, plain_lake: Config) -> None:
    """It stopped `cdc init` for all tables, and the remedy named neither `exclude` nor `change_log`."""
    config = source.model_copy(update={"root": plain_lake.root})
    sql(config, "create table public.a (id int primary key)", "create table public.bag (v int)")
    with pytest.raises(PreflightFailed, match=r"public\.bag: has no replica identity"):
        commands.init(config, strict=True)
    done = commands.init(config)
    assert done.rows == {"public.a": 0} and list(done.left_out) == ["public.bag"]
    for remedy in ("primary key", "replica identity full", 'capture = "change_log"', "exclude"):
        assert remedy in done.left_out["public.bag"]
    sql(config, "insert into public.bag values (1)", "update public.bag set v = 2")  # it would fail once published
    commands.drain(config)
    found = status_report.status(config)
    assert [t.table for t in found.tables] == ["public.a"] and list(found.not_captured) == ["public.bag"]
    sql(config, "alter table public.bag replica identity full")
    assert commands.init(config).rows == {"public.bag": 1}
    assert status_report.status(config).not_captured == {}


def test_all_schemas_are_captured_by_one_line(source: Config, plain_lake: Config) -> None:
    """`tables = ["*.*"]` with `new_tables = "publish"` made an empty publication without a word."""
    chosen = source.source.model_copy(update={"tables": ("*.*",), "new_tables": "publish"})
    config = source.model_copy(update={"root": plain_lake.root, "source": chosen})
    sql(
        config,
        "create schema sales",
        "create table sales.orders (id int primary key)",
        "create table public.a (id int primary key)",
    )
    assert set(commands.init(config).rows) == {"public.a", "sales.orders"}
    sql(config, "create table sales.later (id int primary key)", "insert into sales.later values (1)")
    commands.drain(config)
    assert {t.table: t.state for t in status_report.status(config).tables} == {
        "public.a": "ok", "sales.later": "ok", "sales.orders": "ok",
    }  # fmt: skip


@pytest.mark.parametrize("drained_by", ["slot", "tick"])
def test_a_new_table_for_the_change_log_is_listed_until_the_log_has_it(
    source: Config, plain_lake: Config, drained_by: str
) -> None:
    """It was listed nowhere: a drain puts the triggers on it, and only the next one finds it captured."""
    chosen = {"capture": "change_log", "change_log_drain": drained_by}
    config = source.model_copy(update={"root": plain_lake.root, "source": source.source.model_copy(update=chosen)})
    sql(config, "create table public.a (id int primary key)")
    commands.init(config)
    assert status_report.status(config).not_captured == {}
    sql(config, "create table public.b (id int primary key)", "insert into public.b values (1)")
    assert "lacks triggers" in status_report.status(config).not_captured["public.b"]
    commands.drain(config)
    listed = status_report.status(config).not_captured
    assert set(listed) == {"public.b"} and "run `cdc drain`, then `cdc repair public.b`" in listed["public.b"]
    commands.drain(config)
    found = status_report.status(config)
    assert found.not_captured == {}
    assert {t.table: t.state for t in found.tables} == {"public.a": State.OK, "public.b": State.STALE}


def test_what_a_publication_of_others_for_all_tables_does_not_send_is_listed(
    source: Config, plain_lake: Config
) -> None:
    """Unlogged tables are in it by name only: they were listed nowhere, and partitioned roots without a remedy."""
    config = of_others(source, plain_lake, "everything")
    sql(
        config,
        "create table public.a (id int primary key)",
        "create unlogged table public.u (id int primary key)",
        "create unlogged table public.scratch (id int primary key)",
        "create table public.r (id int primary key) partition by range (id)",
        "create table public.r1 partition of public.r for values from (0) to (10)",
        "create publication everything for all tables",
    )
    excluding = config.model_copy(update={"source": config.source.model_copy(update={"exclude": ("*.scratch",)})})
    assert set(commands.init(config).rows) == {"public.a", "public.r1"}
    commands.drain(config)
    listed = status_report.status(config).not_captured
    assert set(listed) == {"public.scratch", "public.u"} and "is unlogged" in listed["public.u"]
    assert set(status_report.status(excluding).not_captured) == {"public.u"}
    found = status_report.status(config)
    assert {t.table: t.state for t in found.tables} == dict.fromkeys(("public.a", "public.r1", "public.r"), State.OK)
    assert found.notes == {"public.r": status_report.AS_VIEW}
    # Each remedy does what it says.
    assert "run: alter table public.u set logged, then `cdc init`" in listed["public.u"]
    sql(config, "alter table public.u set logged")
    assert set(commands.init(config).rows) == {"public.u"}
    sql(config, "alter publication everything set (publish_via_partition_root = true)")
    commands.drain(config)
    found = status_report.status(config)
    assert set(found.not_captured) == {"public.scratch"}
    assert {t.table: t.remedy for t in found.tables if t.state != "ok"} == {"public.r": "cdc repair public.r"}
    assert set(commands.init(config).rows) == {"public.r"}
    sql(config, "alter publication everything set (publish_via_partition_root = false)")
    commands.drain(config)
    (root,) = (t for t in status_report.status(config).tables if t.table == "public.r")
    assert (root.state, root.reason) == (
        State.STALE,
        "it left the publication",
    )  # its rows in the lake stay as they are


def test_a_partitioned_root_under_the_name_of_a_captured_table_is_not_stale(source: Config, plain_lake: Config) -> None:
    """It was "a new table under the name of a captured one": its leaves are captured, each as a table of its own."""
    config = source.model_copy(update={"root": plain_lake.root})
    sql(config, "create table public.t (id int primary key, v int)", "insert into public.t values (1, 1)")
    commands.init(config)
    sql(
        config,
        "alter table public.t rename to t_old",
        "create table public.t (id int primary key, v int) partition by range (id)",
        "create table public.t1 partition of public.t for values from (0) to (10)",
        "create table public.t2 partition of public.t for values from (10) to (20) partition by range (id)",
        "create table public.t21 partition of public.t2 for values from (10) to (15)",
        "insert into public.t values (2, 2), (11, 11)",
    )
    commands.drain(config)
    stale = {t.table: t.reason for t in status_report.status(config).tables if t.state != State.OK}
    assert stale == {"public.t": UNDER_ITS_NAME}  # no publication sends its rows
    (publication,) = config.source.publications
    sql(config, f"alter publication {publication} add table public.t1")
    commands.drain(config)
    stale = {t.table: t.reason for t in status_report.status(config).tables if t.state != State.OK}
    assert (
        stale.keys() == {"public.t", "public.t1"} and stale["public.t"] == UNDER_ITS_NAME
    )  # rows of the other leaf are still nowhere
    commands.init(config)
    commands.drain(config)
    found = status_report.status(config)
    assert {t.table: t.state for t in found.tables} == dict.fromkeys(
        ("public.t", "public.t1", "public.t2", "public.t21", "public.t_old"), State.OK
    )
    assert set(found.notes) == {"public.t", "public.t2"} and not found.not_captured and not found.failing

"""A partitioned table whose partitions are captured as tables of their own: its views have the rows of the source."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests import commands
from tests.support_ledger import lake_of, ledger_of
from tests.support_postgres import run_sql
from toolkit.history import rows_at_lsn
from toolkit.lake import reads, session
from toolkit.quality.report import CheckReport
from toolkit.rawlog.states import State, table_states
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError, UnknownTable
from toolkit.values.lsn import Lsn

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]


@pytest.fixture
def config(database: str, lake: Config) -> Config:
    """Two partitions with other orders of columns than their root, and a table that is no partition yet."""
    update = {"conninfo": database, "publication": "everything", "scope": "published"}
    made = lake.model_copy(update={"source": lake.source.model_copy(update=update)})
    run_sql(
        made,
        "create table public.m (id int, gone text, v text, primary key (id)) partition by range (id)",
        "create table public.m_1 (v text, id int not null, gone text)",
        "alter table public.m attach partition public.m_1 for values from (0) to (10)",
        "create table public.m_2 partition of public.m for values from (10) to (20)",
        "alter table public.m drop column gone",
        "create table public.apart (v text, id int primary key)",
        "insert into public.m values (1, 'one'), (2, 'two'), (11, 'eleven')",
        "insert into public.apart values ('twenty', 20)",
        "create publication everything for all tables",
    )
    commands.init(made)
    return made


def _source(config: Config) -> list[tuple[int, str]]:
    with psycopg.connect(config.source.conninfo) as conn:
        return [(row[0], row[1]) for row in conn.execute("select id, v from public.m order by id")]


def _shown(config: Config, relation: str) -> list[tuple[int, str]]:
    spark = session.own_session(config.lake_access)
    return [(r.id, r.v) for r in spark.sql(f"select id, v from {relation} order by id").collect()]


def _views(config: Config, namespace: str) -> set[str]:
    return set(reads.tables(config.lake_access, namespace, "VIEW"))


def _run(config: Config) -> CheckReport:
    commands.drain(config)
    commands.build(config)
    return commands.check(config)


def _published(config: Config, report: CheckReport, at: datetime | None = None) -> list[tuple[int, str]]:
    commands.publish(config, report, at=at)
    return _shown(config, "published.public__m")


def test_the_views_of_a_root_follow_its_partitions(config: Config) -> None:
    """Rows move between partitions; partitions come and go; what `published` shows is one LSN throughout."""
    report = _run(config)
    assert report.green and _published(config, report) == _source(config)
    assert (config.dbt_project.folder / "models/current/current__public__m.sql").is_file()
    first, at = _source(config), report.lsn
    assert at is not None
    for statements in (
        (
            "update public.m set id = 12 where id = 2",
            "create table public.m_4 partition of public.m for values from (40) to (50)",
            "insert into public.m values (41, 'x')",
            "alter table public.m attach partition public.apart for values from (20) to (30)",
        ),
        (
            "alter table public.m detach partition public.m_1",
            "insert into public.m_1 values ('apart', 3)",
            "alter table public.m rename v to w",
            "alter table public.m rename w to v",
            "drop table public.m_2",
        ),
    ):
        run_sql(config, *statements)
        report = _run(config)
        assert report.green, statements
        assert _shown(config, "current.public__m") == _source(config), statements
        assert _published(config, report) == _source(config), statements
    commands.maintain(config)  # keeps what the views show
    assert _shown(config, "published.public__m") == _source(config)
    before = _source(config)
    # One partition cannot be compared: its root stays at the last proof, of the other partitions too.
    run_sql(config, "update public.apart set v = upper(v)", "update public.m set v = 'later' where id = 41")
    run_sql(config, "alter table public.m_4 set unlogged", "alter table public.m_4 set logged")
    report = _run(config)
    assert {t.table: t.status for t in report.tables} == {
        "public.apart": "identical", "public.m_1": "identical", "public.m_4": "stale",
    }  # fmt: skip
    assert _published(config, report) == before
    assert {s.state for s in table_states(ledger_of(config)) if s.table == "public.m"} == {State.STALE}
    commands.repair(config)
    report = _run(config)
    assert report.green and _published(config, report) == _source(config) == _shown(config, "current.public__m")
    built = commands.build(config, as_of=Lsn(at))
    assert _shown(config, f"{built.schema}.public__m") == first
    assert _shown(config, "current.public__m") == _source(config)


def test_a_view_is_read_after_a_column_of_its_tables_has_got_another_type(config: Config) -> None:
    """A view has the types of the time at which it was made. No build made it again, so no reader could read it."""
    run_sql(config, "alter table public.m add w int", "insert into public.m values (3, 'three', 3)")
    assert _run(config).green
    run_sql(config, "alter table public.m alter w type bigint", "insert into public.m values (13, 'x', 5000000000)")
    assert _run(config).green
    shown = session.own_session(config.lake_access).sql("select id, w from current.public__m where w is not null")
    assert sorted(map(tuple, shown.collect())) == [(3, 3), (13, 5_000_000_000)]
    made = reads.metadata_location(config.lake_access, "current.public__m")
    commands.build(config)
    assert reads.metadata_location(config.lake_access, "current.public__m") == made, "made again for nothing"


def test_a_named_table_is_compared_or_refused(config: Config) -> None:
    """A named root was not compared, nor was a table without rows in the log: the check of another one was green."""
    run_sql(config, "create table public.gone (id int primary key)", "create table public.kept (id int primary key)")
    commands.drain(config)
    report = commands.check(config, ["public.kept", "public.m"])
    assert report.green and [t.table for t in report.tables] == ["public.kept", "public.m_1", "public.m_2"]
    # A partition that no drain has seen before the check.
    new = "create table public.m_3 partition of public.m for values from (20) to (30)"
    run_sql(config, new, "insert into public.m values (21, 'later')")
    report = commands.check(config, ["public.m"])
    assert report.green and [t.table for t in report.tables] == ["public.m_1", "public.m_2", "public.m_3"]
    run_sql(config, "drop table public.gone")
    with pytest.raises(UnknownTable, match=r"checking public\.gone: the log has no rows of it at .*: it was dropped"):
        commands.check(config, ["public.kept", "public.gone"])
    commands.drain(config)
    with pytest.raises(UnknownTable, match=r"checking public\.gone"):
        commands.check(config, ["public.kept", "public.gone"])


def test_a_root_that_is_captured_itself_takes_the_place_of_its_view(config: Config) -> None:
    report = _run(config)
    assert _published(config, report) == _source(config) and "public__m" in _views(config, "current")
    run_sql(config, "alter publication everything set (publish_via_partition_root = true)")
    commands.drain(config)
    commands.init(config)
    report = _run(config)
    assert "public__m" not in _views(config, "current")
    assert _shown(config, "current.public__m") == _source(config) == _published(config, report)


@pytest.mark.wide
def test_the_views_of_a_dropped_root_leave_the_lake(config: Config) -> None:
    report = _run(config)
    shown, now = _published(config, report), datetime.now(UTC)
    run_sql(config, "drop table public.m")
    report = _run(config)
    assert "public__m" not in _views(config, "current")
    assert _published(config, report, at=now) == shown  # as it was last proven, for some days
    commands.publish(config, _run(config), at=now + timedelta(days=config.check.deprecated_days + 1))
    assert "public__m" not in _views(config, "published")


@pytest.mark.wide
def test_a_view_waits_for_a_name_that_a_renamed_table_still_has(config: Config) -> None:
    commands.publish(config, _run(config))
    run_sql(
        config,
        "alter table public.apart rename to apart_old",
        "create table public.apart (id int primary key, v text) partition by range (id)",
        "create table public.apart_1 partition of public.apart for values from (0) to (10)",
        "insert into public.apart values (5, 'five')",
    )
    commands.publish(config, _run(config))
    commands.publish(config, _run(config))
    assert _shown(config, "current.public__apart") == [(5, "five")]
    assert "public__apart" in _views(config, "current")


@pytest.mark.wide
def test_what_is_published_of_a_root_stays_while_a_partition_is_not_captured(config: Config) -> None:
    """As it does of any stale table: only a root that no longer exists takes its view with it."""
    report = _run(config)
    shown, now = _published(config, report), datetime.now(UTC)
    run_sql(config, "create unlogged table public.m_3 partition of public.m for values from (30) to (40)")
    report = _run(config)
    assert _published(config, report, at=now) == shown
    assert _published(config, _run(config), at=now + timedelta(days=config.check.deprecated_days + 1)) == shown
    assert "public__m" not in _views(config, "current")


def test_row_versions_of_a_root_are_those_of_its_partitions(config: Config) -> None:
    """The error said that it was never captured, or to give a later LSN, and no later one helped."""
    commands.drain(config)
    built = commands.build(config)
    lake, spark = lake_of(config), session.own_session(config.lake_access)
    assert [row["id"] for row in rows_at_lsn.rows(lake, "public.m")] == ["1", "2", "11"]
    why = r"public\.m.*: it is a view over its partitions; name one of them, such as public\.m_1$"
    for at, key in ((built.lsn, None), (None, {"id": "1"}), (built.lsn, {"id": "1"})):
        with pytest.raises(ConfigError, match=f"row versions of {why}"):
            rows_at_lsn.rows(lake, "public.m", at, key)
    with pytest.raises(ConfigError, match=f"reading {why}"):
        rows_at_lsn.at_one_lsn(lake, spark, ["public.apart", "public.m"])
    assert [row["id"] for row in rows_at_lsn.rows(lake, "public.m_1", built.lsn)] == ["1", "2"]

"""Two sources of one lake on the whole path, in one process: each is built, proven, maintained and retired alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import commands
from tests.support_ledger import lake_of
from tests.support_postgres import fresh_database, run_sql
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import reads, session
from toolkit.lake.published_tables import duckdb_script
from toolkit.ops import diagnosis, status_report
from toolkit.quality.report import CheckReport
from toolkit.values.config import Config, SourceConfig

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]


@pytest.fixture
def sources(pg16: EmbeddedServer, pg18: EmbeddedServer, lake: Config) -> Iterator[tuple[Config, Config]]:
    """The same table names on two servers, with other types and other rows."""
    with fresh_database(pg16) as old, fresh_database(pg18) as new:
        made = []
        for prefix, conninfo in (("eu", old), ("us", new)):
            update = {
                "source": SourceConfig(conninfo=conninfo),
                "lake": lake.lake.model_copy(update={"prefix": prefix, "keep_days": 0.0}),
                "check": lake.check.model_copy(update={"deprecated_days": 0.0}),
                "dbt": lake.dbt.model_copy(update={"project_dir": f"dbt_{prefix}"}),
            }
            made.append(lake.model_copy(update=update))
        run_sql(
            made[0],
            "create table public.item (id int primary key, name text)",
            "insert into public.item select i, 'n' || i from generate_series(1, 30) i",
            "create table public.gone (id int primary key)",
        )
        run_sql(
            made[1],
            "create table public.item (name numeric(10, 2), id bigint primary key, at date)",
            "insert into public.item select i / 4.0, i, date '2026-01-01' + i from generate_series(1, 20) i",
            "create table public.gone (id int primary key)",
        )
        yield made[0], made[1]


def _check(config: Config) -> CheckReport:
    return commands.check(config)


def _statuses(report: CheckReport) -> dict[str, str]:
    return {table.table.removeprefix("public."): str(table.status) for table in report.tables}


def _files(config: Config) -> dict[str, str | None]:
    """The newest metadata file of every table and view of a source."""
    return {
        name: reads.metadata_location(config.lake_access, name)
        for namespace in config.lake.names.all
        for kind in ("TABLE", "VIEW")
        for name in (f"{namespace}.{table}" for table in reads.tables(config.lake_access, namespace, kind))
    }


def _query(config: Config, query: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in session.own_session(config.lake_access).sql(query).collect()]


BOTH = (
    "select e.name, cast(u.name as string) from eu_published.public__item e join us_published.public__item u"
    " on e.id = u.id where e.id in (1, 20) order by e.id"
)


def test_two_sources_are_built_proven_maintained_and_retired_alone(sources: tuple[Config, Config]) -> None:
    eu, us = sources
    for one in sources:
        commands.init(one)
        assert _statuses(_check(one)) == {"item": "identical", "gone": "identical"}
        assert {t.table: str(t.state) for t in status_report.status(one).tables} == {
            "public.item": "ok", "public.gone": "ok",
        }  # fmt: skip
    assert _query(eu, BOTH) == [("n1", "0.25"), ("n20", "5.00")]
    every = set(_files(eu)) | set(_files(us))
    assert {"eu_current.public__item", "us_history.public__item", "eu_staging.changes", "us_ops.published"} <= every
    plain = eu.model_copy(update={"lake": eu.lake.model_copy(update={"prefix": ""})})
    assert _files(plain) == {}
    assert "create or replace view us_published." in duckdb_script(us.lake_access)
    assert diagnosis._damaged(lake_of(us)) == []

    # DDL and a build as of an LSN in one; the other one stays as it is.
    kept, lsn = _files(us), status_report.status(eu).applied_lsn
    run_sql(eu, "alter table public.item rename name to label", "update public.item set label = 'x' where id < 5")
    assert _statuses(_check(eu))["item"] == "identical"
    assert lsn is not None
    assert commands.build(eu, as_of=lsn).schema == f"eu_asof_{lsn.tag}"
    assert "public__item" in reads.tables(eu.lake_access, f"eu_asof_{lsn.tag}")
    assert _files(us) == kept

    # A difference that another session makes in one.
    session.own_session(us.lake_access).sql("update us_current.public__item set name = 1.11 where id = 7")
    assert _statuses(_check(eu)) == {"item": "identical", "gone": "identical"}
    red = _check(us)
    assert _statuses(red) == {"item": "different", "gone": "identical"}
    (sample,) = next(table for table in red.tables if table.table == "public.item").samples
    assert sample.cause is not None and "us_current.public__item was changed after its build" in sample.cause.text
    commands.build(us, select=("public__item",), dbt_args=("--full-refresh",))
    assert _statuses(_check(us))["item"] == "identical"

    # Maintenance and a dropped table of one.
    kept, shown = _files(us), _query(us, "select * from us_published.public__item order by id")
    run_sql(eu, "drop table public.gone")
    assert _statuses(_check(eu)) == {"item": "identical"}
    commands.build(eu)  # no view shows the table any more
    done = commands.maintain(eu)
    assert done and all(upkeep.table.startswith("eu_") for upkeep in done)
    assert _files(us) == kept and _query(us, "select * from us_published.public__item order by id") == shown
    assert "public__gone" in reads.tables(us.lake_access, us.lake.names.current)
    assert "public__gone" not in reads.tables(eu.lake_access, eu.lake.names.current)

    # The end of one.
    commands.uninstall(eu)
    run_sql(us, "insert into public.gone values (1)", "delete from public.item where id = 2")
    assert _statuses(_check(us)) == {"item": "identical", "gone": "identical"}
    assert _query(us, "select count(*) from eu_published.public__item") == [(30,)]

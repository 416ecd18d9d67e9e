"""A lake and a dbt project of version 0.1.0 are brought to this version by the next command."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests import commands
from tests.support_postgres import fresh_database
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import session
from toolkit.values.config import Config

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]

#: `git archive` of dbt_project at the last commit before the first release's tag.
_OLD = Path(__file__).with_name("fixtures") / "dbt_project-0.1.0.tar.gz"


@pytest.fixture
def upgraded(pg16: EmbeddedServer, lake: Config) -> Iterator[Config]:
    with fresh_database(pg16) as conninfo, tarfile.open(_OLD) as archive:
        archive.extractall(lake.root, filter="data")
        config = lake.model_copy(update={"source": lake.source.model_copy(update={"conninfo": conninfo})})
        with psycopg.connect(conninfo, autocommit=True) as conn:
            conn.execute("create table public.t (id int primary key, v text)")
            conn.execute("insert into public.t values (1, 'one'), (2, 'two')")
            commands.init(config)
            conn.execute("update public.t set v = 'changed' where id = 2")
        yield config


def test_a_project_and_a_lake_of_the_first_version_build_and_check_green(upgraded: Config) -> None:
    project = upgraded.dbt_project.folder
    # What 0.1.0 did not have, or had in another way.
    spark = session.own_session(upgraded.lake_access)
    for name in ("ops.plans", "ops.table_states"):
        spark.sql(f"drop table if exists {name} purge")
    with tarfile.open(_OLD) as archive:
        archive.extractall(upgraded.root, filter="data")
    (project / ".toolkit.json").unlink()
    with psycopg.connect(upgraded.source.conninfo, autocommit=True) as conn:
        conn.execute("delete from cdc.settings where name = 'version'")
    commands.drain(upgraded)
    built = commands.build(upgraded)
    assert built.own_failed == ()
    assert {model.name for model in built.models} >= {"current.public__t", "history.public__t"}
    report = commands.check(upgraded)
    assert report.green, report.text
    commands.init(upgraded)
    assert commands.check(upgraded).green
    assert (project / ".toolkit.json").is_file() and list((project / "replaced").rglob("*.sql"))
    assert not commands.sync(upgraded).written

"""Metadata files that a power cut took: `cdc doctor` says of each table what to do, and that makes it whole again."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlparse

import psycopg
import pytest

from tests import commands
from tests.postgres.test_durable import follow
from toolkit.lake import reads, session
from toolkit.lake.sqlite_catalog import SqliteCatalog
from toolkit.ops import diagnosis
from toolkit.quality.report import CheckReport
from toolkit.values.config import Config
from toolkit.values.resources import ROOT

pytestmark = [pytest.mark.embedded, pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]


def _run(config: Config) -> CheckReport:
    with commands.only_runner(config):
        commands.drain(config)
        commands.build(config)
        return commands.check(config)


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_each_table_with_torn_metadata_gets_a_remedy_that_works(database: str, lake: Config) -> None:
    config = lake.model_copy(update={"source": lake.source.model_copy(update={"conninfo": database})})
    shutil.copytree(ROOT / "dbt_project", config.dbt_project.folder, ignore=shutil.ignore_patterns("target", "logs"))
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table public.t (id int primary key, n int)")
        conn.execute("insert into public.t select i, 0 from generate_series(1, 5) i")
        commands.init(config)
        assert _run(config).green
        for turn in range(2):  # with a metadata file before the torn one, and without any
            conn.execute("update public.t set n = n + 1")
            assert _run(config).green
            names = ["current.public__t", "history.public__t", "published.public__t", "ops.published"]
            names += ["ops.table_states", "ops.plans", "ops.parity_results"]
            for name in names:
                _tear(config, name, also_before=bool(turn))
            conn.execute("update public.t set n = n + 1 where id = 3")
            session.own_session(config.lake_access).catalog.clearCache()
            bad = {d.what: d for d in diagnosis.doctor(config) if d.level == "error" and d.what.startswith("lake ")}
            assert bad.keys() == {f"lake {name}" for name in names}
            for one in bad.values():
                follow(config, one)
            report = _run(config)
            assert report.green, report
            assert [d for d in diagnosis.doctor(config) if d.what.startswith("lake ")] == []
            shown = (
                session.own_session(config.lake_access).sql("select n from published.public__t where id = 3").collect()
            )
            assert [row["n"] for row in shown] == [2 * (turn + 1)]


def _tear(config: Config, name: str, *, also_before: bool) -> None:
    location = reads.metadata_location(config.lake_access, name)
    assert location is not None
    for torn in [location, *([SqliteCatalog(config.lake_access)._locations(name)[1]] if also_before else [])]:
        if torn is not None:
            path = Path(urlparse(torn).path)
            path.write_bytes(path.read_bytes()[:100])

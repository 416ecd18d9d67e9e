"""One altered cell among ten million rows: every kind of fault is found in a table of any size, keyed and keyless."""

from __future__ import annotations

import os
import random
import resource
import shutil
import time

import psycopg
import pytest

from tests import commands
from tests.support_faults import COLUMNS, FAULTS, LARGE_ROWS, missed
from tests.support_postgres import fresh_database
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import session
from toolkit.quality.report import CheckReport
from toolkit.values.config import CheckConfig, Config, SourceConfig
from toolkit.values.resources import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt, pytest.mark.long]

COUNT = int(os.environ.get("CDC_TEST_ROWS", "10000000"))
KEYED, BAG = "public.keyed", "public.bag"


def test_every_fault_in_tables_of_ten_million_rows(
    pg16: EmbeddedServer, lake: Config, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with fresh_database(pg16) as conninfo:
        config = lake.model_copy(
            update={
                "source": SourceConfig(conninfo=conninfo, slot="cdc_scale"),
                "check": CheckConfig(samples=1000),
            }
        )
        shutil.copytree(
            ROOT / "dbt_project", config.dbt_project.folder, ignore=shutil.ignore_patterns("target", "logs")
        )
        with psycopg.connect(conninfo, autocommit=True) as conn:
            for table, identity in ((KEYED, "default"), (BAG, "full")):
                conn.execute(f"create table {table} ({COLUMNS})")
                conn.execute(f"alter table {table} replica identity {identity}")
                conn.execute(f"insert into {table} " + LARGE_ROWS.format(first=1, last=COUNT))
            conn.execute(f"alter table {KEYED} add primary key (id)")
            conn.execute("vacuum analyze")
        commands.init(config)

        def check() -> CheckReport:
            before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
            report = commands.check(config, full=True)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
            with capsys.disabled():
                seconds = time.monotonic() - started
                print(f"\n2 tables of {COUNT:,} rows: {seconds:.1f} s, peak memory {grown:+} MB", flush=True)
            return report

        assert check().green
        spark = session.own_session(config.lake_access)
        rng = random.Random(seed)
        planted = {}
        for table in (KEYED, BAG):
            # A fault may skip ids that do not suit it. All lie anywhere in the table.
            ids = iter(sorted(rng.sample(range(1, COUNT + 1), 40 * len(FAULTS)), key=lambda _: rng.random()))
            planted[table] = [fault(spark, f"current.{table.replace('.', '__')}", ids) for fault in FAULTS]
        report = check()
        found = {t.table: t for t in report.tables}
        for table, faults in planted.items():
            assert found[table].status == "different"
            assert missed(found[table], faults, keyed=table == KEYED) == [], table
            rows = sum({"added": 1, "removed": -1, "modified": 0}[kind] for f in faults for kind, _ in f.rows.values())
            assert found[table].rows in (COUNT, COUNT + rows)

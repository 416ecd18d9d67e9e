"""No false positives: parity back to back while four clients of pgbench write and the schema changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import commands
from tests.support_postgres import fresh_database
from toolkit.demo import workload
from toolkit.demo.server import EmbeddedServer
from toolkit.source import exact_cut, row_lines
from toolkit.values.config import Config, SourceConfig
from toolkit.values.resources import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt, pytest.mark.long]

MINUTES = float(os.environ.get("CDC_TEST_MINUTES", "5"))
#: None of them may turn a table stale, so that every check has everything to prove.
DDL = (
    "alter table pgbench_accounts add column extra_{n} int default {n}",
    "alter table pgbench_tellers add column note_{n} text",
    "alter table pgbench_accounts drop column extra_{n}",
    "alter table pgbench_tellers rename column note_{n} to remark_{n}",
    "create table later_{n} (id int primary key, v text default 'x')",
    "alter table pgbench_tellers drop column remark_{n}",
    "drop table later_{n}",
)


@contextmanager
def _ddl(conninfo: str) -> Iterator[Counter[str]]:
    """Schema changes until the block ends; counts those that got their lock."""
    stop = threading.Event()
    done: Counter[str] = Counter()

    def change() -> None:
        with psycopg.connect(conninfo, autocommit=True) as conn:
            conn.execute("set lock_timeout = '2s'")
            n = 0
            while not stop.wait(3):
                for statement in DDL:
                    with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedColumn):
                        conn.execute(statement.format(n=n).encode())
                        done[statement.split()[0]] += 1
                    if stop.wait(4):
                        return
                n += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


def test_zero_false_positives(
    pg16: EmbeddedServer, lake: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fresh_database(pg16) as conninfo:
        config = lake.model_copy(update={"source": SourceConfig(conninfo=conninfo, slot="cdc_load")})
        shutil.copytree(
            ROOT / "dbt_project", config.dbt_project.folder, ignore=shutil.ignore_patterns("target", "logs")
        )
        name = str(psycopg.conninfo.conninfo_to_dict(conninfo)["dbname"])
        workload.create_pgbench(pg16, name, scale=4)  # several sessions read a table of this size
        commands.init(config)
        bench = subprocess.Popen(
            [pg16.program("pgbench"), "-n", "-c", "4", "-R", "100", "-T", str(int(MINUTES * 60) + 600), conninfo],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        beside = 0
        open_beside = row_lines._beside

        def counted(*arguments: Any) -> Iterator[Any]:
            nonlocal beside
            for session in open_beside(*arguments):
                beside += 1
                yield session

        monkeypatch.setattr(row_lines, "_beside", counted)
        statuses: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        cuts: Counter[str] = Counter()
        rows = 0
        end = time.monotonic() + MINUTES * 60
        try:
            with _ddl(conninfo) as ddl:
                while time.monotonic() < end:
                    # Both kinds of cut in turn.
                    kind = ("slot", "snapshot")[sum(cuts.values()) % 2]
                    monkeypatch.setattr(exact_cut, "slot_at_once", lambda _, slot=kind == "slot": slot)
                    report = commands.check(config)
                    cuts[kind if report.lsn is not None else "none"] += 1
                    for table in report.tables:
                        statuses[table.status] += 1
                        rows += table.rows or 0
                        if table.status != "identical":
                            reasons[f"{table.status}: {table.reason}"] += 1
                        assert table.status != "different", table.to_dict()
                assert bench.poll() is None, "pgbench ended early"
        finally:
            bench.terminate()
            bench.wait()
        figures = {"minutes": MINUTES, "cuts": cuts, "tables": statuses, "rows": rows, "ddl": ddl, "beside": beside}
        figures["reasons"] = reasons
        print(json.dumps(figures, indent=1))
        (tmp_path / "load.json").write_text(json.dumps(figures), encoding="utf-8")
        assert statuses["identical"] > 0.5 * sum(statuses.values())
        assert sum(cuts.values()) - cuts["none"] > 1
        assert beside

"""The whole path on a lake in each object store: init, drain, build, check, DDL, maintenance, and a planted fault."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.support_catalogs import postgresql_catalog
from tests.support_postgres import fresh_database
from tests.support_stores import KINDS, running_store, store_servers
from toolkit.demo.server import EmbeddedServer
from toolkit.values.resources import ROOT

__all__ = ["store_servers"]
pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind == "s3" else pytest.mark.wide) for kind in KINDS])
def test_the_whole_path_in_a_store(
    kind: str, store_servers: Callable[[str], str], pg16: EmbeddedServer, tmp_path: Path
) -> None:
    """Also: no key is on a command line, in a file of the run or of the store, or in what was printed."""
    with running_store(kind, store_servers(kind), tmp_path) as store, fresh_database(pg16) as conninfo:
        source = f"[source]\nconninfo = {json.dumps(conninfo)}\nslot = 'cdc_store'\n"
        (tmp_path / "cdc.toml").write_text(source + store.section, encoding="utf-8")
        given = {
            "CDC_LAKE__PROPERTIES": json.dumps(store.properties | store.keys),
            "CDC_TEST_SECRETS": json.dumps(store.secrets),
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.e2e.store_process", str(tmp_path / "cdc.toml")],
            cwd=ROOT, env=os.environ | store.environment | given, capture_output=True, text=True, timeout=1200,
            check=False,
        )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["all of it"]), done.stdout + done.stderr
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()] + [
        (done.stdout + done.stderr).encode()
    ]
    assert len(store.secrets) > 0 and len(written) > 100
    assert [secret for secret in store.secrets for text in written if secret.encode() in text] == []


def test_each_command_runs_in_a_folder_of_its_own(
    store_servers: Callable[[str], str], pg16: EmbeddedServer, tmp_path: Path
) -> None:
    """As in containers without a volume. A lake in a folder is not found from another one."""
    numbers = itertools.count(1)

    def run(given: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        kept = {name: os.environ[name] for name in ("PATH", "HOME")} | {"PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [sys.executable, "-m", "toolkit.cli", *words], env=kept | given, cwd=folder, capture_output=True,
            text=True, timeout=600, check=False,
        )  # fmt: skip

    with (
        running_store("s3", store_servers("s3"), tmp_path) as store,
        fresh_database(pg16) as conninfo,
        postgresql_catalog(pg16) as section,
        psycopg.connect(conninfo, autocommit=True) as conn,
    ):
        conn.execute("create table t (id int primary key, v text)")
        source = {"CDC_SOURCE__CONNINFO": conninfo, "CDC_SOURCE__SLOT": "cdc_apart"}
        properties = {**store.properties, **store.keys, **section["properties"]}  # type: ignore[dict-item]
        remote = source | store.environment | {
            "CDC_LAKE__WAREHOUSE": store.warehouse,
            "CDC_LAKE__URI": str(section["uri"]),
            "CDC_LAKE__PROPERTIES": json.dumps(properties),
        }  # fmt: skip
        assert run(remote, "init").returncode == 0
        for statement in ("insert into t values (1, 'a')", "alter table t add column n int default 7"):
            conn.execute(statement.encode())
            done = run(remote, "run")
            assert (done.returncode, "all identical" in done.stdout) == (0, True), done.stderr
        status = run(remote, "status", "--output", "json")
        assert (status.returncode, [table["state"] for table in json.loads(status.stdout)["tables"]]) == (0, ["ok"])
        assert run(remote, "uninstall", "--yes").returncode == 0
        assert run(source, "init").returncode == 0
        done = run(source, "drain")
        assert (done.returncode, "run `cdc init` first" in done.stderr) == (1, True)
        conn.execute("select pg_drop_replication_slot('cdc_apart')")

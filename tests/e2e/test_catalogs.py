"""The whole story on a catalog that is a server: init, drain, build, check, status, rows, maintain, published."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tests.support_catalogs import lake_section, rest_classpath, store_servers
from tests.support_outside import duck
from tests.support_postgres import fresh_database
from tests.support_shop import Shop
from toolkit.build import models
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import reads
from toolkit.lake.ledger import Ledger
from toolkit.lake.published_tables import duckdb_script, scan_published
from toolkit.values.modes import CatalogKind
from toolkit.values.process_env import environment

__all__ = ["rest_classpath", "store_servers"]
pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]


@pytest.fixture(scope="module", params=["postgresql", "rest", "hive", "sqlite+s3", "postgresql+s3", "sqlite+gs"])
def shop(
    request: pytest.FixtureRequest, pg16: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    """A lake that `cdc init` and `cdc run` have made."""
    folder = tmp_path_factory.mktemp(request.param)
    with fresh_database(pg16) as conninfo, lake_section(request, request.param, folder) as section:
        made = Shop(folder, conninfo, section)
        made.sql(
            "create table public.item (id int primary key, name text)",
            "insert into public.item select i, 'n' || i from generate_series(1, 500) i",
            "create table public.gone (id int primary key)",
        )
        made.cdc("init")
        made.cdc("run")
        with environment(made.environment):  # for what this process reads itself
            yield made


def test_what_was_made_is_proven_shown_and_maintained(shop: Shop) -> None:
    """Changes, DDL, a check, the rows at that time and now, maintenance, and doctor."""
    lsn = json.loads(shop.cdc("status", "--output", "json"))["published_lsn"]
    shop.sql(
        "update public.item set name = 'new' where id <= 10",
        "alter table public.item rename column name to label",
        "drop table public.gone",
    )
    shop.cdc("run")
    status = json.loads(shop.cdc("status", "--output", "json"))
    assert [(t["table"], t["state"]) for t in status["tables"]] == [("public.item", "ok")]
    assert status["published_lsn"] != lsn and status["alerts"] == []
    assert {row["label"] for row in shop.rows(status["published_lsn"]) if int(row["id"]) <= 10} == {"new"}
    assert {row["label"] for row in shop.rows(lsn) if row["id"] == "1"} == {"n1"}  # by the present column names
    shop.cdc("maintain")
    shop.cdc("drain")
    shop.cdc("check")
    shop.cdc("doctor")


def test_other_readers_get_the_published_rows(shop: Shop) -> None:
    with psycopg.connect(shop.conninfo) as conn:
        wanted = conn.execute("select * from public.item order by id").fetchall()
    config = shop.config()
    if not config.lake_access.warehouse.startswith("gs://"):  # DuckDB takes no token of Google there
        with duck(config, duckdb_script(config.lake_access)) as reader:
            assert reader.sql("select id, label from published.public__item order by id").fetchall() == wanted
    found = scan_published(config.lake_access, "public.item").to_arrow().sort_by("id")
    assert list(zip(found["id"].to_pylist(), found["label"].to_pylist(), strict=True)) == wanted


def test_a_plain_run_of_dbt_replaces_tables(shop: Shop) -> None:
    shop.sql(
        "alter table public.item add column plain int default 7", "insert into public.item values (2000, 'dbt', 8)"
    )
    shop.cdc("drain")
    config = shop.config()
    before = reads.snapshot_id(config.lake_access, "current.public__item")
    secrets = {variable: value for _, variable, value in models.secret_variables(config.lake_access)}
    done = subprocess.run(
        [Path(sys.executable).with_name("dbt"), "run", "--quiet", "--select", "current", "history", "--project-dir",
         "dbt_project", "--profiles-dir", "dbt_project"],
        cwd=shop.folder, env={**os.environ, **secrets}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    shop.printed += done.stdout + done.stderr
    assert done.returncode == 0, done.stdout
    made = reads.snapshot_id(config.lake_access, "current.public__item")
    assert made != before and made in reads.tags(config.lake_access, "current.public__item").values()
    shop.cdc("check")  # green: every row of the lake was compared with the source
    assert reads.snapshot_id(config.lake_access, "current.public__item") == made


def test_of_two_runners_one_is_refused(shop: Shop) -> None:
    """Spark's commit is held back: the lease refuses a second command, and the catalog the first one's batch."""
    shop.sql("update public.item set label = 'raced'")
    with shop.start("drain", failpoint="commit.before=sigstop") as first:
        assert os.WIFSTOPPED(os.waitpid(first.pid, os.WUNTRACED)[1])
        shop.cdc("drain", expect=4)
        ledger = Ledger(shop.config().lake_access, rules=shop.config().capture_rules)
        last = ledger.last()
        assert last is not None
        ledger.append_empty(replace(last, batch_id=last.batch_id + 1, changes=0, counts={}))
        first.send_signal(signal.SIGCONT)
        out, err = first.communicate()
    assert first.returncode == 1 and "another runner committed to the log first" in err, (out, err)
    shop.cdc("run")  # green: every row of the lake was compared with the source


@pytest.mark.parametrize("point", ["commit.before", "commit.after", "publish.after", "swap.after", "compact.after"])
def test_trap_135_a_command_killed_around_its_commit_is_run_again(shop: Shop, point: str) -> None:
    shop.sql("update public.item set label = label || '+' where id % 7 = 0", "delete from public.item where id = 3")
    shop.sql("insert into public.item values (3, 'again')")
    command = "maintain" if point == "compact.after" else "run"
    shop.cdc(command, expect=-signal.SIGKILL, failpoint=f"{point}=sigkill")
    for again in dict.fromkeys((command, "run")):
        shop.cdc(again)  # green: every row of the lake was compared with the source


def test_nothing_that_was_written_or_said_has_the_secret(shop: Shop) -> None:
    """Logs, Spark's output, dbt's profile and artifacts, and the command line of each process of a build."""
    if shop.config().lake.type == CatalogKind.HIVE:
        pytest.skip("a Hive metastore without Kerberos has no secret")
    assert shop.secrets
    shop.sql("insert into public.item values (1000, 'to be built')")
    shop.cdc("drain")
    with shop.start("build", failpoint="models.after=sigstop") as running:  # dbt has run, and the JVM is there
        assert os.WIFSTOPPED(os.waitpid(running.pid, os.WUNTRACED)[1])
        lines = [_read(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
        running.send_signal(signal.SIGCONT)
        shop.printed += "".join(running.communicate())
    assert any(b"SparkSubmit" in line for line in lines)
    assert [line for line in lines if any(secret.encode() in line for secret in shop.secrets)] == []
    assert [secret for secret in shop.secrets if secret in shop.printed] == []
    for path in shop.folder.rglob("*"):  # and objects
        if path.is_file():
            found = path.read_bytes()
            assert [secret for secret in shop.secrets if secret.encode() in found] == [], path
    profile = (shop.folder / "dbt_project" / "profiles.yml").read_text(encoding="utf-8")
    named = "env_var(''DBT_ENV_SECRET_CDC_" in profile
    assert named == any(secret in shop.properties.values() for secret in shop.secrets)  # AWS's variables are not named


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""

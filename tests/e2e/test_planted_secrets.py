"""Secrets are planted wherever a user may put one, and none is found where others read: each secret names its place."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support_postgres import tcp_conninfo
from toolkit.demo.server import EmbeddedServer

pytestmark = [
    pytest.mark.embedded,
    pytest.mark.e2e,
    pytest.mark.postgres,
    pytest.mark.spark,
    pytest.mark.dbt,
    pytest.mark.wide,
]

_PLANTED = re.compile(rb"pl4nted-\w+")
#: What a user writes; the profile of dbt repeats `[spark]` for `dbt` run by hand. Both have mode 0600.
_MAY_HOLD = {"cdc.toml", "profiles.yml"}
_CONFIGURATION = """
[source]
conninfo = {conninfo}
[table."public.both"]
capture = "both"
[spark]
"spark.master" = "local[2]"
"spark.hadoop.fs.s3a.secret.key" = "pl4nted-spark"
"spark.sql.catalog.other.password" = "pl4nted-catalog"
[lake.properties]
"jdbc.password" = "pl4nted-lake"
[notify]
webhook = "http://127.0.0.1:1/pl4nted-webhook"
"""
#: Each may be what a session runs in one message with DDL of a captured table.
_DDL = (
    "create role planted_other login password 'pl4nted-role'; alter table public.a add x1 int",
    "alter table public.a add x2 int; alter role planted_other password 'pl4nted-role'",
    "do $$ begin execute 'alter role planted_other password ' || quote_literal('pl4nted-do');"
    " alter table public.a add x3 int; end $$",
    "create foreign data wrapper w",
    "create server s foreign data wrapper w options (host 'h', secret_key 'pl4nted-fdw')",
    "create user mapping for public server s options (user 'u', password 'pl4nted-mapping')",
    "alter user mapping for public server s options (set password 'pl4nted-mapping')",
    "create function public.reads() returns text language sql as $$ select 'host=h password=pl4nted-function' $$",
    "create subscription sub connection 'host=h password=pl4nted-subscription' publication p"
    " with (connect = false, slot_name = none)",
    "alter table public.a add x4 int; select 'postgresql://u:pl4nted-uri@h/d'",
)


@dataclass
class Runner:
    """Runs commands in a folder, and keeps what they say and the command lines that the machine shows meanwhile."""

    folder: Path
    conninfo: str
    found: set[str] = field(default_factory=set)

    def cdc(self, *words: str, code: int | None = 0, **environment: str) -> None:
        given = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "TMPDIR": str(self.folder / "tmp")}
        done = subprocess.run(
            [sys.executable, "-m", "toolkit.cli", *words],
            cwd=self.folder / "lake" if words[0] != "new" else self.folder,
            env=given | environment,
            capture_output=True,
            timeout=400,
            check=False,
        )
        self.look(f"cdc {' '.join(words)}", done.stdout + done.stderr)
        assert done.returncode == code or (code is None and done.returncode > 0), (
            words,
            done.stdout.decode(),
            done.stderr.decode(),
        )

    def look(self, where: str, text: bytes) -> None:
        self.found |= {f"{where}: {secret.decode()}" for secret in _PLANTED.findall(text)}


@contextmanager
def _watched(runner: Runner) -> Iterator[None]:
    """Read the command line of every process again and again, as any user of the machine can."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = path.read_bytes()
                except OSError:  # the process has ended
                    continue
                if b"pl4nted" in line:
                    runner.look(f"process {line[:40]!r}", line)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _look_at_files(runner: Runner) -> None:
    for path in runner.folder.rglob("*"):
        if path.is_symlink() or not path.is_file() or path.name in _MAY_HOLD:
            continue
        place = str(path.relative_to(runner.folder))
        runner.look(place, path.read_bytes())
        if path.suffix == ".parquet":
            runner.look(place, repr(pq.ParquetFile(path).read().to_pylist()).encode())


def _too_open(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if not path.is_symlink())
    found = [path for path in paths if path.stat().st_mode & 0o077]
    return sorted({f"{path.relative_to(folder).parent}/*{path.suffix}: {path.stat().st_mode:o}" for path in found})


@pytest.fixture
def runner(pg16: EmbeddedServer, database: str, tmp_path: Path) -> Iterator[Runner]:
    (tmp_path / "tmp").mkdir(mode=0o700)
    admin = psycopg.connect(database, autocommit=True)
    admin.execute("create role planted superuser login password 'pl4nted-conninfo'")
    name = conninfo_to_dict(database)["dbname"]
    there = make_conninfo(tcp_conninfo(pg16, "pl4nted-conninfo"), user="planted", dbname=name)
    try:
        yield Runner(tmp_path, there)
    finally:
        admin.execute("alter subscription sub disable")
        admin.execute("drop subscription if exists sub")
        admin.execute("drop owned by planted cascade")
        admin.execute("drop role planted")
        admin.execute("drop role if exists planted_other")
        admin.close()


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_no_secret_is_where_others_read(runner: Runner, pg: EmbeddedServer) -> None:
    lake = runner.folder / "lake"
    with _watched(runner), psycopg.connect(runner.conninfo, autocommit=True) as conn:
        for table in ("a", "both"):
            conn.execute(f"create table public.{table} (id int primary key, t text)".encode())
            conn.execute(f"insert into public.{table} values (1, 'one')".encode())
        runner.cdc("new", "lake")
        configuration = _CONFIGURATION.format(conninfo=json.dumps(runner.conninfo))
        (lake / "cdc.toml").write_text(configuration, encoding="utf-8")
        runner.cdc("init", "--verbose")
        conn.execute("select pg_create_logical_replication_slot('look', 'pgoutput')")
        runner.cdc("run", "--verbose")
        for statement in _DDL:
            conn.execute(statement.encode())
        conn.execute("insert into public.both values (2, 'two')")
        runner.cdc("run")
        # A model that fails, and a check that is red, leave more behind than others.
        mine = lake / "dbt_project" / "models" / "mine.sql"
        mine.write_text("select no_such_column from raw.events", encoding="utf-8")
        mine.chmod(0o600)
        runner.cdc("build", "--verbose", code=1)
        runner.cdc("ddl", "pause")
        conn.execute("insert into public.a (id) values (3)")
        runner.cdc("run", "--output", "json", code=3)
        for words, code in (
            (("status", "--verbose"), 3), (("doctor", "--verbose"), 1), (("maintain",), 0), (("audit", "--verbose"), 0),
            (("ddl", "list"), 0), (("rows", "public.a"), 0), (("schema", "history", "public.a"), 0),
        ):  # fmt: skip
            runner.cdc(*words, code=code)
        # What is wrong with the secrets themselves.
        away = "postgresql://u:pl4nted-away@127.0.0.1:1/d"
        wrong = make_conninfo(runner.conninfo, password="pl4nted-wrong")
        for conninfo in (away, wrong, "host=127.0.0.1 password='pl4nted-open", "pl4nted-only"):
            for command in ("drain", "status", "doctor"):
                runner.cdc(command, "--verbose", code=None, CDC_SOURCE__CONNINFO=conninfo)
        spark = json.dumps({"spark.master": "nowhere://h", "spark.sql.catalog.other.password": "pl4nted-away"})
        runner.cdc("check", "--verbose", code=None, CDC_SPARK=spark)
        (lake / "cdc.toml").write_text(configuration.replace("webhook =", "webhok ="), encoding="utf-8")
        runner.cdc("drain", "--verbose", code=2)
        (lake / "cdc.toml").write_text(configuration, encoding="utf-8")
        conn.execute("set statement_timeout = '60s'")
        options = "'proto_version', '1', 'publication_names', 'cdc', 'messages', 'true'"
        wal = conn.execute(
            f"select data from pg_logical_slot_get_binary_changes('look', null, null, {options})".encode()
        ).fetchall()
        assert len(wal) > 20
        runner.look("WAL", b"\n".join(bytes(data) for (data,) in wal))
        _look_at_files(runner)
    assert runner.found == set()
    assert _too_open(lake) == []

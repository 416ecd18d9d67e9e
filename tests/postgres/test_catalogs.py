"""The log of a lake on each kind of catalog: read, listed and committed to without a JVM, by real processes."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import psycopg
import pytest
from hive_metastore.ttypes import SerDeInfo, StorageDescriptor, Table

from tests import commands
from tests.postgres.test_snapshot_log import current, on_source, sql
from tests.postgres.test_trap_commits import require_each_once
from tests.support_catalogs import KINDS, lake_section, rest_classpath
from tests.support_lake import rows_in_log, without_jvm
from tests.support_ledger import ledger_of
from tests.support_postgres import fresh_database
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import any_catalog, reads
from toolkit.lake.any_catalog import AnyCatalog
from toolkit.lake.hive_catalog import ViewsOfHive
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.postgres_catalog import PostgresCatalog
from toolkit.lake.sqlite_catalog import SqliteCatalog
from toolkit.source import slot
from toolkit.values import config as configuration
from toolkit.values.config import Config
from toolkit.values.errors import CommitConflict, LakeError, TableDamaged
from toolkit.values.failpoints import VARIABLE
from toolkit.values.locations import local_path
from toolkit.values.modes import CatalogKind

__all__ = ["rest_classpath"]
pytestmark = pytest.mark.postgres
_ENTRY = "insert into iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
_ROOT = Path(__file__).resolve().parents[2]


def _kinds(*names: str) -> pytest.MarkDecorator:
    """Run a test on these kinds of catalog alone: the others have nothing for it to look at."""
    return pytest.mark.parametrize("lake", [_PARAMS[name] for name in names], indirect=True, scope="module")


_WIDE = ("sqlite", "hive")
_PARAMS = {name: pytest.param(name, marks=pytest.mark.wide) if name in _WIDE else name for name in KINDS}


@pytest.fixture(scope="module", params=_PARAMS.values())
def lake(
    request: pytest.FixtureRequest, pg16: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Config]:
    """One captured table, in a lake with each kind of catalog. The catalog's secret is not in the file."""
    folder = tmp_path_factory.mktemp(request.param)
    patch = pytest.MonkeyPatch()
    with fresh_database(pg16) as conninfo, lake_section(request, request.param, folder) as section, patch.context():
        without_jvm(patch.setattr)
        source = {"conninfo": conninfo, "slot": f"cdc_{psycopg.conninfo.conninfo_to_dict(conninfo)['dbname']}"}
        secret = section.pop("properties", {})
        lines = ["[source]", *_toml(source), "[lake]", *_toml(section)]
        (folder / "cdc.toml").write_text("\n".join(lines), encoding="utf-8")
        patch.setenv("CDC_LAKE__PROPERTIES", json.dumps(secret))
        config = configuration.load(str(folder / "cdc.toml"))
        sql(config, "create table public.a (id int primary key, x text)", "insert into public.a values (1, 'one')")
        commands.init(config)
        yield config
        patch.undo()


def _toml(section: Mapping[str, object]) -> Iterator[str]:
    return (f"{key} = {json.dumps(value)}" for key, value in section.items())


def _drain(config: Config, failpoint: str = "") -> subprocess.Popen[str]:
    """`cdc drain` as a process, which may fail at a point."""
    command = [sys.executable, "-m", "tests.postgres.drain_process", str(config.root / "cdc.toml")]
    environment = dict(os.environ) | {"CDC_LAKE__PROPERTIES": json.dumps(config.lake.properties), VARIABLE: failpoint}
    return subprocess.Popen(
        command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _whole(config: Config) -> None:
    commands.drain(config)
    assert current(config, "a") == on_source(config, "a")
    require_each_once(config)
    batches = [record.batch_id for record in ledger_of(config).batches()]
    assert batches == list(range(1, len(batches) + 1))


def test_what_is_read_without_a_jvm_is_what_the_catalog_has(lake: Config) -> None:
    catalog = open_catalog(lake.lake_access)
    catalog.prepare()
    assert reads.tables(lake.lake_access, "raw") == ("events",)
    assert reads.tables(lake.lake_access, "raw", "VIEW") == reads.tables(lake.lake_access, "none") == ()
    assert (
        reads.metadata(lake.lake_access, "raw.none") is None
        and reads.metadata_location(lake.lake_access, "none.events") is None
    )
    table = catalog.load_table("raw.events")
    found = reads.metadata(lake.lake_access, "raw.events") or {}
    assert found["table-uuid"] == str(table.metadata.table_uuid)
    assert reads.snapshot_id(lake.lake_access, "raw.events") == table.metadata.current_snapshot_id
    assert {f["name"] for f in found["schemas"][0]["fields"]} == reads.columns(lake.lake_access, "raw.events")
    assert reads.properties(lake.lake_access, "raw.events")["write.distribution-mode"] == "none"
    assert reads.commit_times(lake.lake_access, "raw.events")[-1] == table.metadata.last_updated_ms
    assert reads.metadata_location(lake.lake_access, "raw.events") == table.metadata_location
    assert ledger_of(lake).last() == max(ledger_of(lake).batches(), key=lambda record: record.batch_id)


def test_a_view_is_read_without_a_jvm(lake: Config) -> None:
    """With a compressed metadata file, as Spark writes it; the catalog of a database has only an entry for it."""
    made = 1_700_000_000_000
    shown = {"type": "sql", "sql": "select 1 as n", "dialect": "spark"}
    version = {
        "version-id": 1, "schema-id": 0, "timestamp-ms": made, "summary": {}, "representations": [shown],
        "default-namespace": ["raw"], "default-catalog": None,
    }  # fmt: skip
    schema = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "n", "required": False, "type": "int"}]}
    view = {
        "view-uuid": str(uuid.uuid4()), "format-version": 1, "location": f"{lake.lake_access.warehouse}/raw/shown",
        "schemas": [schema], "current-version-id": 1, "versions": [version],
        "version-log": [{"timestamp-ms": made, "version-id": 1}], "properties": {"cdc.tag": "t"},
    }  # fmt: skip
    file = Path(lake.lake_access.warehouse) / "raw" / "shown" / "metadata" / "00000-x.gz.metadata.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress(json.dumps(view).encode()))
    _register(lake, "shown", str(file))
    assert reads.tables(lake.lake_access, "raw", "VIEW") == ("shown",) and reads.tables(lake.lake_access, "raw") == (
        "events",
    )
    assert reads.view_sql(lake.lake_access, "raw.shown") == shown["sql"]
    assert reads.properties(lake.lake_access, "raw.shown") == {"cdc.tag": "t"}

    names = ["raw.events", "raw.none", "raw.shown"] * 7
    alone = [reads.metadata(lake.lake_access, name) for name in names]
    assert list(reads.each_metadata(lake.lake_access, names)) == alone and None in alone
    if lake.lake.type == CatalogKind.REST:
        return  # its server reads the file, and does not say whether the store or one table is damaged
    whole = file.read_bytes()
    for torn in (whole[:30], None):
        file.unlink() if torn is None else file.write_bytes(torn)
        found = list(reads.each_metadata(lake.lake_access, names))
        assert found[0] == alone[0] and found[1] is None
        assert isinstance(found[2], TableDamaged) and "raw.shown" in str(found[2])
    file.write_bytes(whole)


def _register(config: Config, name: str, location: str) -> None:
    opened = open_catalog(config.lake_access)
    if isinstance(opened, SqliteCatalog):
        with closing(sqlite3.connect(config.lake_access.catalog_db)) as file, file:
            file.execute(f"{_ENTRY} values (?, 'raw', ?, ?, 'VIEW')", (config.lake.catalog, name, location))
        return
    assert isinstance(opened, AnyCatalog)
    if isinstance(opened._catalog, ViewsOfHive):
        empty = StorageDescriptor(cols=[], serdeInfo=SerDeInfo())
        entry = {"table_type": "ICEBERG-VIEW", "metadata_location": location}
        view = Table(dbName="raw", tableName=name, tableType="VIRTUAL_VIEW", parameters=entry, sd=empty)
        with opened._catalog._client as client:
            client.create_table(view)
        return
    if not isinstance(opened._catalog, PostgresCatalog):
        opened._catalog.register_view(f"raw.{name}", location)
        return
    with opened._catalog.engine.begin() as connection:
        values = (config.lake.catalog, name, location)
        connection.exec_driver_sql(f"{_ENTRY} values (%s, 'raw', %s, %s, 'VIEW')", values)


def test_of_two_runners_with_one_base_the_catalog_refuses_one(lake: Config) -> None:
    """The first stops right before the catalog names its commit; the second commits the same batch meanwhile."""
    sql(lake, "insert into public.a select i, 'x' from generate_series(100, 110) i")
    before = ledger_of(lake).last()
    with _drain(lake, "swap.before=sigstop") as first:
        assert os.WIFSTOPPED(os.waitpid(first.pid, os.WUNTRACED)[1])
        commands.drain(lake)
        after = ledger_of(lake).last()
        first.send_signal(signal.SIGCONT)
        said = first.communicate()[1]
    assert before is not None and after is not None and after.batch_id == before.batch_id + 1
    assert first.returncode == 1 and CommitConflict.__name__ in said, said
    assert ledger_of(lake).last() == after
    _whole(lake)


@_kinds("postgresql", "rest", "hive")  # tests/postgres/test_durable.py has the embedded one
def test_trap_012_files_are_forced_before_the_catalog_names_them(lake: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data files and manifests before the commit; the metadata file, which the catalog writes, before the advance."""
    synced: set[Path] = set()
    seen: list[str] = []
    fsync, committed, advance = os.fsync, any_catalog._committed, slot.advance

    def note_sync(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(Path(f"/proc/self/fd/{descriptor}").resolve())

    def note_commit(catalog: Any, table: Any, requirements: Any, updates: Any) -> Any:
        for update in (one for one in updates if one.action == "add-snapshot"):
            made = {local_path(update.snapshot.manifest_list)}
            for manifest in update.snapshot.manifests(table.io):
                if manifest.added_snapshot_id == update.snapshot.snapshot_id:
                    files = {local_path(e.data_file.file_path) for e in manifest.fetch_manifest_entry(table.io)}
                    made |= {local_path(manifest.manifest_path), *files}
            assert len(made) > 2 and made <= synced
            seen.append("commit")
        return committed(catalog, table, requirements, updates)

    def note_advance(conn: Any, name: str, lsn: Any) -> Any:
        location = reads.metadata_location(lake.lake_access, "raw.events")
        assert location is not None and Path(urlparse(location).path) in synced
        seen.append("advance")
        return advance(conn, name, lsn)

    sql(lake, "insert into public.a values (1000, 'forced')")
    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(any_catalog, "_committed", note_commit)
    monkeypatch.setattr(slot, "advance", note_advance)
    commands.drain(lake)
    assert seen == ["commit", "advance"]


@_kinds("postgresql", "rest", "hive")
def test_a_commit_that_landed_stays_if_its_repeated_request_is_refused(
    lake: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may send a request again if its answer is lost. The run took the files of its commit for unused ones."""
    committed = any_catalog._committed

    def repeated(catalog: Any, table: Any, requirements: Any, updates: Any) -> Any:
        committed(catalog, table, requirements, updates)
        return committed(catalog, table, requirements, updates)

    sql(lake, "insert into public.a values (2000, 'repeated')")
    with monkeypatch.context() as patched:
        patched.setattr(any_catalog, "_committed", repeated)
        commands.drain(lake)
    assert any(row["new"] == ["2000", "repeated"] for row in rows_in_log(lake))
    _whole(lake)


@pytest.mark.wide
@pytest.mark.parametrize("when", ["before", "after"])
def test_trap_135_a_crash_around_the_commit_loses_and_doubles_nothing(lake: Config, when: str) -> None:
    """Between the commit and its answer the process knows nothing; the next one reads what the catalog has."""
    sql(lake, f"update public.a set x = x || '{when}'", "delete from public.a where id = 100")
    before = ledger_of(lake).last()
    with _drain(lake, f"swap.{when}=sigkill") as killed:
        said = killed.communicate()[1]
    assert killed.returncode == -signal.SIGKILL, said
    assert (ledger_of(lake).last() == before) == (when == "before")
    _whole(lake)


@pytest.mark.wide
def test_trap_135_a_lost_answer_is_reported_and_nothing_is_doubled(lake: Config) -> None:
    sql(lake, "update public.a set x = x || 'lost'")
    with _drain(lake, "swap.after=lie") as run:
        said = run.communicate()[1]
    assert run.returncode == 1 and "failpoint swap.after: the answer is lost" in said
    _whole(lake)


def test_no_file_of_the_lake_has_the_secret_of_its_catalog(lake: Config) -> None:
    rows = rows_in_log(lake)
    assert rows
    for secret in lake.lake.properties.values():
        holders = [p.name for p in lake.root.rglob("*") if p.is_file() and secret.encode() in p.read_bytes()]
        assert holders == []


@_kinds("postgresql", "rest")  # the embedded one has no secret
def test_a_catalog_that_refuses_is_named_without_its_secret(lake: Config) -> None:
    """Before anything is made: `cdc init` asks the catalog first."""
    assert lake.lake.properties
    wrong = lake.lake.model_copy(update={"properties": dict.fromkeys(lake.lake.properties, "wr0ng")})
    config = lake.model_copy(update={"lake": wrong})
    for command in (commands.init, commands.drain):
        with pytest.raises(
            LakeError, match=r"the catalog \S+127.0.0.1\S* refuses: .*; correct that, or \[lake\]"
        ) as refused:
            command(config)
        assert "wr0ng" not in str(refused.value)


@_kinds("sqlite", "postgresql")  # the name of a REST catalog is not known to its server
def test_a_lost_catalog_beside_its_files_is_refused_by_name(lake: Config) -> None:
    other = lake.model_copy(update={"lake": lake.lake.model_copy(update={"catalog": "other"})})
    with pytest.raises(LakeError, match=r"names no raw\.events in catalog 'other', but the warehouse has its files"):
        commands.drain(other)

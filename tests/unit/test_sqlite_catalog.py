"""The embedded catalog's file: a wait for its lock, and metadata files of which a part is missing."""

from __future__ import annotations

import gzip
import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support_lake import catalog_locked
from toolkit.lake import published_views, reads, sqlite_catalog
from toolkit.lake.lake_catalog import open_catalog
from toolkit.values.config import Config
from toolkit.values.errors import LakeError, TableDamaged

pytestmark = pytest.mark.unit


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A catalog that names one view, whose metadata file is compressed as Spark writes it."""
    config = Config(root=tmp_path)
    config.lake_access.work_dir.mkdir()
    file = tmp_path / "00000-x.gz.metadata.json"
    file.write_bytes(gzip.compress(b'{"properties": {"cdc.tag": "t"}}'))
    columns = "catalog_name, table_namespace, table_name, metadata_location, previous_metadata_location, iceberg_type"
    with closing(sqlite3.connect(config.lake_access.catalog_db)) as catalog, catalog:
        catalog.execute(f"create table iceberg_tables ({columns})")
        catalog.execute("insert into iceberg_tables values ('lake', 'raw', 'shown', ?, null, 'VIEW')", [str(file)])
    return config


def test_half_a_compressed_metadata_file_is_named(config: Config) -> None:
    """`cdc doctor` ended with an EOFError."""
    assert reads.properties(config.lake_access, "raw.shown") == {"cdc.tag": "t"}
    file = config.root / "00000-x.gz.metadata.json"
    whole = file.read_bytes()
    with closing(sqlite3.connect(config.lake_access.catalog_db)) as catalog, catalog:
        catalog.execute("update iceberg_tables set iceberg_type = 'TABLE'")
    for torn in (whole[:-9], whole[:5], b"", whole[:12] + b"\xff" * 9 + whole[21:]):
        file.write_bytes(torn)
        with pytest.raises(TableDamaged, match=f"raw.shown: metadata file {file} cannot be read: .*; run `cdc doctor`"):
            reads.metadata(config.lake_access, "raw.shown")
        with pytest.raises(TableDamaged, match=f"raw.shown: metadata file {file} cannot be read: .*; run `cdc doctor`"):
            open_catalog(config.lake_access).load_table("raw.shown")


def test_a_file_without_the_list_of_tables_has_none(config: Config) -> None:
    """So it is before the first table. A list without a column of Iceberg's is another program's."""
    access = config.lake_access
    with closing(sqlite3.connect(access.catalog_db)) as catalog, catalog:
        catalog.execute("alter table iceberg_tables rename to others")
    assert reads.metadata_location(access, "raw.shown") is None and reads.metadata(access, "raw.shown") is None
    assert reads.tables(access, "raw", "VIEW") == ()
    with closing(sqlite3.connect(access.catalog_db)) as catalog, catalog:
        catalog.execute("create table iceberg_tables (name)")
    with pytest.raises(LakeError, match=r"reading the catalog .*no such column: .*; run it again, or restore"):
        reads.metadata_location(access, "raw.shown")


@pytest.mark.parametrize("folder", ["lake", "O'Brien's lake", 'a "$HOME" `b` \\'])
def test_a_shell_runs_the_remedy_for_a_damaged_table_in_any_folder(tmp_path: Path, folder: str) -> None:
    config = Config(root=tmp_path / folder)
    config.lake_access.work_dir.mkdir(parents=True)
    before = config.root / "00000-x.metadata.json"
    before.write_text('{"properties": {}}', encoding="utf-8")
    columns = "catalog_name, table_namespace, table_name, metadata_location, previous_metadata_location"
    with closing(sqlite3.connect(config.lake_access.catalog_db)) as catalog, catalog:
        catalog.execute(f"create table iceberg_tables ({columns})")
        catalog.execute("insert into iceberg_tables values ('lake', 'raw', 'events', 'torn', ?)", [str(before)])
    remedy, usable = open_catalog(config.lake_access).repair_statement("raw.events")
    assert usable and "name the file before it" in remedy
    command = remedy[remedy.index("sqlite3 ") :]
    done = subprocess.run(f"printf '%s\\n' {command}", shell=True, capture_output=True, text=True, check=True)
    program, file, statement = done.stdout.splitlines()
    with closing(sqlite3.connect(file)) as catalog, catalog:
        catalog.execute(statement)
    assert program == "sqlite3" and reads.metadata_location(config.lake_access, "raw.events") == str(before)


#: Writes more than fits into memory, which goes into the file before the commit, and waits.
_WRITER = """
import sqlite3, sys
catalog = sqlite3.connect(sys.argv[1], isolation_level=None)
catalog.execute("pragma cache_size = 1")
catalog.execute("begin")
catalog.execute("update iceberg_tables set metadata_location = 'wrong'")
catalog.execute("create table filling as with recursive n (i) as (select 1 union all select i + 1 from n where i < 999)"
                " select i, hex(randomblob(500)) as x from n")
print("written", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_in_the_catalog_is_rolled_back(config: Config) -> None:
    """After a full disk, every command said: attempt to write a readonly database."""
    before = reads.metadata_location(config.lake_access, "raw.shown")
    command = [sys.executable, "-c", _WRITER, str(config.lake_access.catalog_db)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "written\n"
        writer.kill()
    journal = Path(f"{config.lake_access.catalog_db}-journal")
    assert journal.stat().st_size
    assert reads.metadata_location(config.lake_access, "raw.shown") == before
    assert not journal.exists()


def test_a_process_waits_only_once_for_a_catalog_that_stays_locked(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cdc status` waited for one minute, and `cdc doctor` for one and a half."""
    monkeypatch.setattr(sqlite_catalog, "BUSY_SECONDS", 1.0)
    monkeypatch.setattr(sqlite_catalog, "_columns", lambda _: set())  # not asked: a second question would wait again
    for _ in range(2):
        with catalog_locked(config, against="readers"):
            begun = time.monotonic()
            for _ in range(4):
                with pytest.raises(LakeError, match="database is locked; run it again, or restore that file"):
                    reads.metadata_location(config.lake_access, "raw.shown")
            assert 1 <= time.monotonic() - begun < 3  # four waits take four seconds
        assert reads.metadata_location(config.lake_access, "raw.shown")  # and the next lock is waited for again


def test_many_tables_are_read_by_one_connection(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run over 2,000 tables opened the catalog's file 10,000 times."""
    monkeypatch.setattr(sqlite_catalog, "BUSY_SECONDS", 1.0)
    access, made = config.lake_access, list[sqlite3.Connection]()
    connect = sqlite3.connect

    def counted(*given: Any, **named: Any) -> sqlite3.Connection:
        made.append(connect(*given, **named))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", counted)
    found = list(reads.each_metadata(access, ["raw.shown", "raw.none", "raw.shown"]))
    shown = {"properties": {"cdc.tag": "t"}}
    assert found == [shown, None, shown]
    assert len(made) == 1
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[0].execute("select 1")
    # A commit of another process between two tables is seen, and a lock is waited for once.
    read = reads.each_metadata(access, ["raw.shown", "raw.shown"])
    assert next(read)
    with closing(connect(access.catalog_db)) as catalog, catalog:
        catalog.execute("delete from iceberg_tables")
    assert next(read) is None
    opened = open_catalog(access)
    with catalog_locked(config, against="readers"), opened.reading():
        begun = time.monotonic()
        for _ in range(4):
            with pytest.raises(LakeError, match="database is locked"):
                opened.location("raw.shown")
        assert 1 <= time.monotonic() - begun < 3
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[-1].execute("select 1")


def test_a_view_of_which_the_metadata_is_damaged_is_named_and_not_replaced(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(config.lake_access.catalog_db)) as catalog, catalog:
        catalog.execute("update iceberg_tables set table_namespace = 'published'")
    (config.root / "00000-x.gz.metadata.json").write_bytes(b"")
    row = {"relid": 1, "tag": "proven_g1_7", "relation": "shown", "snapshot_id": 7}
    shown: list[str] = []
    monkeypatch.setattr(published_views, "proofs_by_name", lambda _: {"shown": row, "other": row})
    monkeypatch.setattr(published_views, "_show", lambda _access, _spark, name, *_: shown.append(name))
    no_spark: Any = None
    failed = published_views.follow(config.lake_access, no_spark, datetime.now(UTC), threads=2, deprecated_days=1.0)
    assert failed.keys() == {"published.shown"} and shown == ["other"]
    assert re.search(
        r"published.shown: metadata file .* cannot be read: .*; run `cdc doctor`$", failed["published.shown"]
    )

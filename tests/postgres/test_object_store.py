"""A lake whose warehouse is in an object store of each kind: boundary, copies, commits and kills, without Spark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from tests import commands
from tests.postgres.test_snapshot_log import current, of, on_source, sql
from tests.postgres.test_trap_commits import require_each_once
from tests.support_lake import without_jvm
from tests.support_ledger import lake_of, ledger_of
from tests.support_network import proxy_before
from tests.support_postgres import fresh_database
from tests.support_stores import KINDS, Store, running_store, store_servers
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import report_copies, storage
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.ledger import Ledger
from toolkit.ops import diagnosis
from toolkit.quality import expectations
from toolkit.quality.report import CheckReport
from toolkit.values import config as configuration
from toolkit.values.config import Config, LakeConfig
from toolkit.values.errors import LakeError
from toolkit.values.failpoints import VARIABLE
from toolkit.values.process_env import environment

__all__ = ["store_servers"]
pytestmark = pytest.mark.postgres
_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(
    scope="module",
    params=[kind if kind == "s3" else pytest.param(kind, marks=pytest.mark.wide) for kind in KINDS],
)
def store(
    request: pytest.FixtureRequest, store_servers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """A server, and the variables of this process by which its clients find the keys."""
    patch = pytest.MonkeyPatch()
    kind = request.param
    with running_store(kind, store_servers(kind), tmp_path_factory.mktemp(kind)) as made, patch.context():
        variables = made.variables or {"CDC_LAKE__PROPERTIES": json.dumps(made.keys)}
        for name, value in (variables | made.environment).items():
            patch.setenv(name, value)
        yield made
        patch.undo()


@pytest.fixture(scope="module")
def lake(store: Store, pg16: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    """One captured table, in a lake whose catalog is a file."""
    folder = tmp_path_factory.mktemp("lake")
    patch = pytest.MonkeyPatch()
    with fresh_database(pg16) as conninfo, patch.context():
        without_jvm(patch.setattr)
        name = psycopg.conninfo.conninfo_to_dict(conninfo)["dbname"]
        source = f"[source]\nconninfo = {json.dumps(conninfo)}\nslot = 'cdc_{name}'\n"
        (folder / "cdc.toml").write_text(source + store.section, encoding="utf-8")
        config = configuration.load(str(folder / "cdc.toml"))
        sql(config, "create table public.a (id int primary key, x text)", "insert into public.a values (1, 'one')")
        commands.init(config)
        yield config
        patch.undo()


def test_a_small_object_of_s3_is_one_request(store_servers: Callable[[str], str], tmp_path: Path) -> None:
    """Each took three: the client began an upload in parts, and ended it. A commit writes several."""
    asked: list[str] = []

    def note(said: bytes) -> bytes:
        request = re.match(rb"(GET|HEAD|PUT|POST) (\S+)", said)
        if request is not None:
            asked.append(request[1].decode())
        return said

    with (
        running_store("s3", store_servers("s3"), tmp_path) as store,
        environment(store.environment),
        proxy_before(urlsplit(store.properties["s3.endpoint"]).port or 0) as proxy,
    ):
        endpoint = {"s3.endpoint": f"http://127.0.0.1:{proxy.port}"}
        lake = LakeConfig(warehouse=store.warehouse, properties=store.properties | store.keys | endpoint)
        properties = storage.file_properties(Config(lake=lake).lake_access)
        place, large = f"{store.warehouse}/object", os.urandom(18 << 20)
        proxy.edit = note
        with storage.create(place, properties) as file:
            file.write(b"content")
        assert asked == ["PUT"]
        assert storage.read(place, properties) == b"content"
        with storage.create(place, properties) as file:
            file.write(large)
        asked.clear()
        with storage.open_file(place, properties) as file:
            assert b"".join(iter(lambda: file.read(1 << 16), b"")) == large
        assert 0 < asked.count("GET") <= 3, asked


def _given(config: Config) -> dict[str, str]:
    """Give the properties, with keys, as a variable. None of these is left in the environment of a test."""
    return {"CDC_LAKE__PROPERTIES": json.dumps(config.lake.properties)}


def _whole(config: Config) -> None:
    commands.drain(config)
    assert current(config, "a") == on_source(config, "a")
    require_each_once(config)


def _unnamed(store: Store, config: Config) -> set[str]:
    """Give the data files of the log that the table does not name."""
    named = open_catalog(config.lake_access).load_table("raw.events").inspect.all_files()["file_path"].to_pylist()
    return store.objects("raw/events*/data/*.parquet") - set(named)


def test_objects_are_written_found_sized_and_deleted(store: Store) -> None:
    properties = storage.file_properties(
        Config(lake=LakeConfig(warehouse=store.warehouse, properties=store.properties | store.keys)).lake_access
    )
    folder = f"{store.warehouse}/some"
    place = f"{folder}/events-1/data/kind=row/a%20b.parquet"
    with storage.create(place, properties) as file:
        file.write(b"four")
    assert storage.read(place, properties) == b"four"
    assert storage.find(folder, "events*/data/*.parquet", properties) == place
    assert storage.find(folder, "others*/data/*.parquet", properties) is None
    assert storage.find(f"{store.warehouse}/none", "*", properties) is None
    storage.force([(place, 4), (place, None)], store.warehouse, properties)
    ((listed, written),) = storage.files_in(folder, properties)
    assert listed == place and abs(datetime.now(UTC) - written) < timedelta(minutes=1)
    with pytest.raises(OSError, match="has 4 bytes and not 5"):
        storage.force([(place, 5)], store.warehouse, properties)
    storage.delete(place, properties)
    storage.delete(place, properties)
    with pytest.raises(FileNotFoundError):
        storage.force([(place, None)], store.warehouse, properties)
    storage.require_writable(store.warehouse, properties)
    assert store.objects("some/*.parquet") | store.objects(".cdc-probe*") == set()
    with pytest.raises(LakeError, match=rf"warehouse {store.warehouse} is not writable: .*{store.wrong[1]}") as refused:
        storage.require_writable(store.warehouse, properties | store.wrong[0])
    assert "wr0ng" not in str(refused.value)


def test_copies_and_drains_reach_the_store_and_nothing_else_does(store: Store, lake: Config) -> None:
    sql(lake, "insert into public.a values (2, 'two')", "update public.a set x = 'new' where id = 1")
    _whole(lake)
    sql(lake, "create table public.b (id int primary key)", "insert into public.b values (1)")
    commands.init(lake)
    assert current(lake, "b") == on_source(lake, "b")
    assert _unnamed(store, lake) == set()
    assert list(lake.root.rglob("*.parquet")) == list(lake.root.rglob("*.avro")) == []
    assert {path.name for path in (lake.root / "lake").iterdir()} <= {"catalog.db", "lease", "new-files", "spool"}
    written = [path for path in (*lake.root.rglob("*"), *store.folder.rglob("*")) if path.is_file()]
    assert store.secrets
    assert [path for path in written for secret in store.secrets if secret.encode() in path.read_bytes()] == []


@pytest.mark.wide
@pytest.mark.parametrize("point", ["copy.after", "swap.before:3", "swap.after:3"])  # two drains commit first
def test_trap_135_killed_between_its_files_and_its_commit_a_copy_is_made_again(
    store: Store, lake: Config, point: str
) -> None:
    sql(lake, "update public.a set x = x || '+'")
    program = (
        "import sys; from tests.support_lake import without_jvm; from tests import commands;"
        " from toolkit.values import config; without_jvm(); commands.repair(config.load(sys.argv[1]), ['public.a'])"
    )
    commands.drain(lake)
    before = _unnamed(store, lake)
    killed = subprocess.run(
        [sys.executable, "-c", program, str(lake.root / "cdc.toml")],
        cwd=_ROOT, env=os.environ | _given(lake) | {VARIABLE: f"{point}=sigkill"}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert killed.returncode == -9, killed.stderr
    left = _unnamed(store, lake) - before
    assert any("-copy-" in place for place in left) == ("swap.after" not in point)
    _whole(lake)
    commands.repair(lake, ["public.a"])
    _whole(lake)
    assert of(lake, "a").state == "ok"
    if point == "copy.after":  # from the beginning of its commit on, only maintenance can tell
        assert _unnamed(store, lake) & left == set()


def test_a_store_that_does_not_answer_is_no_damage(store: Store, lake: Config) -> None:
    """Doctor must not advise to let the catalog give up metadata that only cannot be reached."""
    gone = lake.lake.model_copy(update={"properties": lake.lake.properties | store.away})
    away = lake.model_copy(update={"lake": gone})
    with pytest.raises(LakeError, match=rf"metadata file {store.kind}://.* cannot be read"):
        ledger_of(away).last()
    found = [d for d in diagnosis._lake(away, lake_of(away)) if d.level == "error"]
    assert ["is not writable" in d.found for d in found] == [True]


def test_a_lost_catalog_beside_a_full_bucket_is_refused(store: Store, lake: Config, tmp_path: Path) -> None:
    text = (lake.root / "cdc.toml").read_text(encoding="utf-8")
    (tmp_path / "cdc.toml").write_text(text, encoding="utf-8")
    with environment(_given(lake)):
        other = configuration.load(str(tmp_path / "cdc.toml"))
    with pytest.raises(LakeError, match=rf"the warehouse has its files, such as {store.warehouse}/raw/events"):
        Ledger(other.lake_access, rules=other.capture_rules).last()


def test_reports_are_copied_to_the_store_and_a_browser_gets_their_type(
    store: Store, lake: Config, tmp_path: Path
) -> None:
    """The lake itself is on this machine. What the last copy left in the store goes."""
    reports = f"{store.warehouse}/reports"
    place = LakeConfig(reports=reports, properties=lake.lake.properties, prefix="shop")
    config = Config(root=tmp_path, lake=place)
    properties = storage.file_properties(config.lake_access, reports)
    docs = expectations.directory(config.lake_access) / "data_docs"
    docs.mkdir(parents=True)
    for page in ("one.html", "two.html"):
        (docs / page).write_text(page)
        expectations.write(config.lake_access, CheckReport(None, ()))
        folder = report_copies.place(config.lake_access, "quality")
        assert set(storage.names(folder, properties)) == {
            f"data_docs/{page}", "report.html", "parity.json", "parity.txt", "junit.xml", report_copies.LIST,
        }  # fmt: skip
        assert storage.read(f"{folder}/data_docs/{page}", properties) == page.encode()
        (docs / page).unlink()
    if store.kind == "s3":
        io = storage.file_io(folder, properties)
        assert isinstance(io, PyArrowFileIO)
        scheme, netloc, path = io.parse_location(f"{folder}/report.html", io.properties)
        with io.fs_by_scheme(scheme, netloc).open_input_stream(path) as stream:
            assert dict(stream.metadata())["Content-Type"] == b"text/html"

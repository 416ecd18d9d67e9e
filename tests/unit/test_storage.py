"""Files of tables by their location, and the rule that no other module of the lake takes a location for a path."""

from __future__ import annotations

import ast
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest

from tests.support_lake import FILE_TARGET
from toolkit.lake import file_lists, spark_tasks, storage, uncommitted
from toolkit.lake.files import EventsFile
from toolkit.rawlog.arrow import Event, to_arrow
from toolkit.values.config import Config
from toolkit.values.errors import CommitConflict
from toolkit.values.locations import is_within, local_path

pytestmark = pytest.mark.unit
LAKE = Path(__file__).resolve().parents[2] / "toolkit" / "lake"


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a b/c#d?e", "/a b/c#d?e"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b#c", "/a/b#c"),
        ("file://host/a", "/a"),
        ("relative/kind=row", "relative/kind=row"),
        ("s3://bucket/a", None),
        ("S3A://bucket/a", None),
    ],
)
def test_which_locations_are_of_this_machine(location: str, path: str | None) -> None:
    assert local_path(location) == (None if path is None else Path(path))


def test_what_is_in_a_warehouse(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    assert is_within(f"file:{tmp_path}/lake/raw", str(tmp_path / "link"))
    assert not is_within(f"{tmp_path}/lakes/raw", str(tmp_path / "lake"))
    assert is_within("s3://bucket/lake/raw", "s3://bucket/lake")
    assert not is_within("s3://bucket/lakes/raw", "s3://bucket/lake")
    assert not is_within("s3://bucket/lake/raw", "/bucket/lake")
    assert not is_within("/bucket/lake", "s3://bucket/lake")


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("abfss://lake@acme.dfs.core.windows.net/w/a%20b=c", "lake/w/a%20b=c"),
        ("s3://bucket/w/a@b", "bucket/w/a@b"),
        ("gs://bucket/w", "bucket/w"),
        ("file:/w #?&%41/a=b", "/w #?&%41/a=b"),
        ("/w #?&%41/a=b", "/w #?&%41/a=b"),
    ],
)
def test_by_which_path_the_client_of_a_store_names_an_object(location: str, path: str) -> None:
    """pyiceberg takes container and account together for the container, and `?` in a name for a part of a URL."""
    from toolkit.lake.store_io import StoreFileIO

    assert StoreFileIO.parse_location(location)[2] == path


def test_files_of_this_machine_are_written_found_sized_and_deleted(tmp_path: Path) -> None:
    place = f"file:{tmp_path}/raw/events-1/data/kind=row/a.parquet"
    with storage.create(place, {}) as file:
        file.write(b"four")
    assert storage.read(place, {}) == b"four"
    found = storage.find(str(tmp_path / "raw"), "events*/data/*.parquet", {})
    assert found is not None and local_path(found) == local_path(place)
    assert storage.find(str(tmp_path / "raw"), "others*/data/*.parquet", {}) is None
    assert storage.find(str(tmp_path / "none"), "*", {}) is None
    storage.force([(place, 4)], str(tmp_path), {})
    with pytest.raises(OSError, match="has 4 bytes and not 5"):
        storage.force([(place, 5)], str(tmp_path), {})
    storage.delete(place, {})
    storage.delete(place, {})
    with pytest.raises(FileNotFoundError):
        storage.force([(place, None)], str(tmp_path), {})


def test_a_file_of_rows_is_whole_or_not_there(tmp_path: Path) -> None:
    rows = to_arrow([Event(batch_id=1, generation=1, commit_lsn=1, ordinal=1, end_lsn=2, kind="row", new=["x"])])
    (batch,) = rows.combine_chunks().to_batches()
    with EventsFile(str(tmp_path / "d" / "whole.parquet"), FILE_TARGET) as file:
        file.write(batch)
    with (
        pytest.raises(ZeroDivisionError),
        EventsFile(str(tmp_path / "d" / "half.parquet"), FILE_TARGET) as file,
    ):
        file.write(batch)
        raise ZeroDivisionError
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["whole.parquet"]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `NewFiles` asks of a table, whose data files are in `tmp_path / data`."""
    monkeypatch.setattr(uncommitted, "field_ids", lambda _: FILE_TARGET.ids)
    monkeypatch.setattr(uncommitted, "new_location", lambda *given: str(tmp_path / "data" / given[-1]))
    monkeypatch.setattr(uncommitted, "open_catalog", lambda _: SimpleNamespace(opened=lambda _: ({}, {})))


def _written(files: uncommitted.NewFiles) -> Path:
    place = Path(files.place(7))
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"x")
    return place


def _lists(folder: Path) -> Iterator[Path]:
    return (folder / "lake" / "new-files").iterdir()


def test_a_file_stays_unless_it_was_not_committed(tmp_path: Path, table: None) -> None:
    with uncommitted.new_files(Config(root=tmp_path).lake_access) as files:
        committed, lost, unknown, unused = (_written(files) for _ in range(4))
        with files.committing([str(committed)]):
            pass
        with pytest.raises(CommitConflict), files.committing([str(lost)]):
            raise CommitConflict("batch 7: another runner; run it again")
        with pytest.raises(TimeoutError), files.committing([str(unknown)]):
            raise TimeoutError
        (listed,) = _lists(tmp_path)
        assert set(listed.read_text(encoding="utf-8").split()) == {str(lost), str(unused)}
    assert set((tmp_path / "data").iterdir()) == {committed, unknown}
    assert list(_lists(tmp_path)) == []


def test_an_attempt_writes_into_the_folder_of_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the bucket has the ending of a data file, too."""
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: SimpleNamespace(taskAttemptId=lambda: 5))
    place = spark_tasks.attempt_place("s3://a.parquet.lake/raw/events/data/kind=row/x.parquet")
    assert place == "s3://a.parquet.lake/raw/events/data/kind=row/x-5.parquet"


def test_trap_012_a_power_cut_does_not_bring_a_committed_file_back_into_the_list(
    tmp_path: Path, table: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel had written the list to the disk, and the power failed after the commit: the next run deletes it."""
    access = Config(root=tmp_path).lake_access
    on_disk: dict[str, str] = {}
    fsync = os.fsync

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        on_disk[path.name] = path.read_text(encoding="utf-8")

    monkeypatch.setattr(os, "fsync", synced)
    with uncommitted.new_files(access) as files:
        committed = _written(files)
        (listed,) = _lists(tmp_path)
        on_disk[listed.name] = listed.read_text(encoding="utf-8")
        with files.committing([str(committed)]):
            after_the_cut = on_disk[listed.name]
    listed.write_text(after_the_cut, encoding="utf-8")
    with uncommitted.new_files(access):
        assert committed.exists()


def test_a_run_that_begins_meanwhile_leaves_the_list_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It found the list before it was locked, and removed it: what a kill then left behind was listed nowhere."""
    access = Config(root=tmp_path).lake_access
    lock = fcntl.flock

    def late(file: IO[str], how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        with file_lists.listed_files(access, "lists", {}):
            pass
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with file_lists.listed_files(access, "lists", {}) as files:
        files.add(f"{tmp_path}/a")
        (listed,) = (tmp_path / "lake" / "lists").iterdir()
        assert listed.read_text(encoding="utf-8") == f"{tmp_path}/a\n"


def test_a_list_that_a_killed_run_never_locked_goes_too(tmp_path: Path) -> None:
    """It stayed for ever. That of a run which begins at this moment stays."""
    access = Config(root=tmp_path).lake_access
    folder = tmp_path / "lake" / "lists"
    folder.mkdir(parents=True)
    old, young = folder / "old.new", folder / "young.new"
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    with file_lists.listed_files(access, "lists", {}):
        assert young.exists() and not old.exists()


def test_a_list_names_files_whatever_is_in_their_names(tmp_path: Path) -> None:
    """A line of the list ends at a line feed only: `a` is another file than `a<U+2028>b`."""
    access = Config(root=tmp_path).lake_access
    whole, part = tmp_path / "a\u2028b", tmp_path / "a"
    for file in (whole, part, tmp_path / "lake" / "lists" / "killed.txt"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{whole}\n", encoding="utf-8")
    with file_lists.listed_files(access, "lists", {}):
        assert part.exists() and not whole.exists()


@pytest.mark.parametrize("torn", ["{}/data", "\0\0\0"])
def test_half_a_line_of_a_list_stops_no_run(tmp_path: Path, torn: str) -> None:
    """After a power cut each run refused, since a folder cannot be deleted as a file."""
    access = Config(root=tmp_path).lake_access
    whole, killed = tmp_path / "data" / "whole", tmp_path / "lake" / "lists" / "killed.txt"
    for file in (whole, killed):
        file.parent.mkdir(parents=True)
        file.write_text(f"{whole}\n{torn.format(tmp_path)}", encoding="utf-8")
    with file_lists.listed_files(access, "lists", {}):
        assert not whole.exists() and not killed.exists()


def test_the_next_run_deletes_what_the_list_of_a_killed_one_names(tmp_path: Path, table: None) -> None:
    config = Config(root=tmp_path)
    with uncommitted.new_files(config.lake_access) as running:
        mine = _written(running)
        (tmp_path / "data" / "left").write_bytes(b"x")
        (tmp_path / "lake" / "new-files" / "killed.txt").write_text(f"{tmp_path}/data/left\n", encoding="utf-8")
        with uncommitted.new_files(config.lake_access):
            assert list((tmp_path / "data").iterdir()) == [mine]  # its run still holds the list


#: Modules of the lake that handle files of the runner, which no table names.
OF_THE_RUNNER = {
    "executor_spool",  # the spool, whose bytes it copies to the store
    "executors",  # the copy of such bytes on an executor's disk
    "file_lists",  # the list of the places of a run
    "folders",  # makes the folders of this machine
    "hive_catalog",  # the host and port of a metastore
    "jars",  # the jars that Spark has resolved
    "java",  # the JDK
    "class_archive",  # the archive of the JVM's classes, in the account's cache
    "class_recording",
    "lease",
    "session",  # Spark's output and settings
    "sqlite_catalog",  # the file of the catalog
    "storage",  # the boundary itself
}
_FILES = {"shutil", "tempfile", "glob", "urllib.parse"}
_ON_PATHS = {"remove", "unlink", "rename", "replace", "open", "stat", "listdir", "makedirs", "mkdir", "fsync", "path"}


def _takes_paths(source: str) -> list[str]:
    """Give what a module has of functions on local files: `Path(`, `os.` functions, `open(`, modules of files."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Path", "open"):
            found.append(node.func.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            found += [node.attr] if node.attr in _ON_PATHS else []
        elif isinstance(node, ast.ImportFrom) and node.module in _FILES:
            found.append(node.module)
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name in _FILES]
    return found


def test_no_module_of_the_lake_takes_the_location_of_a_table_for_a_path() -> None:
    modules = {path.stem: path.read_text(encoding="utf-8") for path in LAKE.glob("*.py")}
    taken = {name: found for name, source in modules.items() if (found := _takes_paths(source))}
    assert taken.keys() - OF_THE_RUNNER == set(), taken
    inside = {name for name, source in modules.items() if "local_path(" in source}
    assert inside == {
        "session",  # Spark's own folder
        "sqlite_catalog",  # a message
        "storage",
        "store_io",  # pyiceberg would take a path with a scheme for a URL
    }


@pytest.mark.parametrize(
    "source",
    ["Path(location).unlink()", "import os\nos.rename(a, b)", "open(location)", "from urllib.parse import urlparse"],
)
def test_a_module_that_takes_one_for_a_path_is_found(source: str) -> None:
    assert _takes_paths(source)


def test_the_rule_leaves_other_calls_alone() -> None:
    assert _takes_paths("import os\nos.cpu_count()\nmetadata.open()\npath: Path | None = None") == []

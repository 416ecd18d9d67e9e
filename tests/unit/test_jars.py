"""The jars that Spark loads are the ones that the lock file names, whatever a cache or a repository gives."""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path

import pytest

from toolkit.lake import jars, session
from toolkit.values.config import Config
from toolkit.values.errors import LakeError

pytestmark = pytest.mark.unit


def _packages(root: Path, **lake: object) -> list[str]:
    settings = session.spark_settings(Config.model_validate({"root": root, "lake": lake}).lake_access)
    return settings["spark.jars.packages"].split(",")


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make files for the jars of the lock file, pinned by what is in them, in a folder with a blank in its name."""
    folder = tmp_path / "an ivy" / "jars"
    folder.mkdir(parents=True)
    files = {name: folder / jars.file_name(name) for name in _packages(tmp_path)}
    for file in files.values():
        file.write_text(file.name)
    hashes = {name: hashlib.sha256(file.name.encode()).hexdigest() for name, file in files.items()}
    monkeypatch.setattr(jars, "PINNED", hashes)
    return [file.as_uri() for file in files.values()]


def _check(loaded: list[str], tmp_path: Path, **spark: str) -> None:
    given = {f"spark.{name.replace('_', '.')}": value for name, value in spark.items()}
    jars.require_pinned(loaded, session.spark_settings(Config(root=tmp_path, spark=given).lake_access))


def test_the_lock_file_pins_every_package_of_the_session(tmp_path: Path) -> None:
    file, database = _packages(tmp_path), _packages(tmp_path, uri="jdbc:postgresql://h/d")
    server = _packages(tmp_path, type="rest", uri="http://h")
    assert server == _packages(tmp_path, type="hive", uri="thrift://h:9083")
    amazon = _packages(tmp_path, warehouse="s3://lake", properties={"client.region": "x"})
    google = _packages(tmp_path, warehouse="gs://lake")
    azure = _packages(tmp_path, warehouse="abfss://lake@account.dfs.core.windows.net")
    assert {*file, *database, *amazon, *google, *azure} == jars.PINNED.keys() and server == [
        name for name in file if name in database
    ]
    assert all(re.fullmatch(r"[^:\s]+:[^:\s]+:[\d.]+", name) for name in jars.PINNED)
    assert all(re.fullmatch(r"[0-9a-f]{64}", sha256) for sha256 in jars.PINNED.values())


def test_the_jars_of_the_lock_file_are_accepted(loaded: list[str], tmp_path: Path) -> None:
    _check(loaded, tmp_path)


@pytest.mark.parametrize("which", [0, 1])
def test_a_jar_with_another_hash_is_refused_by_name(loaded: list[str], tmp_path: Path, which: int) -> None:
    name = list(jars.PINNED)[which]
    path = tmp_path / "an ivy" / "jars" / jars.file_name(name)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(LakeError) as refused:
        _check(loaded, tmp_path)
    assert str(path) in str(refused.value)
    assert hashlib.sha256(path.read_bytes()).hexdigest() in str(refused.value)
    group, artifact, _ = name.split(":")
    assert refused.value.remedy == f"delete it and {tmp_path}/an ivy/cache/{group}/{artifact}, then run again"
    packages = f"{','.join(jars.PINNED)}, org.example:theirs:1.0"
    with pytest.raises(LakeError, match="is not the jar"):  # also beside packages that the user adds
        _check(loaded, tmp_path, jars_packages=packages)


def test_a_jar_that_a_changed_description_brings_along_is_refused(loaded: list[str], tmp_path: Path) -> None:
    """A repository that cannot change a pinned jar can still say that it needs another one."""
    stranger = tmp_path / "an ivy" / "jars" / "org.example_stranger-1.0.jar"
    stranger.write_text("")
    with pytest.raises(LakeError, match=r"org\.example_stranger-1\.0\.jar was loaded with .*, which do not need it"):
        _check([*loaded, stranger.as_uri()], tmp_path)


def test_a_jar_that_was_not_loaded_is_refused(loaded: list[str], tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"did not load org\.xerial_sqlite-jdbc-.*; .* leave org\.xerial:sqlite-jdbc:"):
        _check(loaded[:1], tmp_path)
    with pytest.raises(LakeError, match="did not load"):
        _check([], tmp_path)


def test_jars_of_the_user_are_not_judged(loaded: list[str], tmp_path: Path) -> None:
    beside = tmp_path / "an ivy" / "jars" / "org.example_theirs-1.0.jar"
    beside.write_text("")
    own = tmp_path / "own.jar"
    own.write_text("")
    _check([*loaded, beside.as_uri()], tmp_path, jars_packages=f"{','.join(jars.PINNED)},org.example:theirs:1.0")
    _check([*loaded, beside.as_uri(), own.as_uri()], tmp_path, jars=f"{beside},{own}")


def test_where_the_user_replaces_the_packages_nothing_is_judged(loaded: list[str], tmp_path: Path) -> None:
    path = tmp_path / "an ivy" / "jars" / jars.file_name(next(iter(jars.PINNED)))
    path.write_text("another")
    _check(loaded, tmp_path, jars_packages="org.example:theirs:1.0")
    _check([], tmp_path, jars_packages="")


def test_only_one_process_downloads_jars_at_a_time(tmp_path: Path) -> None:
    """Bug: on a new machine, one of two commands that started Spark together failed, with "download failed"."""
    settings = {"spark.jars.ivy": str(tmp_path / "ivy"), "spark.jars.packages": "org.example:one:1.0"}
    entered = threading.Event()

    def second() -> None:
        with jars.one_download(settings):
            entered.set()

    thread = threading.Thread(target=second)
    with jars.one_download(settings):
        thread.start()
        assert not entered.wait(0.5)
        jar = tmp_path / "ivy" / "jars" / jars.file_name("org.example:one:1.0")
        jar.parent.mkdir()
        jar.touch()
    assert entered.wait(10)
    thread.join()
    with jars.one_download(settings), jars.one_download(settings):  # nothing is left to download
        pass


def test_a_folder_of_jars_that_cannot_be_written_is_named_with_the_setting(tmp_path: Path) -> None:
    """Java's home folder is that of the account, whatever HOME says, and may not exist: `cdc doctor` was green."""
    (tmp_path / "file").touch()
    remedy = jars.unwritable({"spark.jars.ivy": str(tmp_path / "file" / "ivy")})
    assert str(tmp_path / "file" / "ivy") in remedy and '"spark.jars.ivy" in [spark]' in remedy
    assert not jars.unwritable({"spark.jars.ivy": str(tmp_path / "new" / "ivy")})


@pytest.mark.parametrize("packages", ["", "not a package", "org.example:one:1.0"])
def test_where_no_lock_can_be_made_spark_is_started_all_the_same(tmp_path: Path, packages: str) -> None:
    (tmp_path / "file").touch()
    with jars.one_download({"spark.jars.ivy": str(tmp_path / "file" / "ivy"), "spark.jars.packages": packages}):
        pass


def test_the_class_path_has_all_jars_of_the_lock_file_or_none(loaded: list[str], tmp_path: Path) -> None:
    """Iceberg alone was on it while Spark downloaded the driver of PostgreSQL, and did not find the driver."""
    folder = tmp_path / "an ivy"

    def found(**spark: str) -> tuple[Path, ...]:
        given = {f"spark.{name.replace('_', '.')}": value for name, value in spark.items()}
        config = Config(root=tmp_path, spark={"spark.jars.ivy": str(folder), **given})
        return jars.class_path(session.spark_settings(config.lake_access))

    files = [folder / "jars" / jars.file_name(name) for name in jars.PINNED]
    assert len(files) == len(loaded) == 2 and list(found()) == files
    assert found(jars="/their.jar") == found(jars_packages=f"{','.join(jars.PINNED)},org.example:theirs:1.0") == ()
    assert found(jars_packages="") == ()
    text = files[0].read_text()
    files[0].write_text(f"{text}x")
    assert found() == ()
    files[0].write_text(text)
    assert list(found()) == files
    files[1].unlink()
    assert found() == ()

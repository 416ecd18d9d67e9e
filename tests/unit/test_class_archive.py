"""The archive of Spark's classes: for one Java runtime and one set of jars."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolkit.api import Toolkit
from toolkit.cli import main
from toolkit.lake import class_archive, class_recording, session
from toolkit.values.errors import LakeError

pytestmark = pytest.mark.unit

_SCRIPT = "import os, sys, time\narchive = sys.argv[3]\nopen({pid!r}, 'w').write(str(os.getpid()))\n"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Settings with a jar of their own, and a Java runtime that can make an archive."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "ivy" / "jars").mkdir(parents=True)
    (tmp_path / "ivy" / "jars" / "a.jar").write_bytes(b"1")
    base = tmp_path / "java" / "lib" / "server" / "classes.jsa"
    base.parent.mkdir(parents=True)
    base.touch()
    monkeypatch.setattr(class_recording, "find_java", lambda: tmp_path / "java" / "bin" / "java")
    return {"spark.jars.packages": "a:a:1", "spark.jars.ivy": str(tmp_path / "ivy"), "spark.hadoop.secret": "s"}


def program(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str) -> None:
    """Put a program in the place of the one that runs Spark."""
    file = folder / "python"
    file.write_text(f"#!{sys.executable}\n{_SCRIPT.format(pid=str(folder / 'pid'))}{code}", encoding="utf-8")
    file.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(file))


def test_it_is_made_once(settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "java"
    program(monkeypatch, tmp_path, "open(archive, 'w').write(sys.stdin.read())")
    assert class_archive.find(home, settings) is None
    made = class_recording.make_missing(settings)
    assert made is not None and class_archive.find(home, settings) == made
    assert "secret" not in made.read_text() and "a:a:1" in made.read_text()
    assert class_recording.make_missing(settings) is None
    assert list(made.parent.iterdir()) == [made]


def test_maintain_makes_it_after_its_own_jvm_has_ended(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    program(monkeypatch, tmp_path, "open(archive, 'w')")
    (tmp_path / "cdc.toml").touch()

    def archives() -> list[Path]:
        return list((tmp_path / "cache").rglob("classes-*.jsa"))

    def maintained(_: Toolkit) -> tuple[()]:
        done.append("maintained")
        return ()

    def stopped(**_: object) -> None:
        if not archives():
            done.append("stopped")

    monkeypatch.setattr(Toolkit, "maintain", maintained)
    monkeypatch.setattr(session, "stop_session", stopped)
    ended = CliRunner().invoke(main, ["maintain", "--config", str(tmp_path / "cdc.toml")])
    assert (ended.exit_code, done, len(archives())) == (0, ["maintained", "stopped"], 1), ended.output
    for archive in archives():
        archive.unlink()

    def failing(_: Toolkit) -> None:
        raise LakeError("gone; restore it")

    monkeypatch.setattr(Toolkit, "maintain", failing)
    assert CliRunner().invoke(main, ["maintain", "--config", str(tmp_path / "cdc.toml")]).exit_code == 1
    assert archives() == []


def test_other_jars_and_another_java_have_their_own(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "java"
    program(monkeypatch, tmp_path, "open(archive, 'w')")
    class_recording.make_missing(settings)
    assert class_archive.find(home, {**settings, "spark.jars.packages": "b:b:1"}) is None
    assert class_archive.find(tmp_path / "other", settings) is None
    (home / "release").write_text("JAVA_VERSION=18", encoding="utf-8")
    assert class_archive.find(home, settings) is None
    (home / "release").unlink()
    (tmp_path / "ivy" / "jars" / "a.jar").write_bytes(b"12")
    assert class_archive.find(home, settings) is None


def test_a_runtime_that_cannot_make_one_is_not_asked(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(monkeypatch, tmp_path, "open(archive, 'w')")
    (tmp_path / "java" / "lib" / "server" / "classes.jsa").unlink()
    assert class_recording.make_missing(settings) is None
    assert not (tmp_path / "pid").exists()


def test_a_failure_leaves_nothing(settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(monkeypatch, tmp_path, "sys.exit('no room')")
    assert class_recording.make_missing(settings) is None
    assert not list((tmp_path / "cache" / "cdc-toolkit").iterdir())


def test_an_interruption_ends_the_program(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(monkeypatch, tmp_path, "open(archive, 'w'); time.sleep(600)")
    monkeypatch.setattr(class_recording, "_SECONDS", 1.0)
    assert class_recording.make_missing(settings) is None
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()
    assert not list((tmp_path / "cache" / "cdc-toolkit").iterdir())


@pytest.mark.parametrize(
    ("form", "old", "recent"),
    [("classes-{}.jsa", 91 * 86_400, 89 * 86_400), (".classes-{}.7.jsa", 7_200, 0)],
    ids=["that no JVM has read for long", "that a killed run has left unfinished"],
)
def test_archives_are_deleted(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, old: int, recent: int
) -> None:
    """An archive has 180 MB. The name of an unfinished one has its process in it, so no other run writes over it."""
    import os

    program(monkeypatch, tmp_path, "open(archive, 'w')")
    folder = tmp_path / "cache" / "cdc-toolkit"
    folder.mkdir(parents=True)
    for name, seconds in (("old", old), ("recent", recent)):
        (folder / form.format(name)).touch()
        os.utime(folder / form.format(name), (time.time() - seconds,) * 2)
    made = class_recording.make_missing(settings)
    assert made is not None
    assert {path.name for path in folder.iterdir()} == {form.format("recent"), made.name}


def test_spark_starts_without_an_archive_that_this_account_cannot_reach(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOME may be a folder of root; the name is too long here, because root may enter every folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("x" * 300)))
    assert class_archive.find(tmp_path / "java", settings) is None

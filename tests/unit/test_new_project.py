"""`cdc new` makes a folder that works once the connection is filled in."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import toolkit
from tests.docs.documents import blocks
from toolkit import __version__
from toolkit.cli import main
from toolkit.ops import new_project
from toolkit.values import config
from toolkit.values.errors import ConfigError
from toolkit.values.resources import SCAFFOLD

pytestmark = pytest.mark.unit


def test_a_new_folder_has_all_that_a_user_needs(tmp_path: Path) -> None:
    made = tmp_path / "shop-lake"
    found = CliRunner().invoke(main, ["new", str(made)])
    assert found.exit_code == 0, found.output
    names = (
        ".gitignore",
        "requirements.txt",
        "Dockerfile",
        "schedule/crontab",
        "schedule/airflow_dag.py",
        "ci/github.yml",
        "dbt_project/dbt_project.yml",
        "notebooks/row_at_lsn.ipynb",
    )
    assert [name for name in names if not (made / name).is_file()] == []
    loaded = config.load(str(made / "cdc.toml"))
    assert loaded.source.tables == ("public.*",) and loaded.root == made
    assert f"cd {made} && .venv/bin/cdc run" in (made / "schedule" / "crontab").read_text(encoding="utf-8")
    assert "/srv/shop-lake" not in "".join(p.read_text("utf-8") for p in (made / "schedule").iterdir())
    requirements = (made / "requirements.txt").read_text(encoding="utf-8")
    assert requirements.endswith(f"cdc-toolkit[demo]=={__version__}\n")
    # Each commented key is one that exists.
    text = (made / "cdc.toml").read_text(encoding="utf-8")
    lines = [line.removeprefix("# ") if line.startswith("# [") or " = " in line else line for line in text.splitlines()]
    (made / "all.toml").write_text("\n".join(lines), encoding="utf-8")
    assert config.load(str(made / "all.toml")).log.format == "json"


def test_a_notebook_finds_the_project_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JupyterLab starts the kernel in the folder of the notebook, and the first cell did not find the configuration."""
    made = tmp_path / "shop-lake"
    new_project.create(made)
    notebooks = sorted((made / "notebooks").glob("*.ipynb"))
    assert len(notebooks) >= 4
    for notebook in notebooks:
        assert r"config_path = \"cdc.toml\"" in notebook.read_text(encoding="utf-8")
    monkeypatch.chdir(made / "notebooks")
    assert toolkit.open("cdc.toml").config.root == made == toolkit.open().config.root
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"cdc\.toml: no such configuration file"):
        toolkit.open("cdc.toml")


def test_a_folder_whose_name_needs_quotes_is_not_put_into_the_examples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`cd /srv/shop lake && ...` went into another folder, and a `$` or `%` is read by shells, cron and systemd."""
    for name in ("shop lake", "shop$lake", "shop%lake"):
        caplog.clear()
        new_project.create(tmp_path / name)
        assert [record.message for record in caplog.records] == ["the examples keep another folder"]
        text = (tmp_path / name / "schedule" / "crontab").read_text(encoding="utf-8")
        assert "cd /srv/shop-lake && " in text


def test_a_virtual_environment_may_be_there_already(tmp_path: Path) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "cdc").touch()
    written = new_project.create(tmp_path)
    assert Path("cdc.toml") in written and not any(path.parts[0] == ".venv" for path in written)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("", encoding="utf-8")
    found = CliRunner().invoke(main, ["new", str(tmp_path)])
    assert found.exit_code == 2 and "there is something already" in found.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "path",
    sorted(p for f in ("", "ci", "schedule") for p in (SCAFFOLD / f).iterdir() if f or p.name == "Dockerfile"),
    ids=lambda p: p.name,
)
def test_the_guide_shows_the_same_schedules(path: Path) -> None:
    assert path.read_text(encoding="utf-8") in [block.text for block in blocks()]

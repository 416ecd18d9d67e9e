"""What `cdc status` and `cdc doctor` say of the last end of each command."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from toolkit.cli import main
from toolkit.ops import alerts
from toolkit.ops.last_run import LastRun
from toolkit.values.config import Config


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("run", "correct that, then run `cdc run`"),
        ("check", "correct that, then run `cdc check` or `cdc run`"),
    ],
)
def test_the_remedy_of_a_failed_command_names_no_command_twice(command: str, remedy: str) -> None:
    """A failed run, the usual case, ended with "run `cdc run` or `cdc run`"."""
    [found] = alerts.of_runs([LastRun(command, 3, "2026-11-26T13:30:25+00:00", "the check failed")])
    assert (found.what, found.remedy) == (f"the last {command}", remedy)


@pytest.mark.parametrize("refused", [PermissionError(13, "Permission denied"), OSError(116, "Stale file handle")])
def test_a_folder_that_cannot_be_entered_ends_no_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: OSError
) -> None:
    """`cdc status` and `cdc doctor` ended with the error, and did not say what else is wrong."""

    def asked(_: Path) -> None:
        raise refused

    monkeypatch.setattr(Path, "stat", asked)
    found = alerts.free_mb(Config(root=tmp_path).lake_access, tmp_path / "lake" / "spool")
    assert set(found) == {"warehouse", "spool", "catalog"}


def test_doctor_says_what_to_do_once(tmp_path: Path) -> None:
    """An error's text ends with its remedy, which has a column of its own."""
    (tmp_path / "cdc.toml").write_text('[source]\nconninfo = "host=127.0.0.1 port=1"\n', encoding="utf-8")
    done = CliRunner().invoke(main, ["doctor", "--config", str(tmp_path / "cdc.toml")])
    assert done.exit_code != 0 and done.stdout.count("check that PostgreSQL runs there") == 1, done.stdout

"""What `cdc status` and `cdc doctor` say of the last end of each command."""

import pytest

from toolkit.ops import alerts
from toolkit.ops.last_run import LastRun


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

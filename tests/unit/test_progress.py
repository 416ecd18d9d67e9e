"""What a long copy says about itself."""

from __future__ import annotations

import io
import logging

import pytest

from toolkit.values import progress
from toolkit.values.progress import Progress

pytestmark = pytest.mark.unit


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds; tests move it."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_sees_one_line_that_is_wiped_at_the_end(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(progress.sys, "stderr", terminal)
    with Progress("copying", rows=4_000_000, size=10**9) as shown:
        shown.add(1000, 10**5)
        assert terminal.getvalue() == ""  # too early
        clock[0] += 2
        shown.add(999_000, 199_900_000)
        line = terminal.getvalue()
        assert line.endswith("copying: 1,000,000 of about 4,000,000 rows, 200 MB, 500,000 rows/s, about 6 s left")
    assert terminal.getvalue() == line + "\r\x1b[K"


def test_elsewhere_there_are_log_lines_with_the_same_facts(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "toolkit"), Progress("copying", rows=100, size=1000) as shown:
        shown.add(40, 400)
        clock[0] += 6
        shown.add(-30, -300)  # a dead worker's share is read again
        (record,) = caplog.records
    facts = {key: vars(record)[key] for key in ("rows", "bytes", "rows_per_second", "seconds_left")}
    assert facts == {"rows": 10, "bytes": 100, "rows_per_second": 2, "seconds_left": 54}


def test_a_low_estimate_promises_nothing(clock: list[float]) -> None:
    shown = Progress("copying", rows=10, size=0)
    clock[0] += 1
    shown.add(20, 5)
    assert shown.facts(clock[0])["seconds_left"] is None
    assert shown.line(clock[0]) == "copying: 20 rows, 0 MB, 20 rows/s"
    assert Progress("copying", rows=0, size=0).facts(clock[0])["seconds_left"] is None

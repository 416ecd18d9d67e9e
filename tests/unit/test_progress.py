"""What long work says about itself: bars on a terminal, log lines elsewhere."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time

import click
import pytest

from tests.support_terminal import on_a_terminal, screen
from toolkit.cli import main
from toolkit.values import progress, resources

pytestmark = pytest.mark.unit

CLI = resources.ROOT / "toolkit" / "cli"

#: A command with the frame of all commands, whose work is three steps of one stage and then what is asked for.
_COMMAND = """
import logging, signal, sys, time
from toolkit.cli import frame
from toolkit.values import errors, progress

@frame.main.command()
@frame.command
def work(ctx):
    with progress.stage("copying", "rows", 40) as stage, progress.stage("inner"):
        for _ in range(3):
            stage.add(10)
            time.sleep(0.3)
        logging.getLogger("toolkit.x").warning("a long line " + 30 * "of words ")
        if "fail" in sys.argv[0]:
            raise errors.CdcError("thing: found; do")
        if "wait" in sys.argv[0]:
            for _ in range(600):
                time.sleep(0.1)  # a signal that comes right before a long sleep would be handled after it
    stage.add(5)  # a thread that comes late
    ctx.output.text("result")

class Pressed:  # standard error, and a signal when half of the long line is written, as a slow terminal lets it come
    def __getattr__(self, name):
        return getattr(sys.__stderr__, name)

    def write(self, text):
        half = text.find("of words") if "long line" in text else 0
        sys.__stderr__.write(text[:half])
        if half:
            signal.raise_signal(signal.SIGTERM if "SIGTERM" in sys.argv[0] else signal.SIGINT)
        sys.__stderr__.write(text[half:])

sys.argv[0] = {ending!r}
if "drawing" in sys.argv[0]:
    sys.stderr = Pressed()
frame.main(["work", *{options!r}])
"""
#: A command that names no stage: it works, writes its result, and goes on for a while.
_PLAIN = """
import sys, time
from toolkit.cli import frame

@frame.main.command()
@frame.command
def plain(ctx):
    time.sleep({before})
    ctx.output.text("result")
    time.sleep(0.3)

sys.argv[0] = "cdc"
frame.main(["plain", *{options!r}])
"""


def _work(ending: str, *options: str) -> list[str]:
    return [sys.executable, "-c", _COMMAND.format(ending=ending, options=options)]


@pytest.mark.parametrize(
    ("ending", "code", "last"),
    [
        ("end", 0, "result"),
        ("fail", 1, "cdc: thing: found; do"),
        ("wait", 130, "cdc: interrupted"),
        ("drawing", 130, "cdc: interrupted"),
        ("drawing until SIGTERM", -signal.SIGTERM, "cdc: interrupted"),
    ],
)
def test_a_terminal_shows_bars_and_is_left_clean(ending: str, code: int, last: str) -> None:
    done, shown = on_a_terminal(_work(ending), interrupt_at="a long line" if ending == "wait" else None)
    assert done == code, shown
    for word in ("copying", "10 of 40 rows", "30 of 40 rows", "inner", "━"):
        assert word in shown, shown
    left = screen(shown)
    assert [line[:20] for line in left if "long line" not in line and line != "^C"][-1].startswith(last[:20]), left
    assert not any("copying" in line or "━" in line for line in left), left
    assert sum("long line" in line for line in left) == 1, left
    assert "a long line " + "of words " * 30 in re.sub(r"\s+", " ", shown).replace("  ", " "), shown
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor is hidden"
    assert "Traceback" not in shown


def test_elsewhere_no_escape_is_written() -> None:
    for options in ((), ("--verbose",), ("--output", "json")):
        done = subprocess.run(
            _work("end", *options),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "FORCE_COLOR": "1", "TERM": "xterm"},
        )
        assert "\x1b" not in done.stdout + done.stderr
        assert "\r" not in done.stdout + done.stderr


def test_json_on_a_terminal_has_no_bars() -> None:
    done, shown = on_a_terminal(_work("end", "--output", "json"))
    assert (done, "\x1b" in shown) == (0, False), shown


def test_a_command_without_stages_shows_itself_after_a_second_until_its_result() -> None:
    """Commands such as rows, audit and uninstall showed nothing for minutes."""
    done, shown = on_a_terminal([sys.executable, "-c", _PLAIN.format(before=1.7, options=())])
    before, _, after = shown.partition("result")
    assert done == 0 and "cdc plain" in before and "━" in before, shown
    assert "\x1b[?25h" in before and "━" not in after, shown
    assert screen(shown) == ["result"]
    done, shown = on_a_terminal([sys.executable, "-c", _PLAIN.format(before=0.1, options=())])
    assert (done, shown) == (0, "result\r\n")


def test_elsewhere_a_command_without_stages_is_one_line_with_its_time() -> None:
    code = _PLAIN.format(before=2.1, options=("--verbose", "--output", "json"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    (line,) = map(json.loads, done.stderr.splitlines())
    assert line["event"] == "cdc plain" and line["seconds"] >= 2.1


def test_every_command_has_the_frame_that_shows_it() -> None:
    """And its output goes through `say`, which takes the line of progress away first."""
    found, groups = [], [main]
    while groups:
        for command in groups.pop().commands.values():
            if isinstance(command, click.Group):
                groups.append(command)
            else:
                found.append(command)
    assert len(found) > 20
    assert all({"config_path", "output_format"} <= {p.name for p in one.params} for one in found)
    written = [path.name for path in CLI.glob("*.py") if "click.echo(" in path.read_text(encoding="utf-8")]
    assert written == ["output.py"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds; tests move it."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_elsewhere_there_are_log_lines_with_the_same_facts(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "toolkit"), progress.stage("copying", "rows", 100) as shown:
        shown.started = clock[0]
        shown.add(40, 400)
        assert caplog.records == []  # too early
        clock[0] += 6
        shown.add(-30, -300)  # a dead worker's share is read again
        (record,) = caplog.records
    assert record.getMessage() == "copying"
    facts = {key: vars(record)[key] for key in ("done", "total", "unit", "bytes", "per_second", "seconds_left")}
    assert facts == {"done": 10, "total": 100, "unit": "rows", "bytes": 100, "per_second": 2, "seconds_left": 54}


def test_a_low_estimate_promises_nothing() -> None:
    shown = progress.Stage("copying", "rows", 10, started=100.0)
    shown.add(20, 5)
    assert shown.facts(101.0)["seconds_left"] is None
    assert progress.Stage("copying", started=100.0).facts(101.0)["seconds_left"] is None


def test_each_item_counts_when_it_is_done() -> None:
    class Seen:
        done: list[int]

        def begin(self, stage: progress.Stage) -> None:
            self.done = []

        def update(self, stage: progress.Stage) -> None:
            self.done.append(stage.done)

        def end(self, stage: progress.Stage) -> None:
            self.done.append(-1)

        def result(self) -> None:
            pass

    seen = Seen()
    progress.show_on(seen)
    try:
        assert list(progress.each("checking", "tables", "ab")) == ["a", "b"]
    finally:
        progress.show_on(None)
    assert seen.done == [1, 2, -1]


#: Prints the resident megabytes before, in and after a stage that frees 80 MB of small objects. It needs a process
#: of its own: one that ran other tests may hold so much freed memory already that the stage takes none from the system.
_FREES = """
import resource, threading
from pathlib import Path
from toolkit.values import progress

def resident():
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() >> 20

kept = []

def work():
    used = [bytes(1000) for _ in range(80_000)]
    kept.append(used[-1])  # on top of what is freed, which the C library therefore keeps
    kept.append(resident())

progress._LONG_SECONDS = 0.0
before = resident()
with progress.stage("working"):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(before, kept[-1], resident())
"""


def test_what_a_long_stage_has_freed_returns_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", _FREES], capture_output=True, text=True, timeout=60, check=True)
    before, during, after = map(int, done.stdout.split())
    assert during - before > 60
    assert after - before < 30

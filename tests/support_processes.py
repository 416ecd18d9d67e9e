"""Run commands as processes, watch the stages that they go through, and find what they have started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

#: A command that writes which of its stages begins.
_ANNOUNCING = """
import contextlib, os, sys
from toolkit.values import progress

class Announced:
    def begin(self, stage):
        with contextlib.suppress(BrokenPipeError):  # the reader has what it waits for
            os.write(int(os.environ["STAGES"]), f"{stage.what}\\n".encode())
    update = end = lambda self, stage: None
    result = lambda self: None

progress.show_on(Announced())
sys.argv[0] = "cdc"
from toolkit.cli import run
run()
"""


def scheduled() -> dict[str, str]:
    """Give the variables that a scheduler gives a command: few, and those of the lake that the tests run on."""
    of_lake = ("CDC_LAKE", "CDC_SPARK", "AWS_")
    return {name: value for name, value in os.environ.items() if name in ("PATH", "HOME") or name.startswith(of_lake)}


def start(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, as a terminal does."""
    return subprocess.Popen(
        [sys.executable, "-m", "toolkit.cli", *words],
        cwd=folder,
        env=scheduled() | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def start_until(folder: Path, *words: str, stage: str) -> tuple[subprocess.Popen[str], list[str]]:
    """Start a command, and wait until a stage of it begins, or until it ends. Return the stages that have begun too."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _ANNOUNCING, *words],
        cwd=folder,
        env=scheduled() | {"PYTHONPATH": os.pathsep.join(sys.path), "STAGES": str(writing)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        pass_fds=[writing],
    )
    os.close(writing)
    seen = []
    with os.fdopen(reading, encoding="utf-8") as lines:
        for line in lines:
            seen.append(line.rstrip("\n"))
            if seen[-1] == stage:
                break
    return process, seen


def group(pgid: int) -> Iterator[tuple[int, str]]:
    """Yield the processes of a group, each with its command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                if int(fields[2]) == pgid and fields[0] != "Z":
                    yield int(entry.name), (entry / "cmdline").read_text(encoding="utf-8").replace("\0", " ")
            except OSError:
                continue


def succeeds(folder: Path, *words: str, **environment: str) -> None:
    process = start(folder, *words, **environment)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err


def ends(process: subprocess.Popen[str], context: str) -> None:
    """Nothing of the process is left, its JVM and its workers neither."""
    deadline = time.monotonic() + 20
    while list(group(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)  # the kernel ends what the command has ended
    assert list(group(process.pid)) == [], context

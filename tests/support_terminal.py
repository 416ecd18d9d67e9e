"""Run a command on a pseudo-terminal, and read what its screen shows."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO


def on_a_terminal(
    command: Sequence[str],
    *,
    interrupt_at: str | None = None,
    when: tuple[str, Callable[[], object]] | None = None,
    folder: Path | None = None,
    output: IO[bytes] | None = None,
) -> tuple[int, str]:
    """Run a command; Ctrl-C comes when `interrupt_at` is shown. Give the exit code and all that was written.

    `when`: a pattern, and what to do as soon as it is shown. `output`: where standard output goes instead.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=theirs,
        stdout=theirs if output is None else output,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        shown += data
        if interrupt_at is not None and interrupt_at.encode() in shown:
            os.killpg(process.pid, signal.SIGINT)
            interrupt_at = None
        if when is not None and re.search(when[0], shown.decode(errors="replace")):
            when[1]()
            when = None
    os.close(ours)
    return process.wait(60), shown.decode()


def screen(shown: str) -> list[str]:
    """Give the lines that a terminal is left with: line ends, cursor up and erasing are obeyed."""
    lines, row = [""], 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", shown):
        if token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\x1b[2K":
            lines[row] = ""
        elif token[:2] == "\x1b[" and token.endswith("A"):
            row -= int(token[2:-1] or 1)
        elif token[0] not in "\r\x1b":
            lines[row] += token
    return [line for line in lines if line.strip()]

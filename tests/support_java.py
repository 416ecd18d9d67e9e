"""Servers that are Java programs of the tests, on loopback: Maven fetches their jars, and a port is what they print.

Where Maven or a JDK is missing, the tests that need one are skipped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest


def classpath(program: Path, folder: Path, what: str) -> str:
    """The jars that `program / pom.xml` names. `what` says in the reason of a skip what is then not there."""
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        pytest.skip(f"Maven or a JDK is not installed: there is no {what} to test with")
    listed = folder / "classpath"
    command = ["mvn", "-q", "-B", "-f", str(program / "pom.xml"), "dependency:build-classpath"]
    subprocess.run([*command, f"-Dmdep.outputFile={listed}"], check=True, capture_output=True, timeout=600)
    return listed.read_text(encoding="utf-8")


class Server:
    """A server that prints its port and ends with its input. It can be killed, and started again on the same port."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command, self._environment, self._log = command, {"PATH": os.environ["PATH"], **environment}, log
        self._process: subprocess.Popen[str] | None = None
        self.port = ""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it unless it runs."""
        if self._process is not None:
            return
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                self._command, env=self._environment | {"SERVER_PORT": self.port or "0"}, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        self.port = self._process.stdout.readline().strip()
        assert self.port.isdigit(), self._log.read_text(encoding="utf-8")

    def kill(self) -> None:
        """Kill it, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self.end()

    def end(self) -> None:
        """End it in order, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            with process:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(60)


@contextlib.contextmanager
def served(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[Server]:
    """Run a server for the length of the block."""
    server = Server(command, environment, log)
    try:
        server.start()
        yield server
    finally:
        server.end()


__all__ = ["Server", "classpath", "served"]

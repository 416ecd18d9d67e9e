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


@contextlib.contextmanager
def served(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """Run a server that prints its port and ends with its input, for the length of the block; gives its address."""
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, env={"PATH": os.environ["PATH"], **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=errors, text=True,
        ) as server,
    ):  # fmt: skip
        assert server.stdin is not None and server.stdout is not None
        try:
            port = server.stdout.readline().strip()
            assert port.isdigit(), log.read_text(encoding="utf-8")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.stdin.close()
            server.wait(60)


__all__ = ["classpath", "served"]

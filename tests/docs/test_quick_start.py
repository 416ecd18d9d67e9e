"""README's quick start, executed as it stands: its statements, its cdc.toml, its commands, and what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.docs.documents import blocks, command_lines
from tests.support_postgres import fresh_database
from toolkit.demo.server import EmbeddedServer
from toolkit.values.resources import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]

#: What differs from run to run: LSNs and times.
_VARIES = re.compile(r"\b[0-9A-F]+/[0-9A-F]+\b|\b\d{4}-\d\d-\d\dT[0-9:.+]+")


#: The promise is ten minutes. CPU time is bounded, because the time of a clock depends on what else the machine does.
_CPU_SECONDS = 600


def _lines(output: str) -> list[list[str]]:
    """Split an output into words, without empty lines and without what differs from run to run."""
    return [words for line in output.splitlines() if (words := _VARIES.sub("*", line).split())]


def test_quick_start_does_and_prints_what_readme_says(tmp_path: Path, pg16: EmbeddedServer) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    install, section = (readme.partition(f"## {name}")[2].partition("\n## ")[0] for name in ("Install", "Quick start"))
    with fresh_database(pg16) as conninfo, psycopg.connect(conninfo, autocommit=True) as conn:
        service = tmp_path.with_name("pg_service.conf")
        settings = "".join(f"{key}={value}\n" for key, value in conninfo_to_dict(conninfo).items())
        service.write_text(f"[shop]\n{settings}", encoding="utf-8")
        printed, expected, ran, before = "", "", 0, os.times()
        for block in blocks():
            if block.page == "README.md" and block.text in install:
                (new,) = [words for words in command_lines(block) if words[0] == "cdc"]
                subprocess.run([sys.executable, "-m", "toolkit.cli", *new[1:]], cwd=tmp_path, check=True)
            if block.page != "README.md" or block.text not in section:
                continue
            if block.language == "sql":
                conn.execute(block.text.encode())
            elif block.language == "toml":
                (tmp_path / "cdc.toml").write_text(block.text, encoding="utf-8")
            elif block.language == "text":
                expected += block.text
            for words in command_lines(block) if block.language == "sh" else ():
                assert words[0] == "cdc"
                done = subprocess.run(
                    [sys.executable, "-m", "toolkit.cli", *words[1:]], cwd=tmp_path, capture_output=True, text=True,
                    env=os.environ | {"PGSERVICEFILE": str(service)}, timeout=600, check=False,
                )  # fmt: skip
                assert done.returncode == 0, done.stdout + done.stderr
                printed, ran = printed + done.stdout, ran + 1
        assert ran == 5
        spent = os.times()
        assert (
            spent.children_user + spent.children_system - before.children_user - before.children_system < _CPU_SECONDS
        )
        assert _lines(printed) == _lines(expected)

"""Faults that page an operator at night: a captured table to plant them at, and what every command must then say.

A fault changes the world: the server, the files, the limits and environment of a process, another process, the
configuration. No function of the toolkit is replaced; one process of commands keeps the JVM of the test run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

from toolkit.cli import frame, main
from toolkit.demo.server import EmbeddedServer
from toolkit.values.config import Config, LogConfig, NotifyConfig
from toolkit.values.modes import LogFormat
from toolkit.values.resources import ROOT


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it wrote."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass
class Night:
    """A captured table and its server, for the faults to change."""

    config: Config
    server: EmbeddedServer
    stack: ExitStack
    #: Of the processes that run the commands; None runs them in this one, which has a lake without a JVM.
    environment: Mapping[str, str] | None = None
    words: dict[str, str] = field(default_factory=dict)  # what a fault adds to the expected texts

    def conninfo(self, **changed: Any) -> None:
        text = make_conninfo(self.config.source.conninfo, **changed)
        self.change(source=self.config.source.model_copy(update={"conninfo": text}))

    def change(self, **sections: Any) -> None:
        self.config = self.config.model_copy(update=sections)

    def sql(self, *statements: str) -> None:
        with psycopg.connect(self.config.source.conninfo, autocommit=True) as conn:
            for statement in statements:
                conn.execute(statement.encode())

    def hold(self, context: AbstractContextManager[Any]) -> None:
        self.stack.enter_context(context)

    @property
    def notice(self) -> Path:
        """The file that `[notify] command` appends each notification to."""
        return self.config.root / "notice"

    def cdc(self, *words: str) -> Done:
        """Run a command with the configuration as it is now."""
        file = self.config.root / "cdc.toml"
        file.write_text(_toml(self.config), encoding="utf-8")
        named = {"CDC_CONFIG": str(file)}
        if self.environment is None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(frame, "_stop_spark", lambda **_: None)  # the JVM belongs to the whole test run
                done = CliRunner(env=named).invoke(main, words)
            return Done(done.exit_code, done.stdout, done.stderr)
        process = subprocess.run(
            [sys.executable, "-S", "-m", "toolkit.cli", *words],
            env={"HOME": os.environ["HOME"], **named, **self.environment},
            cwd=self.config.root,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Done(process.returncode, process.stdout, process.stderr)

    def fails(self, command: str, code: int, found: str, remedy: str) -> None:
        """The command ends with this code; its line of the log and its notice name what was found and the remedy."""
        self.notice.unlink(missing_ok=True)
        done = self.cdc(*command.split())
        assert done.exit_code == code, done
        (event,) = map(json.loads, done.stderr.splitlines())
        (notice,) = map(json.loads, self.notice.read_text(encoding="utf-8").splitlines())
        assert (notice["command"], notice["exit_code"], notice["problem"]) == (command, code, event["event"])
        assert remedy in notice["problem"], notice["problem"]
        assert re.search(found, notice["problem"]), notice["problem"]
        assert "wr0ng" not in json.dumps(notice)

    def shown(self, found: str, remedy: str) -> None:
        """Status and doctor are red, and both name thing and remedy."""
        done = self.cdc("status", "--output", "json")
        assert done.exit_code == 3, done
        status = json.loads(done.stdout)
        assert status["summary"].startswith("not ok: ")
        for words in (found, remedy):
            assert words in status["summary"], status["summary"]
        assert all(table["remedy"] for table in status["tables"] if table["state"] != "ok")
        if status["problem"]:
            assert {table["state"] for table in status["tables"]} <= {"stale"}
        done = self.cdc("doctor", "--output", "json")
        assert done.exit_code == 1, done
        errors = [row for row in json.loads(done.stdout) if row["level"] == "error"]
        assert any(found in str(row) and remedy in str(row) for row in errors), errors
        assert all(row["remedy"] for row in errors), errors

    def quiet(self) -> None:
        """Status and doctor are green. Else the faults would prove nothing."""
        done = self.cdc("status", "--output", "json")
        assert done.exit_code == 0 and json.loads(done.stdout)["summary"].startswith("ok: "), done
        done = self.cdc("doctor", "--output", "json")
        assert done.exit_code == 0, done


def with_notices(config: Config) -> Config:
    """The configuration with a log of JSON, and notifications that go into a file."""
    script = f"import sys; open({str(config.root / 'notice')!r}, 'a').write(sys.stdin.read() + chr(10))"
    notify = NotifyConfig(command=(sys.executable, "-c", script))
    return config.model_copy(update={"log": LogConfig(format=LogFormat.JSON), "notify": notify})


def packages_without(folder: Path, *left_out: str) -> str:
    """Make a folder of installed packages that lacks some, and give the `PYTHONPATH` of an interpreter with it."""
    folder.mkdir()
    for path in filter(Path.is_dir, map(Path, sys.path)):
        if path.name == "site-packages":
            for entry in path.iterdir():
                if not entry.name.startswith((*left_out, "__editable__")) and not (folder / entry.name).exists():
                    (folder / entry.name).symlink_to(entry)
    return os.pathsep.join([str(ROOT), str(folder)])


def _toml(config: Config) -> str:
    """Write the sections of a configuration that are not the defaults."""
    data = config.model_dump(mode="json", exclude_unset=True, exclude={"root"})
    return "".join(f"[{section}]\n{_keys(values)}" for section, values in data.items())


def _keys(values: Mapping[str, Any]) -> str:
    return "".join(f"{json.dumps(key)} = {_value(value)}\n" for key, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(key)} = {_value(inner)}' for key, inner in value.items())}}}"
    return json.dumps(value)

"""A source with a lake whose commands run as processes: their secrets come from the environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from toolkit.values import config as configuration
from toolkit.values.config import Config
from toolkit.values.failpoints import VARIABLE
from toolkit.values.process_env import environment


class Shop:
    """A source with one table, and a lake with a catalog of a kind."""

    def __init__(
        self,
        folder: Path,
        conninfo: str,
        section: dict[str, Any],
        *,
        spark: Mapping[str, str] | None = None,
        spark_secrets: Mapping[str, str] | None = None,
        more: str = "",
    ) -> None:
        self.folder, self.conninfo = folder, conninfo
        self.properties: dict[str, str] = section.pop("properties")
        self.environment: dict[str, str] = section.pop("environment", {})
        if spark_secrets:
            self.environment = {**self.environment, "CDC_SPARK": json.dumps(spark_secrets)}
        given = (self.properties | self.environment | dict(spark_secrets or {})).items()
        self.secrets = [value for key, value in given if re.search("password|secret|token", key, re.IGNORECASE)]
        lake = "\n".join(f"{key} = {json.dumps(value)}" for key, value in section.items())
        settings = "\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in (spark or {}).items())
        text = f"[source]\nconninfo = {json.dumps(conninfo)}\n[lake]\n{lake}\n[spark]\n{settings}\n{more}"
        (folder / "cdc.toml").write_text(text, encoding="utf-8")
        self.printed = ""

    def start(self, *words: str, failpoint: str = "") -> subprocess.Popen[str]:
        """Start a command; its secrets come from the environment."""
        variables = {
            "PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": os.pathsep.join(sys.path),
            "CDC_LAKE__PROPERTIES": json.dumps(self.properties), **self.environment,
            **({VARIABLE: failpoint} if failpoint else {}),
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-m", "toolkit.cli", *words],
            cwd=self.folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def cdc(self, *words: str, expect: int = 0, failpoint: str = "") -> str:
        """Run a command to its end."""
        with self.start(*words, failpoint=failpoint) as running:
            out, err = running.communicate()
        self.printed += out + err
        assert running.returncode == expect, (words, out, err)
        return out

    def rows(self, lsn: str) -> list[dict[str, Any]]:
        """The rows of the table at an LSN."""
        found: list[dict[str, Any]] = json.loads(self.cdc("rows", "public.item", "--as-of", lsn, "--output", "json"))
        return found

    def config(self) -> Config:
        """The configuration for this process."""
        with environment({"CDC_LAKE__PROPERTIES": json.dumps(self.properties)}):
            return configuration.load(str(self.folder / "cdc.toml"))

    def sql(self, *statements: str) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as conn:
            for statement in statements:
                conn.execute(statement.encode())


__all__ = ["Shop"]

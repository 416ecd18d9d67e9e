"""Switch DDL capture off and on: `cdc ddl pause` and `cdc ddl resume`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import LiteralString

from toolkit.source import roles
from toolkit.source.connection import connect
from toolkit.values.capture_rules import SourceConfig


@dataclass(frozen=True, slots=True)
class SwitchResult:
    """The current state of DDL capture, and whether this call changed it."""

    paused: bool
    changed: bool


def pause(source: SourceConfig) -> SwitchResult:
    """Stop reading catalogs in the user's DDL. Each command still leaves a signed mark.

    Every table is then stale, with the interval in the log, until it is repaired.
    """
    return SwitchResult(True, _switch(source, "pausing DDL capture", "select cdc.pause()"))


def resume(source: SourceConfig) -> SwitchResult:
    """Capture DDL again, and write the current schema of the tables into the log."""
    return SwitchResult(False, _switch(source, "resuming DDL capture", "select cdc.resume()"))


def _switch(source: SourceConfig, doing: str, statement: LiteralString) -> bool:
    with connect(source) as conn:
        roles.require_installer(conn, source, doing)
        row = conn.execute(statement).fetchone()
        return bool(row and row[0])

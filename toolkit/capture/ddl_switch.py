"""Pause and resume DDL capture: `cdc ddl pause` and `cdc ddl resume`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.values.capture_rules import SourceConfig


@dataclass(frozen=True, slots=True)
class SwitchResult:
    """The current state of DDL capture, and whether this call changed it."""

    paused: bool
    changed: bool


def pause(source: SourceConfig) -> SwitchResult:
    """Stop capturing DDL. Every table is then stale, with the interval in the log, until it is repaired."""
    from toolkit.source import connection, ddl_switch, roles

    with connection.connect(source) as conn:
        roles.require_installer(conn, source, "pausing DDL capture")
        return SwitchResult(True, ddl_switch.pause(conn))


def resume(source: SourceConfig) -> SwitchResult:
    """Capture DDL again."""
    from toolkit.source import connection, ddl_switch, roles

    with connection.connect(source) as conn:
        roles.require_installer(conn, source, "resuming DDL capture")
        return SwitchResult(False, ddl_switch.resume(conn))

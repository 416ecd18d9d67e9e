"""Decide how the source is drained: by a slot, or by ticks of the change log."""

from __future__ import annotations

from toolkit.source.connection import Connection
from toolkit.values.capture_rules import CaptureRules
from toolkit.values.modes import LogDrain


def by_ticks(conn: Connection, rules: CaptureRules) -> bool:
    """Return whether the change log is drained by ticks and there is no slot at all."""
    if not rules.uses_change_log or rules.source.change_log_drain == LogDrain.SLOT:
        return False
    if rules.source.change_log_drain == LogDrain.TICK:
        return True
    row = conn.execute("select pg_catalog.current_setting('wal_level') = 'logical'").fetchone()
    return not (row and row[0])

"""Refuse to commit to a table with a clock that is behind the table."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from toolkit.values.errors import LakeError

#: Half of the step back between two commits with which Iceberg's Java library still opens a table. A table snapshot
#: takes its time a moment before it is committed.
_TOLERANCE_MS = 30_000


def require_clock(table: str, *commits: int) -> None:
    """Refuse a commit at this moment if one of `commits`, in milliseconds since 1970, was later.

    Raises:
        LakeError: this clock is behind the last commit to the table. Nothing was committed.
    """
    last = max(commits, default=0)
    behind = last - int(time.time() * 1000)
    if behind > _TOLERANCE_MS:
        raise LakeError(
            f"committing to {table}: the clock of this machine is {behind // 1000} s behind the last commit, and Spark"
            " opens no table whose commits go back in time; nothing was committed; correct the clock, or if it was"
            f" wrong then, wait until {datetime.fromtimestamp(last / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC; run it again"
        )

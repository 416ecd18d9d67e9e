"""Find positions in the log by the time of the commits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from toolkit.rawlog.event import Kind, Origin
from toolkit.values.errors import ConfigError
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from toolkit.lake.opened import Lake


def lsn_at(lake: Lake, at: datetime) -> Lsn:
    """Give the LSN before the first transaction in the log that committed after a time.

    Like PostgreSQL's `recovery_target_time`, this stops at the first later commit, although the clock of commits may
    step back. Each drain of a slot leaves a message on the source that the next drain reads. So a time before the last
    drain but one always has a later commit.

    Raises:
        ConfigError: the log has no later transaction, so it may still lack a commit at or before that time.
    """
    import pyarrow.compute as pc

    from toolkit.lake.scans import scan_batches
    from toolkit.lake.tables import EVENTS

    last = lake.reading().require().last()
    assert last is not None
    kinds = ", ".join(f"'{kind}'" for kind in (Kind.ROW, Kind.TRUNCATE, Kind.MESSAGE, Kind.DDL))
    origins = ", ".join(f"'{origin}'" for origin in (Origin.SLOT, Origin.CHANGE_LOG))
    later = (
        f"generation = {last.generation} and kind in ({kinds}) and origin in ({origins})"
        f" and committed_at > '{at.astimezone(UTC).isoformat()}'"
    )
    found: int | None = None
    for batch in scan_batches(lake.access, EVENTS, ("commit_lsn",), where=later):
        least = pc.min(batch.column("commit_lsn")).as_py()
        found = least if found is None or (least is not None and least < found) else found
    if found is None:
        raise ConfigError(
            f"at {at.isoformat(sep=' ')}: the log, which goes to {last.complete_to}, has no transaction that committed"
            " later; drain and try again, or give an LSN"
        )
    return Lsn(found)


__all__ = ["lsn_at"]

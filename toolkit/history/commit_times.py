"""Show when batches and transactions were committed, and find positions in the log by that time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from toolkit.rawlog.event import Kind, Origin
from toolkit.values.errors import ConfigError
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from toolkit.lake.ledger import Ledger
    from toolkit.lake.opened import Lake


#: The condition for what a transaction of the source left in the log.
_COMMITTED = (
    f"(kind in ('{Kind.ROW}', '{Kind.TRUNCATE}', '{Kind.MESSAGE}', '{Kind.DDL}')"
    f" and origin in ('{Origin.SLOT}', '{Origin.CHANGE_LOG}'))"
)


def lsn_at(lake: Lake, at: datetime) -> Lsn:
    """Return the LSN before the first transaction in the log that committed after a time.

    Like PostgreSQL's `recovery_target_time`, this stops at the first later commit, although the clock of commits may
    step back. A transaction that came by replication has no time: the stream only has that of its origin. An erasure
    counts as the newest transaction that was erased, so that no earlier time gives an LSN after it. Each drain of a
    slot leaves a message on the source that the next drain reads. So a time before the last drain but one always has a
    later commit. The beginning of a log leaves one too, which is its first commit.

    Raises:
        ConfigError: the log has no later transaction, so it may still lack a commit at or before that time; or that
            time is before the log begins; or transactions without a time may have committed before or after it.
    """
    ledger = lake.reading().require()
    last = ledger.last()
    assert last is not None
    commits = f"generation = {last.generation} and ({_COMMITTED} or kind = '{Kind.ERASED}')"
    later = _positions(lake, f"{commits} and committed_at > '{at.astimezone(UTC).isoformat()}'")
    found = min(later, default=None)
    if found is None:
        raise ConfigError(
            f"at {at.isoformat(sep=' ')}: the log, which goes to {last.complete_to}, has no transaction that committed"
            " later; drain and try again, or give an LSN"
        )
    if not any(_positions(lake, f"{commits} and commit_lsn < {found}")):
        first = next(record for record in ledger.batches() if record.generation == last.generation)
        # A tick leaves no message. Its time is that of the runner, as that of the first ledger row.
        if first.tick is None or datetime.fromisoformat(first.committed_at) > at:
            raise ConfigError(
                f"at {at.isoformat(sep=' ')}: the log begins at {first.complete_to}, and has no transaction that"
                " committed before; give a later time, or an LSN"
            )
    _require_times(lake, f"generation = {last.generation} and {_COMMITTED}", at, found)
    return Lsn(found)


def _require_times(lake: Lake, commits: str, at: datetime, found: int) -> None:
    """Refuse a time if transactions without one lie between the last commit before it and the first one after it."""
    untimed = max(_positions(lake, f"{commits} and committed_at is null and commit_lsn < {found}"), default=None)
    timed = f"{commits} and committed_at is not null"
    if untimed is None or any(_positions(lake, f"{timed} and commit_lsn > {untimed} and commit_lsn < {found}")):
        return
    since = max(_positions(lake, f"{timed} and commit_lsn < {untimed}"), default=-1)
    first = min(_positions(lake, f"{commits} and committed_at is null and commit_lsn > {since}"))
    raise ConfigError(
        f"at {at.isoformat(sep=' ')}: the transactions that committed from {Lsn(first)} to {Lsn(untimed)} came by"
        f" replication, and the log does not have the time of that; give an LSN from {Lsn(first)} to {Lsn(found)}"
    )


def _positions(lake: Lake, where: str) -> Iterator[int]:
    """Yield the least and the greatest commit LSN of each batch of events for which a condition holds."""
    import pyarrow.compute as pc

    from toolkit.lake.scans import scan_batches

    for batch in scan_batches(lake.access, lake.access.names.events, ("commit_lsn",), where=where):
        if batch.num_rows:
            yield from pc.min_max(batch.column("commit_lsn")).as_py().values()


def newest_commit(ledger: Ledger, relid: int, before: Lsn) -> datetime | None:
    """Return when the last transaction committed, by the clock of the source, that changed a table below an LSN."""
    import pyarrow.compute as pc

    from toolkit.lake.scans import scan_batches

    last = ledger.last()
    assert last is not None
    where = f"generation = {last.generation} and relid = {relid} and commit_lsn < {int(before)} and {_COMMITTED}"
    found: datetime | None = None
    for batch in scan_batches(ledger.access, ledger.access.names.events, ("committed_at",), where=where):
        newest = pc.max(batch.column("committed_at")).as_py()
        found = newest if found is None or (newest is not None and newest > found) else found
    return found


def batches_frame(ledger: Ledger) -> pd.DataFrame:
    """Return one row for each batch of the newest generation, oldest first.

    Columns: `batch_id`; `origin` (slot, change_log, snapshot, check); `from_lsn`, `complete_to` as `X/Y`; `wal_bytes`
    by which it advanced; `changes`; `committed_at` in UTC; `waited_seconds` since the previous batch (NaN for the
    first). No change in a batch was older than `waited_seconds` when it could be read, plus the time that the drain
    took.

    Raises:
        LakeError: there is no ledger yet.
    """
    import pandas as pd

    records = ledger.require().batches()
    records = tuple(record for record in records if record.generation == records[-1].generation)
    frame = pd.DataFrame(
        {
            "batch_id": [record.batch_id for record in records],
            "origin": [record.origin for record in records],
            "from_lsn": [str(Lsn(record.from_lsn)) for record in records],
            "complete_to": [str(Lsn(record.complete_to)) for record in records],
            "wal_bytes": [record.complete_to - record.from_lsn for record in records],
            "changes": [record.changes for record in records],
            "committed_at": pd.to_datetime(
                [record.committed_at or None for record in records], utc=True, format="ISO8601"
            ),
        }
    )
    frame["waited_seconds"] = frame["committed_at"].diff().dt.total_seconds()
    return frame

"""Show how far the log is behind the source, for each batch. Reads the ledger alone, without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    import pandas as pd

    from toolkit.lake.ledger import Ledger


def batches_frame(ledger: Ledger) -> pd.DataFrame:
    """Give one row for each batch of the newest generation, oldest first.

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
            "committed_at": pd.to_datetime([record.committed_at or None for record in records], utc=True),
        }
    )
    frame["waited_seconds"] = frame["committed_at"].diff().dt.total_seconds()
    return frame

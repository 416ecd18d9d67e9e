"""Hold a peek on disk: the result of one COPY of `pg_logical_slot_peek_binary_changes`, to be read in parallel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

#: Bytes of a COPY BINARY row before the message: field count (2), lsn length and value (4+8), xid (4+4), length (4).
ROW_HEADER = 26


@dataclass(frozen=True, slots=True)
class Spool:
    """Rows `(lsn, xid, data)` in COPY BINARY form without the file header and trailer, back to back in `path`.

    `offsets` (int64, n + 1) are the starts of the rows. Message i is `bytes[offsets[i] + ROW_HEADER : offsets[i + 1]]`,
    its lsn is the big-endian int64 at `offsets[i] + 6`, and its xid is the big-endian int32 at `offsets[i] + 18`.
    """

    path: Path
    offsets: npt.NDArray[np.int64]
    upto_lsn: int  # if complete, everything with end_lsn <= upto_lsn is here
    complete: bool  # False: the message limit ended the peek

    def __len__(self) -> int:
        return len(self.offsets) - 1

"""Events of the raw log that are not rows, as readers see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from toolkit.values.lsn import Lsn


@dataclass(frozen=True, slots=True)
class TableEvent:
    """One event of the log that is not a row. LSNs are as in the log: valid from `end_lsn`."""

    relid: int | None
    kind: str
    commit_lsn: Lsn
    ordinal: int
    end_lsn: Lsn
    batch_id: int
    payload: dict[str, Any]
    generation: int
    schema_id: int | None
    xid: int | None
    committed_at: datetime | None

    @property
    def scope(self) -> str:
        """What a baseline is of: `all` of the table, a part (`columns`, `partition`), or a `check` behind a part."""
        return str(self.payload.get("scope", "all"))

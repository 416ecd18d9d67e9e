"""What checks have proven, read without a JVM from what they remember."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from toolkit.lsn import Lsn

if TYPE_CHECKING:
    from toolkit.config import Config
    from toolkit.lake.ledger import Ledger

PUBLISHED = "ops.published"


def proven(config: Config, ledger: Ledger) -> dict[int, Lsn]:
    """The newest LSN at which every row of a table was compared and found equal, in this generation, by relid."""
    from toolkit.lake.reads import scan

    last = ledger.last()
    if last is None:
        return {}
    found: dict[int, Lsn] = {}
    for row in scan(config, PUBLISHED):
        lsn, tag = row.get("full_lsn", row.get("lsn")), re.match(r"g(\d+)_", row.get("tag") or "")
        if lsn is not None and tag is not None and int(tag[1]) == last.generation:
            found[row["relid"]] = max(Lsn(lsn), found.get(row["relid"], Lsn(0)))
    return found


__all__ = ["proven"]

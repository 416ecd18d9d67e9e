"""What `table_rewrite` events tell of the rewrites of one command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Rewrites of a table by one command. `reason` has the bits of `table_rewrite`; 0 if there was none."""

    reason: int = 0
    empty: bool = True  # the table had no row each time
    index: int = 0  # of the last message
    leaves: frozenset[int] = frozenset()  # of a root: its partitions that were rewritten

    def and_then(self, other: Rewrite) -> Rewrite:
        """Give both as one."""
        return Rewrite(self.reason | other.reason, self.empty and other.empty, other.index, self.leaves | other.leaves)


def read_rewrites(data: Mapping[str, Any]) -> dict[int, Rewrite]:
    """Read the rewrites of a message, by relid. One that says nothing about rows is not of an empty table."""
    found: dict[int, Rewrite] = {}
    for rewrite in data.get("rewrites") or ():
        relid, one = int(rewrite["relid"]), Rewrite(int(rewrite["reason"]), rewrite.get("empty") is True)
        found[relid] = found.get(relid, Rewrite()).and_then(one)
    return found

"""Read what `table_rewrite` events say about the rewrites of one command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Rewrites of a table by one command. `reason` has the bits of `table_rewrite`; 0 if there was no rewrite."""

    reason: int = 0
    empty: bool = True  # the table had no row at any of the rewrites
    index: int = 0  # message index of the last one
    leaves: frozenset[int] = frozenset()  # for a root: its partitions that were rewritten

    def and_then(self, other: Rewrite) -> Rewrite:
        """Combine this rewrite with a later one."""
        return Rewrite(self.reason | other.reason, self.empty and other.empty, other.index, self.leaves | other.leaves)


def read_rewrites(data: Mapping[str, Any]) -> dict[int, Rewrite]:
    """Read the rewrites of a message, by relid. If a rewrite says nothing about rows, the table counts as not empty."""
    found: dict[int, Rewrite] = {}
    for rewrite in data.get("rewrites") or ():
        relid, one = int(rewrite["relid"]), Rewrite(int(rewrite["reason"]), rewrite.get("empty") is True)
        found[relid] = found.get(relid, Rewrite()).and_then(one)
    return found

"""Handle transaction ids of 64 bits, and find which of them a PostgreSQL snapshot shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np

_HALF, _EPOCH = 1 << 31, 1 << 32
_Ids = TypeVar("_Ids", int, "np.ndarray[tuple[int], np.dtype[np.int64]]")


def full_xid(low: _Ids, near: int) -> _Ids:
    """Return the 64-bit ids of which a stream sends the low 32 bits: the ids closest to `near`.

    The result is exact. Of the transactions that the server runs or has yet to decode, no two are 2^31 ids apart.
    """
    return (low - near + _HALF) % _EPOCH - _HALF + near


@dataclass(frozen=True, slots=True)
class Visibility:
    """`pg_current_snapshot()`.

    All transactions below `xmin` had ended. None from `xmax` on had ended, though some may have begun. All ids have 64
    bits.
    """

    xmin: int
    xmax: int
    running: frozenset[int]  # transactions between them that had not ended

    @classmethod
    def parse(cls, text: str) -> Visibility:
        """Read `xmin:xmax:xip_list`."""
        low, high, running = text.split(":")
        return cls(int(low), int(high), frozenset(int(x) for x in running.split(",") if x))

    def sees(self, xid: int) -> bool:
        """Return whether a transaction had ended."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

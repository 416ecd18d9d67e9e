"""Transaction ids in 64 bits, and which of them a PostgreSQL snapshot shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np

_HALF, _EPOCH = 1 << 31, 1 << 32
_Ids = TypeVar("_Ids", int, "np.ndarray[tuple[int], np.dtype[np.int64]]")


def full_xid(low: _Ids, near: int) -> _Ids:
    """Give the 64-bit ids of which a stream sends the low 32 bits: those closest to `near`.

    That is exact, because no two transactions that the server has yet to decode, or that it runs, are 2^31 ids apart.
    """
    return (low - near + _HALF) % _EPOCH - _HALF + near


@dataclass(frozen=True, slots=True)
class Visibility:
    """`pg_current_snapshot()`: everything below `xmin` had ended, nothing from `xmax` on had (it may have begun).

    All ids have 64 bits.
    """

    xmin: int
    xmax: int
    running: frozenset[int]  # those between them that had not ended

    @classmethod
    def parse(cls, text: str) -> Visibility:
        """Read `xmin:xmax:xip_list`."""
        low, high, running = text.split(":")
        return cls(int(low), int(high), frozenset(int(x) for x in running.split(",") if x))

    def sees(self, xid: int) -> bool:
        """Whether a transaction had ended."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

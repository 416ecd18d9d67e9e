"""Which transactions a PostgreSQL snapshot shows."""

from __future__ import annotations

from dataclasses import dataclass

_HALF, _EPOCH = 1 << 31, 1 << 32


@dataclass(frozen=True, slots=True)
class Visibility:
    """`pg_current_snapshot()`: everything below `xmin` had ended, nothing from `xmax` on had (it may have begun)."""

    xmin: int
    xmax: int
    running: frozenset[int]  # those between them that had not ended, as 64-bit ids

    @classmethod
    def parse(cls, text: str) -> Visibility:
        """Read `xmin:xmax:xip_list`."""
        low, high, running = text.split(":")
        return cls(int(low), int(high), frozenset(int(x) for x in running.split(",") if x))

    def sees(self, xid: int) -> bool:
        """Whether a transaction, by the low 32 bits of its id, had ended."""
        full = self.xmax // _EPOCH * _EPOCH | (xid & (_EPOCH - 1))
        if full > self.xmax + _HALF:
            full -= _EPOCH
        return full < self.xmin or (full < self.xmax and full not in self.running)

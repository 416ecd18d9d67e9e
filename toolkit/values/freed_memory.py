"""Return memory that this process no longer uses to the system."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress


def return_freed() -> None:
    """Return what Arrow and, where it is glibc, the C library keep of freed memory. This takes a few milliseconds.

    Each thread of a build or a check frees its memory into an arena of its own, which keeps it.
    """
    if (pyarrow := sys.modules.get("pyarrow")) is not None:
        pyarrow.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)

"""Lines of rows for the tests of parity, made by code that shares nothing with the package."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def line_of(row: Sequence[str | None]) -> bytes:
    """The line of a row's texts, none of them in a type's own bytes."""
    cells = (None if cell is None else cell.encode() for cell in row)
    sized = (struct.pack(">i", -1) if cell is None else struct.pack(">i", len(cell)) + cell for cell in cells)
    return struct.pack(">h", len(row)) + b"".join(sized)

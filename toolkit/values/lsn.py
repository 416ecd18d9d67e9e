"""Log sequence numbers as 64-bit integers that print the way PostgreSQL prints them."""

from __future__ import annotations

import re

from toolkit.values.errors import ConfigError

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Lsn(int):
    """A position in the WAL, in bytes. Compares and adds as a number; `str()` gives PostgreSQL's `X/Y`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Read `X/Y`.

        Raises:
            ConfigError: the text is not an LSN.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"malformed LSN {text!r}: expected two hexadecimal numbers such as 0/16B3748")
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        return f"{int(self) >> 32:X}/{int(self) & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({str(self)!r})"

    @property
    def tag(self) -> str:
        """Give sixteen hexadecimal digits, for the names of tags and schemas."""
        return f"{int(self):016x}"

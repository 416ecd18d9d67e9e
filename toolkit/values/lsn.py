"""Define log sequence numbers as 64-bit integers that print as PostgreSQL prints them, and times instead of them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from toolkit.values.errors import ConfigError

_DAY = re.compile(r"\d{4}-?\d{2}-?\d{2}")
_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Lsn(int):
    """A position in the WAL, in bytes. It compares and adds as a number; `str()` gives PostgreSQL's `X/Y`."""

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
        """Return sixteen hexadecimal digits, for the names of tags and schemas."""
        return f"{int(self):016x}"


def parse_moment(text: str) -> Lsn | datetime:
    """Read an LSN, or a time with its offset from UTC.

    Raises:
        ConfigError: the text is neither.
    """
    if "/" in text:
        return Lsn.parse(text)
    day = text if _DAY.fullmatch(text) else None
    try:
        at = datetime.fromisoformat(text)
        if day is None and not re.search("[Tt ]", text):  # fromisoformat takes any sign for the one before the time
            raise ValueError
        at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text!r}: expected an LSN such as 0/16B3748, or a time such as 2026-11-20 12:00+01"
        ) from None
    if at.tzinfo is None:
        whole = text if day is None else f"{day} 00:00"
        raise ConfigError(f"{text!r}: a time needs its offset from UTC; write {whole}+01 or {whole}Z")
    return at

"""Define the errors that the toolkit reports, one class for each kind.

A message names the operation, the object, what was found, and what to do next. The command line prints it on one line
and exits with `exit_code`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any


class CdcError(Exception):
    """Base class of all errors that the toolkit reports."""

    exit_code = 1
    #: What to do next, where it is the same for all errors of a class.
    advice = ""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}; {self.advice}" if self.advice and self.advice not in text else text

    @property
    def remedy(self) -> str:
        """Return what to do next: each message ends with it, after a semicolon."""
        return str(self).rpartition("; ")[2]


class ConfigError(CdcError):
    """A value in cdc.toml, in the environment or on the command line cannot be used."""

    exit_code = 2


class SourceUnavailable(CdcError):
    """The connection to PostgreSQL failed."""


class ServerFull(SourceUnavailable):
    """The server has no room for a result."""


class PreflightFailed(CdcError):
    """The source cannot be captured with its current configuration."""


class SlotError(CdcError):
    """The slot is missing, lost, in use, or belongs to another program."""


class SlotRefused(SlotError):
    """A slot that cannot be used: `found` says why, and `remedy` what to do."""

    def __init__(self, name: str, found: str, remedy: str) -> None:
        super().__init__(f"slot {name!r} {found}; {remedy}")
        self.found = found
        self._remedy = remedy

    @property
    def remedy(self) -> str:
        """Return what to do about the slot."""
        return self._remedy


class HistoryDiverged(CdcError):
    """The source no longer has the history that the ledger continues.

    Causes: a restore, a promotion, or a slot or publication that was re-created.
    """


class DecodeError(CdcError):
    """The stream contains bytes that the pgoutput protocol does not allow."""

    advice = (
        "nothing was consumed: run it again, and if it says the same, report it, and start a new log with"
        " `cdc init --new-generation`"
    )


class UnreadableChange(DecodeError):
    """The server cannot decode a change in its WAL; `lsn` is the position of that change."""

    advice = ""

    def __init__(self, message: str, lsn: int | None) -> None:
        super().__init__(message)
        self.lsn = lsn


class LakeError(CdcError):
    """The lake cannot be read or written."""


class TableDamaged(LakeError):
    """The metadata of one table is missing, damaged or cannot be used. Other tables may be whole."""


class JavaMissing(LakeError):
    """No usable Java runtime was found."""


class CommitConflict(LakeError):
    """Another runner committed first; nothing was written."""


class LeaseHeld(CdcError):
    """Another runner holds the lease; `since` is the time since when, if known."""

    exit_code = 4

    def __init__(self, message: str, since: datetime | None = None) -> None:
        super().__init__(message)
        self.since = since


class BuildFailed(CdcError):
    """The dbt run failed or stopped before its end. If only tables failed, `result` says what was built."""

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class UnknownTable(CdcError):
    """No captured table has that name."""

    exit_code = 2


class NotProven(CdcError):
    """A table is stale, or a check has not proven it equal to the source."""

    exit_code = 3

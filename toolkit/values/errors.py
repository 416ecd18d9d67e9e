"""Everything the toolkit refuses to do, one class a refusal.

A message says what was being done, to which object, what was found, and what to do next. The command line prints that
one line and exits with `exit_code`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.values.lsn import Lsn


class CdcError(Exception):
    """Base of all refusals."""

    exit_code = 1


class ConfigError(CdcError):
    """cdc.toml, an environment override or an argument is not usable."""

    exit_code = 2


class SourceUnavailable(CdcError):
    """No connection to PostgreSQL could be made."""


class PreflightFailed(CdcError):
    """The source cannot be captured as it is configured."""


class SlotError(CdcError):
    """The slot is missing, lost, in use, or not this toolkit's."""


class HistoryDiverged(CdcError):
    """The source is not the history that the ledger continues (restore, promotion, re-created slot or publication)."""


class DecodeError(CdcError):
    """The stream holds bytes that the pgoutput protocol does not allow."""


class UnreadableChange(DecodeError):
    """The server cannot send a change of the log; `lsn` is where it stands."""

    def __init__(self, message: str, lsn: Lsn | None) -> None:
        super().__init__(message)
        self.lsn = lsn


class LakeError(CdcError):
    """The lakehouse cannot be read or written."""


class JavaMissing(LakeError):
    """No usable Java runtime was found."""


class CommitConflict(LakeError):
    """Another runner committed first; nothing was written."""


class LeaseHeld(CdcError):
    """Another runner holds the lease."""

    exit_code = 4


class BuildFailed(CdcError):
    """dbt did not finish."""


class UnknownTable(CdcError):
    """No captured table has that name."""

    exit_code = 2


class NotProven(CdcError):
    """A parity difference, or a red table."""

    exit_code = 3

"""Define the words for what a build does, and a check or a preflight finds. The lake and JSON have their values."""

from __future__ import annotations

from enum import StrEnum


class BuildAction(StrEnum):
    """Action of a build for a model."""

    REBUILD = "rebuild"
    MERGE = "merge"
    SKIP = "skip"
    VIEW = "view"  # not a table of the toolkit


class CheckStatus(StrEnum):
    """Result of a check for one table."""

    IDENTICAL = "identical"
    DIFFERENT = "different"
    STALE = "stale"
    NOT_TAKEN = "not_taken"


class RowClass(StrEnum):
    """Class of a row that is not identical. `ADDED` rows are only in the lake, `REMOVED` rows only in the source."""

    MODIFIED = "modified"
    ADDED = "added"
    REMOVED = "removed"


class CauseKind(StrEnum):
    """The place at which a difference arose."""

    CAPTURE = "capture"  # the log does not have what the source shows
    BUILD = "build"  # the log has it, but the table does not
    TAMPERED = "tampered"  # the table was changed after its build


class ProofKind(StrEnum):
    """Ways to compare a table."""

    FULL = "full"  # every row
    INCREMENTAL = "incremental"  # the keys that the log touched since the last proof
    CARRIED = "carried"  # none: the log and the table snapshots show that neither side has changed since


class Level(StrEnum):
    """Weight of what a preflight or `cdc doctor` finds."""

    OK = "ok"
    ERROR = "error"
    WARNING = "warning"

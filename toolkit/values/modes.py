"""Define the words of the configuration that decide something."""

from __future__ import annotations

from enum import StrEnum


class _Word(StrEnum):
    """A word as users write it: messages and generated pages quote it like any other string."""

    __repr__ = str.__repr__


class Capture(_Word):
    """How the rows of a table are captured."""

    SLOT = "slot"
    CHANGE_LOG = "change_log"
    BOTH = "both"
    SCHEMA = "schema"


class Triggers(_Word):
    """Kind of the triggers of the change log."""

    ROW = "row"
    STATEMENT = "statement"


class NewTables(_Word):
    """Whether new tables are captured from their CREATE, or added by the next `cdc init`."""

    PROPOSE = "propose"
    PUBLISH = "publish"


class CopyOn(_Word):
    """Which processes read tables for a copy."""

    DRIVER = "driver"
    EXECUTORS = "executors"


class Selection(_Word):
    """Whether `[source] tables` selects what is captured, or the publications that others maintain."""

    TABLES = "tables"
    PUBLISHED = "published"


class LogDrain(_Word):
    """How the change log is read."""

    AUTO = "auto"
    SLOT = "slot"
    TICK = "tick"


class CatalogKind(_Word):
    """Kind of a lake's catalog."""

    JDBC = "jdbc"
    REST = "rest"


class CommandText(_Word):
    """What is kept of the text of a DDL command."""

    KEEP = "keep"
    HASH = "hash"
    NONE = "none"


class LogFormat(_Word):
    """Form of the toolkit's own log."""

    TEXT = "text"
    JSON = "json"


class LogLevel(_Word):
    """What the toolkit's own log has."""

    WARNING = "warning"
    INFO = "info"

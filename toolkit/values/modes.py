"""Define the words of the configuration that decide something."""

from __future__ import annotations

from enum import StrEnum


class _Word(StrEnum):
    """A word as users write it: messages and generated pages quote it like any other string."""

    __repr__ = str.__repr__


class Capture(_Word):
    """Ways to capture the rows of a table."""

    SLOT = "slot"
    CHANGE_LOG = "change_log"
    BOTH = "both"
    SCHEMA = "schema"


class Triggers(_Word):
    """Kind of the triggers of the change log."""

    ROW = "row"
    STATEMENT = "statement"


class NewTables(_Word):
    """Ways to add new tables: at the next `cdc init`, from their CREATE, or with their schema."""

    PROPOSE = "propose"
    PUBLISH = "publish"
    SCHEMAS = "schemas"


class CopyOn(_Word):
    """Processes that read tables for a copy."""

    DRIVER = "driver"
    EXECUTORS = "executors"


class Selection(_Word):
    """Selectors of the captured tables: `[source] tables`, or publications that others maintain."""

    TABLES = "tables"
    PUBLISHED = "published"


class LogDrain(_Word):
    """Ways to read the change log."""

    AUTO = "auto"
    SLOT = "slot"
    TICK = "tick"


class CatalogKind(_Word):
    """Kind of a lake's catalog."""

    JDBC = "jdbc"
    REST = "rest"
    HIVE = "hive"


class CommandText(_Word):
    """Parts of the text of a DDL command that are kept."""

    KEEP = "keep"
    HASH = "hash"
    NONE = "none"


class LogFormat(_Word):
    """Form of the toolkit's own log."""

    TEXT = "text"
    JSON = "json"


class LogLevel(_Word):
    """Level of the toolkit's own log."""

    WARNING = "warning"
    INFO = "info"

"""Decide which tables are captured, and how: the sections `[source]` and `[table]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from toolkit.values.modes import Capture, LogDrain, NewTables, Selection, Triggers
from toolkit.values.names import quote_postgres, selects


class Section(BaseModel):
    """A section of `cdc.toml`. It cannot be changed, and refuses unknown keys."""

    # The text below a key is its meaning in docs/reference/configuration.md.
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TableConfig(Section):
    """The capture of the tables of a pattern: `[table."public.orders"]`."""

    capture: Capture | None = None
    """How the tables of this pattern are captured; default: as `[source] capture`. `both` captures them twice and
    compares (`cdc audit`); `schema` keeps their schema versions and no rows."""
    triggers: Triggers = Triggers.ROW
    """Kind of change-log trigger. `statement` costs less for bulk changes and more for single rows."""


class SourceConfig(Section):
    """The PostgreSQL side."""

    conninfo: str = ""
    """libpq connection string, URI or `service=...`; if empty, libpq uses the `PG*` variables. It names the server
    itself, not a connection pooler. Put passwords into pgpass or the service file."""
    publication: str | tuple[str, ...] = "cdc"
    """One publication, or a list of several that the slot is read with."""
    slot: str = "cdc"
    """Name of the logical replication slot."""
    tables: tuple[str, ...] = ("public.*",)
    """Tables to capture, as patterns over `schema.table`."""
    exclude: tuple[str, ...] = ()
    """Tables not to capture, as patterns; it wins over `tables`."""
    new_tables: NewTables = NewTables.PROPOSE
    """`propose` adds new tables at the next `cdc init`. `publish` captures them from their CREATE, if they have a
    primary key. `schemas` publishes whole schemas; UPDATE and DELETE of a table without a replica identity then fail
    on the source."""
    scope: Selection = Selection.TABLES
    """`published` captures what others put into the publications and never edits a publication; `tables` then has no
    effect."""
    capture: Literal[Capture.SLOT, Capture.CHANGE_LOG] = Capture.SLOT
    """How tables are captured, unless `[table]` says otherwise: by logical decoding, or by triggers."""
    change_log_drain: LogDrain = LogDrain.AUTO
    """How the change log is read. `auto`: through the slot if `wal_level` is `logical`, else by ticks."""
    drainer: str = ""
    """Role that drains, checks and repairs with REPLICATION and SELECT only; `cdc init`, run by another role, grants
    it the rest. If empty, the role of `cdc init` drains."""
    reader: str = ""
    """Role that runs `cdc status` and `cdc doctor` and reads no row of a table; `cdc init` grants it that."""

    @field_validator("scope")
    @classmethod
    def _not_edited(cls, value: Selection, info: ValidationInfo) -> Selection:
        new = info.data.get("new_tables")
        if value == Selection.PUBLISHED and new in (NewTables.PUBLISH, NewTables.SCHEMAS):
            raise ValueError(f'new_tables = "{new}" edits the publication; whoever keeps it can publish a whole schema')
        return value

    @field_validator("new_tables")
    @classmethod
    def _whole(cls, value: NewTables, info: ValidationInfo) -> NewTables:
        if value == NewTables.SCHEMAS and info.data.get("exclude"):
            raise ValueError('new_tables = "schemas" leaves no table out, as `exclude` asks for; use "publish"')
        return value

    @property
    def publications(self) -> tuple[str, ...]:
        """Return every publication that the slot is read with."""
        return (self.publication,) if isinstance(self.publication, str) else self.publication

    @property
    def own(self) -> str | None:
        """Return the publication that `cdc init` creates, edits and drops: the first; None if others maintain all."""
        return self.publications[0] if self.scope == Selection.TABLES else None

    @property
    def others(self) -> tuple[str, ...]:
        """Return the publications that others maintain. All of their tables are captured."""
        return tuple(name for name in self.publications if name != self.own)

    @property
    def whole_schemas(self) -> bool:
        """Return whether whole schemas are published. A whole schema cannot leave out a table."""
        return self.new_tables == NewTables.SCHEMAS

    @property
    def publication_names(self) -> str:
        """Return the publications in the form of pgoutput, which messages also show."""
        return ", ".join(quote_postgres(name) for name in self.publications)

    def names(self, schema: str, name: str) -> bool:
        """Return whether a table belongs in the toolkit's own publication."""
        return self.own is not None and selects(self.tables, self.exclude, schema, name)

    def excludes(self, schema: str, name: str) -> bool:
        """Return whether a pattern of `exclude` matches a table."""
        return not selects(("*.*",), self.exclude, schema, name)

    def names_in_full(self, schema: str, name: str) -> bool:
        """Return whether `tables` has the exact name of a table, and not only a pattern that matches it."""
        return f"{schema}.{name}" in self.tables

    def asks_for(self, schema: str, name: str) -> bool:
        """Return whether a table should be captured if it is published."""
        return selects(("*.*",) if self.others else self.tables, self.exclude, schema, name)

    @field_validator("publication")
    @classmethod
    def _named_once(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        names = (value,) if isinstance(value, str) else value
        if not names or not all(names) or len(set(names)) < len(names):
            raise ValueError("a publication is one name, or a list of different ones")
        return value

    @field_validator("reader")
    @classmethod
    def _another_role(cls, value: str, info: ValidationInfo) -> str:
        if value and value == info.data.get("drainer"):
            raise ValueError("the reader is another role than the drainer, or none")
        return value

    @field_validator("slot")
    @classmethod
    def _slot_name(cls, value: str) -> str:
        if not value or len(value) > 63 or not all(c.islower() or c.isdigit() or c == "_" for c in value):
            raise ValueError("a slot name has lower case letters, digits and underscores, 63 at most")
        return value


@dataclass(frozen=True, slots=True)
class CaptureRules:
    """Both sections as one value, which is handed down to everything that depends on how a table is captured."""

    source: SourceConfig
    table: Mapping[str, TableConfig]

    def capture_of(self, schema: str, name: str) -> TableConfig:
        """Return how a table is captured: by the first matching pattern of `[table]`, or else `[source] capture`."""
        for pattern, chosen in self.table.items():
            if selects((pattern,), (), schema, name):
                return chosen if chosen.capture else chosen.model_copy(update={"capture": self.source.capture})
        return TableConfig(capture=self.source.capture)

    def through_slot(self, schema: str, name: str) -> bool:
        """Return whether the slot sends a table's own rows. Rows of other tables come as rows of the change log."""
        return self.capture_of(schema, name).capture in (Capture.SLOT, Capture.BOTH)

    def by_triggers_alone(self, schema: str, name: str) -> bool:
        """Return whether the change log, and not the slot, has a table's rows."""
        return self.capture_of(schema, name).capture == Capture.CHANGE_LOG

    @property
    def uses_change_log(self) -> bool:
        """Return whether any table may be captured by triggers."""
        chosen = {self.source.capture, *(t.capture for t in self.table.values())}
        return not chosen.isdisjoint({Capture.CHANGE_LOG, Capture.BOTH})

"""Resolve RELATION messages through schema versions: which attnum has which place in a tuple."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from toolkit.decode.messages import Relation
from toolkit.decode.task import Binding
from toolkit.rawlog.event import Kind
from toolkit.values.modes import Capture
from toolkit.values.table import SchemaVersion, TableVersion

#: Name and columns, in attnum order, of the change log on the source.
LOG_SCHEMA, LOG_NAME = "cdc", re.compile(r"change_log(_\d+)?")
OWN_NAME = re.compile(r"change_log.*|settings|signing_key|tick")  # as cdc.is_own has them
LOG_COLUMNS = ("part", "xid", "lsn", "relid", "op", "old", "new")


def bind(index: int, message: Relation, version: SchemaVersion | TableVersion | None) -> Binding | None:
    """Resolve names and type OIDs. Return None if one differs or the message lacks a published column.

    A server sends columns in attnum order. In another order, they had exchanged their names.
    """
    table = version.table if isinstance(version, SchemaVersion) else version
    if table is None or table.dropped:
        return None
    columns = {column.name: column for column in table.columns}
    attnums = []
    for sent in message.columns:
        column = columns.pop(sent.name, None)
        if column is None or column.type_oid != sent.type_oid:
            return None
        attnums.append(column.attnum)
    if attnums != sorted(attnums) or any(c.published and not c.generated for c in columns.values()):
        return None
    absent = tuple(sorted(column.attnum for column in columns.values()))
    schema_id = version.schema_id if isinstance(version, SchemaVersion) else None
    key = table.key_attnums if table.keyed else ()
    return Binding(index, table.relid, tuple(attnums), table.width, schema_id, absent, key=key)


def log_binding(index: int, message: Relation) -> Binding:
    """Lay out the change log itself: its columns by name, followed by any others."""
    places = {name: place for place, name in enumerate(LOG_COLUMNS, 1)}
    attnums = tuple(places.get(c.name, len(places) + 1 + i) for i, c in enumerate(message.columns))
    return Binding(index, message.relid, attnums, max((*attnums, len(places))), None, kind="log")


def logs(table: TableVersion) -> bool:
    """Return whether the change log may have rows of a table. A new partition first has its root's row trigger."""
    return table.capture != Capture.SLOT or not table.published


def logged_layout(start: int, version: SchemaVersion) -> Binding:
    """Lay out logged images from `start` on. A record holds every live column, including unpublished ones."""
    table = version.table
    absent = tuple(c.attnum for c in table.columns if not c.published)
    attnums = tuple(c.attnum for c in table.columns)
    kind = Kind.LOGGED if table.capture == Capture.BOTH else Kind.ROW
    key = table.key_attnums if table.keyed else ()
    return Binding(start, table.relid, attnums, table.width, version.schema_id, absent, kind, key)


@dataclass(slots=True)
class Layouts:
    """The layouts of a stream, ordered by their start."""

    _bindings: list[Binding] = field(default_factory=list)
    _relations: dict[int, list[tuple[int, Relation]]] = field(default_factory=dict)

    def add(self, binding: Binding, message: Relation) -> None:
        """Add the layout of `message` from the start of `binding` on."""
        self._bindings.append(binding)
        self._relations.setdefault(binding.relid, []).append((binding.start, message))

    def relation(self, relid: int, index: int) -> Relation | None:
        """Return the RELATION that is valid at a message."""
        return next((m for start, m in reversed(self._relations.get(relid, [])) if start < index), None)

    def before(self, stop: int) -> tuple[Binding, ...]:
        """Return all layouts that start before a message."""
        return tuple(sorted((b for b in self._bindings if b.start < stop), key=lambda b: b.start))

"""Choose the part of a table that a repair reads, and how the log stores its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.rawlog.event import Covers
from toolkit.rawlog.states import not_copied
from toolkit.values.errors import ConfigError
from toolkit.values.names import command, nearest

if TYPE_CHECKING:
    from toolkit.rawlog.store import LogReader
    from toolkit.source.snapshot_rows import Images
    from toolkit.values.table import TableVersion


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a table that a repair reads: all, some columns of every row, one partition, or some keys.

    Rows that a narrower scope does not read stay as they are in the log, and only parity can show whether they are
    right.
    """

    columns: tuple[str, ...] = ()
    partition: str | None = None  # schema.table of a leaf
    rows: tuple[Mapping[str, str], ...] | None = None  # keys by column name, as texts that PostgreSQL prints

    @property
    def covers(self) -> Covers:
        """Return what the baseline covers."""
        if self.rows is not None:
            return Covers.ROWS
        return Covers.COLUMNS if self.columns else Covers.PARTITION if self.partition else Covers.ALL


WHOLE = Scope()


def images_of(ledger: LogReader, table: TableVersion, scope: Scope) -> Images:
    """Choose how copied rows are stored: all rows as a copy, a part as updates, which need a key.

    Raises:
        ConfigError: the table does not have this part; the message says what it has.
    """
    from toolkit.source.snapshot_rows import Images

    if scope.covers == Covers.ALL:
        return Images()
    if not_copied(ledger, [table]):
        raise ConfigError(
            f"repairing {table.identifier}: no complete copy of it is in the log, and a part cannot replace one; run"
            f" `{command('repair', table.identifier)}`"
        )
    published = {c.attnum for c in table.columns if c.published}
    if not table.keyed or not published >= set(table.key_attnums):
        raise ConfigError(
            f"repairing {table.identifier}: its rows have no key, so a part of it cannot be identified; run"
            f" `{command('repair', table.identifier)}`"
        )
    if scope.rows is not None:
        return Images("U", keys=_keys(table, scope.rows))
    if scope.partition:
        if table.kind != "p":
            raise ConfigError(f"repairing {table.identifier}: it has no partitions of its own; leave out --partition")
        return Images("U")
    chosen = set(table.key_attnums)
    for name in scope.columns:
        column = table.column(name)
        if column is None or not column.published:
            names = (one.name for one in table.columns if one.published)
            raise ConfigError(
                f"repairing {table.identifier}: it has no published column {name!r}; {nearest(name, names)}"
            )
        chosen.add(column.attnum)
    return Images("U", frozenset(chosen))


def _keys(table: TableVersion, rows: Sequence[Mapping[str, str]]) -> tuple[tuple[str, ...], ...]:
    """Return the named keys, each once, as texts in the order of the key's columns."""
    names = {c.attnum: c.name for c in table.columns}
    key = [names[attnum] for attnum in table.key_attnums]
    for row in rows or ({},):  # without keys, a copy would read the whole table
        if sorted(row) != sorted(key):
            raise ConfigError(
                f"repairing {table.identifier}: its rows are named by {', '.join(key)}, not by"
                f" {', '.join(row) or 'nothing'}; name the columns of the key, and no others"
            )
    return tuple(dict.fromkeys(tuple(row[name] for name in key) for row in rows))

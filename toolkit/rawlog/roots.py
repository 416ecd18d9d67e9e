"""Find partitioned tables that are shown as a view: their partitions are captured, each as a table of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.values.modes import Capture
from toolkit.values.names import lake_columns, lake_table, quote_postgres

if TYPE_CHECKING:
    from toolkit.values.capture_rules import CaptureRules, SourceConfig
    from toolkit.values.table import SchemaVersion, TableVersion


@dataclass(frozen=True, slots=True)
class Root:
    """A partitioned table whose rows are those of `parts`, the partitions that hold rows.

    `columns` are the captured columns in the order of the root, each with its name in the lake. A root with a `fault`,
    which is a reason and a remedy, cannot be shown.
    """

    version: SchemaVersion
    parts: tuple[TableVersion, ...]
    columns: Mapping[str, str]
    fault: tuple[str, str] | None

    @property
    def name(self) -> str:
        """Return the name of its views in the lake."""
        return lake_table(self.version.table.schema, self.version.table.name)


def find_roots(
    rules: CaptureRules, versions: Mapping[int, SchemaVersion], captured: Collection[int]
) -> tuple[Root, ...]:
    """Return the partitioned tables with a captured partition that `[source]` asks for, ordered by name.

    `versions` are the versions of all tables at one position of the log, by relid, and `captured` the tables that have
    a complete copy. A root that was captured itself has rows of its own in the lake, so it is not among them.
    """
    tables = {relid: version.table for relid, version in versions.items()}
    found = []
    for relid, version in versions.items():
        table = version.table
        if table.kind != "p" or relid in captured or not is_unsent(rules, table, tables):
            continue
        below = {child: tables.get(child) for child in table.children}
        held = [child for child, part in below.items() if part is None or not (part.kind == "p" or part.dropped)]
        parts = sorted((tables[child] for child in held if child in tables), key=lambda part: part.identifier)
        if any(part.published for part in parts):
            columns = _lake_names(next(part for part in parts if part.published))
            shown = {c.name: columns[c.name] for c in table.columns if c.name in columns}
            fault = _fault(rules.source, table, parts, columns, unknown=len(held) - len(parts))
            found.append(Root(version, tuple(parts), shown, fault))
    return tuple(sorted(found, key=lambda root: root.name))


def _fault(
    source: SourceConfig, table: TableVersion, parts: list[TableVersion], columns: Mapping[str, str], *, unknown: int
) -> tuple[str, str] | None:
    """Return what keeps the rows of a root from being those of its partitions in the lake."""
    exclude = f"name {table.identifier} in [source] exclude"
    for part in parts:
        if not part.published:
            if part.persistence == "u":
                return f"its partition {part.identifier} is unlogged", f"alter table {part.identifier} set logged"
            if part.kind == "f":
                return f"its partition {part.identifier} is a foreign table", exclude
            return f"its partition {part.identifier} is not captured", f"{publish_remedy(source, part)}; or {exclude}"
        if differ := sorted(columns.items() ^ _lake_names(part).items()):
            reason = f"its partition {part.identifier} has another column {differ[0][0]} in the lake than the others"
            return reason, f"publish the same columns of all partitions; or {exclude}"
    if unknown:
        init = "cdc init, which names what it leaves out; or " if source.names(table.schema, table.name) else ""
        return f"{unknown} of its partitions {'is' if unknown == 1 else 'are'} not captured", f"{init}{exclude}"
    return None


def _lake_names(table: TableVersion) -> dict[str, str]:
    names = lake_columns([(c.attnum, c.name) for c in table.columns])
    return {c.name: names[c.attnum] for c in table.columns if c.published}


def is_unsent(rules: CaptureRules, table: TableVersion, others: Mapping[int, TableVersion]) -> bool:
    """Return whether `[source]` asks for the rows of a table, and neither the table nor its root sends them."""
    if table.dropped or table.published or table.kind not in "rp" or table.persistence == "t":
        return False
    if not rules.source.asks_for(table.schema, table.name) or _under_root(table, others):
        return False
    return rules.capture_of(table.schema, table.name).capture != Capture.SCHEMA


def is_sent_by_parts(table: TableVersion, others: Mapping[int, TableVersion]) -> bool:
    """Return whether a table is partitioned and each of its partitions is published as a table of its own."""
    if table.kind != "p":
        return False
    below = [others.get(child) for child in table.children]
    return all(part is not None and (part.published or is_sent_by_parts(part, others)) for part in below)


def publish_remedy(source: SourceConfig, table: TableVersion) -> str:
    """Return how to put a table (back) into the publication."""
    if source.names(table.schema, table.name):
        return "cdc init"
    others = " or ".join(quote_postgres(name) for name in source.others)
    return f"name it in [source] exclude, or alter publication {others} add table {table.identifier}"


def _under_root(table: TableVersion, tables: Mapping[int, TableVersion]) -> bool:
    """Return whether a published root sends the rows of this partition."""
    above: Iterator[TableVersion] = (tables[parent] for parent in table.parents if parent in tables)
    return any(parent.published or _under_root(parent, tables) for parent in above)

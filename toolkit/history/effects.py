"""Classify what a change of a table means for its rows in the log, for `cdc ddl list` and `cdc ddl lint`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from toolkit.rawlog import order
from toolkit.rawlog.states import left_out
from toolkit.values.capture_rules import CaptureRules
from toolkit.values.lsn import Lsn
from toolkit.values.table import Column, SchemaVersion, TableVersion

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger


class EffectClass(StrEnum):
    """Class of a change by its effect on the rows of a table. The worst class comes first."""

    SILENT = "silent"  # values change without a row event: the table is stale and must be copied again
    BY_RULE = "applied by rule"  # the DDL event says how to show older rows: a default, a label, a wider type
    EXACT = "exact"  # the shape, name or key changes, or the table comes or goes; rows stay as they were captured
    HISTORY = "history only"  # only the declaration changes, or rows of the table are not captured
    NONE = "no effect"


_WORST_FIRST = tuple(EffectClass)


def effect(old: TableVersion | None, new: TableVersion | None, *, silent: bool) -> EffectClass:
    """Return the class of a change from one version of a table to the next; None: the table does not exist.

    Args:
        silent: the rules of the drain found that the log does not show what happened to the rows.
    """
    if not any(table is not None and table.published for table in (old, new)):
        return EffectClass.NONE if old == new else EffectClass.HISTORY
    if silent and new is not None:
        return EffectClass.SILENT
    if old == new:
        return EffectClass.NONE
    if old is None or new is None:
        return EffectClass.EXACT
    if any(_ruled(column, new) for column in old.columns) or _filled(old, new):
        return EffectClass.BY_RULE
    return EffectClass.HISTORY if _shown(old) == _shown(new) else EffectClass.EXACT


def replaces_captured(
    rules: CaptureRules, old: TableVersion | None, new: TableVersion, others: Mapping[int, TableVersion]
) -> bool:
    """Return whether a new table has the name of a captured one, so it should be captured, and nothing sends it."""
    return (old is None or old.identifier != new.identifier) and left_out(rules, new, others)


def worst(classes: Iterable[EffectClass]) -> EffectClass:
    """Return the worst class of several changes."""
    return min(classes, key=_WORST_FIRST.index, default=EffectClass.NONE)


def by_position(ledger: Ledger) -> Mapping[tuple[int, int, int, int], EffectClass]:
    """Return the classes of all changes, by generation, commit LSN, ordinal and relid. Copies are not changes."""
    found: dict[tuple[int, int, int, int], EffectClass] = {}
    late: set[tuple[int, Lsn, int]] = set()  # changes that were found late, by generation, known end and relid
    for gap in ledger.gaps():
        if gap.relid is not None and not order.is_copy_gap(gap):
            found[gap.generation, int(gap.commit_lsn), gap.ordinal, gap.relid] = EffectClass.SILENT
            if gap.payload.until is not None:
                late.add((gap.generation, gap.payload.until, gap.relid))
    before: dict[tuple[int, int], SchemaVersion] = {}
    names: set[tuple[int, str]] = set()  # names of captured tables, by generation
    for version in sorted(ledger.schema_versions(), key=order.version_order):
        relid = version.table.relid
        old = before.get((version.generation, relid))
        before[version.generation, relid] = version
        if version.table.published:
            names.add((version.generation, version.table.identifier))
        if order.is_copied_version(version):
            continue
        was = None if old is None or old.table.dropped else old.table
        now = None if version.table.dropped else version.table
        at = (version.generation, int(version.commit_lsn), version.ordinal, relid)
        if now is not None and not now.published and (version.generation, now.identifier) in names:
            others = {r: v.table for (generation, r), v in before.items() if generation == version.generation}
            if replaces_captured(ledger.rules, was, now, others):
                found[at] = EffectClass.SILENT
                continue
        silent = at in found or (version.generation, Lsn(version.end_lsn), relid) in late
        found[at] = effect(was, now, silent=silent)
    return found


def _ruled(old: Column, table: TableVersion) -> bool:
    """Return whether stored values of a column are shown differently from how they came."""
    new = next((c for c in table.columns if c.attnum == old.attnum), None)
    if new is None or not new.published:
        return False
    now = dict(new.labels)
    renamed = old.type_oid == new.type_oid and any(now.get(oid) != label for oid, label in old.labels)
    return renamed or (old.type_oid, old.typmod) != (new.type_oid, new.typmod)


def _filled(old: TableVersion, new: TableVersion) -> bool:
    """Return whether rows that are older than a column show its default."""
    known = {c.attnum for c in old.columns}
    return any(c.attnum not in known and c.published and c.missing is not None for c in new.columns)


def _shown(table: TableVersion) -> tuple[object, ...]:
    """Return the parts of a version that determine how its rows are shown."""
    columns = tuple((c.attnum, c.name, c.generated, c.published) for c in table.columns)
    whole = (table.schema, table.name, table.kind, table.persistence, table.published, table.row_filter)
    return (*whole, table.replica_identity, table.key_attnums, columns)

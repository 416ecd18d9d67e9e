"""Compare the source with a second PostgreSQL: a paused replica or a restored copy. Needs no JVM, installs nothing.

Each side is read in one snapshot and hashed here. A difference counts only if both snapshots show the same position.
Such a server is a replica paused at the exact LSN of the source, or another server without writes. Otherwise the table
is `not_taken`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from toolkit.quality.report import CheckReport, TableCheck, noted
from toolkit.quality.row_classes import classify
from toolkit.values import progress
from toolkit.values.errors import CdcError, UnknownTable
from toolkit.values.names import meant, nearest, selects
from toolkit.values.outcome import CheckStatus
from toolkit.values.row_line import Comparison, Sums, chosen, comparison, differing, effective, total
from toolkit.values.table import FIRST_OWN, TableVersion

if TYPE_CHECKING:
    from toolkit.source.bare_server import Position
    from toolkit.source.connection import Connection
    from toolkit.values.capture_rules import SourceConfig
    from toolkit.values.config import CheckConfig
    from toolkit.values.source_access import SourceAccess


def against(source: SourceAccess, check: CheckConfig, conninfo: str, tables: Sequence[str] = ()) -> CheckReport:
    """Compare `tables` (all of `[source] tables` if empty) by name. Rows `added` are only on the second server.

    Raises:
        UnknownTable: the source has no such table.
        SourceUnavailable: one of the servers cannot be reached, or the source never stood still for a snapshot.
    """
    from toolkit.source import bare_server, catalog, connection, row_lines

    there = source.changed(conninfo=conninfo)
    with ExitStack() as stack:
        asked = stack.enter_context(connection.connect(source.config))
        watched = stack.enter_context(connection.connect(there.config, server=connection.OTHER_SERVER))
        before = [_Catalog.of(conn) for conn in (asked, watched)]
        ours, at = stack.enter_context(bare_server.snapshot_at(source.config, asked, seconds=check.cut_seconds))
        found = [bare_server.position(watched)]
        theirs = stack.enter_context(row_lines.own_snapshot(there.config, cut_seconds=there.cut_seconds))
        mine, other = bare_server.tables(ours), bare_server.tables(theirs)
        results = [
            _compared(source, there, ours, theirs, mine[name], other.get(name), check=check)
            for name in progress.each("comparing", "tables", _wanted(source.config, mine, tables))
        ]
        notes = catalog.inherited(ours)
        found.append(bare_server.position(watched))
        after = [_Catalog.of(conn) for conn in (asked, watched)]
    results = [_unless_altered(r, before, after) for r in results]
    results = [replace(r, full_lsn=at.lsn) if r.full_at is not None else r for r in results]
    doubt = _doubt(at, found)
    if doubt is not None:
        reason, remedy = doubt
        results = [
            replace(r, status=CheckStatus.NOT_TAKEN, reason=reason, remedy=remedy)
            if r.status == CheckStatus.DIFFERENT
            else r
            for r in results
        ]
    return CheckReport(at.lsn, noted(sorted(results, key=lambda t: t.table), notes))


@dataclass(frozen=True, slots=True)
class _Catalog:
    """What a server prints rows by. No snapshot covers it: rows of any age are printed as it is now."""

    tables: dict[str, TableVersion]
    types: frozenset[str]

    @classmethod
    def of(cls, conn: Connection) -> _Catalog:
        from toolkit.source import bare_server

        return cls(bare_server.tables(conn), bare_server.printing(conn))

    def prints(self, table: str, later: _Catalog) -> bool:
        """Return whether rows of a table were printed alike here and later."""
        here, there = (tables.get(table) for tables in (self.tables, later.tables))
        if here is None or there is None:
            return here is there
        own_types = any(column.type_oid >= FIRST_OWN for column in here.columns)
        shapes = [(t.relid, [(c.attnum, c.name, c.type) for c in t.columns]) for t in (here, there)]
        return shapes[0] == shapes[1] and not (own_types and self.types - later.types)


def _unless_altered(result: TableCheck, before: Sequence[_Catalog], after: Sequence[_Catalog]) -> TableCheck:
    servers = zip(("the source", "the other server"), before, after, strict=True)
    where = [name for name, then, now in servers if not then.prints(result.table, now)]
    if not where or result.status == CheckStatus.NOT_TAKEN:
        return result
    reason = f"it, or the type of a column, was altered on {' and '.join(where)} while it was read"
    return replace(result, status=CheckStatus.NOT_TAKEN, reason=reason, remedy="check again")


def _doubt(one: Position, found: Sequence[Position]) -> tuple[str, str] | None:
    """Return why a difference may not be real, and the remedy.

    `one` is the position of the source's snapshot, `found` those around the snapshot of the other server.
    """
    two = found[-1]
    if one.cluster == two.cluster and (one.follows or two.follows):
        if {p.lsn for p in found} == {one.lsn}:
            return None
        replica, primary = ("the other server", "the source") if two.follows else ("the source", "the other server")
        return (
            f"{replica} follows {primary}, and they were not read at one LSN: the source at {one.lsn}, the other server"
            f" at {two.lsn}",
            f"stop all writers of {primary}, let {replica} catch up (select pg_wal_replay_resume(), until"
            f" pg_last_wal_replay_lsn() is {max(one.lsn, two.lsn)}), and check again",
        )
    if str(found[0]) != str(two):
        moved = f"the other server moved while it was read: {found[0]}, then {two}"
        return moved, "pause its replay, or its writers, and check again"
    return None


def _wanted(source: SourceConfig, mine: dict[str, TableVersion], tables: Sequence[str]) -> list[str]:
    if not tables:
        chosen_ = source
        return [name for name, t in mine.items() if selects(chosen_.tables, chosen_.exclude, t.schema, t.name)]
    found = []
    for given in tables:
        name = meant(given, mine)
        if name is None:
            raise UnknownTable(f"the source has no table {given!r}; {nearest(given, mine)}")
        found.append(name)
    return found


def _compared(
    source: SourceAccess,
    there: SourceAccess,
    ours: Connection,
    theirs: Connection,
    mine: TableVersion,
    other: TableVersion | None,
    *,
    check: CheckConfig,
) -> TableCheck:
    from toolkit.source import connection, row_lines
    from toolkit.source.spooling import spool_directory

    result = TableCheck(mine.identifier, mine.relid, CheckStatus.NOT_TAKEN)
    if other is None:
        return replace(result, status=CheckStatus.DIFFERENT, reason="the other server has no such table")
    plan, other_plan = comparison(mine, check.buckets), comparison(other, check.buckets)
    if _shape(plan) != _shape(other_plan):
        return replace(result, status=CheckStatus.DIFFERENT, reason="its columns or its key differ on the other server")
    # Attribute numbers differ after a restore, so both sides print columns in the source's order.
    by_name = {c.name: c for c in other_plan.columns}
    other_plan = replace(
        other_plan, columns=tuple(by_name[c.name] for c in plan.columns), key=plan.key, natives=plan.natives
    )
    try:
        plan, own_figures = effective(plan, _figures(source, ours, plan))
        other_figures = _figures(there, theirs, replace(other_plan, buckets=plan.buckets))
        buckets = differing(own_figures, other_figures)
        rows = total(own_figures)
        result = replace(result, rows=rows, full_at=datetime.now(UTC))
        if not buckets:
            return replace(result, status=CheckStatus.IDENTICAL, identical=rows, modified=0, added=0, removed=0)
        with (
            spool_directory(source.spool_dir) as directory,
            row_lines.lines(ours, plan) as one,
            row_lines.lines(theirs, other_plan) as two,
        ):
            found = classify(
                chosen(one, plan.buckets, buckets),
                chosen(two, plan.buckets, buckets),
                columns=[c.name for c in plan.columns],
                key=plan.key,
                samples=check.samples,
                natives=plan.natives,
                expected=sum(f[b].rows for f in (own_figures, other_figures) for b in buckets if b in f),
                directory=directory,
            )
    except (CdcError, connection.DriverError) as error:
        return replace(result, reason=connection.one_line(error), remedy="check again")
    alike = sum(f.rows for bucket, f in own_figures.items() if bucket not in buckets)
    return replace(
        result,
        status=CheckStatus.DIFFERENT,
        identical=alike + found.identical,
        modified=found.modified,
        added=found.added,
        removed=found.removed,
        samples=found.samples,
        reason=f"{found.modified} rows modified, {found.added} added, {found.removed} removed",
    )


def _figures(source: SourceAccess, conn: Connection, plan: Comparison) -> Any:
    from toolkit.source import row_lines

    sums = Sums(plan.buckets)
    about = row_lines.estimated_rows(conn, plan.table.relid)
    with (
        row_lines.lines(conn, plan, others=row_lines.others(source.config, sessions=source.sessions)) as blocks,
        progress.stage(plan.table.identifier, "rows", about) as stage,
    ):
        for lines in blocks:
            sums.add(lines)
            stage.add(len(lines))
    return sums.figures()


def _shape(plan: Comparison) -> tuple[Any, ...]:
    return sorted((c.name, c.type) for c in plan.columns), [plan.columns[i].name for i in plan.key]

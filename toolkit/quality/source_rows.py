"""Read the source's rows for a check, and verify that they print as at the cut."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from toolkit.values import progress
from toolkit.values.row_line import Comparison, Figures, Sums, comparison, effective
from toolkit.values.table import FIRST_OWN, Column, TableVersion

if TYPE_CHECKING:
    from toolkit.quality.incremental import Proof
    from toolkit.source.connection import Connection
    from toolkit.source.opened import Source
    from toolkit.source.row_lines import Others
    from toolkit.values.config import CheckConfig


@dataclass(frozen=True, slots=True)
class Taken:
    """The source's figures of one table, or the reason why there are none."""

    plan: Comparison
    figures: Figures | None
    reason: str | None = None
    fingerprint: str | None = None  # of the source's catalogs at the cut
    proof: Proof | None = None  # the proof to build on: the table is read when the log has given the keys


def described(conn: Connection) -> dict[int, tuple[TableVersion, str]]:
    """Read the published tables in the snapshot of `conn`, by relid, each with a fingerprint of the catalogs.

    The fingerprint is of all that a drain compares: the whole table snapshot, and the state of capture. It is equal in
    two snapshots unless changes may have bypassed the log.
    """
    from toolkit.source import catalog, guard

    with conn.transaction(force_rollback=True):  # which releases the locks that the server takes to print a default
        capture, found = guard.capture_state(conn), catalog.snapshot_json(conn)
    return {
        relid: (TableVersion.from_json(json.loads(text)), hashlib.sha256(f"{capture} {text}".encode()).hexdigest())
        for relid, text in found.items()
    }


def take(source: Source, check: CheckConfig, wanted: set[int], proofs: Mapping[int, Proof]) -> dict[int, Taken]:
    """Read the figures of the published tables in the snapshot, by relid: of all, or of `wanted` and their partitions.

    Tables with a proof to build on are left out: the keys to read are known only after the drain.
    """
    from toolkit.source import catalog, locks

    taken: dict[int, Taken] = {}
    with source.second_connection() as other:
        locks.limit(other, seconds=source.access.cut_seconds)
        chosen = catalog.with_partitions(other, wanted)
        found = {r: one for r, one in described(source.conn).items() if not wanted or r in chosen}
        for relid, (table, fingerprint) in found.items():
            proof = proofs.get(relid)
            # The text of some columns changes with other objects, which leaves no trace in log and fingerprint.
            if proof is not None and proof.fingerprint == fingerprint and not table.borrowing:
                taken[relid] = Taken(comparison(table, check.buckets), None, None, fingerprint, proof)
        tables = catalog.published_tables(other) if found.keys() - taken.keys() else ()
        tables = tuple(t for t in tables if t.relid not in taken and (not wanted or t.relid in chosen))
        for table in progress.each("reading the source", "tables", tables):
            at_cut = found[table.relid][1] if table.relid in found else None
            plan = comparison(table, check.buckets)
            taken[table.relid] = read_whole(source, other, Taken(plan, None, None, at_cut))
    return taken


def read_whole(source: Source, other: Connection, table: Taken) -> Taken:
    """Add the figures of all rows in the snapshot of `source`. `other` finds out who holds a conflicting lock."""
    from toolkit.source import connection, exact_cut, owners_code, row_lines

    plan = table.plan
    sums = Sums(plan.buckets)
    try:
        with (
            lines(source.conn, other, plan, others=source.others) as blocks,
            progress.stage(plan.table.identifier, "rows", row_lines.estimated_rows(other, plan.table.relid)) as stage,
        ):
            for block in blocks:
                sums.add(block)
                stage.add(len(block))
    except owners_code.OwnersCode as error:
        return replace(table, reason=str(error), proof=None)
    except (row_lines.TableMoved, connection.DriverError) as error:
        by = exact_cut.holders(other, plan.table.relid)
        return replace(table, reason=connection.unread(error) + (f" by {by}" if by else ""), proof=None)
    plan, figures = effective(plan, sums.figures())
    return replace(table, plan=plan, figures=figures, proof=None)


@contextmanager
def lines(
    conn: Connection,
    other: Connection,
    plan: Comparison,
    keys: Sequence[Sequence[str]] | None = None,
    *,
    others: Others = (),
) -> Iterator[Iterator[Sequence[bytes]]]:
    """Read `toolkit.source.row_lines.lines` in the snapshot of `conn`; `other` then reads the current table version.

    A snapshot does not cover the catalogs by which values are printed. A renamed enum label shows in every row,
    including old ones. So the table must still match `plan` after everything is read, and what its values are printed
    by must be the same: a label may have been renamed and renamed back meanwhile.

    Raises:
        TableMoved: the rows of the snapshot, or their texts at that time, can no longer be read.
    """
    from toolkit.source import catalog, row_lines

    table = plan.table
    own_types = any(c.type_oid >= FIRST_OWN for c in plan.columns)
    then = catalog.printing(other, [table.relid]) if own_types else set()
    with row_lines.lines(conn, plan, keys=keys, others=others) as blocks:
        yield blocks
    now = catalog.snapshots_of(other, [table.relid]).get(table.relid)
    same = now is not None and alike(plan, comparison(TableVersion.from_json(json.loads(now)), plan.buckets))
    if not same or (own_types and then - catalog.printing(other, [table.relid])):
        raise row_lines.TableMoved(f"{table.identifier} was altered while it was read")


def alike(one: Comparison, later: Comparison) -> bool:
    """Return whether both comparisons select the same rows and columns and print them alike.

    Enum values may have been added between them, and attributes of composites dropped that had been added.
    """
    shapes = [
        (p.table.relid, p.table.row_filter, p.key, [(c.attnum, c.name, c.type, _live(c)) for c in p.columns])
        for p in (one, later)
    ]
    before, after = ({label for c in p.columns for label in (*c.enum_labels, *c.inner_labels)} for p in (one, later))
    return shapes[0] == shapes[1] and before <= after


def _live(column: Column) -> list[tuple[int, ...]]:
    """Return the attributes of composites that are printed: a dropped one has no type."""
    return [row for row in column.inner_rows if row[2]]

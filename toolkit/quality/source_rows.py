"""Read the source's rows for a check, and verify that they print as at the cut."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from toolkit.values.row_line import Comparison, comparison
from toolkit.values.table import TableVersion

if TYPE_CHECKING:
    from toolkit.source.connection import Connection
    from toolkit.values.config import Config


@contextmanager
def lines(
    conn: Connection,
    other: Connection,
    plan: Comparison,
    keys: Sequence[Sequence[str]] | None = None,
    *,
    config: Config,
) -> Iterator[Iterator[Sequence[bytes]]]:
    """Read `toolkit.source.row_lines.lines` in the snapshot of `conn`; `other` then reads the current table version.

    A snapshot does not cover the catalogs by which values are printed. A renamed enum label shows in every row,
    including old ones. So the table must still match `plan` after everything is read.

    Raises:
        TableMoved: the rows of the snapshot, or their texts at that time, can no longer be read.
    """
    from toolkit.source import catalog, row_lines

    with row_lines.lines(conn, plan, keys=keys, others=row_lines.others(config)) as blocks:
        yield blocks
    table = plan.table
    now = catalog.snapshots_of(other, [table.relid]).get(table.relid)
    if now is None or not alike(plan, comparison(TableVersion.from_json(json.loads(now)), plan.buckets)):
        raise row_lines.TableMoved(f"{table.identifier} was altered while it was read")


def alike(one: Comparison, later: Comparison) -> bool:
    """Say whether both comparisons select the same rows and columns and print them alike.

    Enum values may have been added between them.
    """
    shapes = [
        (p.table.relid, p.table.row_filter, p.key, [(c.attnum, c.name, c.type, c.inner_rows) for c in p.columns])
        for p in (one, later)
    ]
    before, after = ({label for c in p.columns for label in (*c.enum_labels, *c.inner_labels)} for p in (one, later))
    return shapes[0] == shapes[1] and before <= after

"""The source's rows as a check reads them, with proof that they print as they did at the cut."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toolkit.values.row_line import Comparison, comparison
from toolkit.values.table import TableVersion

if TYPE_CHECKING:
    import psycopg

    from toolkit.values.config import Config


@contextmanager
def lines(
    conn: psycopg.Connection[Any],
    other: psycopg.Connection[Any],
    plan: Comparison,
    keys: Sequence[Sequence[str]] | None = None,
    *,
    config: Config,
) -> Iterator[Iterator[Sequence[bytes]]]:
    """`toolkit.source.row_lines.lines` of the snapshot in `conn`; `other` is asked afterwards what the table is now.

    A snapshot does not reach the catalogs that values are printed by: a renamed enum label shows in every row, also in
    those of long ago. So the table must still be the one of `plan` when all is read.

    Raises:
        TableMoved: the rows of the snapshot, or their texts of then, can no longer be read.
    """
    from toolkit.source import catalog, row_lines

    with row_lines.lines(conn, plan, keys=keys, others=row_lines.others(config)) as blocks:
        yield blocks
    table = plan.table
    now = catalog.snapshots_of(other, [table.relid]).get(table.relid)
    if now is None or not alike(plan, comparison(TableVersion.from_json(json.loads(now)), plan.buckets)):
        raise row_lines.TableMoved(f"{table.identifier} was altered while it was read")


def alike(one: Comparison, later: Comparison) -> bool:
    """Whether the same rows of a table count, with the same columns, and print alike in both; enum values may have come
    meanwhile."""
    shapes = [
        (p.table.relid, p.table.row_filter, p.key, [(c.attnum, c.name, c.type, c.inner_rows) for c in p.columns])
        for p in (one, later)
    ]
    before, after = ({label for c in p.columns for label in (*c.enum_labels, *c.inner_labels)} for p in (one, later))
    return shapes[0] == shapes[1] and before <= after

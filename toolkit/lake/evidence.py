"""Read what the raw log and older table snapshots say about a few rows, as evidence for the cause of a difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from toolkit.lake.applied import CHANGING
from toolkit.lake.row_lines import Side, current_fields, lines_sql, query
from toolkit.rawlog import order
from toolkit.rawlog.states import verdicts
from toolkit.values.lake_types import literal
from toolkit.values.lsn import Lsn
from toolkit.values.row_line import Comparison
from toolkit.values.visibility import Visibility

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.ledger import Ledger
    from toolkit.values.lake_access import LakeAccess
    from toolkit.values.table import Column

Row = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class RowEvent:
    """A change of one row, or a truncate (`op` T). Images are in the order of the compared columns."""

    op: str
    end_lsn: Lsn
    batch_id: int
    xid: int | None
    new: Row | None
    old: Row | None
    whole: bool  # `old` is complete, and not only the key
    unchanged: frozenset[int]  # indexes of the columns whose value was not sent


def events(
    spark: SparkSession, ledger: Ledger, plan: Comparison, rows: Collection[Row], *, upto: Lsn
) -> tuple[RowEvent, ...]:
    """Read changes before `upto` since the last baseline.

    `rows` are keys, and changes of the rows with these keys are read. If the table has no key, they are whole rows.
    """
    relid = plan.table.relid
    verdict = verdicts(ledger, upto).get(relid)
    if verdict is None or not verdict.copies:
        return ()
    last = verdict.copies[-1]
    shown = plan.key or range(len(plan.columns))
    names = [plan.columns[i] for i in shown]
    wanted = ", ".join(_array([literal(cell) for cell in row]) for row in rows)
    # All cells identify a row of a table without a key, including cells that an update did not send again.
    images = ([_cell("old", c) if image == "old" else _sent(c) for c in names] for image in ("new", "old"))
    match = " OR ".join(f"{_array(cells)} IN ({wanted})" for cells in images)
    found = spark.sql(
        f"SELECT coalesce(op, 'T'), end_lsn, batch_id, xid, new, old,"
        f" coalesce(old_kind, '') = 'O', coalesce(unchanged, array())"
        f" FROM {ledger.access.names.events} VERSION AS OF {ledger.snapshot_id()}"
        f" WHERE generation = {last.generation} AND relid = {relid} AND commit_lsn < {int(upto)}"
        f" AND {order.after_sql(order.position(last))} AND (kind = 'truncate' OR kind = 'row' AND ({match}))"
        f" ORDER BY {order.COLUMNS}, batch_id"
    ).collect()
    index = {column.attnum: i for i, column in enumerate(plan.columns)}
    return tuple(
        RowEvent(
            op=op,
            end_lsn=Lsn(end_lsn),
            batch_id=batch_id,
            xid=xid,
            new=_row(new, plan),
            old=_row(old, plan),
            whole=whole,
            unchanged=frozenset(index[a] for a in unchanged if a in index),
        )
        for op, end_lsn, batch_id, xid, new, old, whole, unchanged in found
    )


def touched_keys(
    spark: SparkSession, ledger: Ledger, plan: Comparison, *, after: int, most: int
) -> tuple[tuple[str, ...], ...] | None:
    """Return the keys of rows with events in batches after `after`.

    None if there are more than `most` keys, or if the table had another event: a truncate, a baseline or a new schema
    version.
    """
    names = [plan.columns[i] for i in plan.key]
    images = ", ".join(
        f"if({image} IS NULL, NULL, array({', '.join(_cell(image, c) for c in names)}))" for image in ("new", "old")
    )
    rows = spark.sql(
        f"SELECT DISTINCT kind = 'row', key FROM {ledger.access.names.events} VERSION AS OF {ledger.snapshot_id()}"
        f" LATERAL VIEW outer explode(filter(array({images}), k -> k IS NOT NULL)) AS key"
        f" WHERE relid = {plan.table.relid} AND batch_id > {after} AND kind IN {CHANGING} LIMIT {most + 1}"
    ).collect()
    if len(rows) > most or any(not is_row or key is None or None in key for is_row, key in rows):
        return None
    return tuple(tuple(key) for _, key in rows)


def touched_tables(spark: SparkSession, ledger: Ledger, *, after: int) -> dict[int, int]:
    """Return the newest batch with an event of each table (by relid) that has one in batches after `after`."""
    rows = spark.sql(
        f"SELECT relid, max(batch_id) FROM {ledger.access.names.events} VERSION AS OF {ledger.snapshot_id()}"
        f" WHERE batch_id > {after} AND kind IN {CHANGING} GROUP BY relid"
    ).collect()
    return {row[0]: row[1] for row in rows}


def unseen_xids(access: LakeAccess, ledger: Ledger, seen: Visibility) -> frozenset[int]:
    """Find transactions of the log that a snapshot does not show. Needs no JVM.

    No time limits the search, since the clock of the source may step back. Files whose transactions are all older are
    left out by the bounds that Iceberg keeps of their xids.
    """
    from toolkit.lake import scans

    last = ledger.last()
    generation = 1 if last is None else last.generation  # an earlier one may be of another server
    listed = "".join(f" or xid = {xid}" for xid in sorted(seen.running))
    where = f"generation = {generation} and (xid >= {seen.xmax}{listed})"
    found = scans.scan_arrow(access, access.names.events, ("xid",), where=where, snapshot=ledger.snapshot_id())
    return frozenset(found["xid"].unique().to_pylist() if found is not None else ())


def lines_at(spark: SparkSession, side: Side, snapshot_id: int, rows: Collection[Row]) -> Counter[bytes]:
    """Count the lines of rows in a table snapshot.

    `rows` are keys, and the rows with these keys are counted. If the table has no key, they are whole rows.
    """
    plan = side.plan
    texts = current_fields(plan)
    shown: Sequence[int] = plan.key or range(len(plan.columns))
    wanted = ", ".join(_array([literal(cell) for cell in row]) for row in rows)
    named = f"{_array([texts[i] for i in shown])} IN ({wanted})"
    relation = f"(SELECT * FROM {replace(side, snapshot_id=snapshot_id).relation} WHERE {named})"
    return Counter(bytes(line) for (line,) in query(spark, lines_sql(plan, relation)).collect())


def _row(image: Sequence[str | None] | None, plan: Comparison) -> Row | None:
    """Return the compared columns of an image, as `_cell` reads them."""
    if image is None:
        return None
    missing = (c.missing if c.has_missing else None for c in plan.columns)
    return tuple(
        image[c.attnum - 1] if len(image) >= c.attnum else m for c, m in zip(plan.columns, missing, strict=True)
    )


def _cell(image: str, column: Column) -> str:
    """Read a column's value in an image. For an image older than the column, return what the server shows."""
    missing = literal(column.missing if column.has_missing else None)
    return f"if(size({image}) >= {column.attnum}, get({image}, {column.attnum - 1}), {missing})"


def _sent(column: Column) -> str:
    """Return a column's value in the new image, or in the old image if the value was not sent."""
    unchanged = f"array_contains(coalesce(unchanged, array()), {column.attnum})"
    return f"if({unchanged}, {_cell('old', column)}, {_cell('new', column)})"


def _array(cells: Sequence[str]) -> str:
    """Join cells into one value for comparison, in which NULL equals NULL."""
    return f"to_json(array({', '.join(cells)}), map('ignoreNullFields', 'false'))"

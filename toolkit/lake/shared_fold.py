"""Fold the log of many small tables in one Spark job, into typed rows of each table.

A model of dbt folds one table, and its plan, generated code and commit cost more than a small table's rows. This fold
handles the simple case of the same rules: one segment with a key, and no moved key whose change left a value out. A
value that was left out as unchanged TOAST is carried from the event before it, or taken from the built table. Cells
stay arrays of text by attnum in the whole job. Columns of one type are converted together, for all tables, by the
macros that the models use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from toolkit.lake.pandas_on_demand import create_frame
from toolkit.rawlog import order
from toolkit.rawlog.plan import Layer
from toolkit.values.lake_types import BareType, kind, typed_sql

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from toolkit.lake.ledger import Ledger
    from toolkit.rawlog.order import Position
    from toolkit.rawlog.plan import PlannedColumn, TablePlan
    from toolkit.values.lsn import Lsn

_PLANS = "cdc_shared_plans"
_ROW = "kind = 'row'"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A table to fold, from the events after a position. `merge` if they follow the rows of a built table.

    `toast` are the attnums of the values that the events leave out.
    """

    plan: TablePlan
    low: Position
    merge: bool
    toast: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Folded:
    """The rows of one table.

    Attributes:
        rows: the table's columns, with `_cdc_from_lsn` and `_cdc_text`, and for history `_cdc_to_lsn` and
            `_cdc_doubtful`.
        keys: one row for each key that the events name, if they are to be merged: the columns of the key, and the end
            LSN of its first change as `_cdc_first`.
        held: the rows with values that no event has, only the built table: number, key and the values' attnums.
    """

    rows: pa.Table
    keys: pa.Table
    held: tuple[tuple[int, tuple[str, ...], Sequence[int]], ...] = ()


def is_simple(plan: TablePlan) -> bool:
    """Return whether this fold implements all rules that the plan needs."""
    return (
        len(plan.segments) == 1
        and bool(plan.segments[0].key)
        and bool(plan.columns)
        and (plan.layer == Layer.CURRENT or not plan.segments[0].clears)
        and not plan.doubts
        and not any(column.relabel for column in plan.columns)
    )


def can_merge(plan: TablePlan) -> bool:
    """Return whether the key's columns in the lake have one value for each text of the source."""
    key = set(plan.segments[0].key)
    return all(kind(c) in ("string", "int", "bigint") for c in plan.columns if c.attnum in key) and key <= {
        column.attnum for column in plan.columns
    }


def characters(spark: SparkSession, log: Ledger, upto: Lsn, relids: Sequence[int]) -> Mapping[int, int]:
    """Return the characters of all images of tables in the log, by relid."""
    rows = spark.sql(
        "select relid, sum(coalesce(length(array_join(new, '')), 0) + coalesce(length(array_join(old, '')), 0))"
        f" from {_events(log, upto, relids)} group by relid"
    ).collect()
    return {row[0]: row[1] for row in rows}


def fold(spark: SparkSession, log: Ledger, upto: Lsn, wanted: Sequence[Wanted]) -> Iterator[Folded]:
    """Fold the events below `upto` of each table, in one job, and return the rows in the order of `wanted`.

    The rows of all tables are held in memory.
    """
    import pyarrow.compute as pc

    groups = _groups(wanted)
    create_frame(spark, _plans(wanted, groups)).createOrReplaceTempView(_PLANS)
    try:
        found = spark.sql(_sql(log, upto, wanted, groups)).toArrow()
    finally:
        spark.catalog.dropTempView(_PLANS)
    found = found.take(pc.sort_indices(found, [("n", "ascending")])).combine_chunks()
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(found["n"].combine_chunks()).to_pylist()}
    start = 0
    for n, table in enumerate(wanted):
        size = counts.get(n, 0)
        rows: pa.Table = found.slice(start, size)
        start += size
        yield _assemble(table, rows, groups)


def merged(plan: TablePlan, before: pa.Table, folded: Folded) -> pa.Table:
    """Return all rows of a table after a merge of folded rows into the rows `before`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = {column.attnum: column.lake for column in plan.columns}
    texts = {f"k{n}": before[names[a]].cast(pa.string()) for n, a in enumerate(plan.segments[0].key)}
    numbered = pa.table({**texts, "row": pa.array(range(before.num_rows), pa.int64())})
    hit = numbered.join(folded.keys, keys=list(texts), join_type="inner")
    first: list[int | None] = [None] * before.num_rows
    for row, lsn in zip(hit["row"].to_pylist(), hit["_cdc_first"].to_pylist(), strict=True):
        first[row] = lsn
    ends = pa.array(first, pa.int64())
    if plan.layer == Layer.CURRENT:
        kept = before.filter(pc.is_null(ends))
    else:
        ended = pc.and_(pc.is_null(before["_cdc_to_lsn"]), pc.less(before["_cdc_from_lsn"], ends))
        ended = pc.fill_null(ended, False)
        kept = before
        for name, value in (("_cdc_to_lsn", ends), ("_cdc_doubtful", pa.scalar(False))):
            position = kept.column_names.index(name)
            kept = kept.set_column(position, kept.field(name), pc.if_else(ended, value, kept[name]))
    return pa.concat_tables([kept, _filled(plan, before, folded).select(kept.column_names).cast(kept.schema)])


def _filled(plan: TablePlan, before: pa.Table, folded: Folded) -> pa.Table:
    """Take the values that the events left out from the rows `before`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = folded.rows
    if not folded.held:
        return rows
    if plan.layer == Layer.HISTORY:
        before = before.filter(pc.is_null(before["_cdc_to_lsn"]))
    names = {column.attnum: column.lake for column in plan.columns}
    wanted = {key for _, key, _ in folded.held}
    keys = zip(*(before[names[a]].cast(pa.string()).to_pylist() for a in plan.segments[0].key), strict=True)
    places = {key: place for place, key in enumerate(keys) if key in wanted}
    sources: dict[str, dict[int, int]] = {}  # by column: the place in `before` for each row
    texts = rows["_cdc_text"].to_pylist()
    for row, key, attnums in folded.held:
        place = places.get(key)
        for name in (names[a] for a in attnums if a in names and place is not None):
            assert place is not None
            sources.setdefault(name, {})[row] = place
            kept = dict(before["_cdc_text"][place].as_py() or ()).get(name)
            if kept is not None:
                texts[row] = [*(texts[row] or ()), (name, kept)]
    for name, found in sources.items():
        field, own = rows.schema.field(name), rows[name]
        both = pa.chunked_array([*own.chunks, *before[name].cast(field.type).chunks], field.type)
        taken = [rows.num_rows + found[row] if row in found else row for row in range(rows.num_rows)]
        rows = rows.set_column(rows.schema.get_field_index(name), field, both.take(pa.array(taken, pa.int64())))
    made = pa.array(texts, rows.schema.field("_cdc_text").type)
    return rows.set_column(rows.schema.get_field_index("_cdc_text"), "_cdc_text", made)


def _events(log: Ledger, upto: Lsn, relids: Sequence[int]) -> str:
    last = log.last()
    assert last is not None
    return (
        f"(select * from {log.access.names.events} version as of {log.snapshot_id()}"
        f" where {_ROW} and generation = {last.generation}"
        f" and batch_id <= {last.batch_id} and commit_lsn < {int(upto)} and relid in ({', '.join(map(str, relids))}))"
    )


def _groups(wanted: Sequence[Wanted]) -> dict[str, str]:
    """Name the typed array column of each conversion that these tables need."""
    conversions = dict.fromkeys(_conversion(column) for table in wanted for column in table.plan.columns)
    return {sql: f"v{n}" for n, sql in enumerate(conversions) if sql is not None}


def _conversion(column: PlannedColumn) -> str | None:
    """Return the Spark SQL that makes a cell typed; None if the lake keeps the text."""
    return _conversion_of(BareType.of(column))


@cache
def _conversion_of(type_: BareType) -> str | None:
    return None if kind(type_) == "string" else typed_sql("_cdc_cell", type_)


def _plans(wanted: Sequence[Wanted], groups: Mapping[str, str]) -> pa.Table:
    import pyarrow as pa

    rows = []
    for n, table in enumerate(wanted):
        plan = table.plan
        entry: dict[str, Any] = {
            "n": n, "s_relid": plan.relid, "history": plan.layer == Layer.HISTORY, "merges": table.merge,
            "low": table.low._asdict(), "key": list(plan.segments[-1].key),
            "attnums": [column.attnum for column in plan.columns], "toast": list(table.toast),
            "missing": _missing(plan),
        }  # fmt: skip
        for conversion, name in groups.items():
            entry[name] = [column.attnum for column in _columns(plan, conversion)]
        rows.append(entry)
    numbers = pa.list_(pa.int32())
    names = ["key", "attnums", "toast", *groups.values()]
    fields = [("n", pa.int32()), ("s_relid", pa.int64()), ("history", pa.bool_()), ("merges", pa.bool_())]
    low = ("low", pa.struct([("commit_lsn", pa.int64()), ("ordinal", pa.int64())]))
    missing = ("missing", pa.list_(pa.string()))
    return pa.Table.from_pylist(rows, schema=pa.schema([*fields, low, missing, *((name, numbers) for name in names)]))


def _missing(plan: TablePlan) -> list[str | None]:
    """Return what an image shows that is too short for columns that were added with a default, by attnum - 1."""
    found = {column.attnum: column.missing for column in plan.columns if column.has_missing}
    return [found.get(attnum) for attnum in range(1, max(found, default=0) + 1)]


def _columns(plan: TablePlan, conversion: str) -> list[PlannedColumn]:
    return [column for column in plan.columns if _conversion(column) == conversion]


def _sql(log: Ledger, upto: Lsn, wanted: Sequence[Wanted], groups: Mapping[str, str]) -> str:
    relids = sorted({table.plan.relid for table in wanted})
    arrays = ", ".join(["key", "attnums", "toast", *groups.values()])
    typed = "".join(
        f", transform(transform({name}, a -> get(image, a - 1)), _cdc_cell -> {conversion}) as {name}"
        for conversion, name in groups.items()
    )
    by_key = f"partition by n, k order by {order.COLUMNS}, sub"
    carried = ", ".join(_carried(n, by_key) for n in range(max(len(table.toast) for table in wanted)))
    image, held = "new", "cast(null as array<int>)"
    if carried:
        place = "cast(array_position(toast, {}) as int) - 1"
        cell = f"if(array_contains(unchanged, i + 1), get(carried, {place.format('i + 1')}).v, cell)"
        image = f"if(size(unchanged) > 0, transform(new, (cell, i) -> {cell}), new)"
        held = f"if(put, filter(unchanged, a -> get(carried, {place.format('a')}) is null), null)"
    return f"""
with e as (
  select s.n, s.history, s.merges, s.low, s.missing, {arrays},
    commit_lsn, ordinal, end_lsn, op, old_kind, new, old, unchanged
  from {_events(log, upto, relids)} join {_PLANS} s on relid = s_relid
  where {order.after_column_sql("s.low")}
),
k as (
  select * except (new, old), transform(key, a -> get(new, a - 1)) as new_key,
    transform(key, a -> get(old, a - 1)) as old_key, {_padded("new")} as new, {_padded("old")} as old from e
),
f as (
  select * from (select *, op = 'U' and old is not null and not (old_key <=> new_key) as moves from k)
  lateral view inline(if(moves,
    array(named_struct('sub', 0, 'put', false, 'k', old_key), named_struct('sub', 1, 'put', true, 'k', new_key)),
    array(named_struct('sub', 1, 'put', op <> 'D', 'k', if(op = 'D', old_key, new_key))))) x
),
v as (
  select *, row_number() over w as number, lead(commit_lsn) over w as next_commit, lead(end_lsn) over w as next_end,
    array({carried}) as carried
  from f window w as ({by_key})
),
r as (
  select *, merges and number = 1 as is_key,
    {image} as image, {held} as held,
    put and (next_commit is null or history and next_commit <> commit_lsn and end_lsn < next_end) as is_row
  from v
)
select n, is_key, is_row, k, end_lsn, if(history, next_end, null) as next_end,
  transform(attnums, a -> get(image, a - 1)) as texts, held{typed}
from r where is_key or is_row
"""


def _padded(image: str) -> str:
    """Write an image with the values of the columns that were added after it."""
    return (
        f"if(size({image}) < size(missing),"
        f" concat({image}, slice(missing, size({image}) + 1, size(missing) - size({image}))), {image})"
    )


def _carried(n: int, by_key: str) -> str:
    """Write the last value, up to an event, of the column that is number `n` of those that were left out."""
    cell = f"named_struct('v', get({{}}, get(toast, {n}) - 1))"
    return (
        f"last_value(case when not put or get(toast, {n}) is null then null"
        f" when not coalesce(array_contains(unchanged, get(toast, {n})), false) then {cell.format('new')}"
        f" when old_kind = 'O' then {cell.format('old')} end, true)"
        f" over ({by_key} rows between unbounded preceding and current row)"
    )


def _assemble(table: Wanted, found: pa.Table, groups: Mapping[str, str]) -> Folded:
    import pyarrow as pa

    plan = table.plan
    rows = found.filter(found["is_row"])
    cells: dict[str, Any] = {}
    texts: dict[str, Any] = {}  # of the columns that are not text in the lake
    for number, column in enumerate(plan.columns):
        text, conversion = _cells(rows["texts"], number, len(plan.columns)), _conversion(column)
        if conversion is None:
            cells[column.lake] = text
        else:
            same = _columns(plan, conversion)
            cells[column.lake] = _cells(rows[groups[conversion]], same.index(column), len(same))
            texts[column.lake] = text
    made = {**cells, "_cdc_from_lsn": rows["end_lsn"]}
    if plan.layer == Layer.HISTORY:
        made |= {"_cdc_to_lsn": rows["next_end"], "_cdc_doubtful": pa.array([False] * rows.num_rows, pa.bool_())}
    made["_cdc_text"] = _inexact(cells, texts, rows.num_rows)
    named = found.filter(found["is_key"])
    key = plan.segments[-1].key
    of_rows = zip(rows["k"].to_pylist(), rows["held"].to_pylist(), strict=True) if table.toast else ()
    held = tuple((row, tuple(k), attnums) for row, (k, attnums) in enumerate(of_rows) if attnums)
    keys = {f"k{n}": _cells(named["k"], n, len(key)) for n in range(len(key))}
    return Folded(pa.table(made), pa.table({**keys, "_cdc_first": named["end_lsn"]}), held)


def _inexact(cells: Mapping[str, Any], texts: Mapping[str, Any], rows: int) -> pa.Array:
    """Return `_cdc_text`: the texts of values that their type cannot hold, by column; NULL if there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: list[dict[str, str] | None] = [None] * rows
    for name, text in texts.items():
        lost = pc.and_(pc.is_null(cells[name]), pc.is_valid(text))
        for row in pc.indices_nonzero(lost).to_pylist():
            found[row] = {**(found[row] or {}), name: text[row].as_py()}
    return pa.array([None if row is None else list(row.items()) for row in found], pa.map_(pa.string(), pa.string()))


def _cells(lists: pa.ChunkedArray, number: int, width: int) -> Any:
    """Return one column of rows that are lists of the same width."""
    import pyarrow as pa

    flat = lists.combine_chunks().flatten() if lists.num_chunks else pa.array([], lists.type.value_type)
    return flat.take(pa.array(range(number, len(flat), width), pa.int64()))

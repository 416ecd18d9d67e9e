"""Compute the lake's side of parity from `current`: the same lines and figures as `toolkit.source.row_lines`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.decode.messages import POSTGRES_EPOCH_US
from toolkit.lake.pandas_on_demand import create_frame
from toolkit.values import progress
from toolkit.values.names import lake_columns, lake_table, quote_spark
from toolkit.values.namespaces import Namespaces
from toolkit.values.row_line import KEYS, BucketFigures, Comparison, Figures, Native, from_halves

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from toolkit.values.lake_types import SourceType

#: Tables and columns of one Spark job. A job costs about the same for one table as for many, until its plan is large.
_JOB_TABLES, _JOB_COLUMNS = 50, 1000
#: The most columns for which a line is planned both ways. Spark needs minutes to plan a very wide line.
_ASKED_COLUMNS = 200
#: The most ranges of keys to which a scan is narrowed.
_RANGES = 50
#: The timestamp whose eight bytes are the text `infinity`. It is beyond all timestamps that the server sends.
_INFINITY = int.from_bytes(b"infinity", "big")
#: Settings that the expressions of a line require, whatever `[spark]` says for users' sessions. Whole numbers are cast
#: to their bytes, which ANSI mode does not allow. A timestamp without a time zone is cast as if it were in UTC.
_SETTINGS = {"spark.sql.ansi.enabled": "false", "spark.sql.session.timeZone": "UTC"}


@dataclass(frozen=True, slots=True)
class Side:
    """A table of `current` at one table snapshot. Without a snapshot the table never held a row."""

    plan: Comparison
    snapshot_id: int | None
    names: Namespaces

    @property
    def relation(self) -> str:
        """Return the relation to select from."""
        return self.table if self.snapshot_id is None else f"{self.table} VERSION AS OF {self.snapshot_id}"

    @property
    def table(self) -> str:
        """Return the name of the table."""
        return f"{self.names.current}.{lake_table(self.plan.table.schema, self.plan.table.name)}"


def current_fields(plan: Comparison) -> list[str]:
    """Return the expressions that turn the compared columns of `current` into PostgreSQL text."""
    from toolkit.values.lake_types import text_sql

    # Unpublished columns can change lake names too, if two names differ only in case.
    names = lake_columns([(c.attnum, c.name) for c in plan.table.columns])
    return [text_sql(names[c.attnum], c) for c in plan.columns]


def lines_sql(plan: Comparison, relation: str, *, typed: bool = False) -> str:
    """Write the query for the lines of the rows of `relation`. With `typed` it is for rows whose `_cdc_text` is NULL.

    Nearly all rows have NULL in `_cdc_text`, so the query tests this before it looks into the column. Run it with
    `query`.
    """
    from toolkit.values.lake_types import kind, text_sql

    names = lake_columns([(c.attnum, c.name) for c in plan.table.columns])
    cells = []
    for i, column in enumerate(plan.columns):
        name, native = names[column.attnum], plan.natives.get(i)
        bare = cell_sql(name, column, native)
        if not typed and kind(column) != "string":
            text = text_sql(name, column, "cast(null as string)")
            if native is not None:  # the mark keeps a text different from the type's own bytes, even at the same length
                long = f"octet_length({text}) = {native.width} AND {text} <> 'infinity'"
                mark = f"if({long}, '\\u0000', '')" if native.kind.startswith("timestamp") else "'\\u0000'"
                text = f"concat({text}, {mark})"
            whole = f"coalesce(cast({text} as binary), {bare})"
            bare = whole if len(plan.columns) > _ASKED_COLUMNS else f"if(_cdc_text IS NULL, {bare}, {whole})"
        cells.append(f"{bare} AS _cdc_c{i}")
    sized = (
        f", coalesce(cast(octet_length(_cdc_c{i}) as binary), X'FFFFFFFF'), coalesce(_cdc_c{i}, X'')"
        for i in range(len(cells))
    )
    number = f"X'{len(cells):04X}'"
    if not typed:
        number = f"if(_cdc_text IS NOT NULL AND {_misplaced(plan, names)}, X'{0x8000 + len(cells):04X}', {number})"
    cells.append(f"{number} AS _cdc_number")
    return f"SELECT concat(_cdc_number{''.join(sized)}) AS line FROM (SELECT {', '.join(cells)} FROM {relation})"


def cell_sql(name: str, type_: SourceType, native: Native | None) -> str:
    """Write the expression for the bytes of a typed value, which `name` names."""
    from toolkit.values.lake_types import canonical_sql

    return f"cast({canonical_sql(name, type_)} as binary)" if native is None else _native(name, native)


def _misplaced(plan: Comparison, names: Mapping[int, str]) -> str:
    """Write the condition that finds texts of `_cdc_text` that builds never write.

    Such a text is one that the typed column could hold, which readers of that column miss, or a text of an unknown
    column. Columns whose own bytes are in the line need no check here, because the cell shows the text. Floats are not
    checked, because their text depends on the Java version.
    """
    from toolkit.values.lake_types import kind, literal, spark_type, typed_sql

    columns: dict[str, list[int]] = {}
    for i, column in enumerate(plan.columns):
        if kind(column) != "string":
            columns.setdefault("" if i in plan.natives else spark_type(column), []).append(i)
    whens = []
    for type_, found in columns.items():
        held = f"{typed_sql('kept.value', plan.columns[found[0]])} IS NOT NULL"
        known = "false" if not type_ or "float" in type_ or "double" in type_ else held
        keys = ", ".join(literal(names[plan.columns[i].attnum]) for i in found)
        whens.append(f"WHEN kept.key IN ({keys}) THEN {known}")
    stated = f"CASE {' '.join(whens)} ELSE true END" if whens else "true"
    return f"exists(map_entries(_cdc_text), kept -> {stated})"


def _native(lake_name: str, native: Native) -> str:
    """Write the expression for the bytes that the server sends."""
    value = quote_spark(lake_name)
    if native.kind == "boolean":
        return f"case when {value} then X'01' when not {value} then X'00' end"
    if native.kind == "smallint":  # a smallint outside its range has four bytes
        short = f"cast({value} as smallint)"
        return f"if({value} = {short}, cast({short} as binary), cast({value} as binary))"
    if native.kind.startswith("timestamp"):
        value = value if native.kind == "timestamptz" else f"cast({value} as timestamp)"
        micros = f"unix_micros({value}) - {POSTGRES_EPOCH_US}"
        return f"if({micros} = {_INFINITY}, X'00', cast({micros} as binary))"
    return f"cast({value} as binary)"


def query(spark: SparkSession, text: str) -> DataFrame:
    """Run `spark.sql` under the settings of a line, which become part of the plan."""
    before = {name: spark.conf.get(name, value) or value for name, value in _SETTINGS.items()}
    try:
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)
        return spark.sql(text)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def figures(spark: SparkSession, sides: Sequence[Side]) -> dict[int, Figures]:
    """Return the figures of every bucket that has rows, by relid, in as few jobs as the tables allow."""
    if not sides:  # all of them were small
        return {}
    found: dict[int, dict[int, BucketFigures]] = {side.plan.table.relid: {} for side in sides}
    with progress.stage(f"reading {len(sides)} tables of the lake", "tables", len(sides)) as stage:
        for job in _jobs(sides):
            typed = _typed(spark, job)
            lines = " UNION ALL ".join(
                f"SELECT {side.plan.table.relid}L AS relid, {side.plan.buckets}L AS buckets, line"
                f" FROM ({lines_sql(side.plan, side.relation, typed=side in typed)})"
                for side in job
            )
            for relid, number, *counted in query(spark, figures_sql(lines)).collect():
                found[relid][number] = bucket(*counted)
            stage.add(len(job))
    return dict(found)


def figures_sql(lines: str) -> str:
    """Write the query for the figures of lines, which come with `relid` and `buckets`. Run it with `query`."""
    return _FIGURES.format(numbers=_NUMBERS.format(lines=lines))


def bucket(rows: int, *halves: int) -> BucketFigures:
    """Return the figures of a bucket from a row of that query, without its first two columns."""
    return BucketFigures(rows, *from_halves(*halves))


def _typed(spark: SparkSession, sides: Sequence[Side]) -> Collection[Side]:
    """Find the large tables in which no row keeps a text.

    Iceberg reads columns in batches, but row by row if one of them is a map. Without `_cdc_text` a scan costs half. A
    scan of the map alone is cheap.
    """
    asked = [side for side in sides if side.plan.buckets > 1]
    if not asked:
        return ()
    kept = " UNION ALL ".join(
        f"SELECT {side.plan.table.relid}L AS relid FROM {side.relation} WHERE _cdc_text IS NOT NULL" for side in asked
    )
    keep = {relid for (relid,) in spark.sql(f"SELECT DISTINCT relid FROM ({kept})").collect()}
    return [side for side in asked if side.plan.table.relid not in keep]


def lines(spark: SparkSession, side: Side, wanted: Collection[int]) -> Iterator[bytes]:
    """Return the lines of the buckets `wanted`, one partition at a time."""
    select = f"SELECT {side.plan.buckets}L AS buckets, line FROM ({lines_sql(side.plan, side.relation)})"
    rows = query(
        spark,
        f"SELECT line FROM ({_NUMBERS.format(lines=select)}) WHERE high % buckets IN ({', '.join(map(str, wanted))})",
    )
    for (line,) in rows.toLocalIterator():
        yield bytes(line)


def lines_of_keys(
    spark: SparkSession, side: Side, keys: Sequence[Sequence[str]], *, long: bool = False
) -> Iterator[bytes]:
    """Return the lines of the rows with these keys, which are PostgreSQL text; `long` ones one partition at a time."""
    texts = current_fields(side.plan)
    names = [f"_cdc_k{n}" for n in range(len(side.plan.key))]
    wanted = create_frame(spark, [tuple(key) for key in keys], ", ".join(f"{n} string" for n in names))
    wanted.createOrReplaceTempView("cdc_parity_keys")
    same = " AND ".join(f"{texts[i]} = {n}" for i, n in zip(side.plan.key, names, strict=True))
    try:
        found = (
            f"(SELECT * FROM (SELECT * FROM {side.relation} WHERE {key_ranges_sql(side.plan, keys)})"
            f" LEFT SEMI JOIN cdc_parity_keys ON {same})"
        )
        lines = query(spark, lines_sql(side.plan, found))
        rows = lines.toLocalIterator() if long else lines.collect()
    finally:
        spark.catalog.dropTempView("cdc_parity_keys")
    return (bytes(line) for (line,) in rows)


def key_ranges_sql(plan: Comparison, keys: Sequence[Sequence[str]]) -> str:
    """Write a condition that every row with one of these keys meets, so that Iceberg skips files and row groups.

    It uses ranges of the first key column with whole numbers. No other type prints every value that it holds.
    """
    from toolkit.values.lake_types import kind

    names = lake_columns([(c.attnum, c.name) for c in plan.table.columns])
    for n, i in enumerate(plan.key):
        column = plan.columns[i]
        if kind(column) in ("int", "bigint"):
            numbers = sorted({int(key[n]) for key in keys})
            # Split at the widest gaps.
            gaps = sorted(range(1, len(numbers)), key=lambda at: numbers[at - 1] - numbers[at])[: _RANGES - 1]
            starts = [0, *sorted(gaps)]
            ends = [*starts[1:], len(numbers)]
            name = quote_spark(names[column.attnum])
            ranges = (f"{name} BETWEEN {numbers[a]} AND {numbers[b - 1]}" for a, b in zip(starts, ends, strict=True))
            return " OR ".join(ranges)
    return "true"


def _jobs(sides: Sequence[Side]) -> Iterator[list[Side]]:
    job: list[Side] = []
    columns = 0
    for side in sides:
        if job and (len(job) == _JOB_TABLES or columns + len(side.plan.columns) > _JOB_COLUMNS):
            yield job
            job, columns = [], 0
        job.append(side)
        columns += len(side.plan.columns)
    if job:
        yield job


#: Both 60-bit numbers of a line's hash; `toolkit.values.row_line` takes the same bits.
_NUMBERS = f"""
SELECT *, shiftrightunsigned(xxhash64({KEYS[0]}L, line), 4) AS high,
       shiftrightunsigned(xxhash64({KEYS[1]}L, line), 4) AS low
FROM ({{lines}})
"""
_FIGURES = """
SELECT relid, high % buckets AS bucket, count(*),
       sum(shiftright(high, 30)), sum(high & 1073741823), sum(shiftright(low, 30)), sum(low & 1073741823)
FROM ({numbers})
GROUP BY 1, 2
"""

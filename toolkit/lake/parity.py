"""The lake's side of parity: the same lines and figures as `toolkit.source.parity`, from `current`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.names import lake_columns, lake_table, quote_spark
from toolkit.parity import KEYS, NULL, SEPARATOR, BucketFigures, Comparison, Figures, from_halves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Tables and columns of one Spark job: it costs about the same for one table as for many, until its plan grows large.
_JOB_TABLES, _JOB_COLUMNS = 50, 1000
#: Columns up to which a line is planned both ways: Spark takes minutes to plan what is very wide.
_ASKED_COLUMNS = 200
#: Ranges of keys that a scan is narrowed to.
_RANGES = 50
_EPOCH_MICROS = 946_684_800_000_000  # 2000-01-01, in Unix time


@dataclass(frozen=True, slots=True)
class Side:
    """A table of `current` at one table snapshot; without one it never held a row."""

    plan: Comparison
    snapshot_id: int | None

    @property
    def relation(self) -> str:
        """What to select from."""
        name = f"current.{lake_table(self.plan.table.schema, self.plan.table.name)}"
        return name if self.snapshot_id is None else f"{name} VERSION AS OF {self.snapshot_id}"


def current_fields(plan: Comparison) -> list[str]:
    """The expressions that give the compared columns of `current` as PostgreSQL text."""
    from toolkit.pgtypes import text_sql

    # A lake name may depend on the unpublished columns too: two names that differ only in case.
    names = lake_columns([(c.attnum, c.name) for c in plan.table.columns])
    return [text_sql(names[c.attnum], c) for c in plan.columns]


def line_sql(plan: Comparison, *, typed: bool = False) -> str:
    """The expression that gives a row of `current` as its line; with `typed`, of rows whose `_cdc_text` is NULL.

    Nearly every row has nothing in `_cdc_text`: to ask once costs less than in each cell.
    """
    from toolkit.pgtypes import canonical_sql, kind, text_sql

    names = lake_columns([(c.attnum, c.name) for c in plan.table.columns])
    stamps = {i: _stamp(names[plan.columns[i].attnum], end) for i, end in plan.stamps.items()}
    bare = _joined([stamps.get(i) or canonical_sql(names[c.attnum], c) for i, c in enumerate(plan.columns)])
    if typed or all(kind(c) == "string" for c in plan.columns):
        return bare
    line = _joined([text_sql(names[c.attnum], c, stamps.get(i)) for i, c in enumerate(plan.columns)])
    return line if len(plan.columns) > _ASKED_COLUMNS else f"if(_cdc_text IS NULL, {bare}, {line})"


def _stamp(lake_name: str, end: str) -> str:
    """A timestamp's eight bytes on the source, as hex. One without a time zone is cast in the session's, UTC."""
    value = quote_spark(lake_name) if end else f"cast({quote_spark(lake_name)} as timestamp)"
    return f"lower(lpad(hex(unix_micros({value}) - {_EPOCH_MICROS}), 16, '0'))"


def _joined(fields: Sequence[str]) -> str:
    if not fields:
        return "''"
    return f"concat_ws({_literal(SEPARATOR)}, {', '.join(f'coalesce({field}, {_literal(NULL)})' for field in fields)})"


def _literal(text: bytes) -> str:
    return "'" + "".join(f"\\u{code:04x}" for code in text) + "'"


def figures(spark: SparkSession, sides: Sequence[Side]) -> dict[int, Figures]:
    """Figures of every bucket that has rows, by relid; as few jobs as the tables allow."""
    found: dict[int, dict[int, BucketFigures]] = {side.plan.table.relid: {} for side in sides}
    for job in _jobs(sides):
        typed = _typed(spark, job)
        lines = " UNION ALL ".join(
            f"SELECT {side.plan.table.relid}L AS relid, {side.plan.buckets}L AS buckets,"
            f" {line_sql(side.plan, typed=side in typed)} AS line FROM {side.relation}"
            for side in job
        )
        for relid, bucket, rows, *halves in spark.sql(_FIGURES.format(numbers=_NUMBERS.format(lines=lines))).collect():
            found[relid][bucket] = BucketFigures(rows, *from_halves(*halves))
    return dict(found)


def _typed(spark: SparkSession, sides: Sequence[Side]) -> Collection[Side]:
    """Those large enough to be asked of which no row keeps a text.

    Iceberg reads columns a batch at a time, but row by row as soon as one is a map: without `_cdc_text` a scan costs
    half. The map alone is cheap.
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
    """The lines of the buckets `wanted`, one partition at a time."""
    select = f"SELECT {side.plan.buckets}L AS buckets, {line_sql(side.plan)} AS line FROM {side.relation}"
    rows = spark.sql(
        f"SELECT line FROM ({_NUMBERS.format(lines=select)}) WHERE high % buckets IN ({', '.join(map(str, wanted))})"
    )
    for (line,) in rows.toLocalIterator():
        yield line.encode()


def lines_of_keys(spark: SparkSession, side: Side, keys: Sequence[Sequence[str]]) -> Iterator[bytes]:
    """The lines of the rows with these keys, given as PostgreSQL text."""
    texts = current_fields(side.plan)
    names = [f"_cdc_k{n}" for n in range(len(side.plan.key))]
    wanted = spark.createDataFrame([tuple(key) for key in keys], ", ".join(f"{n} string" for n in names))
    wanted.createOrReplaceTempView("cdc_parity_keys")
    same = " AND ".join(f"{texts[i]} = {n}" for i, n in zip(side.plan.key, names, strict=True))
    try:
        rows = spark.sql(
            f"SELECT {line_sql(side.plan)} FROM (SELECT * FROM {side.relation} WHERE {key_ranges_sql(side.plan, keys)})"
            f" LEFT SEMI JOIN cdc_parity_keys ON {same}"
        ).collect()
    finally:
        spark.catalog.dropTempView("cdc_parity_keys")
    return (line.encode() for (line,) in rows)


def key_ranges_sql(plan: Comparison, keys: Sequence[Sequence[str]]) -> str:
    """A condition that every row with one of these keys meets, by which Iceberg leaves out files and row groups.

    Ranges of the first key column that is a whole number: no other type prints every value that it holds.
    """
    from toolkit.pgtypes import kind

    names = lake_columns([(c.attnum, c.name) for c in plan.table.columns])
    for n, i in enumerate(plan.key):
        column = plan.columns[i]
        if kind(column) in ("int", "bigint"):
            numbers = sorted({int(key[n]) for key in keys})
            # Split where the gaps are widest.
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


#: Both 60-bit numbers of a line's hash; `toolkit.parity` takes the same bits.
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

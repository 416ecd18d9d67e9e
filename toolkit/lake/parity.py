"""The lake's side of parity: the same lines and figures as `toolkit.source.parity`, from `current`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.names import lake_columns, lake_table
from toolkit.parity import ESCAPES, BucketFigures, Comparison, Figures, from_halves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.catalog import Column

#: Tables and columns of one Spark job: it costs about the same for one table as for many, until its plan grows large.
_JOB_TABLES, _JOB_COLUMNS = 50, 1000
#: Texts of these types hold none of the characters that COPY escapes.
_PLAIN_TYPES = ("numeric", "uuid", "interval", "time", "money", "inet", "cidr", "macaddr", "oid", "bit", "pg_lsn")
_TYPED = ("bool", "int", "bigint", "float", "double", "date", "timestamp", "timestamptz", "decimal")


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


def line_sql(plan: Comparison) -> str:
    """The expression that gives a row of `current` as its line."""
    cells = [
        f"coalesce({_escaped(field, column)}, '\\\\N')"
        for field, column in zip(current_fields(plan), plan.columns, strict=True)
    ]
    if not cells:
        return "'\\n'"
    cells[-1] = f"concat({cells[-1]}, '\\n')"
    return f"concat_ws('\\t', {', '.join(cells)})"


def _escaped(field: str, column: Column) -> str:
    from toolkit.pgtypes import kind

    carried = kind(column)
    type_name = (column.base_type or column.type) if column.type_kind == "d" else column.type
    plain = column.type_kind in "bd" and type_name.startswith(_PLAIN_TYPES) and "[" not in type_name
    if carried in _TYPED or (carried == "string" and plain):
        return field
    for character, escape in ESCAPES:
        field = f"replace({field}, '{_literal(character)}', '{_literal(escape)}')"
    return field


def _literal(text: str) -> str:
    """Inside a Spark string literal. The control characters have no escape of their own that Spark knows in full."""
    return "".join("\\\\" if c == "\\" else c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def figures(spark: SparkSession, sides: Sequence[Side]) -> dict[int, Figures]:
    """Figures of every bucket that has rows, by relid; as few jobs as the tables allow."""
    found: dict[int, dict[int, BucketFigures]] = {side.plan.table.relid: {} for side in sides}
    for job in _jobs(sides):
        lines = " UNION ALL ".join(
            f"SELECT {side.plan.table.relid}L AS relid, {side.plan.buckets}L AS buckets, {line_sql(side.plan)} AS line"
            f" FROM {side.relation}"
            for side in job
        )
        for relid, bucket, rows, *halves in spark.sql(_FIGURES.format(numbers=_NUMBERS.format(lines=lines))).collect():
            found[relid][bucket] = BucketFigures(rows, *from_halves(*halves))
    return dict(found)


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
            f"SELECT {line_sql(side.plan)} FROM {side.relation} LEFT SEMI JOIN cdc_parity_keys ON {same}"
        ).collect()
    finally:
        spark.catalog.dropTempView("cdc_parity_keys")
    return (line.encode() for (line,) in rows)


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


#: Both 60-bit numbers of a line's hash; `toolkit.parity` takes the same digits.
_NUMBERS = """
SELECT *, cast(conv(substring(hash, 1, 15), 16, 10) AS bigint) AS high,
       cast(conv(substring(hash, 17, 15), 16, 10) AS bigint) AS low
FROM (SELECT *, sha1(cast(line AS binary)) AS hash FROM ({lines}))
"""
_FIGURES = """
SELECT relid, high % buckets AS bucket, count(*),
       sum(shiftright(high, 30)), sum(high & 1073741823), sum(shiftright(low, 30)), sum(low & 1073741823)
FROM ({numbers})
GROUP BY 1, 2
"""

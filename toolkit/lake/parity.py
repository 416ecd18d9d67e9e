"""The lake's side of parity: the same lines and figures as `toolkit.source.parity`, from `current`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolkit.names import lake_columns, lake_table, quote_spark
from toolkit.parity import ESCAPES, BucketFigures, Comparison, Figures, from_halves

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.catalog import Column

#: Tables and columns of one Spark job: it costs about the same for one table as for many, until its plan grows large.
_JOB_TABLES, _JOB_COLUMNS = 50, 1000
#: A regular expression, inside a Spark string literal, for any character that COPY escapes.
_SPECIAL = "[\\\\x08-\\\\x0d\\\\\\\\]"
#: Columns up to which a line is planned both ways: Spark takes minutes to plan what is very wide.
_ASKED_COLUMNS = 200
#: Ranges of keys that a scan is narrowed to.
_RANGES = 50
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
    """The expression that gives a row of `current` as its line.

    Nearly every row has nothing in `_cdc_text` and nothing to escape: to ask once costs less than in each cell.
    """
    from toolkit.pgtypes import canonical_sql, kind

    names = lake_columns([(c.attnum, c.name) for c in plan.table.columns])
    plain = [canonical_sql(names[c.attnum], c) for c in plan.columns]
    line = _joined([_escaped(field, c) for field, c in zip(current_fields(plan), plan.columns, strict=True)])
    conditions = []
    if any(kind(c) != "string" for c in plan.columns):
        conditions.append("_cdc_text IS NULL")
    texts = [field for field, c in zip(plain, plan.columns, strict=True) if _holds_any(c)]
    if texts:
        conditions.append(f"NOT concat_ws('', {', '.join(texts)}) RLIKE '{_SPECIAL}'")
    if not conditions or len(plan.columns) > _ASKED_COLUMNS:
        return line
    bare = _joined([f if _holds_any(c) else _escaped(f, c) for f, c in zip(plain, plan.columns, strict=True)])
    return f"if({' AND '.join(conditions)}, {bare}, {line})"


def _joined(fields: Sequence[str]) -> str:
    cells = [f"coalesce({field}, '\\\\N')" for field in fields]
    if not cells:
        return "'\\n'"
    cells[-1] = f"concat({cells[-1]}, '\\n')"
    return f"concat_ws('\\t', {', '.join(cells)})"


def _holds_any(column: Column) -> bool:
    """Whether a value's text may hold what COPY escapes, other than the backslash that starts every `bytea`."""
    from toolkit.pgtypes import kind

    carried = kind(column)
    type_name = (column.base_type or column.type) if column.type_kind == "d" else column.type
    plain = column.type_kind in "bd" and type_name.startswith(_PLAIN_TYPES) and "[" not in type_name
    return carried not in (*_TYPED, "binary") and not (carried == "string" and plain)


def _escaped(field: str, column: Column) -> str:
    from toolkit.pgtypes import kind

    escapes = ESCAPES if _holds_any(column) else ESCAPES[:1] if kind(column) == "binary" else ()
    for character, escape in escapes:
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

"""The lake's side of parity: the same figures as `toolkit.source.parity`, from `current`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from toolkit.names import lake_columns, lake_table
from toolkit.parity import BucketFigures, Comparison, Figures

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

    from toolkit.catalog import TableVersion


def printed(frame: DataFrame, fields: Sequence[str]) -> DataFrame:
    """A frame of `f1, f2, ...` from Spark SQL expressions that each give PostgreSQL text or NULL."""
    from pyspark.sql import functions as F

    return frame.select(*(F.expr(text).alias(f"f{i + 1}") for i, text in enumerate(fields)))


def hashed(frame: DataFrame, plan: Comparison) -> DataFrame:
    """Add `key_hash`, `row_hash` and `bucket` to a frame of printed fields."""
    from pyspark.sql import functions as F

    frame = frame.withColumn("key_hash", _hash(plan.bucket_fields))
    frame = frame.withColumn("row_hash", _hash(range(len(plan.columns))))
    return frame.withColumn("bucket", _number("key_hash", 1, 7).cast("int") % F.lit(plan.buckets))


def bucket_figures(frame: DataFrame, plan: Comparison) -> Figures:
    """Figures of every bucket that has rows, of a frame of printed fields."""
    from pyspark.sql import functions as F

    found = (
        hashed(frame, plan)
        .groupBy("bucket")
        .agg(
            F.count("*").alias("n"),
            F.sum(_number("row_hash", 1, 15)).alias("high"),
            F.sum(_number("row_hash", 16, 15)).alias("low"),
        )
        .collect()
    )
    return {r["bucket"]: BucketFigures(r["n"], int(r["high"]), int(r["low"])) for r in found}


def hashed_rows(frame: DataFrame, plan: Comparison, wanted: Sequence[int]) -> Iterator[tuple[str | None, ...]]:
    """Rows `(key hash, row hash, *fields)` of the buckets `wanted`, ascending by key hash, one partition at a time."""
    from pyspark.sql import functions as F

    names = [f"f{i + 1}" for i in range(len(plan.columns))]
    rows = hashed(frame, plan).where(F.col("bucket").isin(list(wanted))).orderBy("key_hash", "row_hash")
    for row in rows.select("key_hash", "row_hash", *names).toLocalIterator():
        yield tuple(row)


def current_snapshot(spark: SparkSession, table: TableVersion) -> int | None:
    """The table snapshot that `current.<table>` stands at; None while it never held a row."""
    refs = spark.table(f"current.{lake_table(table.schema, table.name)}.refs")
    row = refs.where("name = 'main'").select("snapshot_id").first()
    return None if row is None else int(row[0])


def current_fields(plan: Comparison) -> list[str]:
    """The expressions that give the compared columns of `current` as PostgreSQL text."""
    from toolkit.pgtypes import text_sql

    # A lake name may depend on the unpublished columns too: two names that differ only in case.
    names = lake_columns([(c.attnum, c.name) for c in plan.table.columns])
    return [text_sql(names[c.attnum], c) for c in plan.columns]


def current_frame(spark: SparkSession, plan: Comparison, snapshot_id: int | None) -> DataFrame:
    """The printed fields of `current.<table>` at one table snapshot (None: it has none yet, so no rows either)."""
    name = f"current.{lake_table(plan.table.schema, plan.table.name)}"
    reader = spark.read if snapshot_id is None else spark.read.option("versionAsOf", str(snapshot_id))
    return printed(reader.table(name), current_fields(plan))


def _hash(indexes: Sequence[int]) -> SparkColumn:
    from pyspark.sql import functions as F

    def prefixed(index: int) -> SparkColumn:
        field = F.col(f"f{index + 1}")
        return F.coalesce(F.concat(F.length(field).cast("string"), F.lit(":"), field), F.lit("~"))

    return F.md5(F.concat(*(prefixed(i) for i in indexes)).cast("binary"))


def _number(column: str, start: int, digits: int) -> SparkColumn:
    """Hexadecimal digits of a hash as a number wide enough to be summed."""
    from pyspark.sql import functions as F

    return F.conv(F.substring(column, start, digits), 16, 10).cast("decimal(20,0)")

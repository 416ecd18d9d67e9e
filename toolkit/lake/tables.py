"""Create the namespaces, the raw log's table and the small tables of the lake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from toolkit.lake import folders, lake_catalog, reads, storage
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.table_layout import BATCH_WIDTH
from toolkit.rawlog.arrow import EVENT_SCHEMA
from toolkit.values.errors import LakeError
from toolkit.values.locations import is_within
from toolkit.values.names import quote_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.values.lake_access import LakeAccess

#: Number of batches in one partition of the log.
STATE_COLUMNS: Mapping[str, str] = {
    "relid": "bigint",
    "generation": "bigint",
    "table_name": "string",
    "state": "string",
    "reason": "string",
    "from_lsn": "bigint",
    "remedy": "string",
    "baseline_lsn": "bigint",
    "schema_id": "bigint",
    "batch_id": "bigint",
}
PLAN_COLUMNS: Mapping[str, str] = {
    "layer": "string",
    "relid": "bigint",
    "plan": "string",  # JSON of `toolkit.rawlog.plan.TablePlan`
    "generation": "bigint",
    "batch_id": "bigint",
    "upto": "bigint",
}

#: Columns whose bounds select files. No reader filters by other columns, and bounds of images would only add cost.
_BOUNDED = ("batch_id", "generation", "commit_lsn", "end_lsn", "ordinal", "kind", "relid", "schema_id", "xid")
_RETRIES = "commit.retry.num-retries"
_PROPERTIES = {
    "format-version": "2",  # pyiceberg commits empty batches and cannot write format 3
    "write.format.default": "parquet",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
    # Images rarely repeat. With a small dictionary the writer gives it up early, which saves a sixth of its time at the
    # same size.
    "write.parquet.dict-size-bytes": "65536",
    "write.distribution-mode": "none",  # a batch is written where it was decoded
    "write.spark.fanout.enabled": "true",
    "write.metadata.metrics.default": "none",
    **{f"write.metadata.metrics.column.{name}": "full" for name in _BOUNDED},
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # A retry validates again. It succeeds after a compaction, and never after another batch.
    _RETRIES: "5",
    "commit.retry.min-wait-ms": "50",
    "commit.retry.max-wait-ms": "1000",
    "commit.retry.total-timeout-ms": "30000",
}
SPARK_TYPES = {
    pa.int64(): "BIGINT",
    pa.int32(): "INT",
    pa.string(): "STRING",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
    pa.list_(pa.string()): "ARRAY<STRING>",
    pa.list_(pa.int32()): "ARRAY<INT>",
}


def spark_schema() -> str:
    """Return `EVENT_SCHEMA` as Spark DDL."""
    return ", ".join(
        f"{quote_spark(field.name)} {SPARK_TYPES[field.type]}{'' if field.nullable else ' NOT NULL'}"
        for field in EVENT_SCHEMA
    )


def ensure(spark: SparkSession, access: LakeAccess) -> None:
    """Create the namespaces, `raw.events`, and the tables that commands keep for dbt, where they are missing.

    A new table gets an empty first snapshot, because a batch commits against the snapshot at which its ledger was read.
    """
    spark_catalog = quote_spark(access.lake.catalog)
    names = access.names
    for namespace in names.all:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {spark_catalog}.{namespace}")
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in _PROPERTIES.items())
    table = f"{spark_catalog}.{names.events}"
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {table} ({spark_schema()}) USING iceberg"
        f" PARTITIONED BY (kind, truncate({BATCH_WIDTH}, batch_id)) TBLPROPERTIES ({properties})"
    )
    if spark.table(f"{table}.snapshots").isEmpty():
        _require_in_warehouse(access)
        spark.table(table).where("false").writeTo(table).append()
        made = reads.snapshot_id(access, access.names.events)
        assert made is not None
        lake_catalog.force(access, access.names.events, made)
    if reads.properties(access, names.events).get(_RETRIES) == "0":  # by the first batch of an earlier version
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{_RETRIES}' = '{_PROPERTIES[_RETRIES]}')")
    ensure_judged(spark, access)


def _require_in_warehouse(access: LakeAccess) -> None:
    """Refuse a catalog that places tables elsewhere than `[lake] warehouse` says. A server may do so."""
    found = str((reads.metadata(access, access.names.events) or {}).get("location", ""))
    if not is_within(found, access.warehouse):
        raise LakeError(
            f"the catalog {open_catalog(access).where} places {access.names.events} at {found}, outside of"
            f" [lake] warehouse {access.warehouse}; set warehouse to the folder of the catalog's server, or that"
            " folder at the server"
        )


def ensure_judged(spark: SparkSession, access: LakeAccess) -> None:
    """Create `ops.table_states` and `ops.plans` if missing. A build adds them to lakes of earlier versions."""
    for name, columns in ((access.names.states, STATE_COLUMNS), (access.names.plans, PLAN_COLUMNS)):
        if reads.metadata_location(access, name) is None:
            create_small(spark, name, columns)


def create_small(spark: SparkSession, name: str, columns: Mapping[str, str]) -> None:
    """Create `namespace.table`, and its namespace, with these columns and their Spark types."""
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.partition('.')[0]}")
    shape = ", ".join(f"{quote_spark(column)} {kind}" for column, kind in columns.items())
    # pyiceberg writes the rows and cannot write format 3.
    spark.sql(f"CREATE TABLE {name} ({shape}) USING iceberg TBLPROPERTIES ('format-version' = '2')")


def require_writable(access: LakeAccess) -> None:
    """Create the folders of this machine, and check that they, warehouse and catalog are writable. Starts no JVM.

    Raises:
        LakeError: one of them cannot be created, reached or written.
    """
    storage.require_writable(access.warehouse, storage.file_properties(access))
    folders.require_writable("work", access.work_dir, "work_dir")
    open_catalog(access).prepare()

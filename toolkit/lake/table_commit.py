"""Write rows that this process holds to a table of the lake, in one Iceberg commit through the JVM.

pyiceberg writes no table of format 3.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.lake import storage
from toolkit.values.errors import LakeError
from toolkit.values.names import quote_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from toolkit.values.lake_access import LakeAccess


@dataclass(frozen=True, slots=True)
class Commit:
    """The properties of a commit beside its rows. `tag` names the new table snapshot; None gives it no tag."""

    properties: Mapping[str, str]
    summary: Mapping[str, str]
    tag: str | None


class Java:
    """The classes of a session's JVM that a commit uses. Python asks the JVM about each part of a class's name."""

    def __init__(self, spark: SparkSession) -> None:
        jvm, gateway = spark._jvm, spark._sc._gateway
        assert jvm is not None and gateway is not None
        self.session, self.gateway = spark._jsparkSession, gateway
        self.struct_type = jvm.org.apache.spark.sql.types.StructType
        iceberg = jvm.org.apache.iceberg
        self.table_identifier = iceberg.catalog.TableIdentifier
        self.schema_util, self.spark_util = iceberg.spark.SparkSchemaUtil, iceberg.spark.Spark3Util
        self.expressions = iceberg.expressions.Expressions
        self.schema_parser, self.parquet_util = iceberg.SchemaParser, iceberg.parquet.ParquetUtil
        self.metrics_config, self.data_files = iceberg.MetricsConfig, iceberg.DataFiles


def replace_table(
    java: Java, access: LakeAccess, name: str, columns: Sequence[tuple[str, str]], rows: pa.Table, commit: Commit
) -> None:
    """Create or replace `namespace.table`, as CREATE OR REPLACE TABLE does: earlier table snapshots and tags stay.

    Args:
        columns: names and Spark types, in order.
        rows: these columns.

    Raises:
        LakeError: the table cannot be written.
    """
    with _named(name):
        catalog = java.session.sessionState().catalogManager().catalog(access.lake.catalog).icebergCatalog()
        fields = ", ".join(f"{quote_spark(column)} {type_}" for column, type_ in columns)
        struct = java.struct_type.fromDDL(fields)
        namespace, _, table = name.partition(".")
        builder = catalog.buildTable(
            java.table_identifier.of(_texts(java, namespace, table)), java.schema_util.convert(struct)
        )
        for key, value in commit.properties.items():
            builder = builder.withProperty(key, value)
        transaction = builder.createOrReplaceTransaction()
        append = transaction.newFastAppend()
        if rows.num_rows:
            append.appendFile(_written(java, access, transaction.table(), rows))
        _finish(transaction, append, commit)


def read_table(access: LakeAccess, name: str, snapshot_id: int) -> pa.Table:
    """Read the rows of `namespace.table` at a table snapshot.

    Raises:
        LakeError: another process has changed the table since.
    """
    from toolkit.lake.lake_catalog import open_catalog

    table = open_catalog(access).load_table(name)
    current = table.current_snapshot()
    if current is None or current.snapshot_id != snapshot_id:
        raise LakeError(f"reading {name}: another process has changed it; run `cdc build` again")
    return table.scan().to_arrow()


def overwrite(java: Java, access: LakeAccess, name: str, rows: pa.Table, commit: Commit, since: int) -> None:
    """Replace all rows of `namespace.table`, if it has not changed since the table snapshot `since`.

    Raises:
        LakeError: another process has changed the table, or it cannot be written.
    """
    with _named(name):
        parts = (access.lake.catalog, *name.split(".", 1))
        table = java.spark_util.loadIcebergTable(java.session, ".".join(map(quote_spark, parts)))
        transaction = table.newTransaction()
        change = transaction.newOverwrite()
        change.overwriteByRowFilter(java.expressions.alwaysTrue())
        change.validateFromSnapshot(since).validateNoConflictingData().validateNoConflictingDeletes()
        if rows.num_rows:
            change.addFile(_written(java, access, table, rows))
        _finish(transaction, change, commit)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Name the table that could not be written."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        found = str(error.java_exception.toString()).splitlines()[0]
        raise LakeError(f"writing {name}: {found}; run `cdc build` again") from None
    except OSError as error:
        raise LakeError(f"writing {name}: {error.strerror or error}; run `cdc build` again") from None


def _finish(transaction: Any, change: Any, commit: Commit) -> None:
    for key, value in commit.summary.items():
        change.set(key, value)
    change.commit()
    if commit.tag is not None:
        refs, table = transaction.manageSnapshots(), transaction.table()
        place = refs.replaceTag if table.refs().containsKey(commit.tag) else refs.createTag
        place(commit.tag, table.currentSnapshot().snapshotId()).commit()
    transaction.commitTransaction()


def _written(java: Java, access: LakeAccess, table: Any, rows: pa.Table) -> Any:
    """Write one data file and describe it."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import Schema

    schema = schema_to_pyarrow(
        Schema.model_validate_json(java.schema_parser.toJson(table.schema())), include_field_ids=True
    )
    location = table.locationProvider().newDataLocation(f"{uuid.uuid4()}.parquet")
    made = pa.Table.from_arrays([rows[field.name].cast(field.type) for field in schema], schema=schema)
    with storage.create(location, storage.file_properties(access)) as sink:
        pq.write_table(made, sink, compression="zstd", store_decimal_as_integer=True)
    file = table.io().newInputFile(location)
    metrics = java.parquet_util.fileMetrics(file, java.metrics_config.forTable(table))
    builder = java.data_files.builder(table.spec()).withInputFile(file).withFormat("PARQUET")
    return builder.withMetrics(metrics).build()


def _texts(java: Java, *texts: str) -> Any:
    """Make an array of the JVM."""
    made = java.gateway.new_array(java.gateway.jvm.java.lang.String, len(texts))
    for number, text in enumerate(texts):
        made[number] = text
    return made


__all__ = ["Commit", "Java", "overwrite", "replace_table"]

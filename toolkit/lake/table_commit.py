"""Create, replace or overwrite a table of the lake in one Iceberg commit through the JVM, if no other process has.

Iceberg's own CREATE OR REPLACE does not look at what it replaces: a late one removes newer table snapshots and their
tags. What is written here is committed only if the table is still as the caller found it. pyiceberg writes no table of
format 3.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.lake import storage
from toolkit.values.errors import LakeError
from toolkit.values.log_setup import logger
from toolkit.values.names import quote_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from toolkit.values.lake_access import LakeAccess

_log = logger(__name__)
#: For a table that ever had partitions by a column that is gone: Iceberg then fails to write deletion vectors.
_COPY_ON_WRITE = {f"write.{operation}.mode": "copy-on-write" for operation in ("delete", "update", "merge")}
_CHANGED = "another process has changed it"
_VIEW = "a view has this name, which must be dropped first"


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit has beside its rows, and the table that it expects.

    `tag` names the new table snapshot; None gives it no tag. `since` is the table snapshot that must be the current
    one; None if there must be none.
    """

    properties: Mapping[str, str]
    summary: Mapping[str, str]
    tag: str | None
    since: int | None


class Java:
    """The classes of a session's JVM that a commit uses. Python asks the JVM about each part of a class's name."""

    def __init__(self, spark: SparkSession) -> None:
        jvm, gateway = spark._jvm, spark._sc._gateway
        assert jvm is not None and gateway is not None
        self.session, self.gateway = spark._jsparkSession, gateway
        sql = jvm.org.apache.spark.sql
        self.struct_type, self.dataset = sql.types.StructType, sql.classic.Dataset
        self.scala_map = jvm.PythonUtils.toScalaMap
        self.relation = sql.execution.datasources.v2.DataSourceV2Relation
        self.append_data, self.option = sql.catalyst.plans.logical.AppendData, jvm.scala.Option
        iceberg = jvm.org.apache.iceberg
        self.table_identifier = iceberg.catalog.TableIdentifier
        self.schema_util, self.spark_util = iceberg.spark.SparkSchemaUtil, iceberg.spark.Spark3Util
        self.expressions = iceberg.expressions.Expressions
        self.schema_parser, self.parquet_util = iceberg.SchemaParser, iceberg.parquet.ParquetUtil
        self.metrics_config, self.data_files = iceberg.MetricsConfig, iceberg.DataFiles
        self.transactions, self.spark_table = iceberg.Transactions, iceberg.spark.source.SparkTable
        self.partition_spec, self.sort_order = iceberg.PartitionSpec, iceberg.SortOrder
        self.spec_parser, self.order_parser = iceberg.PartitionSpecParser, iceberg.SortOrderParser


def replace_table(
    java: Java, access: LakeAccess, name: str, columns: Sequence[tuple[str, str]], rows: pa.Table, commit: Commit
) -> None:
    """Create or replace `namespace.table` with rows of this process. Earlier table snapshots and tags stay.

    The table has no partitions.

    Args:
        columns: names and Spark types, in order.
        rows: these columns.

    Raises:
        LakeError: another process has changed the table, or it cannot be written.
    """
    with _named(name):
        fields = ", ".join(f"{quote_spark(column)} {type_}" for column, type_ in columns)
        transaction, base = _replacement(java, access.lake.catalog, name, java.struct_type.fromDDL(fields), commit)
        append = transaction.newFastAppend()
        if rows.num_rows:
            append.appendFile(_written(java, access, transaction.table(), rows))
        _set(append, commit)
        _commit_replacement(transaction, base, commit)


def replace_by_query(spark: SparkSession, catalog: str, name: str, query: str, commit: Commit) -> None:
    """Create or replace `namespace.table` with the result of a query, as `replace_table` does.

    The partitions and the order that a user has given the table stay, as far as it has their columns.

    Raises:
        LakeError: another process has changed the table.
    """
    java, rows = Java(spark), spark.sql(query)._jdf.queryExecution().analyzed()
    with _named(name):
        transaction, base = _replacement(java, catalog, name, rows.schema().asNullable(), commit)
    # The plan that Spark itself makes for the rows of CREATE OR REPLACE TABLE AS SELECT.
    of_catalog = java.option.apply(java.session.sessionState().catalogManager().catalog(catalog))  # knows `bucket`
    relation = java.relation.create(java.spark_table(transaction.table()), of_catalog, java.option.empty())
    options = java.scala_map({f"snapshot-property.{key}": value for key, value in commit.summary.items()})
    java.dataset.ofRows(java.session, java.append_data.byPosition(relation, rows, options))
    with _named(name):
        _commit_replacement(transaction, base, commit)


def write(spark: SparkSession, statement: str, summary: Mapping[str, str]) -> None:
    """Run a statement of SQL whose commits have this summary. A setting of the session would be for every thread."""
    jvm, gateway, session = spark._jvm, spark._sc._gateway, spark._jsparkSession
    assert jvm is not None and gateway is not None
    lang, invoke = jvm.java.lang, jvm.java.lang.invoke
    of_sql = invoke.MethodType.methodType(session.emptyDataFrame().getClass(), lang.Class.forName("java.lang.String"))
    sql = invoke.MethodHandles.publicLookup().bind(session, "sql", of_sql)
    arguments = gateway.new_array(lang.Object, 1)
    arguments[0] = statement
    call = invoke.MethodHandleProxies.asInterfaceInstance(
        lang.Class.forName("java.util.concurrent.Callable"), invoke.MethodHandles.insertArguments(sql, 0, arguments)
    )
    metadata = jvm.org.apache.iceberg.spark.CommitMetadata
    metadata.withCommitProperties(summary, call, lang.Class.forName("java.lang.Exception"))


def read_metadata(spark: SparkSession, catalog: str, name: str) -> dict[str, Any]:
    """Read the metadata of `namespace.table` by the catalog of a session, as the Iceberg specification lays it out."""
    jvm = spark._jvm
    assert jvm is not None
    iceberg, parts = jvm.org.apache.iceberg, (catalog, *name.split(".", 1))
    table = iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, ".".join(map(quote_spark, parts)))
    return dict(json.loads(iceberg.TableMetadataParser.toJson(table.operations().current())))


def read_table(access: LakeAccess, name: str, snapshot_id: int) -> pa.Table:
    """Read the rows of `namespace.table` at a table snapshot.

    Raises:
        LakeError: another process has changed the table since, or a file of it is missing or damaged.
    """
    from toolkit.lake.lake_catalog import open_catalog
    from toolkit.lake.scans import unreadable

    table = open_catalog(access).load_table(name)
    current = table.current_snapshot()
    if current is None or current.snapshot_id != snapshot_id:
        raise LakeError(f"reading {name}: {_CHANGED}; run `cdc build` again")
    try:
        return table.scan().to_arrow()
    except (OSError, EOFError, ValueError) as error:
        raise unreadable(access, name, error) from None


def overwrite(java: Java, access: LakeAccess, name: str, rows: pa.Table, commit: Commit) -> None:
    """Replace all rows of `namespace.table`, whose columns stay. The table has no partitions.

    Raises:
        LakeError: another process has changed the table, or it cannot be written.
    """
    with _named(name):
        parts = (access.lake.catalog, *name.split(".", 1))
        table = java.spark_util.loadIcebergTable(java.session, ".".join(map(quote_spark, parts)))
        transaction = table.newTransaction()
        change = transaction.newOverwrite()
        change.overwriteByRowFilter(java.expressions.alwaysTrue())
        change.validateFromSnapshot(commit.since).validateNoConflictingData().validateNoConflictingDeletes()
        if rows.num_rows:
            change.addFile(_written(java, access, table, rows))
        _set(change, commit)
        _tag(transaction, commit)
        transaction.commitTransaction()


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Name the table that could not be written."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        found = str(error.java_exception.toString()).splitlines()[0]
        if "AlreadyExistsException: View" in found:
            found = _VIEW
        elif "CommitFailedException" in found or "AlreadyExistsException" in found:
            found = _CHANGED
        raise LakeError(f"writing {name}: {found}; run `cdc build` again") from None
    except OSError as error:
        raise LakeError(f"writing {name}: {error.strerror or error}; run `cdc build` again") from None


def _replacement(java: Java, catalog: str, name: str, struct: Any, commit: Commit) -> tuple[Any, Any]:
    """Begin a transaction that creates the table, or replaces the table snapshot that the commit expects.

    Return it with the metadata that it replaces; None for a new table.
    """
    tables = java.session.sessionState().catalogManager().catalog(catalog).icebergCatalog()
    namespace, _, table = name.partition(".")
    identifier, schema = java.table_identifier.of(_texts(java, namespace, table)), java.schema_util.convert(struct)
    if not tables.tableExists(identifier):
        _require(name, None, commit)
        builder = tables.buildTable(identifier, schema)
        for key, value in commit.properties.items():
            builder = builder.withProperty(key, value)
        return builder.createTransaction(), None
    operations = tables.loadTable(identifier).operations()
    base = operations.current()
    current = base.currentSnapshot()
    _require(name, None if current is None else current.snapshotId(), commit)
    spec = _kept(name, java.spec_parser, base.spec(), base, schema) or java.partition_spec.unpartitioned()
    order = _kept(name, java.order_parser, base.sortOrder(), base, schema) or java.sort_order.unsorted()
    gone = any(_column(base, schema, f.sourceId()) is None for spec in base.specs() for f in spec.fields())
    given = {key: base.properties().get(key) for key in commit.properties if key.startswith("write.")}
    kept = {key: value for key, value in given.items() if value is not None}  # a user may have set them
    properties = {**commit.properties, **kept, **(_COPY_ON_WRITE if gone else {})}
    made = base.buildReplacement(schema, spec, order, base.location(), properties)
    return java.transactions.replaceTableTransaction(name, operations, made), base


def _kept(name: str, parser: Any, layout: Any, base: Any, schema: Any) -> Any:
    """Bind the partitions or the order of a table to new columns, as far as these allow it; None if nothing is left."""
    text, kept = json.loads(parser.toJson(layout)), []
    for field, bound in zip(text["fields"], layout.fields(), strict=True):
        column = _column(base, schema, bound.sourceId())
        if column is not None and bound.transform().canTransform(column.type()):
            kept.append(field | {"source-id": column.fieldId()})
        else:
            _log.warning("partitions or order no longer by a column", extra={"table": name, "of": str(bound)})
    return parser.fromJson(schema, json.dumps(text | {"fields": kept})) if kept else None


def _column(base: Any, schema: Any, source_id: int) -> Any:
    """Find the column that replaces one of the table's; None if no column has its name."""
    known = base.schema().findColumnName(source_id)
    return None if known is None else schema.findField(known)


def _require(name: str, found: int | None, commit: Commit) -> None:
    if found != commit.since:
        raise LakeError(f"writing {name}: {_CHANGED}; run `cdc build` again")


def _commit_replacement(transaction: Any, base: Any, commit: Commit) -> None:
    """Commit against the metadata from which the transaction began: Iceberg itself would read them again first."""
    _tag(transaction, commit)
    transaction.underlyingOps().commit(base, transaction.currentMetadata())


def _set(change: Any, commit: Commit) -> None:
    for key, value in commit.summary.items():
        change.set(key, value)
    change.commit()


def _tag(transaction: Any, commit: Commit) -> None:
    if commit.tag is not None:
        refs, table = transaction.manageSnapshots(), transaction.table()
        place = refs.replaceTag if table.refs().containsKey(commit.tag) else refs.createTag
        place(commit.tag, table.currentSnapshot().snapshotId()).commit()


def _written(java: Java, access: LakeAccess, table: Any, rows: pa.Table) -> Any:
    """Write one data file and describe it. It cannot be divided into partitions."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import Schema

    if table.spec().isPartitioned():
        raise LakeError(f"writing {table.name()}: it has got partitions meanwhile; run `cdc build` again")
    schema = schema_to_pyarrow(
        Schema.model_validate_json(java.schema_parser.toJson(table.schema())), include_field_ids=True
    )
    if unknown := [field.name for field in schema if field.name not in rows.column_names]:
        raise LakeError(f"writing {table.name()}: its build has no column {unknown[0]}; run `cdc build` again")
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

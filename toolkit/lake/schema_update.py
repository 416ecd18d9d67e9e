"""Apply schema changes to a built table in one Iceberg transaction. SQL ALTER would commit each step separately."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Step:
    """The changes to the columns of a table. Names are the lake names before the step."""

    drops: tuple[str, ...] = ()
    renames: Mapping[str, str] | None = None
    widened: Mapping[str, str] | None = None  # name before the step, and Spark type
    added: tuple[tuple[str, str], ...] = ()  # name and Spark type; NULL in existing rows

    @property
    def moves_names(self) -> bool:
        """Return whether a name means another column after the step, or no column."""
        return bool(self.drops or self.renames)


def columns(spark: SparkSession, table: str) -> dict[str, tuple[int, str | None]]:
    """Return the field id and comment of each column of `catalog.namespace.table`."""
    return {field.name(): (field.fieldId(), field.doc()) for field in _load(spark, table).schema().columns()}


def holds_text(spark: SparkSession, table: str) -> bool:
    """Return whether any row of `namespace.table` keeps a value as text, in `_cdc_text`."""
    return bool(spark.table(table).where("_cdc_text is not null").limit(1).count())


def lays_out(spark: SparkSession, table: str, names: Collection[str]) -> bool:
    """Return whether a user has given `catalog.namespace.table` partitions or an order by one of these columns."""
    loaded = _load(spark, table)
    fields = (*loaded.spec().fields(), *loaded.sortOrder().fields())
    return any(loaded.schema().findColumnName(field.sourceId()) in names for field in fields)


def apply(
    spark: SparkSession,
    table: str,
    step: Step,
    *,
    since: int,
    comments: Mapping[str, str | None],
    properties: Mapping[str, str | None],
    summary: Mapping[str, str],
    tag: str,
    before: str,
) -> bool:
    """Commit a step, comments by the names after it, table properties, and an empty append that a tag names.

    One swap of the table's metadata commits all of it, so a reader sees the old table or the new one. The append gives
    the tag the new names, and its summary holds the position. New columns are placed before the column `before`.

    Return false, and commit nothing, if `since` is not the current table snapshot: another process has changed the
    table, and the position is not that of its rows.
    """
    from py4j.protocol import Py4JJavaError

    loaded = _load(spark, table)
    transaction = loaded.newTransaction()
    found = transaction.table().currentSnapshot()
    if found is None or found.snapshotId() != since:
        return False
    # Two updates of the schema are needed, because a column may take a name that another column has just lost.
    update = transaction.updateSchema()
    for name in step.drops:
        update.deleteColumn(name)
    for name, type_ in (step.widened or {}).items():
        update.updateColumn(name, _type(spark, type_))
    for name, new in (step.renames or {}).items():
        update.renameColumn(name, new)
    update.commit()
    update = transaction.updateSchema()
    for name, type_ in step.added:
        update.addColumn(None, name, _type(spark, type_), None)
        update.moveBefore(name, before)
    update.commit()
    _describe(transaction, comments)
    edit = transaction.updateProperties()
    for key, value in properties.items():
        if value is not None:
            edit.set(key, value)
        elif loaded.properties().containsKey(key):
            edit.remove(key)
    edit.commit()
    append = transaction.newFastAppend()
    for key, value in summary.items():
        append.set(key, value)
    append.commit()
    refs = transaction.manageSnapshots()
    snapshot = transaction.table().currentSnapshot().snapshotId()
    (refs.replaceTag if loaded.refs().containsKey(tag) else refs.createTag)(tag, snapshot)
    refs.commit()
    try:
        transaction.commitTransaction()
    except Py4JJavaError as error:  # Iceberg repeats no update of a schema on newer metadata
        if "CommitFailedException" in str(error.java_exception.toString()).partition("\n")[0]:
            return False
        raise
    return True


def describe(spark: SparkSession, table: str, comments: Mapping[str, str | None]) -> None:
    """Set the comments of a table's columns. Commit nothing if they are right already."""
    loaded = _load(spark, table)
    transaction = loaded.newTransaction()
    if _describe(transaction, comments):
        transaction.commitTransaction()


def _describe(transaction: Any, comments: Mapping[str, str | None]) -> bool:
    docs = {field.name(): field.doc() for field in transaction.table().schema().columns()}
    wrong = [name for name, doc in docs.items() if name in comments and doc != comments[name]]
    if wrong:
        update = transaction.updateSchema()
        for name in wrong:
            update.updateColumnDoc(name, comments[name])
        update.commit()
    return bool(wrong)


def _load(spark: SparkSession, table: str) -> Any:
    jvm = spark._jvm
    assert jvm is not None
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, table)


def _type(spark: SparkSession, type_: str) -> Any:
    jvm = spark._jvm
    assert jvm is not None
    return jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(jvm.org.apache.spark.sql.types.DataType.fromDDL(type_))

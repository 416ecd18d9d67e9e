"""Schema changes of a built table in one Iceberg transaction: SQL ALTER would commit each step by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to the columns of a table, by the lake names before the step."""

    drops: tuple[str, ...] = ()
    renames: Mapping[str, str] | None = None
    widened: Mapping[str, str] | None = None  # name before to Spark type
    added: tuple[tuple[str, str], ...] = ()  # name and Spark type; NULL in the rows that are there

    @property
    def moves_names(self) -> bool:
        """Whether a name means another column afterwards, or none."""
        return bool(self.drops or self.renames)


def columns(spark: SparkSession, table: str) -> dict[str, tuple[int, str | None]]:
    """Field id and comment of each column of `catalog.namespace.table`."""
    return {field.name(): (field.fieldId(), field.doc()) for field in _load(spark, table).schema().columns()}


def holds_text(spark: SparkSession, table: str) -> bool:
    """Say whether a row of `namespace.table` keeps a value as text, by the name of its column."""
    return bool(spark.table(table).where("_cdc_text is not null").limit(1).count())


def apply(
    spark: SparkSession,
    table: str,
    step: Step,
    *,
    comments: Mapping[str, str | None],
    properties: Mapping[str, str | None],
    summary: Mapping[str, str],
    tag: str,
    before: str,
) -> None:
    """Commit a step, comments by the names after it, table properties, and an empty append that a tag names.

    All of it is one swap of the table's metadata: whoever looks sees the old table or the new one. The append gives
    the tag the new names, and holds the position in its summary. New columns stand before the column `before`.
    """
    loaded = _load(spark, table)
    transaction = loaded.newTransaction()
    # Two updates of the schema: a column may take the name that another one has only just left.
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
    transaction.commitTransaction()


def describe(spark: SparkSession, table: str, comments: Mapping[str, str | None]) -> None:
    """Bring the comments of a table's columns to these; commits nothing where they are right already."""
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

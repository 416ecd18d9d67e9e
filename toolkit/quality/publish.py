"""Move `published.*` to what a check has just proven, and remember at which LSN it stands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from toolkit.errors import LakeError
from toolkit.lsn import Lsn
from toolkit.names import lake_table, quote_spark
from toolkit.quality.report import CheckReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.catalog import TableVersion
    from toolkit.config import Config

LEDGER = "ops.published"


def publish(config: Config, report: CheckReport, *, complete: bool = True) -> tuple[str, ...]:
    """Point the views of the tables proven identical to the table snapshots that were compared.

    Tables that are not proven keep their last view. With `complete` (every table was checked) the views of tables that
    no longer exist are dropped. Returns the names of the tables that moved.
    """
    if report.lsn is None:
        return ()
    from toolkit.lake.ledger import Ledger
    from toolkit.lake.session import own_session
    from toolkit.states import live_tables

    spark = own_session(config)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS published")
    spark.sql("CREATE NAMESPACE IF NOT EXISTS ops")
    ledger = Ledger(config)
    tables = {t.relid: t for t in live_tables(ledger)}
    last = ledger.last()
    generation = last.generation if last is not None else 1
    rows = []
    for result in report.tables:
        if result.status != "identical" or result.snapshot_id is None:
            continue
        table = tables[result.relid]
        tag = _tag(spark, table, result.snapshot_id, f"g{generation}_lsn_{report.lsn.tag}")
        _create_view(spark, table, tag)
        rows.append((int(report.lsn), table.identifier, table.relid, tag, result.snapshot_id))
    if complete:
        _drop_others(spark, {lake_table(t.schema, t.name) for t in tables.values()})
    _record(spark, rows)
    return tuple(row[1] for row in rows)


def published(config: Config) -> dict[str, Lsn]:
    """The LSN of each published table, read without a JVM. Empty before the first green check."""
    from toolkit.lake.reads import scan

    found: dict[str, Lsn] = {}
    for row in scan(config, LEDGER, ("table", "lsn")):
        found[row["table"]] = max(Lsn(row["lsn"]), found.get(row["table"], Lsn(0)))
    return found


def published_lsn(config: Config) -> Lsn | None:
    """The oldest LSN that a published table stands at; None before the first green check."""
    from toolkit.lake.ledger import Ledger
    from toolkit.states import live_tables

    found = published(config)
    live = [t.identifier for t in live_tables(Ledger(config))]
    return min((found[name] for name in live if name in found), default=None)


def _tag(spark: SparkSession, table: TableVersion, snapshot_id: int, name: str) -> str:
    """A tag of that table snapshot: the build's own if it made one, else `name`."""
    current = f"current.{lake_table(table.schema, table.name)}"
    refs = {r["name"]: int(r["snapshot_id"]) for r in spark.table(f"{current}.refs").where("type = 'TAG'").collect()}
    own: list[str] = sorted(tag for tag, snapshot in refs.items() if snapshot == snapshot_id)
    if own:
        return str(own[-1])
    if name in refs:
        raise LakeError(f"publishing {table.identifier}: tag {name} already names another table snapshot")
    spark.sql(f"ALTER TABLE {current} CREATE TAG {quote_spark(name)} AS OF VERSION {snapshot_id}")
    return name


def _create_view(spark: SparkSession, table: TableVersion, tag: str) -> None:
    name = lake_table(table.schema, table.name)
    # A view keeps the column names it was created with, whatever `current` becomes later.
    columns = spark.sql(f"SELECT * FROM current.{name} VERSION AS OF '{tag}'").columns
    shown = ", ".join(quote_spark(c) for c in columns if c == "_cdc_text" or not c.startswith("_cdc_"))
    spark.sql(f"CREATE OR REPLACE VIEW published.{name} AS SELECT {shown} FROM current.{name} VERSION AS OF '{tag}'")


def _drop_others(spark: SparkSession, keep: set[str]) -> None:
    for row in spark.sql("SHOW VIEWS IN published").collect():
        if row["viewName"] not in keep and not row["isTemporary"]:
            spark.sql(f"DROP VIEW published.{quote_spark(row['viewName'])}")


def _record(spark: SparkSession, rows: list[tuple[Any, ...]]) -> None:
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {LEDGER} (lsn bigint, table string, relid bigint, tag string,"
        " snapshot_id bigint, checked_at timestamp) USING iceberg TBLPROPERTIES ('format-version' = '2')"
    )
    if rows:
        now = datetime.now(UTC)
        schema = "lsn bigint, table string, relid bigint, tag string, snapshot_id bigint, checked_at timestamp"
        spark.createDataFrame([(*row, now) for row in rows], schema).coalesce(1).writeTo(LEDGER).append()

"""Move `published.*` to what a check has just proven, and record what is proven since when.

`ops.published` has one row per table: what its view shows, the LSN at which that was proven, and the result of the last
check. It changes in one commit, and the views follow. If a kill comes between, the next check moves the views. A view
names the id of the table snapshot that was compared, because a build or an analyst can move a tag. The check's own tag
only keeps that snapshot from expiring. `ops.proofs` is a view with the ages of the proofs. `ops.parity_results` keeps
every result of every check.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from toolkit.lake.proofs import PROVEN, PUBLISHED, shown_sql
from toolkit.quality.report import CheckReport, TableCheck
from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.values.lsn import Lsn
from toolkit.values.names import lake_table, quote_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.lake.ledger import Ledger
    from toolkit.values.config import Config

RESULTS = "ops.parity_results"
_PROOFS = "ops.proofs"

_LEDGER_COLUMNS = {
    "relid": "bigint",
    "table": "string",
    "lsn": "bigint",  # of the proof that the view shows; NULL before the first
    "proven_at": "timestamp",
    "relation": "string",  # its name in `current` and `published` at the proof; the source may have renamed it since
    "tag": "string",
    "snapshot_id": "bigint",
    "batch_id": "bigint",  # newest of the log that was compared
    "rows": "bigint",  # at the last full proof
    "full_lsn": "bigint",  # the last time that every row was compared
    "full_at": "timestamp",
    "fingerprint": "string",  # of the source's catalogs at the proof
    "status": "string",  # result of the last check, and its time
    "reason": "string",
    "checked_lsn": "bigint",
    "checked_at": "timestamp",
}
_RESULT_COLUMNS = {
    "checked_at": "timestamp",
    "lsn": "bigint",
    "table": "string",
    "relid": "bigint",
    "status": "string",
    "proof": "string",
    "rows": "bigint",
    "identical": "bigint",
    "modified": "bigint",
    "added": "bigint",
    "removed": "bigint",
    "full_lsn": "bigint",
    "published": "boolean",
    "tag": "string",
    "reason": "string",
    "remedy": "string",
    "causes": "string",  # JSON of the samples
}
_PROOFS_SQL = f"""SELECT `table`, status,
       upper(concat(hex(shiftrightunsigned(lsn, 32)), '/', hex(lsn & 4294967295))) AS proven_lsn, proven_at,
       round((unix_micros(current_timestamp()) - unix_micros(proven_at)) / 1e6) AS age_seconds,
       upper(concat(hex(shiftrightunsigned(full_lsn, 32)), '/', hex(full_lsn & 4294967295))) AS full_lsn, full_at,
       round((unix_micros(current_timestamp()) - unix_micros(full_at)) / 1e6) AS full_age_seconds,
       relation, snapshot_id, tag, reason, checked_at
FROM {PUBLISHED}"""


def publish(
    config: Config, report: CheckReport, *, complete: bool = True, at: datetime | None = None
) -> tuple[str, ...]:
    """Move the views of tables that are proven identical to the table snapshots that were compared.

    Tables that are not proven keep their last view. With `complete` (every table was checked), the views of tables that
    no longer exist are dropped. `at` is the time of the check (now if None).

    Returns the names of the tables whose view moved.
    """
    from toolkit.lake.ledger import Ledger
    from toolkit.lake.session import own_session
    from toolkit.rawlog.states import live_tables

    spark = own_session(config)
    _make_tables(config, spark)
    ledger = Ledger(config)
    _note(ledger, report)
    tables = {t.relid: t for t in live_tables(ledger)}
    last = ledger.last()
    generation = last.generation if last is not None else 1
    before = proofs(config)
    now = at or datetime.now(UTC)
    after: dict[int, dict[str, Any]] = {}
    moved: list[str] = []
    for result in report.tables:
        table, known = tables.get(result.relid), before.get(result.relid, {})
        row = dict.fromkeys(_LEDGER_COLUMNS) | known | {"relid": result.relid, "table": result.table}
        row |= {"status": result.status, "reason": result.reason, "checked_at": now}
        row["checked_lsn"] = None if report.lsn is None else int(report.lsn)
        if table is not None and report.lsn is not None and _proven(result):
            name = lake_table(table.schema, table.name)
            tag = _keep(config, spark, name, result.snapshot_id, generation)
            row |= {"lsn": int(report.lsn), "proven_at": now, "batch_id": report.batch_id}
            row |= {"relation": name, "tag": tag, "snapshot_id": result.snapshot_id}
            row |= {"full_lsn": result.full_lsn, "full_at": result.full_at, "fingerprint": result.fingerprint}
            if result.proof == "full":
                row["rows"] = result.rows
            moved.append(table.identifier)
        after[result.relid] = row
    kept = before
    if complete and report.lsn is not None:
        kept = {relid: row for relid, row in before.items() if relid in tables or relid in after}
    _write(config, PUBLISHED, _LEDGER_COLUMNS, (kept | after).values(), overwrite=True)
    _follow(config, spark)
    results = [_result(report, result, after[result.relid], result.table in moved, now) for result in report.tables]
    _write(config, RESULTS, _RESULT_COLUMNS, results, overwrite=False)
    return tuple(moved)


def _note(ledger: Ledger, report: CheckReport) -> None:
    """Write a baseline of scope `check` for tables that were copied in part: all rows are known from here on."""
    from toolkit.rawlog.states import unproven

    last = ledger.last()
    rows = {r.relid: r for r in report.tables if _proven(r) and r.full_lsn is not None}
    found = unproven(ledger, {relid: r.full_lsn for relid, r in rows.items() if r.full_lsn is not None})
    if last is None or not found:
        return
    batch_id, versions = last.batch_id + 1, ledger.latest_versions()
    events = [
        Event(
            batch_id=batch_id, generation=last.generation, **order.made_at(lsn)._asdict(), ordinal=order.BASELINE,
            origin="check", kind="baseline", relid=relid, schema_id=versions[relid].schema_id,
            payload=json.dumps({"rows": rows[relid].rows, "scope": "check", "lsn": str(lsn)}),
        )
        for relid, lsn in found.items()
    ]  # fmt: skip
    record = replace(
        last, batch_id=batch_id, from_lsn=last.complete_to, origin="check", changes=0,
        counts={"baseline": len(events)}, committed_at=datetime.now(UTC).isoformat(),
    )  # fmt: skip
    ledger.append_empty(record, events)


def _proven(result: TableCheck) -> bool:
    return result.status == "identical" and result.snapshot_id is not None


def proofs(config: Config) -> dict[int, dict[str, Any]]:
    """Read `ops.published` by relid, without a JVM. Empty before the first check."""
    from toolkit.lake.reads import scan

    return {row["relid"]: row for row in scan(config, PUBLISHED)}


def published(config: Config) -> dict[str, Lsn]:
    """Read the LSN of each published table, without a JVM. Empty before the first green check."""
    return {row["table"]: Lsn(row["lsn"]) for row in proofs(config).values() if row["lsn"] is not None}


def published_lsn(config: Config) -> Lsn | None:
    """Give the oldest LSN of the published tables; None before the first green check."""
    from toolkit.lake.ledger import Ledger
    from toolkit.rawlog.states import live_tables

    found = published(config)
    live = [t.identifier for t in live_tables(Ledger(config))]
    return min((found[name] for name in live if name in found), default=None)


def _make_tables(config: Config, spark: SparkSession) -> None:
    from toolkit.lake import reads

    for name, columns in ((PUBLISHED, _LEDGER_COLUMNS), (RESULTS, _RESULT_COLUMNS)):
        if reads.metadata_location(config, name) is None:
            for namespace in ("published", "ops"):
                spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
            shape = ", ".join(f"{quote_spark(column)} {kind}" for column, kind in columns.items())
            # Format 2: pyiceberg, which writes them, cannot write 3.
            spark.sql(f"CREATE TABLE {name} ({shape}) USING iceberg TBLPROPERTIES ('format-version' = '2')")
        elif missing := columns.keys() - reads.columns(config, name):
            added = ", ".join(f"{quote_spark(column)} {columns[column]}" for column in columns if column in missing)
            spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({added})")
    if reads.view_sql(config, _PROOFS) != _PROOFS_SQL:
        spark.sql(f"CREATE OR REPLACE VIEW {_PROOFS} AS {_PROOFS_SQL}")


def _keep(config: Config, spark: SparkSession, name: str, snapshot_id: int | None, generation: int) -> str:
    """Make the check's own tag of a table snapshot of `current.<name>`; it stays as long as a view needs it."""
    from toolkit.lake import reads

    tag = f"{PROVEN}g{generation}_{snapshot_id}"
    if reads.tags(config, f"current.{name}").get(tag) != snapshot_id:
        made = f"CREATE OR REPLACE TAG {quote_spark(tag)} AS OF VERSION {snapshot_id}"
        spark.sql(f"ALTER TABLE current.{name} {made}")
    return tag


def _follow(config: Config, spark: SparkSession) -> None:
    """Make the views show what `ops.published` has, and drop views of tables that are gone or renamed."""
    from toolkit.lake import reads

    # Of two proofs under one name, the older one belongs to a table that was renamed or dropped.
    rows = (row for row in proofs(config).values() if row["relation"] is not None)
    wanted = {row["relation"]: row for row in sorted(rows, key=lambda row: (row["proven_at"], row["relation"]))}
    for name, row in wanted.items():
        found = reads.properties(config, f"published.{name}")
        ours = found.get("cdc.query") == _digest(
            reads.view_sql(config, f"published.{name}") or ""
        )  # not replaced since
        if ours and found.get("cdc.relid") == str(row["relid"]) and found.get("cdc.tag") == row["tag"]:
            continue
        if reads.tags(config, f"current.{name}").get(row["tag"]) == row["snapshot_id"]:  # else the snapshot is gone
            _create_view(spark, row)
    for name in set(reads.tables(config, "published", "VIEW")) - wanted.keys():
        if "cdc.relid" in reads.properties(config, f"published.{name}"):  # else a view of another owner
            spark.sql(f"DROP VIEW published.{quote_spark(name)}")


def _create_view(spark: SparkSession, row: Mapping[str, Any]) -> None:
    name = row["relation"]
    # A view keeps the column names it was created with, even if `current` changes later. A view that is replaced also
    # keeps its properties; the digest of our query in them shows whether it is still ours.
    query = shown_sql(spark, name, row["snapshot_id"])
    marks = {"cdc.relid": row["relid"], "cdc.tag": row["tag"], "cdc.query": _digest(query)}
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in marks.items())
    spark.sql(f"CREATE OR REPLACE VIEW published.{name} TBLPROPERTIES ({properties}) AS {query}")


def _digest(query: str) -> str:
    return hashlib.sha256(query.encode()).hexdigest()


def _result(
    report: CheckReport, result: TableCheck, row: Mapping[str, Any], published: bool, now: datetime
) -> dict[str, Any]:
    counts = {name: getattr(result, name) for name in ("rows", "identical", "modified", "added", "removed")}
    found = {"checked_at": now, "lsn": report.lsn, "table": result.table, "relid": result.relid}
    found |= {"status": result.status, "proof": result.proof, "full_lsn": result.full_lsn, "published": published}
    found |= {"tag": row["tag"], "reason": result.reason, "remedy": result.remedy}
    samples = [s.to_dict() for s in result.samples]
    return counts | found | {"causes": json.dumps(samples, ensure_ascii=False) if samples else None}


def _write(
    config: Config, name: str, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]], *, overwrite: bool
) -> None:
    """Commit through pyiceberg: a few rows are not worth a Spark job."""
    import pyarrow as pa

    from toolkit.lake.jdbc import JdbcCatalog

    types = {
        "bigint": pa.int64(),
        "string": pa.string(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    schema = pa.schema([(column, types[kind]) for column, kind in columns.items()])
    made = [{c: int(row[c]) if isinstance(row[c], Lsn) else row[c] for c in columns} for row in rows]
    data = pa.Table.from_pylist(made, schema=schema)
    table = JdbcCatalog(config).load_table(name)
    if overwrite and table.current_snapshot() is not None:
        table.overwrite(data)
    else:
        table.append(data)

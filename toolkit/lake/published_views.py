"""Make the views of `published` show the table snapshots that `ops.published` names.

A view names the very table snapshot that was compared: a build or an analyst can move a tag. The check's own tag only
keeps the snapshot from expiring.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolkit.lake import reads, scans
from toolkit.lake.proofs import PROVEN, PUBLISHED, shown_sql
from toolkit.values.names import quote_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.values.config import Config


def keep(config: Config, spark: SparkSession, name: str, snapshot_id: int | None, generation: int) -> str:
    """Tag a table snapshot of `current.<name>`, so that it stays while a view shows it. Returns the tag."""
    tag = f"{PROVEN}g{generation}_{snapshot_id}"
    if reads.tags(config, f"current.{name}").get(tag) != snapshot_id:
        made = f"CREATE OR REPLACE TAG {quote_spark(tag)} AS OF VERSION {snapshot_id}"
        spark.sql(f"ALTER TABLE current.{name} {made}")
    return tag


def follow(config: Config, spark: SparkSession) -> None:
    """Bring the views to `ops.published`, and drop those of tables that it no longer names, or names elsewhere."""
    # Of two proofs under one name, that of a table which has left it is the older one.
    rows = (row for row in scans.scan(config, PUBLISHED) if row["relation"] is not None)
    wanted = {row["relation"]: row for row in sorted(rows, key=lambda row: (row["proven_at"], row["relation"]))}
    for name, row in wanted.items():
        known = reads.properties(config, f"published.{name}")
        ours = known.get("cdc.query") == _digest(
            reads.view_sql(config, f"published.{name}") or ""
        )  # not replaced since
        if ours and known.get("cdc.relid") == str(row["relid"]) and known.get("cdc.tag") == row["tag"]:
            continue
        if reads.tags(config, f"current.{name}").get(row["tag"]) == row["snapshot_id"]:  # else it cannot be shown
            _create(spark, row)
    for name in set(reads.tables(config, "published", "VIEW")) - wanted.keys():
        if "cdc.relid" in reads.properties(config, f"published.{name}"):  # else the view is not the toolkit's
            spark.sql(f"DROP VIEW published.{quote_spark(name)}")


def _create(spark: SparkSession, row: Mapping[str, Any]) -> None:
    name = row["relation"]
    # A view keeps the column names it was created with, whatever `current` becomes later. It also keeps its properties
    # when another program replaces it: the digest of the query shows whether the view is still the toolkit's.
    query = shown_sql(spark, name, row["snapshot_id"])
    known = {"cdc.relid": row["relid"], "cdc.tag": row["tag"], "cdc.query": _digest(query)}
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in known.items())
    spark.sql(f"CREATE OR REPLACE VIEW published.{name} TBLPROPERTIES ({properties}) AS {query}")


def _digest(query: str) -> str:
    return hashlib.sha256(query.encode()).hexdigest()

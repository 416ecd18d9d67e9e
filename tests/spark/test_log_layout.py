"""A log that another program has altered is refused by name, and taken again once that is undone."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.support_ledger import ledger_of
from tests.support_spark import batch_record
from toolkit.lake.uncommitted import new_files
from toolkit.ops import status_report
from toolkit.values.config import Config
from toolkit.values.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.embedded]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("SET TBLPROPERTIES ('format-version' = '3')", "its format is 3, not 2"),
        ("ADD PARTITION FIELD relid", "it has other partitions than by kind and batch"),
        ("DROP PARTITION FIELD kind", "it has other partitions than by kind and batch"),
        ("RENAME COLUMN xid TO transaction", "it has no column xid"),
        ("ALTER COLUMN generation TYPE bigint", "its column generation is bigint, not int"),
    ],
)
def test_a_log_that_another_program_has_altered(spark: SparkSession, lake: Config, change: str, said: str) -> None:
    """Each drain and each check ended with a traceback, and `cdc status` was ok."""
    ledger_of(lake).append_empty(batch_record(1))
    spark.sql(f"ALTER TABLE raw.events {change}")
    with pytest.raises(LakeError, match=f"^raw.events: another program has altered the table: {said}; ") as found:
        ledger_of(lake).append_empty(batch_record(2))
    with pytest.raises(LakeError, match=said), new_files(lake.lake_access):
        pass
    assert said in (status_report.status(lake).lake or "")
    undo = re.search(r'sqlite3 \S+ "(.*)", and run', str(found.value))
    assert undo is not None
    with closing(sqlite3.connect(lake.lake_access.catalog_db)) as catalog, catalog:
        catalog.execute(undo[1])
    ledger_of(lake).append_empty(batch_record(2))
    last = ledger_of(lake).last()
    assert last is not None and last.batch_id == 2


def test_what_a_user_may_alter(spark: SparkSession, lake: Config) -> None:
    for change in ("ADD COLUMN note string", "WRITE ORDERED BY relid", "SET TBLPROPERTIES ('mine' = 'yes')"):
        spark.sql(f"ALTER TABLE raw.events {change}")
    ledger_of(lake).append_empty(batch_record(1))

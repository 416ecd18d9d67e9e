"""pyiceberg and DuckDB read of `published` what its views show, whatever has become of `current` since."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from tests import commands
from tests.support_history import column, snapshot
from tests.support_ledger import ledger_of
from tests.support_outside import assert_readers_agree, duck
from toolkit.api import Toolkit
from toolkit.cli import main
from toolkit.lake import reads, session, tables
from toolkit.lake.published_tables import duckdb_script, published_tables, scan_published
from toolkit.lake.schema_update import Step, apply
from toolkit.quality.report import CheckReport, TableCheck
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.batch import BatchRecord, SourceIdentity
from toolkit.values.config import Config
from toolkit.values.errors import LakeError, NotProven
from toolkit.values.lsn import Lsn
from toolkit.values.outcome import CheckStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_TABLE = """
CREATE TABLE current.public__t (
  id int, `a "b` string, n decimal(38,4), at timestamp, local timestamp_ntz, bytes binary, list array<int>, f double,
  r float, yes boolean, day date, gone string, _cdc_text map<string,string>, _cdc_order bigint
) USING iceberg TBLPROPERTIES (
  'format-version' = '3', 'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read',
  'write.merge.mode' = 'merge-on-read'
)
"""
_ROWS = """
INSERT INTO current.public__t
SELECT id, concat('x''', id), id * 1.5, timestamp'0001-01-01 00:00:00.123456Z', timestamp_ntz'9999-12-31 23:59:59',
  cast('ab' as binary), array(1, null), double('NaN'), float('-Infinity'), id % 2 = 0, date'9999-12-31', 'g',
  if(id % 5 = 0, map('n', '1e400'), null), 7L
FROM range(100)
"""


def _logged(config: Config) -> None:
    """Write what the log says of a table `public.t`."""
    shape = snapshot("t", [column(1, "id", "integer")], relid=16401)
    event = Event(
        batch_id=1, generation=1, commit_lsn=0xFFF, ordinal=1, end_lsn=0x1000, kind="schema", origin="slot",
        relid=16401, schema_id=1, payload=json.dumps(shape),
    )  # fmt: skip
    identity = SourceIdentity("1", 1, 5, {"cdc": 6})
    ledger_of(config).append_empty(
        BatchRecord(1, 1, Lsn(0), Lsn(0x1000), Lsn(0x1000), "slot", "cdc", identity, 0), [event]
    )


def _publish(config: Config, lsn: int) -> None:
    """Publish the table as a check does that found it identical."""
    made = reads.snapshot_id(config.lake_access, "current.public__t")
    result = TableCheck("public.t", 16401, CheckStatus.IDENTICAL, 1, 1, 0, 0, 0, snapshot_id=made)
    commands.publish(config, CheckReport(Lsn(lsn), (result,), batch_id=1))


def _evolve(spark: SparkSession, config: Config, step: Step, tag: str) -> None:
    table = f"{config.lake.catalog}.current.public__t"
    since = reads.snapshot_id(config.lake_access, "current.public__t")
    assert since is not None
    assert apply(spark, table, step, since=since, comments={}, properties={}, summary={}, tag=tag, before="_cdc_text")


def test_other_readers_have_the_rows_of_the_views(lake: Config, spark: SparkSession) -> None:
    config = lake
    with pytest.raises(NotProven, match="there are none; run `cdc check`"):
        published_tables(config.lake_access)
    _logged(config)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS current")
    spark.sql(_TABLE)
    spark.sql(_ROWS)
    spark.sql("DELETE FROM current.public__t WHERE id % 3 = 0")
    spark.sql("UPDATE current.public__t SET n = 7.25 WHERE id = 1")
    _publish(config, 0x1000)
    assert assert_readers_agree(config, spark) == {"public__t": 66}
    columns = spark.table("published.public__t").columns
    assert published_tables(config.lake_access)[0].columns == tuple(columns)

    # The table goes on: rows, names, types, and a new column under the name of an old one. The proof stays.
    _evolve(spark, config, Step(drops=("gone",), renames={"n": "amount"}, widened={"id": "bigint"}), "one")
    _evolve(spark, config, Step(added=(("gone", "string"),)), "two")
    spark.sql("DELETE FROM current.public__t WHERE id > 90")
    spark.sql("UPDATE current.public__t SET gone = 'new', amount = 0 WHERE id = 2")
    assert assert_readers_agree(config, spark) == {"public__t": 66}
    # A filter means the columns of the proof too.
    filters = {"gone = 'g'": 66, "gone = 'new'": 0, "n = 7.2500": 1, "n = 0.0000": 0, "id > 90": 6}
    with duck(config, duckdb_script(config.lake_access)) as connection:
        for where, rows in filters.items():
            assert scan_published(config.lake_access, "public__t").filter(where).to_arrow().num_rows == rows, where
            assert connection.sql(f"from published.public__t where {where}").to_arrow_table().num_rows == rows, where
    with pytest.raises(NotProven, match=r"published table public\.nope: there is none; there are public\.t; run"):
        scan_published(config.lake_access, "public.nope")

    # Files of the old shape are read under the new one.
    _publish(config, 0x1001)
    assert assert_readers_agree(config, spark) == {"public__t": 60}
    assert "amount" in published_tables(config.lake_access)[0].columns
    found = Toolkit(config).scan("public.t").filter("gone = 'new'").select("id", "amount").to_arrow()
    assert [(row["id"], int(row["amount"])) for row in found.to_pylist()] == [(2, 0)]


def test_the_command_prints_what_works_as_pasted(lake: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    root = lake.root / "it's a lake"  # what SQL has to quote
    root.mkdir()
    config = lake.model_copy(update={"root": root})
    own = session.own_session(config.lake_access)
    tables.ensure(own, config.lake_access)
    _logged(config)
    own.sql("CREATE NAMESPACE IF NOT EXISTS current")
    own.sql("CREATE TABLE current.public__t (id int, _cdc_text map<string,string>) USING iceberg")
    own.sql("INSERT INTO current.public__t VALUES (1, null), (2, null)")
    _publish(config, 0x1000)
    monkeypatch.chdir(root)
    (root / "cdc.toml").touch()
    monkeypatch.setattr(session, "stop_session", lambda **_: None)  # the JVM is this run's
    run = CliRunner()
    script = run.invoke(main, ["published", "--duckdb"])
    assert script.exit_code == 0, script.output
    with duck(config, script.stdout) as connection:
        assert connection.sql("from published.public__t order by id").fetchall() == [(1, None), (2, None)]
    listed = json.loads(run.invoke(main, ["published", "--output", "json"]).stdout)
    assert [(t["table"], t["relation"], t["lsn"], t["columns"]) for t in listed] == [
        ("public.t", "public__t", "0/1000", ["id", "_cdc_text"])
    ]
    own.sql(f"ALTER TABLE current.public__t DROP TAG `{listed[0]['tag']}`")
    own.sql("INSERT INTO current.public__t VALUES (3, null)")
    own.sql(f"CALL {config.lake.catalog}.system.expire_snapshots(table => 'current.public__t', older_than => now())")
    with pytest.raises(LakeError, match=r"published\.public__t: table snapshot \d+ of current\.public__t is gone"):
        published_tables(config.lake_access)

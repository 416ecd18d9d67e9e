"""Commits through executors that are processes of their own, on this machine: Spark's `local-cluster`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.values.resources import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.wide]

#: One batch of rows of a spool, by as many tasks as there are executors; prints what the log has of it.
_JOB = """
import json, sys
from pathlib import Path
from tests.support_spark import batch_record
from tests.unit import wire
from toolkit.decode.planner import plan
from toolkit.lake import cluster, session, staging, tables
from tests.support_ledger import ledger_of
from toolkit.values.config import Config
folder = Path(sys.argv[1])
config = Config(root=folder, spark={"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "512m"})
spark = session.own_session(config.lake_access)
tables.ensure(spark, config.lake_access)
relation, table = wire.relation(50, [("id", 25)]), wire.table(50, [wire.column(1, "id")])
sent = []
for n in range(1, 101):
    sent += wire.transaction(n, relation, *(wire.insert(50, (f"{n}.{i}",)) for i in range(n)))
(batch,) = plan(wire.spool(folder / "spool", sent), context=wire.context(table)).batches
record, base = batch_record(1, changes=batch.changes), ledger_of(config).snapshot_id()
rules = config.capture_rules
staging.commit_batch(
    config.lake_access, record, tasks=batch.tasks(2), events=[], base_snapshot=base, spark=spark, rules=rules
)
rows = spark.sql("SELECT count(*), count(DISTINCT new[0]) FROM raw.events WHERE kind = 'row'").first()
left = [p.name for p in Path(cluster.spool_folder(config.lake_access)).iterdir()]
session.stop_session()
print(json.dumps([list(rows), left]))
"""


def test_two_executors_write_one_batch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _JOB, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[5050, 5050], []]

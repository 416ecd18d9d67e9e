"""Merge and compact a table of a lake in PostgreSQL's catalog, whose answer to each commit is lost.

A process for `test_session.py`: it prints the rows after each commit. The last one is that of a plain `dbt run`.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from pathlib import Path

from py4j.protocol import Py4JJavaError

from tests.support_network import Proxy, proxy_before
from toolkit.build import models
from toolkit.lake import java, session, tables
from toolkit.values.config import Config, LakeConfig
from toolkit.values.process_env import environment

_TABLE = "lake.current.t"
_MERGE = (
    f"MERGE INTO {_TABLE} AS t USING (SELECT 1 AS id UNION ALL SELECT 2) AS s ON t.id = s.id"
    " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"
)
_COMPACT = "CALL lake.system.rewrite_data_files(table => 'current.t', options => map('min-input-files', '2'))"
_PROJECT = """
name: own
profile: cdc
models: {own: {+materialized: incremental, +incremental_strategy: merge, +unique_key: id, +file_format: iceberg}}
"""


def _lose_the_answer(proxy: Proxy) -> None:
    def fail(sent: int, said: bytes) -> bool:
        swapped = said.count(b".metadata.json") == 3  # the new, the previous and the expected metadata file
        time.sleep(swapped)  # the server commits
        return swapped

    proxy.plant(fail, half_open=False)


def main(folder: Path, server_port: str, section: str) -> None:
    given = json.loads(section)
    with proxy_before(int(server_port)) as proxy:
        given["uri"] = given["uri"].replace(f":{server_port}/", f":{proxy.port}/")
        config = Config(root=folder, lake=LakeConfig(**given))
        access = config.lake_access
        spark = session.own_session(access)
        tables.ensure(spark, access)
        spark.sql(f"CREATE TABLE {_TABLE} USING iceberg AS SELECT 1 AS id")
        for statement in (_MERGE, f"INSERT INTO {_TABLE} VALUES (3)", _COMPACT):
            _lose_the_answer(proxy)
            try:
                spark.sql(statement)
            except Py4JJavaError:
                assert proxy.failed.is_set()
            print(proxy.failed.is_set(), sorted(row.id for row in spark.table(_TABLE).collect()), flush=True)
        session.stop_session()
        _run_dbt(config, proxy)


def _run_dbt(config: Config, proxy: Proxy) -> None:
    """Merge into the table of a user's own model, in a session that dbt has started."""
    from dbt.cli.main import dbtRunner
    from pyspark.sql import SparkSession

    access, project = config.lake_access, config.root / "own"
    (project / "models").mkdir(parents=True)
    (project / "dbt_project.yml").write_text(_PROJECT, encoding="utf-8")
    (project / "models" / "merged.sql").write_text("select 1 as id union all select 2", encoding="utf-8")
    (project / "profiles.yml").write_text(models.profile(access, dbt=config.dbt_project), encoding="utf-8")
    where = ["--project-dir", str(project), "--profiles-dir", str(project), "--quiet", "--log-level-file", "none"]
    secrets = {variable: value for _, variable, value in models.secret_variables(access)}
    with environment({"JAVA_HOME": str(java.find_java().parent.parent), **secrets}):
        for lost in (False, True):
            if lost:
                _lose_the_answer(proxy)
            with contextlib.redirect_stdout(io.StringIO()):
                outcome = dbtRunner().invoke(["run", *where])
            assert outcome.success is not lost, outcome
    spark = SparkSession.builder.getOrCreate()
    print(proxy.failed.is_set(), sorted(row.id for row in spark.table("staging.merged").collect()), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

"""Merge and compact a table of a lake in PostgreSQL's catalog, whose answer to each commit is lost.

A process for `test_session.py`: it prints the rows after each commit.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from py4j.protocol import Py4JJavaError

from tests.support_network import Proxy, proxy_before
from toolkit.lake import session, tables
from toolkit.values.config import Config, LakeConfig

_TABLE = "lake.current.t"
_MERGE = (
    f"MERGE INTO {_TABLE} AS t USING (SELECT 1 AS id UNION ALL SELECT 2) AS s ON t.id = s.id"
    " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"
)
_COMPACT = "CALL lake.system.rewrite_data_files(table => 'current.t', options => map('min-input-files', '2'))"


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
        access = Config(root=folder, lake=LakeConfig(**given)).lake_access
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

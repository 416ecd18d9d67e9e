"""The whole path on a lake in an object store, in one process: arguments are the configuration and the secrets' names.

It ends with an assertion if a step is not as it should be.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import psycopg

from toolkit.api import Toolkit
from toolkit.lake import reads, scans, session, storage, upkeep
from toolkit.values import config as configuration


def main(file: str) -> None:
    config = configuration.load(file)
    kit = Toolkit(config)

    def sql(*statements: str) -> None:
        with psycopg.connect(config.source.conninfo, autocommit=True) as conn:
            for statement in statements:
                conn.execute(statement.encode())

    sql(
        "create table public.item (id int primary key, name text)",
        "insert into public.item select i, 'n' || i from generate_series(1, 500) i",
        "create table public.gone (id int primary key)",
        "insert into public.gone values (1)",
    )
    kit.init()
    sql("update public.item set name = 'new' where id <= 10", "delete from public.item where id = 11")
    kit.drain()
    kit.build()
    assert [t.status for t in kit.check().tables] == ["identical", "identical"]
    sql("alter table public.item rename column name to label", "insert into public.item values (1000, 'more')")
    sql("drop table public.gone")
    done = kit.run()
    assert done.check.green, done
    lines = b"".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK))
    assert b"SparkSubmit" in lines
    assert [value for value in json.loads(os.environ["CDC_TEST_SECRETS"]) if value.encode() in lines] == []
    # Iceberg's own deletion leaves these files without an error where a store refuses to delete several in one request.
    properties = storage.file_properties(config.lake_access)
    history = f"{config.lake_access.warehouse}/history"
    assert any("__gone" in name for name in storage.names(history, properties))
    kit.erase("public.gone")
    kit.build()
    assert [name for name in storage.names(history, properties) if "__gone" in name] == []
    # Of all objects, maintenance deletes the one that no commit names.
    spark = session.own_session(config.lake_access)
    events, now = config.lake_access.names.events, datetime.now(UTC)
    folder = str((reads.metadata(config.lake_access, events) or {})["location"])
    with storage.create(f"{folder}/data/left-0.parquet", properties) as left:
        left.write(b"x")
    before = set(storage.files_in(folder, properties))
    day = timedelta(days=1)
    found = upkeep.maintain_table(spark, config.lake_access, events, keep_tags=(), since=now - day, orphans=now + day)
    gone = {place for place, _ in before - set(storage.files_in(folder, properties))}
    assert gone >= {f"{folder}/data/left-0.parquet"} and found.orphans == len(gone), (found, gone)
    kit.maintain()
    assert [t.status for t in kit.check(full=True).tables] == ["identical"]
    assert [row["label"] for row in kit.scan("public.item").to_arrow().to_pylist() if row["id"] == 1000] == ["more"]
    spark.sql("UPDATE current.public__item SET label = 'planted' WHERE id = 5")
    assert [(t.status, t.modified) for t in kit.check(full=True).tables] == [("different", 1)]
    with patch.object(storage, "read", wraps=storage.read) as read:  # one listing finds the files, unopened
        assert scans.lost_files(config.lake_access, events) == []
    places = [call.args[0] for call in read.call_args_list]
    assert places and not any(place.endswith(".parquet") for place in places), places
    files = [row["file_path"] for row in spark.sql(f"SELECT file_path FROM {events}.files").collect()]
    storage.delete(files[0], properties)
    assert scans.lost_files(config.lake_access, events) == files[:1]
    print("all of it")


if __name__ == "__main__":
    main(sys.argv[1])

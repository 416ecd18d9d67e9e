"""A lake without a JVM: `raw.events` made and written by pyiceberg, with the toolkit's own ledger and commits.

For what is about positions, slots and rows in the log, and not about Spark: `plain_lake` is an empty lake whose batches
of rows are decoded in this process and committed as files. Asking for a Spark session fails.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from toolkit.capture.copy_workers import Copiers, Report
from toolkit.lake import reads, scans, session, storage, stored_log, tables
from toolkit.lake.files import FileTarget
from toolkit.lake.table_layout import BATCH_WIDTH
from toolkit.rawlog.arrow import EVENT_SCHEMA
from toolkit.source.slot import Cut
from toolkit.values.config import Config
from toolkit.values.lake_access import LakeAccess

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_NAMES = [*EVENT_SCHEMA.names, *(f"{name}.element" for name in EVENT_SCHEMA.names)]
#: For files of rows that no table has: the field ids are arbitrary.
FILE_TARGET = FileTarget({name: number for number, name in enumerate(_NAMES, 1)}, {})


def copiers_of(config: Config, cut: Cut, workers: int, report: Report = lambda rows, size: None) -> Copiers:
    """The processes that copy, with files that no table has."""
    return Copiers(config.source_access, cut, FILE_TARGET, workers=workers, report=report)


def of_others(source: Config, lake: Config, publication: str) -> Config:
    """The source, read through a publication of others, on a lake."""
    chosen = source.source.model_copy(update={"publication": publication, "scope": "published"})
    return source.model_copy(update={"root": lake.root, "source": chosen})


def make_events(access: LakeAccess) -> None:
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
        PartitionField(names.index("batch_id") + 1, 1001, TruncateTransform(BATCH_WIDTH), "batch_id_trunc"),
    )
    if reads.metadata_location(access, access.names.events) is not None:
        return
    tables.require_writable(access)
    catalog = _writer(access)
    try:
        catalog.create_namespace_if_not_exists(access.names.raw)
        table = catalog.create_table(
            access.names.events, Schema(*fields), partition_spec=spec, properties=dict(tables._PROPERTIES)
        )
        with table.transaction() as transaction, transaction.update_snapshot().fast_append():
            pass
    finally:
        catalog.close()


def make_small(access: LakeAccess, name: str, columns: Mapping[str, str], **properties: str) -> None:
    """What `toolkit.lake.tables.create_small` makes, of columns that are no arrays or maps."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import BooleanType, LongType, NestedField, StringType, TimestamptzType

    kinds = {"bigint": LongType(), "string": StringType(), "boolean": BooleanType(), "timestamp": TimestamptzType()}
    fields = [NestedField(n, column, kinds[kind]) for n, (column, kind) in enumerate(columns.items(), 1)]
    tables.require_writable(access)
    catalog = _writer(access)
    try:
        catalog.create_namespace_if_not_exists(name.partition(".")[0])
        catalog.create_table(name, Schema(*fields), properties={"format-version": "2", **properties})
    finally:
        catalog.close()


def _writer(access: LakeAccess) -> Catalog:
    """A catalog of pyiceberg's that can make tables, as Spark's does."""
    from pyiceberg.catalog.sql import SqlCatalog

    from toolkit.lake.any_catalog import AnyCatalog
    from toolkit.lake.lake_catalog import open_catalog

    opened = open_catalog(access)
    if not isinstance(opened, AnyCatalog):
        uri = f"sqlite:///{access.catalog_db}"
        return SqlCatalog(access.lake.catalog, uri=uri, warehouse=access.warehouse, **storage.file_properties(access))
    if isinstance(opened._catalog, SqlCatalog):
        opened._catalog.create_tables()
    return opened._catalog


def without_jvm(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Make `commands.init` and `drain` work without a JVM."""
    replace(session, "own_session", lambda *_: None)
    replace(tables, "ensure", lambda _, access: make_events(access))
    replace(stored_log, "_WORTH_STARTING_SPARK", sys.maxsize)
    replace(session, "running", lambda: False)


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
    command = [sys.executable, "-c", _LOCK, str(config.lake_access.catalog_db), mode]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "held\n"
        yield
        other.stdin.close()


def rows_in_log(config: Config, where: str = "kind = 'row'") -> list[dict[str, Any]]:
    """Events of the log, in the order of effects."""
    found = list(scans.scan(config.lake_access, config.lake.names.events, where=where))
    return sorted(found, key=lambda e: (e["generation"], e["commit_lsn"], e["ordinal"], e["relid"] or 0))


__all__ = ["FILE_TARGET", "catalog_locked", "files_below", "make_events", "plain_lake", "rows_in_log"]

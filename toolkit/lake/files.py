"""Write Parquet files of `raw.events` without a JVM.

The process that has the Arrow batches writes the files, and the driver commits them.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import pyarrow as pa

from toolkit.rawlog.arrow import EVENT_SCHEMA
from toolkit.values.errors import CommitConflict, LakeError

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionKey
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

_FIELD_ID = b"PARQUET:field_id"
#: Arrow bytes of one row group, which a writer holds in memory.
_GROUP_BYTES = 48 << 20
#: Images rarely repeat. All other columns are nearly constant in a copy.
_DICTIONARY = [name for name in EVENT_SCHEMA.names if name not in ("new", "old", "ordinal", "payload")]


def field_ids(schema: Schema) -> dict[str, int]:
    """Give the Iceberg field id of each column, and of the elements of lists as `column.element`."""
    from pyiceberg.types import ListType

    found: dict[str, int] = {}
    for field in schema.fields:
        found[field.name] = field.field_id
        if isinstance(field.field_type, ListType):
            found[f"{field.name}.element"] = field.field_type.element_id
    return found


def file_schema(ids: dict[str, int]) -> pa.Schema:
    """Give `EVENT_SCHEMA` with the field ids that Iceberg needs in a file. Unknown columns are left out."""
    fields = []
    for field in EVENT_SCHEMA:
        kind = field.type
        if pa.types.is_list(kind):
            element = pa.field("element", kind.value_type, metadata={_FIELD_ID: str(ids[f"{field.name}.element"])})
            kind = pa.list_(element)
        fields.append(pa.field(field.name, kind, field.nullable, metadata={_FIELD_ID: str(ids[field.name])}))
    return pa.schema(fields)


class EventsFile:
    """Write one Parquet file. At most one row group is in memory."""

    def __init__(self, path: Path, ids: dict[str, int]) -> None:
        import pyarrow.parquet as pq

        self._path = path
        self._schema = file_schema(ids)
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self.rows = 0
        self._writer = pq.ParquetWriter(
            path, self._schema, compression="zstd", compression_level=1, use_dictionary=_DICTIONARY, version="2.6"
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch of `EVENT_SCHEMA`."""
        arrays = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(batch.columns, self._schema, strict=True)
        ]
        self._held.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._bytes > _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held, schema=self._schema)
            self._held, self._bytes = [], 0
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        """Write the remaining rows and the footer."""
        self._flush()
        self._writer.close()

    def discard(self) -> None:
        """Discard the file, so that its path can be written again."""
        self._held = []
        self._writer.close()
        self._path.unlink()


@contextmanager
def moved_in(table: Table, key: PartitionKey, files: Sequence[Path]) -> Iterator[list[DataFile]]:
    """Move files into the table's folder as data files of one partition. A lost commit inside the block removes them.

    After any other failure the files stay, because the commit may have succeeded.
    """
    from pyiceberg.exceptions import CommitFailedException

    targets: list[Path] = []
    try:
        found = []
        for file in files:
            location = table.location_provider().new_data_location(f"{uuid.uuid4()}-{file.stem}.parquet", key)
            target = Path(_local(location))
            target.parent.mkdir(parents=True, exist_ok=True)
            targets.append(target)
            try:
                file.rename(target)
            except OSError:  # the path is on another file system
                shutil.move(file, target)
            found.append(_data_file(table, key, location, target))
        yield found
    except (CommitFailedException, CommitConflict):
        for target in targets:
            target.unlink(missing_ok=True)
        raise


def _local(location: str) -> str:
    parsed = urlparse(location)
    if parsed.scheme not in ("", "file"):
        raise LakeError(f"writing {location}: a warehouse of files is needed; correct [lake] warehouse")
    return parsed.path if parsed.scheme else location


def _data_file(table: Table, key: PartitionKey, location: str, path: Path) -> DataFile:
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    schema = table.schema()
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=pq.read_metadata(path),
        stats_columns=compute_statistics_plan(schema, table.metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=key.partition,
        file_size_in_bytes=path.stat().st_size,
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


__all__ = ["EventsFile", "field_ids", "file_schema", "moved_in"]

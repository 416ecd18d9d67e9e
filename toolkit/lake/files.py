"""Write Parquet files of `raw.events` at their final place, without a JVM.

The process that has the Arrow batches writes the files, and the driver commits them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from toolkit.lake import storage
from toolkit.rawlog.arrow import EVENT_SCHEMA
from toolkit.values.freed_memory import return_freed

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionKey
    from pyiceberg.table import Table

_FIELD_ID = b"PARQUET:field_id"
#: Arrow bytes of one row group, which a writer holds in memory.
_GROUP_BYTES = 16 << 20
#: Images and positions rarely repeat. All other columns are nearly constant in a copy.
_DICTIONARY = [name for name in EVENT_SCHEMA.names if name not in ("new", "old", "ordinal", "lsn", "payload")]
#: The least and the largest value of an image's cells, or of a payload, would help no reader.
WITH_STATISTICS = [field.name for field in EVENT_SCHEMA if not pa.types.is_list(field.type) and field.name != "payload"]


def file_schema(ids: Mapping[str, int]) -> pa.Schema:
    """Return `EVENT_SCHEMA` with the field ids that Iceberg needs in a file. Unknown columns are left out."""
    fields = []
    for field in EVENT_SCHEMA:
        kind = field.type
        if pa.types.is_list(kind):
            element = pa.field("element", kind.value_type, metadata={_FIELD_ID: str(ids[f"{field.name}.element"])})
            kind = pa.list_(element)
        fields.append(pa.field(field.name, kind, field.nullable, metadata={_FIELD_ID: str(ids[field.name])}))
    return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class FileTarget:
    """The common properties of a run's files: the field ids of the columns, and the properties of the store."""

    ids: Mapping[str, int]
    properties: Mapping[str, str] = dataclasses.field(repr=False)  # they may have secrets


class EventsFile:
    """Write one Parquet file at its final place. At most one row group is in memory.

    Raises:
        OSError: the file cannot be written; so do the methods.
    """

    def __init__(self, location: str, target: FileTarget) -> None:
        import pyarrow.parquet as pq

        self._location, self._properties = location, target.properties
        self._schema = file_schema(target.ids)
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self.rows = 0
        self._file = storage.create(location, target.properties)
        self._writer = pq.ParquetWriter(
            self._file,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=_DICTIONARY,
            write_statistics=WITH_STATISTICS,
            version="2.6",
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
            return_freed()  # else the next rows take new memory

    def _flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held, schema=self._schema)
            self._held, self._bytes = [], 0
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def __enter__(self) -> EventsFile:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Write the remaining rows and the footer, or delete the file after an error."""
        if kind is None:
            self._flush()
            self._writer.close()
            self._file.close()
            return
        self._held = []
        with contextlib.suppress(OSError):
            self._writer.close()
        with contextlib.suppress(OSError):
            self._file.close()  # else an object would appear when the interpreter closes it
        storage.delete(self._location, self._properties)


def data_file(table: Table, key: PartitionKey, location: str) -> DataFile:
    """Describe a Parquet file as a data file of one partition of a table, by what its footer says.

    Raises:
        OSError: it is missing or damaged.
    """
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    schema = table.schema()
    footer, size = storage.footer(location, table.io.properties)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(schema, table.metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=key.partition,
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )

"""Replace all rows of a small table without pyiceberg, in one commit with one data file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.lake import direct_commit, storage
from toolkit.lake.direct_commit import column
from toolkit.lake.direct_scan import DELETED, Unusual

if TYPE_CHECKING:
    import pyarrow as pa

    from toolkit.lake.direct_commit import FileCatalog
    from toolkit.values.lake_access import LakeAccess

_FIELD_ID = b"PARQUET:field_id"


def replace(
    access: LakeAccess,
    catalog: FileCatalog,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    properties: Mapping[str, str],
) -> int | None:
    """Commit these rows to a table in the place of all of its rows.

    Return the new table snapshot id; None if another process committed, or there is no such table. `properties` go
    into its summary.

    Raises:
        Unusual: pyiceberg must commit it. Nothing was written.
        LakeError: a file cannot be written or forced to the disk, or the catalog cannot be read or written.
    """
    read = catalog.read(name)
    if read is None:
        return None
    return direct_commit.commit(access, catalog, name, read, lambda *given: _Replace(*given).write(rows, properties))


class _Replace(direct_commit.Commit):
    """The files of one commit."""

    def write(self, rows: Sequence[Mapping[str, Any]], properties: Mapping[str, str]) -> _Replace:
        """Write the data file, its manifest and the manifest list."""
        if self.spec["fields"] or not rows or any({*row} != {*self.ids} for row in rows):
            raise Unusual
        listed, manifests, form = self.before()
        if any(manifest["content"] or manifest["partition_spec_id"] != self.spec["spec-id"] for manifest in manifests):
            raise Unusual  # there are deletes, or files of another partitioning
        removed = [entry for manifest in manifests for entry in self._live(manifest)]
        data = self._columns(rows)  # before any file is written
        location = f"{self.location}/data/00000-0-{self.write_id}.parquet"
        size = self._write_data(location, data)
        self.write_lists([self.described(location, len(rows), size, {})], [], (listed, form), [], properties, removed)
        return self

    def _live(self, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the entries of the files in a manifest. A new entry has the numbers of its manifest."""
        found = []
        for entry in self.manifest(manifest).records():
            if entry["status"] != DELETED:
                numbers = ("sequence_number", "file_sequence_number")
                known = {n: manifest["sequence_number"] if entry[n] is None else entry[n] for n in numbers}
                found.append({**entry, **known})
        return found

    def _columns(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        import pyarrow as pa

        types = {"long": pa.int64(), "string": pa.string()}
        fields, columns = [], []
        for field in self.schema["fields"]:
            type_ = types.get(field["type"]) if isinstance(field["type"], str) else None
            if type_ is None:
                raise Unusual
            number = {_FIELD_ID: str(field["id"]).encode()}
            fields.append(pa.field(field["name"], type_, not field["required"], metadata=number))
            columns.append(column([row[field["name"]] for row in rows], type_))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _write_data(self, location: str, data: pa.RecordBatch) -> int:
        """Write the file, and return its size."""
        import pyarrow.parquet as pq

        with storage.create(location, self.properties) as sink:
            with pq.ParquetWriter(sink, data.schema, compression="zstd", version="2.6") as writer:
                writer.write_batch(data)
            return int(sink.tell())

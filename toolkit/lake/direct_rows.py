"""Write rows of a small table without pyiceberg: one data file, beside all other rows or in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.lake import direct_commit, storage
from toolkit.lake.direct_commit import column
from toolkit.lake.direct_scan import DELETED, Unusual

if TYPE_CHECKING:
    import pyarrow as pa

    from toolkit.values.lake_access import LakeAccess

_FIELD_ID = b"PARQUET:field_id"


def write(
    access: LakeAccess,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    properties: Mapping[str, str],
    *,
    replace: bool,
    base: int | None = None,
) -> int | None:
    """Commit rows to a table: with `replace` in the place of all of its rows, else beside them.

    Args:
        rows: each with all columns of the table.
        properties: what the summary of the new snapshot says beside its counts.
        base: the table snapshot that must be the current one; None for any.

    Return the new table snapshot id; None if another process committed, or there is no such table.

    Raises:
        Unusual: pyiceberg must commit it. Nothing was written.
        LakeError: a file cannot be written or forced to the disk, or the catalog cannot be read or written.
    """
    return direct_commit.commit(access, name, base, lambda *given: _Rows(*given).write(rows, properties, replace))


class _Rows(direct_commit.Commit):
    """The files of one commit."""

    def write(self, rows: Sequence[Mapping[str, Any]], properties: Mapping[str, str], replace: bool) -> _Rows:
        """Write the data file, its manifest and the manifest list."""
        if self.spec["fields"] or not rows or any({*row} != {*self.ids} for row in rows):
            raise Unusual
        listed, kept, form = self.before()
        removed: list[dict[str, Any]] = []
        if replace:
            if any(manifest["content"] or manifest["partition_spec_id"] != self.spec["spec-id"] for manifest in kept):
                raise Unusual  # there are deletes, or files of another partitioning
            removed, kept = [entry for manifest in kept for entry in self._live(manifest)], []
        data = self._columns(rows)  # before any file is written
        location = f"{self.location}/data/00000-0-{self.write_id}.parquet"
        size = self._write_data(location, data)
        described = [self.described(location, len(rows), size, {})]
        self.write_lists(described, [], (listed, form), kept, properties, removed)
        return self

    def _live(self, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the entries of the files in a manifest. A new entry has the numbers of its manifest."""
        found = []
        opened = self.manifest(manifest)
        with storage.decoding(manifest["manifest_path"]):
            entries = [entry for entry in opened.records() if entry["status"] != DELETED]
        for entry in entries:
            numbers = ("sequence_number", "file_sequence_number")
            known = {n: manifest["sequence_number"] if entry[n] is None else entry[n] for n in numbers}
            found.append({**entry, **known})
        return found

    def _columns(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        import pyarrow as pa

        types = {
            "long": pa.int64(), "string": pa.string(), "boolean": pa.bool_(), "timestamptz": pa.timestamp("us", "UTC"),
        }  # fmt: skip
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

"""Append a few events to the log without pyiceberg, which takes longer to import than an empty drain may.

The files of a commit are written as the Iceberg specification says: a data file for each kind of event, one manifest, a
manifest list that repeats the manifests before it, and the next metadata file. The catalog swaps that file in, and
everything is forced to the disk before. Whatever is unusual about the table is left to pyiceberg.
"""

from __future__ import annotations

import json
import struct
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from toolkit.lake import avro, durable, storage
from toolkit.lake.clock import require_clock
from toolkit.lake.direct_scan import Unusual
from toolkit.values.errors import LakeError

if TYPE_CHECKING:
    import pyarrow as pa

    from toolkit.rawlog.arrow import Event
    from toolkit.values.lake_access import LakeAccess

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ADDED = 1  # status of a manifest entry
#: Properties that change where or how files are written. pyiceberg follows them.
_ELSEWHERE = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.enabled",
    "write.metadata.compression-codec",
)
_METRICS = "write.metadata.metrics."
_TOTALS = {
    "total-data-files": "added-data-files",
    "total-records": "added-records",
    "total-files-size": "added-files-size",
    "total-delete-files": None,
    "total-position-deletes": None,
    "total-equality-deletes": None,
}


class FileCatalog(Protocol):
    """A catalog that names the metadata file of each table."""

    def read(self, name: str) -> tuple[str, dict[str, Any]] | None:
        """Find and read the metadata file of a table."""

    def swap(self, name: str, old: str, new: str) -> bool:
        """Name another metadata file; False if `old` is no longer the current one."""

    def version(self, location: str) -> int:
        """Return the number of a metadata file."""

    def forget_metadata(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Delete metadata files that a table no longer names, if its properties ask for that."""


def append(
    access: LakeAccess,
    catalog: FileCatalog,
    name: str,
    base: int,
    events: Sequence[Event],
    properties: Mapping[str, str],
) -> int | None:
    """Commit events of one batch to a table. Return the new table snapshot id; None if another process committed.

    Args:
        base: the table snapshot that must be the current one.
        properties: what the summary of the new snapshot says beside its counts.

    Raises:
        Unusual: pyiceberg must commit it. Nothing was written.
        LakeError: a file cannot be written or forced to the disk, or the catalog cannot be read or written.
    """
    read = catalog.read(name)
    if read is None:
        return None
    old, metadata = read
    if metadata.get("current-snapshot-id") != base:
        return None
    parent = next(s for s in metadata["snapshots"] if s["snapshot-id"] == base)
    require_clock(
        name, metadata["last-updated-ms"], *(entry["timestamp-ms"] for entry in metadata["snapshot-log"][-1:])
    )
    try:
        made = _Commit(metadata, parent, storage.file_properties(access)).write(events, properties)
    except OSError as error:
        raise LakeError(
            f"committing to {name}: {error.filename or ''} {error.strerror or error}; nothing was committed; free space"
            " or correct the folder of the lake, and run it again"
        ) from None
    new = f"{metadata['location']}/metadata/{catalog.version(old) + 1:05d}-{uuid.uuid4()}.metadata.json"
    following = made.metadata(old)
    made.create(new, json.dumps(following).encode())
    durable.sync_files(access, name, made.files, storage.file_properties(access))
    if not catalog.swap(name, old, new):
        return None
    catalog.forget_metadata(metadata, following)
    return made.snapshot_id


class _Commit:
    """The files of one commit."""

    def __init__(self, metadata: Mapping[str, Any], parent: Mapping[str, Any], properties: Mapping[str, str]) -> None:
        self._metadata, self._parent, self._properties = metadata, parent, properties
        self._schema = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
        self._spec = next(s for s in metadata["partition-specs"] if s["spec-id"] == metadata["default-spec-id"])
        self._ids = {field["name"]: field["id"] for field in self._schema["fields"]}
        self._number = metadata["last-sequence-number"] + 1
        self._write_id = uuid.uuid4()
        self._time = int(time.time() * 1000)
        self._bounded = self._columns_with_bounds()
        self._list, self._manifests, self._manifest = self._before()
        self._snapshot: dict[str, Any] = {}
        self.snapshot_id = self._write_id.int >> 65  # 63 bits
        self.files: list[tuple[str, int | None]] = []

    def _columns_with_bounds(self) -> list[str]:
        """Return the columns that manifests have bounds of, and refuse what this module does not write."""
        found: Mapping[str, str] = self._metadata.get("properties", {})
        wanted = {
            key.removeprefix(f"{_METRICS}column."): how for key, how in found.items() if f"{_METRICS}column." in key
        }
        fields = [(field["name"], field["transform"], field["source-id"]) for field in self._spec["fields"]]
        numbers = self._ids.get("kind"), self._ids.get("batch_id")
        if (
            self._metadata["format-version"] != 2
            or any(key in found for key in _ELSEWHERE)
            or found.get(f"{_METRICS}default") != "none"
            or {*wanted.values()} - {"full"}
            or [(transform.partition("[")[0], source) for _, transform, source in fields]
            != [("identity", numbers[0]), ("truncate", numbers[1])]
            or not self._parent.get("summary", {}).keys() >= _TOTALS.keys()
        ):
            raise Unusual
        return [name for name in wanted if name in self._ids]

    def _before(self) -> tuple[avro.File, list[dict[str, Any]], avro.File]:
        """Return the manifest list of the parent, its manifests that have files, and the form of the next manifest."""
        listed = avro.open_file(storage.read(self._parent["manifest-list"], self._properties))
        manifests = [m for m in listed.records() if m["added_files_count"] + m["existing_files_count"]]
        alike = [m for m in manifests if (m["content"], m["partition_spec_id"]) == (0, self._spec["spec-id"])]
        if not alike:
            raise Unusual  # the first batch of a table
        return listed, manifests, avro.open_file(storage.read(alike[0]["manifest_path"], self._properties))

    def write(self, events: Sequence[Event], properties: Mapping[str, str]) -> _Commit:
        """Write the data files, their manifest and the manifest list."""
        by_kind: dict[str, list[Event]] = {}
        for event in events:
            by_kind.setdefault(event.kind, []).append(event)
        columns = {kind: _columns(rows) for kind, rows in by_kind.items()}  # all, before any file is written
        described = [self._data_file(number, kind, by_kind[kind], columns[kind]) for number, kind in enumerate(by_kind)]
        entries = [
            {"status": _ADDED, "snapshot_id": self.snapshot_id, "sequence_number": None, "file_sequence_number": None,
             "data_file": file}
            for file in described
        ]  # fmt: skip
        header = {
            "schema": json.dumps(self._schema).encode(),
            "partition-spec": json.dumps(self._spec["fields"]).encode(),
            "partition-spec-id": str(self._spec["spec-id"]).encode(),
            "format-version": b"2",
            "content": b"data",
        }
        manifest = self._named(f"{self._write_id}-m0.avro")
        size = self.create(manifest, avro.to_bytes(self._manifest.schema, header, entries))
        kinds, starts = sorted(by_kind), self._start(events[0].batch_id)
        listed = {
            "manifest_path": manifest,
            "manifest_length": size,
            "partition_spec_id": self._spec["spec-id"],
            "content": 0,
            "sequence_number": self._number,
            "min_sequence_number": self._number,
            "added_snapshot_id": self.snapshot_id,
            "added_files_count": len(described),
            "existing_files_count": 0,
            "deleted_files_count": 0,
            "added_rows_count": len(events),
            "existing_rows_count": 0,
            "deleted_rows_count": 0,
            "partitions": [
                {"contains_null": False, "contains_nan": False, "lower_bound": _bytes(low), "upper_bound": _bytes(high)}
                for low, high in ((kinds[0], kinds[-1]), (starts, starts))
            ],
        }
        header = {
            "snapshot-id": str(self.snapshot_id).encode(),
            "parent-snapshot-id": str(self._parent["snapshot-id"]).encode(),
            "sequence-number": str(self._number).encode(),
            "format-version": b"2",
        }
        manifest_list = self._named(f"snap-{self.snapshot_id}-0-{self._write_id}.avro")
        self.create(manifest_list, avro.to_bytes(self._list.schema, header, [listed, *self._manifests]))
        self._snapshot = {
            "snapshot-id": self.snapshot_id,
            "parent-snapshot-id": self._parent["snapshot-id"],
            "sequence-number": self._number,
            "timestamp-ms": self._time,
            "manifest-list": manifest_list,
            "summary": self._summary(described, properties),
            "schema-id": self._schema["schema-id"],
        }
        return self

    def _data_file(self, number: int, kind: str, events: Sequence[Event], batch: pa.RecordBatch) -> dict[str, Any]:
        """Write the events of one kind, and describe the file as a manifest does."""
        from toolkit.lake import files

        ids: dict[str, int] = dict(self._ids)
        for field in self._schema["fields"]:
            if isinstance(field["type"], dict) and "element-id" in field["type"]:
                ids[f"{field['name']}.element"] = field["type"]["element-id"]
        start = self._start(events[0].batch_id)
        partition = dict(zip((field["name"] for field in self._spec["fields"]), (kind, start), strict=True))
        folder = "/".join(f"{name}={value}" for name, value in partition.items())
        location = f"{self._metadata['location']}/data/{folder}/{number:05d}-0-{self._write_id}.parquet"
        with files.EventsFile(location, files.FileTarget(ids, self._properties)) as file:
            file.write(batch)
        size = len(storage.read(location, self._properties))
        self.files.append((location, size))
        found = {self._ids[name]: [getattr(event, name) for event in events] for name in self._bounded}
        held = {number: [value for value in values if value is not None] for number, values in found.items()}
        wide = {self._ids[field["name"]] for field in self._schema["fields"] if field["type"] == "long"}
        return {
            "content": 0,
            "file_path": location,
            "file_format": "PARQUET",
            "partition": partition,
            "record_count": len(events),
            "file_size_in_bytes": size,
            "value_counts": _pairs((n, len(values)) for n, values in found.items()),
            "null_value_counts": _pairs((n, len(values) - len(held[n])) for n, values in found.items()),
            "lower_bounds": _pairs((n, _bytes(min(values), n in wide)) for n, values in held.items() if values),
            "upper_bounds": _pairs((n, _bytes(max(values), n in wide)) for n, values in held.items() if values),
        }

    def _start(self, batch_id: int) -> int:
        """Return the first batch of the partition that a batch is in."""
        width = int(self._spec["fields"][1]["transform"].removeprefix("truncate[").removesuffix("]"))
        return batch_id - batch_id % width

    def _summary(self, files: Sequence[Mapping[str, Any]], properties: Mapping[str, str]) -> dict[str, str]:
        added = {
            "added-data-files": len(files),
            "added-records": sum(file["record_count"] for file in files),
            "added-files-size": sum(file["file_size_in_bytes"] for file in files),
        }
        before = self._parent["summary"]
        totals = {total: int(before[total]) + added.get(more or "", 0) for total, more in _TOTALS.items()}
        counts = {**added, "changed-partition-count": len(files), **totals}
        return {"operation": "append", **{key: str(count) for key, count in counts.items()}, **properties}

    def metadata(self, old: str) -> dict[str, Any]:
        """Return the metadata of the table with this commit, where `old` is the file that it follows."""
        before = self._metadata
        kept = int(before.get("properties", {}).get("write.metadata.previous-versions-max", "100"))
        log = [*before.get("metadata-log", []), {"timestamp-ms": before["last-updated-ms"], "metadata-file": old}]
        main = before.get("refs", {}).get("main", {"type": "branch"})
        return {
            **before,
            "last-sequence-number": self._number,
            "last-updated-ms": self._time,
            "current-snapshot-id": self.snapshot_id,
            "snapshots": [*before["snapshots"], self._snapshot],
            "snapshot-log": [*before["snapshot-log"], {"snapshot-id": self.snapshot_id, "timestamp-ms": self._time}],
            "metadata-log": log[-max(kept, 1) :],
            "refs": {**before.get("refs", {}), "main": {**main, "snapshot-id": self.snapshot_id}},
        }

    def _named(self, name: str) -> str:
        return f"{self._metadata['location']}/metadata/{name}"

    def create(self, location: str, data: bytes) -> int:
        """Write a file of this commit, and return its size."""
        with storage.create(location, self._properties) as sink:
            sink.write(data)
        self.files.append((location, len(data)))
        return len(data)


def _columns(events: Sequence[Event]) -> pa.RecordBatch:
    """Convert events to a batch of `EVENT_SCHEMA`, as `to_arrow` does, which imports pandas."""
    import pyarrow as pa

    from toolkit.rawlog.arrow import EVENT_SCHEMA

    columns = [_column([getattr(event, field.name) for event in events], field.type) for field in EVENT_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)


def _column(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    count = len(values)
    if all(value is None for value in values):
        return pa.nulls(count, type_)
    present = np.packbits([value is not None for value in values], bitorder="little")
    valid = pa.py_buffer(present) if None in values else None
    if pa.types.is_string(type_):
        texts = [(value or "").encode() for value in values]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        return pa.Array.from_buffers(type_, count, [valid, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))])
    if pa.types.is_timestamp(type_):
        values = [None if value is None else (value - _EPOCH) // timedelta(microseconds=1) for value in values]
    elif not pa.types.is_integer(type_):
        raise Unusual
    width = np.int32 if type_ == pa.int32() else np.int64
    return pa.Array.from_buffers(type_, count, [valid, pa.py_buffer(np.array([value or 0 for value in values], width))])


def _pairs(found: Iterable[tuple[int, Any]]) -> list[dict[str, Any]]:
    """Return a map as Iceberg has it in Avro, whose own maps have only texts as keys."""
    return [{"key": key, "value": value} for key, value in found]


def _bytes(value: str | int, wide: bool = True) -> bytes:
    """Return a bound as the Iceberg specification has it."""
    return value.encode() if isinstance(value, str) else struct.pack("<q" if wide else "<i", value)


__all__ = ["FileCatalog", "append"]

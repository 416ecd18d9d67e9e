"""Commit to a small table without pyiceberg, which takes longer to import than an empty drain may.

The files of a commit are written as the Iceberg specification says: data files, one manifest, a manifest list, and the
next metadata file. The catalog swaps that file in, and everything is forced to the disk before. Whatever is unusual
about the table is left to pyiceberg.
"""

from __future__ import annotations

import errno
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from toolkit.lake import avro, durable, storage
from toolkit.lake.clock import require_clock
from toolkit.lake.direct_scan import DELETED, Unusual
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.table_layout import ELSEWHERE, schema_of, spec_of
from toolkit.values.errors import LakeError
from toolkit.values.log_setup import logger

if TYPE_CHECKING:
    import pyarrow as pa

    from toolkit.values.lake_access import LakeAccess

_log = logger(__name__)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ADDED = 1  # status of a manifest entry
#: Properties that change where or how files are written. pyiceberg follows them.
_ELSEWHERE = (
    *ELSEWHERE,
    "write.metadata.path",
    "write.metadata.compression-codec",
)
_TOTALS = {
    "total-data-files": "data-files",
    "total-records": "records",
    "total-files-size": "files-size",
    "total-delete-files": None,
    "total-position-deletes": None,
    "total-equality-deletes": None,
}


def commit(
    access: LakeAccess,
    name: str,
    base: int | None,
    write: Callable[[Mapping[str, Any], Mapping[str, str]], Commit],
) -> int | None:
    """Commit the files that `write` writes to a table.

    Args:
        base: the table snapshot that must be the current one; None for any.
        write: makes the commit from the metadata of the table and the properties of the store.

    Return the new table snapshot id; None if another process committed, or there is no such table.

    Raises:
        Unusual: pyiceberg must commit it. Nothing was written.
        LakeError: a file cannot be written or forced to the disk, or the catalog cannot be read or written.
    """
    catalog = open_catalog(access).of_files
    if catalog is None:
        raise Unusual
    read = catalog.read(name)
    if read is None or base not in (None, read[1].get("current-snapshot-id")):
        return None
    old, metadata = read
    require_clock(
        name, metadata["last-updated-ms"], *(entry["timestamp-ms"] for entry in metadata["snapshot-log"][-1:])
    )
    try:
        made = write(metadata, storage.file_properties(access))
    except OSError as error:
        lost = isinstance(error, FileNotFoundError) or error.errno == errno.EIO
        remedy = "run `cdc doctor`" if lost else "free space or correct the folder of the lake, and run it again"
        raise LakeError(f"committing to {name}: {storage.in_words(error)}; nothing was committed; {remedy}") from None
    new = f"{metadata['location']}/metadata/{catalog.version(old) + 1:05d}-{uuid.uuid4()}.metadata.json"
    following = made.metadata(old)
    made.create(new, json.dumps(following).encode())
    durable.sync_files(access, name, made.files, storage.file_properties(access))
    if not catalog.swap(name, old, new):
        return None
    try:
        catalog.forget_metadata(metadata, following)
    except OSError as error:  # it is committed; `cdc maintain` finds them as orphans
        _log.warning("old metadata not deleted", extra={"table": name, "reason": str(error)})
    return made.snapshot_id


class Commit:
    """The files of one commit to a table that has a table snapshot.

    Raises:
        Unusual: the table has a property or a form that this module does not follow.
    """

    def __init__(self, metadata: Mapping[str, Any], properties: Mapping[str, str]) -> None:
        self.metadata_before, self.properties = metadata, properties
        self.schema, self.spec = schema_of(metadata), spec_of(metadata)
        self.ids: dict[str, int] = {field["name"]: field["id"] for field in self.schema["fields"]}
        found = (s for s in metadata.get("snapshots") or () if s["snapshot-id"] == metadata["current-snapshot-id"])
        parent = next(found, None)
        if (
            parent is None
            or metadata["format-version"] != 2
            or any(key in metadata.get("properties", {}) for key in _ELSEWHERE)
            or not parent.get("summary", {}).keys() >= _TOTALS.keys()
        ):
            raise Unusual
        self._parent: Mapping[str, Any] = parent
        self._number = metadata["last-sequence-number"] + 1
        self.write_id = uuid.uuid4()
        self._time = int(time.time() * 1000)
        self._snapshot: dict[str, Any] = {}
        self.snapshot_id = self.write_id.int >> 65  # 63 bits
        self.files: list[tuple[str, int | None]] = []

    def before(self) -> tuple[avro.File, list[dict[str, Any]], avro.File]:
        """Return the manifest list of the parent, its manifests that have files, and the form of the next manifest."""
        listed = self._opened(self._parent["manifest-list"])
        with storage.decoding(self._parent["manifest-list"]):
            manifests = [m for m in listed.records() if m["added_files_count"] + m["existing_files_count"]]
        alike = [m for m in manifests if (m["content"], m["partition_spec_id"]) == (0, self.spec["spec-id"])]
        if not alike:
            raise Unusual  # the first batch of a table
        return listed, manifests, self.manifest(alike[0])

    def manifest(self, listed: Mapping[str, Any]) -> avro.File:
        """Read a manifest of the parent."""
        return self._opened(listed["manifest_path"])

    def _opened(self, location: str) -> avro.File:
        data = storage.read(location, self.properties)
        with storage.decoding(location):
            return avro.open_file(data)

    def write_lists(
        self,
        described: Sequence[Mapping[str, Any]],
        partitions: Sequence[Mapping[str, Any]],
        forms: tuple[avro.File, avro.File],
        kept: Sequence[Mapping[str, Any]],
        properties: Mapping[str, str],
        removed: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write the manifest and the manifest list.

        Args:
            described: the new data files, as a manifest describes them.
            partitions: what the list says of their partitions.
            forms: a manifest list and a manifest of the same form.
            kept: the manifests of the parent that the list repeats.
            properties: what the summary of the new snapshot says beside its counts.
            removed: manifest entries of the parent whose files the table loses.
        """
        entries = [
            {"status": _ADDED, "snapshot_id": self.snapshot_id, "sequence_number": None, "file_sequence_number": None,
             "data_file": file}
            for file in described
        ]  # fmt: skip
        entries += [{**entry, "status": DELETED, "snapshot_id": self.snapshot_id} for entry in removed]
        header = {
            "schema": json.dumps(self.schema).encode(),
            "partition-spec": json.dumps(self.spec["fields"]).encode(),
            "partition-spec-id": str(self.spec["spec-id"]).encode(),
            "format-version": b"2",
            "content": b"data",
        }
        manifest = self._named(f"{self.write_id}-m0.avro")
        size = self.create(manifest, avro.to_bytes(forms[1].schema, header, entries))
        lost = [entry["data_file"] for entry in removed]
        listed = {
            "manifest_path": manifest,
            "manifest_length": size,
            "partition_spec_id": self.spec["spec-id"],
            "content": 0,
            "sequence_number": self._number,
            "min_sequence_number": self._number,
            "added_snapshot_id": self.snapshot_id,
            "added_files_count": len(described),
            "existing_files_count": 0,
            "deleted_files_count": len(lost),
            "added_rows_count": sum(file["record_count"] for file in described),
            "existing_rows_count": 0,
            "deleted_rows_count": sum(file["record_count"] for file in lost),
            "partitions": partitions,
        }
        header = {
            "snapshot-id": str(self.snapshot_id).encode(),
            "parent-snapshot-id": str(self._parent["snapshot-id"]).encode(),
            "sequence-number": str(self._number).encode(),
            "format-version": b"2",
        }
        manifest_list = self._named(f"snap-{self.snapshot_id}-0-{self.write_id}.avro")
        self.create(manifest_list, avro.to_bytes(forms[0].schema, header, [listed, *kept]))
        self._snapshot = {
            "snapshot-id": self.snapshot_id,
            "parent-snapshot-id": self._parent["snapshot-id"],
            "sequence-number": self._number,
            "timestamp-ms": self._time,
            "manifest-list": manifest_list,
            "summary": self._summary(described, lost, properties),
            "schema-id": self.schema["schema-id"],
        }

    def described(self, location: str, records: int, size: int, partition: Mapping[str, Any]) -> dict[str, Any]:
        """Describe a data file of this commit as a manifest does, without its bounds."""
        self.files.append((location, size))
        return {
            "content": 0,
            "file_path": location,
            "file_format": "PARQUET",
            "partition": partition,
            "record_count": records,
            "file_size_in_bytes": size,
        }

    def _summary(
        self, files: Sequence[Mapping[str, Any]], lost: Sequence[Mapping[str, Any]], properties: Mapping[str, str]
    ) -> dict[str, str]:
        more, less = _counts(files), _counts(lost)
        before = self._parent["summary"]
        totals = {total: int(before[total]) + more.get(of, 0) - less.get(of, 0) for total, of in _TOTALS.items()}
        counts = {f"added-{key}": count for key, count in more.items()}
        counts |= {f"deleted-{key}": count for key, count in less.items() if lost}
        changed = {tuple(file["partition"].values()) for file in (*files, *lost)}
        counts |= {"changed-partition-count": len(changed), **totals}
        operation = "overwrite" if lost else "append"
        return {"operation": operation, **{key: str(count) for key, count in counts.items()}, **properties}

    def metadata(self, old: str) -> dict[str, Any]:
        """Return the metadata of the table with this commit, where `old` is the file that it follows."""
        before = self.metadata_before
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
        return f"{self.location}/metadata/{name}"

    @property
    def location(self) -> str:
        """Return the folder of the table."""
        return str(self.metadata_before["location"])

    def create(self, location: str, data: bytes) -> int:
        """Write a file of this commit, and return its size."""
        with storage.create(location, self.properties) as sink:
            sink.write(data)
        self.files.append((location, len(data)))
        return len(data)


def column(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Convert values to an array of integers, texts, times or booleans. pyarrow's own way imports pandas.

    Raises:
        Unusual: they are of another type.
    """
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
    if pa.types.is_boolean(type_):
        true = np.packbits([bool(value) for value in values], bitorder="little")
        return pa.Array.from_buffers(type_, count, [valid, pa.py_buffer(true)])
    if pa.types.is_timestamp(type_):
        values = [None if value is None else (value - _EPOCH) // timedelta(microseconds=1) for value in values]
    elif not pa.types.is_integer(type_):
        raise Unusual
    width = np.int32 if type_ == pa.int32() else np.int64
    return pa.Array.from_buffers(type_, count, [valid, pa.py_buffer(np.array([value or 0 for value in values], width))])


def _counts(files: Sequence[Mapping[str, Any]]) -> dict[str | None, int]:
    return {
        "data-files": len(files),
        "records": sum(file["record_count"] for file in files),
        "files-size": sum(file["file_size_in_bytes"] for file in files),
    }

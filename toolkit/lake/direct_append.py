"""Append a few events to the log without pyiceberg: a data file for each kind of event, in one commit."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.lake import direct_commit
from toolkit.lake.direct_commit import column
from toolkit.lake.direct_scan import Unusual

if TYPE_CHECKING:
    import pyarrow as pa

    from toolkit.lake.direct_commit import FileCatalog
    from toolkit.rawlog.arrow import Event
    from toolkit.values.lake_access import LakeAccess

_METRICS = "write.metadata.metrics."


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
    if read is None or read[1].get("current-snapshot-id") != base:
        return None
    return direct_commit.commit(access, catalog, name, read, lambda *given: _Append(*given).write(events, properties))


class _Append(direct_commit.Commit):
    """The files of one batch."""

    def __init__(self, metadata: Mapping[str, Any], properties: Mapping[str, str]) -> None:
        super().__init__(metadata, properties)
        self._bounded = self._columns_with_bounds(metadata.get("properties", {}))

    def _columns_with_bounds(self, found: Mapping[str, str]) -> list[str]:
        """Return the columns that manifests have bounds of, and refuse what this module does not write."""
        wanted = {
            key.removeprefix(f"{_METRICS}column."): how for key, how in found.items() if f"{_METRICS}column." in key
        }
        fields = [(field["name"], field["transform"], field["source-id"]) for field in self.spec["fields"]]
        numbers = self.ids.get("kind"), self.ids.get("batch_id")
        if (
            found.get(f"{_METRICS}default") != "none"
            or {*wanted.values()} - {"full"}
            or [(transform.partition("[")[0], source) for _, transform, source in fields]
            != [("identity", numbers[0]), ("truncate", numbers[1])]
        ):
            raise Unusual
        return [name for name in wanted if name in self.ids]

    def write(self, events: Sequence[Event], properties: Mapping[str, str]) -> _Append:
        """Write the data files, their manifest and the manifest list."""
        listed, manifests, form = self.before()
        by_kind: dict[str, list[Event]] = {}
        for event in events:
            by_kind.setdefault(event.kind, []).append(event)
        columns = {kind: _columns(rows) for kind, rows in by_kind.items()}  # all, before any file is written
        described = [self._data_file(number, kind, by_kind[kind], columns[kind]) for number, kind in enumerate(by_kind)]
        kinds, starts = sorted(by_kind), self._start(events[0].batch_id)
        partitions = [
            {"contains_null": False, "contains_nan": False, "lower_bound": _bytes(low), "upper_bound": _bytes(high)}
            for low, high in ((kinds[0], kinds[-1]), (starts, starts))
        ]
        self.write_lists(described, partitions, (listed, form), manifests, properties)
        return self

    def _data_file(self, number: int, kind: str, events: Sequence[Event], batch: pa.RecordBatch) -> dict[str, Any]:
        """Write the events of one kind, and describe the file as a manifest does."""
        from toolkit.lake import files

        ids: dict[str, int] = dict(self.ids)
        for field in self.schema["fields"]:
            if isinstance(field["type"], dict) and "element-id" in field["type"]:
                ids[f"{field['name']}.element"] = field["type"]["element-id"]
        start = self._start(events[0].batch_id)
        partition = dict(zip((field["name"] for field in self.spec["fields"]), (kind, start), strict=True))
        folder = "/".join(f"{name}={value}" for name, value in partition.items())
        location = f"{self.location}/data/{folder}/{number:05d}-0-{self.write_id}.parquet"
        with files.EventsFile(location, files.FileTarget(ids, self.properties)) as file:
            file.write(batch)
        found = {self.ids[name]: [getattr(event, name) for event in events] for name in self._bounded}
        held = {number: [value for value in values if value is not None] for number, values in found.items()}
        wide = {self.ids[field["name"]] for field in self.schema["fields"] if field["type"] == "long"}
        return {
            **self.described(location, len(events), partition),
            "value_counts": _pairs((n, len(values)) for n, values in found.items()),
            "null_value_counts": _pairs((n, len(values) - len(held[n])) for n, values in found.items()),
            "lower_bounds": _pairs((n, _bytes(min(values), n in wide)) for n, values in held.items() if values),
            "upper_bounds": _pairs((n, _bytes(max(values), n in wide)) for n, values in held.items() if values),
        }

    def _start(self, batch_id: int) -> int:
        """Return the first batch of the partition that a batch is in."""
        width = int(self.spec["fields"][1]["transform"].removeprefix("truncate[").removesuffix("]"))
        return batch_id - batch_id % width


def _columns(events: Sequence[Event]) -> pa.RecordBatch:
    """Convert events to a batch of `EVENT_SCHEMA`, as `to_arrow` does, which imports pandas."""
    import pyarrow as pa

    from toolkit.rawlog.arrow import EVENT_SCHEMA

    columns = [column([getattr(event, field.name) for event in events], field.type) for field in EVENT_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)


def _pairs(found: Iterable[tuple[int, Any]]) -> list[dict[str, Any]]:
    """Return a map as Iceberg has it in Avro, whose own maps have only texts as keys."""
    return [{"key": key, "value": value} for key, value in found]


def _bytes(value: str | int, wide: bool = True) -> bytes:
    """Return a bound as the Iceberg specification has it."""
    return value.encode() if isinstance(value, str) else struct.pack("<q" if wide else "<i", value)

"""Append a batch to the log without pyiceberg: files of rows, and a few events in a data file for each kind."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from toolkit.lake import direct_commit, storage
from toolkit.lake.direct_commit import column
from toolkit.lake.direct_scan import Unusual
from toolkit.lake.files import WITH_STATISTICS, EventsFile, FileTarget
from toolkit.lake.table_layout import BATCH_WIDTH, field_ids, new_location, partition_of
from toolkit.rawlog.event import Kind

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import FileMetaData, RowGroupMetaData

    from toolkit.rawlog.arrow import Event
    from toolkit.values.lake_access import LakeAccess

_TYPES = ("int", "long", "string")  # of columns whose bounds are written here
_METRICS = "write.metadata.metrics."


def append(
    access: LakeAccess,
    name: str,
    base: int,
    events: Sequence[Event],
    files: Sequence[str],
    properties: Mapping[str, str],
) -> int | None:
    """Commit events of one batch to a table. Return the new table snapshot id; None if another process committed.

    Args:
        base: the table snapshot that must be the current one.
        files: places of Parquet files of row events of the batch (`lake.files.EventsFile`).
        properties: what the summary of the new snapshot says beside its counts.

    Raises:
        Unusual: pyiceberg must commit it. Nothing was written.
        LakeError: a file cannot be written or forced to the disk, or the catalog cannot be read or written.
    """
    return direct_commit.commit(access, name, base, lambda *given: _Append(*given).write(events, files, properties))


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
        fields = [(field["transform"], field["source-id"]) for field in self.spec["fields"]]
        numbers = self.ids.get("kind"), self.ids.get("batch_id")
        kinds = {field["name"]: field["type"] for field in self.schema["fields"]}
        bounded = [name for name in wanted if name in kinds]
        if (
            found.get(f"{_METRICS}default") != "none"
            or {*wanted.values()} - {"full"}
            or any(kinds[name] not in _TYPES or name not in WITH_STATISTICS for name in bounded)
            or [*zip(("identity", f"truncate[{BATCH_WIDTH}]"), numbers, strict=True)] != fields
        ):
            raise Unusual
        return bounded

    def write(self, events: Sequence[Event], files: Sequence[str], properties: Mapping[str, str]) -> _Append:
        """Write the data files of events, the manifest and the manifest list."""
        listed, manifests, form = self.before()
        by_kind: dict[str, list[Event]] = {}
        for event in events:
            by_kind.setdefault(event.kind, []).append(event)
        columns = {kind: _columns(rows) for kind, rows in by_kind.items()}  # all, before any file is written
        batch_id = events[0].batch_id
        of_rows = partition_of(self.metadata_before, Kind.ROW, batch_id)
        described = [self._data_file(place, of_rows) for place in files]
        for number, (kind, rows) in enumerate(columns.items()):
            place = new_location(self.metadata_before, kind, batch_id, f"{number:05d}-0-{self.write_id}")
            with EventsFile(place, FileTarget(field_ids(self.metadata_before), self.properties)) as file:
                file.write(rows)
            described.append(self._data_file(place, partition_of(self.metadata_before, kind, batch_id)))
        partitions = zip(*(file["partition"].values() for file in described), strict=True)
        summaries = [
            {"contains_null": False, "contains_nan": False, "lower_bound": _bytes(low), "upper_bound": _bytes(high)}
            for low, high in ((min(values), max(values)) for values in partitions)
        ]
        self.write_lists(described, summaries, (listed, form), manifests, properties)
        return self

    def _data_file(self, place: str, partition: Mapping[str, Any]) -> dict[str, Any]:
        """Describe a file as a manifest does, with the bounds that its footer has."""
        footer, size = storage.footer(place, self.properties)
        numbers = {footer.schema.column(n).path: n for n in range(footer.num_columns)}
        found = {self.ids[name]: _Bounds.of(footer, numbers[name]) for name in self._bounded}
        wide = {field["id"] for field in self.schema["fields"] if field["type"] == "long"}
        known = {n: bounds.known for n, bounds in found.items() if bounds.known is not None}
        return {
            **self.described(place, footer.num_rows, size, partition),
            "split_offsets": [_start(footer.row_group(group)) for group in range(footer.num_row_groups)],
            "value_counts": _pairs((n, bounds.values) for n, bounds in found.items()),
            "null_value_counts": _pairs((n, bounds.nulls) for n, bounds in found.items()),
            "lower_bounds": _pairs((n, _bytes(low, n in wide)) for n, (low, _) in known.items()),
            "upper_bounds": _pairs((n, _bytes(high, n in wide)) for n, (_, high) in known.items()),
        }


class _Bounds(NamedTuple):
    """What a footer says of a column: its number of values and of nulls, and the least and the largest value."""

    values: int
    nulls: int
    known: tuple[Any, Any] | None  # None if all are null

    @classmethod
    def of(cls, footer: FileMetaData, number: int) -> _Bounds:
        """Read the footer of a file.

        Raises:
            Unusual: a row group does not say it, as one of `EventsFile` does.
        """
        parts = [footer.row_group(group).column(number) for group in range(footer.num_row_groups)]
        said = [part.statistics for part in parts if part.statistics is not None and part.statistics.has_null_count]
        if len(said) < len(parts):
            raise Unusual
        values, nulls = sum(part.num_values for part in parts), sum(one.null_count for one in said)
        held = [one for part, one in zip(parts, said, strict=True) if one.null_count < part.num_values]
        if not all(one.has_min_max for one in held):
            raise Unusual
        return cls(values, nulls, (min(one.min for one in held), max(one.max for one in held)) if held else None)


def _columns(events: Sequence[Event]) -> pa.RecordBatch:
    """Convert events to a batch of `EVENT_SCHEMA`, as `to_arrow` does, which imports pandas."""
    import pyarrow as pa

    from toolkit.rawlog.arrow import EVENT_SCHEMA

    columns = [column([getattr(event, field.name) for event in events], field.type) for field in EVENT_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)


def _start(group: RowGroupMetaData) -> int:
    """Return the place of a row group in its file."""
    first = group.column(0)
    return int(first.dictionary_page_offset if first.has_dictionary_page else first.data_page_offset)


def _pairs(found: Iterable[tuple[int, Any]]) -> list[dict[str, Any]]:
    """Return a map as Iceberg has it in Avro, whose own maps have only texts as keys."""
    return [{"key": key, "value": value} for key, value in found]


def _bytes(value: str | int, wide: bool = True) -> bytes:
    """Return a bound as the Iceberg specification has it."""
    return value.encode() if isinstance(value, str) else struct.pack("<q" if wide else "<i", value)

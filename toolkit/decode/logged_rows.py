"""Convert rows of the change log to events. Their images are PostgreSQL records as text, split into columns.

The functions are pure. Both ways of reading the log use them: ticks read rows by COPY, and the slot sends them as
inserts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv

from toolkit.decode.layout import LOG_COLUMNS
from toolkit.decode.messages import NO_TIME
from toolkit.decode.stream import Ints
from toolkit.decode.task import OTHER_IDENTITY, Binding, DecodeTask
from toolkit.rawlog.arrow import EVENT_SCHEMA, Event, to_arrow
from toolkit.rawlog.event import Gap, Kind, Origin, Truncated
from toolkit.values.errors import DecodeError

_NO_TEXT, _NUMBERS = pa.NULL, pa.list_(pa.int32())
_NO_RECORD = "the change log holds an image that is not the text of a record; report this"
_OPEN, _CLOSE, _COMMA, _NEWLINE = b"(),\n"


@dataclass(frozen=True, slots=True, eq=False)
class LogRows:
    """Rows of the change log in the order of their effects. `index` is compared with the start of a layout."""

    index: Ints
    commit_lsns: Ints
    ordinals: Ints
    end_lsns: Ints
    times: Ints  # microseconds since 1970, UTC, or NO_TIME
    lsns: Ints  # position at which the row was logged
    xids: Ints  # 64 bit
    relids: Ints
    ops: pa.StringArray
    old: pa.StringArray
    new: pa.StringArray

    def __len__(self) -> int:
        return len(self.index)

    def take(self, rows: Ints) -> LogRows:
        """Return the rows at these indexes, in their order."""
        numbers = (self.index, self.commit_lsns, self.ordinals, self.end_lsns, self.times, self.lsns, self.xids)
        chosen = _integers(pa.int64(), rows)
        texts = (column.take(chosen) for column in (self.ops, self.old, self.new))
        return LogRows(*(column[rows] for column in (*numbers, self.relids)), *texts)


def unfold(batch: pa.RecordBatch, index: Ints, task: DecodeTask) -> Iterator[pa.RecordBatch]:
    """Convert inserts into the change log, which the slot sent, to events, each with its exact position.

    Args:
        batch: events of the parts of the change log; `new` holds `LOG_COLUMNS`.
        index: message index of each event.
    """
    rows = batch.filter(pc.equal(batch.column("op"), "I"))  # the change log is append-only and purged by TRUNCATE
    cells = {name: pc.list_element(rows.column("new"), i) for i, name in enumerate(LOG_COLUMNS)}
    if len(rows) != len(batch):
        index = index[_flags(pc.equal(batch.column("op"), "I"))]
    numbers = {
        name: rows.column(name).cast(pa.int64()).fill_null(NO_TIME).to_numpy()
        for name in ("commit_lsn", "ordinal", "end_lsn", "committed_at", "lsn")
    }
    log = LogRows(
        index, numbers["commit_lsn"], numbers["ordinal"], numbers["end_lsn"], numbers["committed_at"], numbers["lsn"],
        cells["xid"].cast(pa.int64()).to_numpy(), cells["relid"].cast(pa.int64()).to_numpy(),
        cells["op"], cells["old"], cells["new"],
    )  # fmt: skip
    layouts: dict[int, list[Binding]] = {}
    for binding in task.images:
        layouts.setdefault(binding.relid, []).append(binding)
    yield from events(log, layouts, batch_id=task.batch_id, generation=task.generation)


def events(
    log: LogRows, layouts: Mapping[int, Sequence[Binding]], *, batch_id: int, generation: int
) -> Iterator[pa.RecordBatch]:
    """Return batches of `EVENT_SCHEMA`, by table. Rows that fit no layout are kept by position, with a gap.

    Args:
        layouts: by relid, ascending by start.

    Raises:
        DecodeError: an image is not a record in text form.
    """
    messages = pc.equal(log.ops, "M")  # the driver reads these
    if messages.true_count:
        log = log.take(np.flatnonzero(~_flags(messages)))
    for relid in np.unique(log.relids).tolist():
        mine = log.take(np.flatnonzero(log.relids == relid))
        known = list(layouts.get(relid, ()))
        edges = np.searchsorted(mine.index, [binding.start for binding in known]).tolist()
        if not known or edges[0] > 0:
            known, edges = [Binding(-1, relid, (), 0, None), *known], [0, *edges]
        for binding, first, last in zip(known, edges, [*edges[1:], len(mine)], strict=True):
            if last > first:
                part = mine.take(np.arange(first, last, dtype=np.int64))
                yield from _events(part, binding, batch_id=batch_id, generation=generation)


def _events(log: LogRows, binding: Binding, *, batch_id: int, generation: int) -> Iterator[pa.RecordBatch]:
    """Return the rows of one layout, and then a gap if some of the rows are unknown."""
    ops = log.ops.to_pylist()
    is_row = pa.array([op in ("I", "U", "D") for op in ops], pa.bool_())
    texts = pa.concat_arrays([pc.if_else(is_row, column, _NO_TEXT) for column in (log.new, log.old)])
    doubted = list(_doubts(log, binding, ops))
    first, doubts = min((i for i, _ in doubted), default=0), [doubt for _, doubt in doubted]
    count, schema_id, absent = len(log), binding.schema_id, list(binding.absent)
    try:
        if schema_id is None:
            doubts.append("rows of a table without a schema version")
            images, first = _by_position(texts), 0  # none of them is known
        else:
            images = record_images(texts, binding.attnums, binding.width, absent)
    except _OtherShape as found:
        known = f"the {len(binding.attnums)} of the schema version"
        doubts.append(f"images of {found.cells} columns do not fit {known}")
        images, schema_id, absent, first = _by_position(texts), None, [], 0
    old = images.slice(count)
    columns = {
        "batch_id": _same(pa.int64(), batch_id, count),
        "generation": _same(pa.int32(), generation, count),
        "commit_lsn": _integers(pa.int64(), log.commit_lsns),
        "ordinal": _integers(pa.int64(), log.ordinals),
        "end_lsn": _integers(pa.int64(), log.end_lsns),
        "lsn": _integers(pa.int64(), log.lsns),
        "xid": _integers(pa.int64(), log.xids),
        "committed_at": _integers(pa.timestamp("us", tz="UTC"), log.times, log.times != NO_TIME),
        "origin": pa.array([Origin.CHANGE_LOG] * count, pa.string()),
        "kind": pa.array([_kind(binding, op) for op in ops], pa.string()),
        "relid": _same(pa.int64(), binding.relid, count),
        "schema_id": pa.array([schema_id] * count, pa.int64()),
        "op": log.ops,
        "old_kind": pc.if_else(pc.is_valid(old), "O", _NO_TEXT),
        "new": images.slice(0, count),
        "old": old,
        "unchanged": pc.if_else(is_row, pa.scalar([], _NUMBERS), pa.scalar(None, _NUMBERS)),
        "absent": pc.if_else(is_row, pa.scalar(absent, _NUMBERS), pa.scalar(None, _NUMBERS)),
        "payload": pc.if_else(pc.equal(log.ops, "T"), Truncated().to_json(), _NO_TEXT),
    }
    batch = pa.RecordBatch.from_arrays([columns[name] for name in EVENT_SCHEMA.names], schema=EVENT_SCHEMA)
    yield batch.filter(pa.array([op not in ("F", "O") for op in ops], pa.bool_()))
    if doubts:
        gap = Event(
            batch_id=batch_id,
            generation=generation,
            commit_lsn=int(log.commit_lsns[first]),
            ordinal=int(log.ordinals[first]),
            end_lsn=int(log.end_lsns[first]),
            lsn=int(log.lsns[first]),
            xid=int(log.xids[first]),
            origin=Origin.CHANGE_LOG,
            kind=Kind.GAP,
            relid=binding.relid,
            payload=Gap("; ".join(doubts), "cdc repair").to_json(),
        )
        yield from to_arrow([gap]).to_batches()


def _doubts(log: LogRows, binding: Binding, ops: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Find the first row that was not logged, and the first that was logged for another key (`cdc.log_order`)."""
    if "F" in ops:
        failed = ops.index("F")
        yield failed, f"a change could not be logged: {log.new[failed].as_py()}"
    key = " ".join(map(str, binding.key))
    ordered = (i for i, op in enumerate(ops) if op == "O" and log.new[i].as_py() != key)
    if binding.kind == Kind.ROW and binding.schema_id is not None and (other := next(ordered, None)) is not None:
        yield other, OTHER_IDENTITY


def _kind(binding: Binding, op: str) -> str:
    """Return the kind of a row event. It is `logged`, for evidence only, if the slot captures the table too."""
    return Kind.TRUNCATE if op == "T" and binding.kind == Kind.ROW else binding.kind


class _OtherShape(Exception):
    """The number of cells differs from that of the layout."""

    def __init__(self, cells: int) -> None:
        super().__init__(cells)
        self.cells = cells


def record_images(
    texts: pa.StringArray, attnums: Sequence[int], width: int, absent: Sequence[int] = ()
) -> pa.ListArray:
    """Convert records in text form, such as `(1,"a b",,)`, to images indexed by attnum - 1; NULL stays NULL.

    Args:
        attnums: attnums of the cells, in order.
        absent: attnums whose cells are left out of the image.

    Raises:
        _OtherShape: a record has another number of cells.
        DecodeError: a text is not a record.
    """
    valid = _flags(pc.is_valid(texts))
    present = np.flatnonzero(valid)
    columns = _cells(texts.drop_null(), len(attnums)) if len(present) else []
    rows, kept = len(present), [i for i, attnum in enumerate(attnums) if attnum not in set(absent)]
    indexes = np.zeros((rows, width), np.int32)
    missing = np.ones((rows, width), bool)
    for place, i in enumerate(kept):
        indexes[:, attnums[i] - 1] = np.arange(place * rows, (place + 1) * rows, dtype=np.int32)
        missing[:, attnums[i] - 1] = False
    pool = pa.concat_arrays([columns[i] for i in kept]) if rows and kept else pa.nulls(rows * width, pa.string())
    values = pool.take(_integers(pa.int32(), indexes.reshape(-1), ~missing.reshape(-1)))
    return _lists(values, valid, width)


def _by_position(texts: pa.StringArray) -> pa.ListArray:
    """Return the cells of records whose columns are unknown, by position."""
    images = []
    for text in texts.to_pylist():
        one = pa.array([text], pa.string())
        images.append(None if text is None else [c[0].as_py() for c in _cells(one, None)])
    return pa.array(images, pa.list_(pa.string()))


def _cells(records: pa.StringArray, expected: int | None) -> list[pa.StringArray]:
    """Split records, none of which is NULL, into columns.

    A record in text form is a line of CSV in parentheses. Values are quoted where needed, NULL is empty, and within
    quotes a quote or backslash is doubled. The parentheses become an empty first cell and the end of the line.
    """
    _, offsets, data = records.buffers()
    bounds = np.frombuffer(offsets, np.int32)[records.offset : records.offset + len(records) + 1]
    text = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]].copy()
    first, last = bounds[:-1] - bounds[0], bounds[1:] - bounds[0] - 1
    if (last <= first).any() or (text[first] != _OPEN).any() or (text[last] != _CLOSE).any():
        raise DecodeError(_NO_RECORD)
    if expected == 0:
        if (last - first > 1).any():
            raise _OtherShape(_count(records))
        return []
    text[first], text[last] = _COMMA, _NEWLINE
    names = [] if expected is None else [str(i) for i in range(expected + 1)]
    try:
        table = pc_csv.read_csv(
            pa.py_buffer(text),
            read_options=pc_csv.ReadOptions(
                use_threads=False, block_size=len(text) + 1, column_names=names or None,
                autogenerate_column_names=not names,
            ),
            parse_options=pc_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pc_csv.ConvertOptions(
                strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""],
                column_types={name: pa.string() for name in names or (f"f{i}" for i in range(1700))},
            ),
        )  # fmt: skip
    except pa.ArrowInvalid as error:
        if expected is not None:
            for number in range(len(records)):  # one by one, so that an image that is no record is refused here
                if (found := _count(records.slice(number, 1))) != expected:
                    raise _OtherShape(found) from None
        raise DecodeError(f"the change log holds an image that cannot be read: {error}") from None
    if len(table) != len(records):  # a quote is open at the end of one, and the next one seemed to go on
        raise DecodeError(_NO_RECORD)
    columns = []
    for column in table.columns[1:]:
        cells = column.combine_chunks()
        if isinstance(cells, pa.ChunkedArray):
            cells = pa.concat_arrays(cells.chunks)
        columns.append(pc.replace_substring(cells, "\\\\", "\\"))
    return columns


def _count(records: pa.StringArray) -> int:
    """Count the cells of the first record."""
    return len(_cells(records.slice(0, 1), None))


def _same(kind: pa.DataType, value: int, rows: int) -> pa.Array:
    return _integers(kind, np.full(rows, value, kind.to_pandas_dtype()))


# Large arrays are made from buffers, because `pa.array` of a numpy array imports pandas.


def _integers(
    kind: pa.DataType, values: npt.NDArray[np.int64 | np.int32], valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(np.ascontiguousarray(values))])


def _flags(array: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    flags = array.cast(pa.uint8())
    return np.frombuffer(flags.buffers()[1], np.bool_, len(flags), flags.offset)


def _lists(values: pa.Array, present: npt.NDArray[np.bool_], width: int) -> pa.ListArray:
    offsets = np.zeros(len(present) + 1, np.int32)
    np.cumsum(present * np.int32(width), out=offsets[1:])
    buffers = [pa.py_buffer(np.packbits(present, bitorder="little")), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(pa.string()), len(present), buffers, children=[values])

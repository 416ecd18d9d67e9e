"""Decode row images by column. Numpy cursors step over all messages of a table at once, never message by message.

Python never copies the bytes of a value. A tuple alternates between framing and text (`t`, four bytes of length, text,
`t`, ...). So one Arrow binary array over the raw bytes, with alternating slots of text and framing, costs nothing. The
only copy is `take` of the text slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from toolkit.decode import logged_rows
from toolkit.decode.messages import NO_TIME, POSTGRES_EPOCH_US
from toolkit.decode.stream import (
    ROW_BYTES,
    Bytes,
    Ints,
    Stream,
    be32,
    be64,
    open_bytes,
    release,
    scan_run,
)  # fmt: skip
from toolkit.decode.task import OTHER_IDENTITY, UNREAD, Binding, DecodeTask
from toolkit.rawlog.arrow import EVENT_SCHEMA, Event, to_arrow
from toolkit.rawlog.event import Gap, Kind, Origin
from toolkit.values.errors import DecodeError
from toolkit.values.lsn import Lsn
from toolkit.values.spool import ROW_HEADER

#: Messages, and bytes, that are decoded at once. They bound the memory of a task to about 100 MB.
CHUNK_MESSAGES = 8_000
CHUNK_BYTES = 32 << 20
#: Largest distance between the first and last message of a chunk, because Arrow's offsets have 32 bits.
CHUNK_SPAN = 1 << 30

_BODY = ROW_HEADER + 5  # type byte and relid
_NULL, _UNCHANGED, _TEXT = b"nut"
_OLD = np.zeros(256, bool)
_OLD[[ord("K"), ord("O")]] = True


@dataclass(frozen=True, slots=True, eq=False)
class _Tuples:
    """The tuples of one layout, as (message, column) matrices."""

    kinds: Bytes
    starts: Ints
    ends: Ints
    after: Ints  # position after each tuple


def decode_rows(spool: str | Bytes, task: DecodeTask) -> Iterator[pa.RecordBatch]:
    """Decode the `row` events of a task, ordered by table and position, in batches of `EVENT_SCHEMA`.

    Raises:
        DecodeError: a row before its RELATION, a tuple that does not fit it, or text that is not UTF-8.
    """
    stream = scan_run(open_bytes(spool), task.run)
    rows = np.flatnonzero(np.isin(stream.types, ROW_BYTES))
    if not len(rows):
        return
    relids = stream.relids(rows)
    order = np.argsort(relids, kind="stable")
    rows, relids = rows[order], relids[order]
    firsts = np.flatnonzero(np.diff(relids, prepend=-1))
    tables = relids[firsts].tolist()
    del relids, order  # their memory is not needed while the rows are decoded
    for relid, mine in zip(tables, np.split(rows, firsts[1:]), strict=True):
        for binding, part in _by_binding(stream, task.bindings, relid, mine):
            if binding.kind == UNREAD:
                continue
            for chunk in _chunks(stream.offsets, part):
                batch, unnamed = _batch(stream, task, binding, chunk)
                if binding.kind == "log":
                    yield from logged_rows.unfold(batch, chunk, task)
                else:
                    yield batch
                    yield from _lacking(batch)
                    if len(unnamed):
                        yield from _gap_at(batch.slice(int(unnamed[0]), 1).to_pylist()[0], OTHER_IDENTITY)
                release(stream.data)


def _by_binding(
    stream: Stream, bindings: tuple[Binding, ...], relid: int, rows: Ints
) -> Iterator[tuple[Binding, Ints]]:
    """Divide the rows of one table where its layout changes."""
    mine = [binding for binding in bindings if binding.relid == relid]
    edges = np.searchsorted(rows, [binding.start for binding in mine])
    if not mine or edges[0] > 0:
        raise DecodeError(f"row of relation {relid} at {stream.lsn(int(rows[0]))} comes before its RELATION message")
    for binding, first, last in zip(mine, edges, [*edges[1:], len(rows)], strict=True):
        if last > first:
            yield binding, rows[first:last]


def _chunks(offsets: Ints, rows: Ints) -> Iterator[Ints]:
    """Divide rows into runs with bounded count, bytes, and distance between first and last."""
    sizes = np.cumsum(offsets[rows + 1] - offsets[rows])
    first = 0
    while first < len(rows):
        done = sizes[first - 1] if first else 0
        by_bytes = int(np.searchsorted(sizes, done + CHUNK_BYTES, "right"))
        by_span = int(np.searchsorted(offsets[rows + 1], offsets[rows[first]] + CHUNK_SPAN, "right"))
        last = max(first + 1, min(first + CHUNK_MESSAGES, by_bytes, by_span))
        yield rows[first:last]
        first = last


def _batch(stream: Stream, task: DecodeTask, binding: Binding, rows: Ints) -> tuple[pa.RecordBatch, Ints]:
    """Decode rows of one layout. Return also the places of rows whose old key lacks a column of the table's key."""
    base = stream.offsets[rows[0]]
    data = stream.data[base : stream.offsets[rows[-1] + 1]]
    start, end = stream.offsets[rows] - base, stream.offsets[rows + 1] - base
    if (end - start < _BODY + 1).any():
        raise _misfit(stream, binding, rows, end - start < _BODY + 1)
    ops, marker = stream.types[rows], data[start + _BODY]
    has_old = _OLD[marker]
    wrong = np.where(
        ops == ord("I"), marker != ord("N"), np.where(ops == ord("D"), ~has_old, ~has_old & (marker != ord("N")))
    )
    if wrong.any():
        raise _misfit(stream, binding, rows, wrong)

    position = start + _BODY
    old_rows = np.flatnonzero(has_old)
    old = _walk(stream, binding, data, rows[old_rows], position[old_rows] + 1, end[old_rows])
    position[old_rows] = old.after
    new_rows = np.flatnonzero(ops != ord("D"))
    markers = data[np.minimum(position[new_rows], len(data) - 1)]
    if (markers != ord("N")).any():
        raise _misfit(stream, binding, rows[new_rows], markers != ord("N"))
    new = _walk(stream, binding, data, rows[new_rows], position[new_rows] + 1, end[new_rows])
    position[new_rows] = new.after
    if (position != end).any():
        raise _misfit(stream, binding, rows, position != end)
    if (old.kinds == _UNCHANGED).any():
        # Old images are flattened before they are logged, so this cannot happen.
        raise _misfit(stream, binding, rows[old_rows], (old.kinds == _UNCHANGED).any(axis=1))

    in_key = np.isin(binding.attnums, binding.key)
    unnamed = old_rows[(marker[old_rows] == ord("K")) & (old.kinds[:, in_key] == _NULL).any(axis=1)]
    count, transactions = len(rows), np.searchsorted(stream.begins, rows, "right") - 1
    times = stream.times[transactions]
    chars = np.concatenate([ops, marker[old_rows]])
    arrays = [
        _integers(pa.int64(), np.full(count, task.batch_id, np.int64)),
        _integers(pa.int32(), np.full(count, task.generation, np.int32)),
        _integers(pa.int64(), stream.commit_lsns[transactions]),
        _integers(pa.int64(), stream.ordinals[rows].astype(np.int64)),
        _integers(pa.int64(), stream.end_lsns[transactions]),
        _integers(pa.int64(), be64(stream.data, stream.offsets[rows] + 6)),
        _integers(pa.int64(), stream.xids[transactions]),
        _integers(pa.timestamp("us", tz="UTC"), times + POSTGRES_EPOCH_US, times != NO_TIME),
        _constant(Origin.SLOT, count),
        _constant(Kind.ROW, count),
        _integers(pa.int64(), np.full(count, binding.relid, np.int64)),
        _integers(pa.int64(), np.full(count, binding.schema_id or 0, np.int64), binding.schema_id is not None),
        _characters(chars[:count], np.ones(count, bool)),
        _characters(chars[count:], has_old),
        _images(stream, binding, data, rows[new_rows], new, ops != ord("D")),
        _images(stream, binding, data, rows[old_rows], old, has_old),
        _unchanged(binding, new, new_rows, count),
        _same(binding.absent, count),
        pa.nulls(count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA), unnamed


def _lacking(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Return a gap at the first INSERT that lacks some values.

    Such an INSERT is an UPDATE that moved the row into the row filter. No event has its unchanged TOASTed values.
    """
    lacking = pc.and_(pc.equal(batch.column("op"), "I"), pc.greater(pc.list_value_length(batch.column("unchanged")), 0))
    if not lacking.true_count:
        return
    (row,) = batch.filter(lacking).slice(0, 1).to_pylist()
    columns = ", ".join(map(str, row["unchanged"]))
    reason = (
        f"an update brought a row inside the row filter, and its unchanged large value in column {columns} was not sent"
        " (it is under REPLICA IDENTITY FULL)"
    )
    yield from _gap_at(row, reason)


def _gap_at(row: dict[str, Any], reason: str) -> Iterator[pa.RecordBatch]:
    """Return a gap in the place of a row."""
    place = ("batch_id", "generation", "commit_lsn", "ordinal", "end_lsn", "lsn", "xid", "origin", "relid")
    gap = Event(**{name: row[name] for name in place}, kind=Kind.GAP, payload=Gap(reason, "cdc repair").to_json())
    yield from to_arrow([gap]).to_batches()


def _walk(stream: Stream, binding: Binding, data: Bytes, rows: Ints, at: Ints, end: Ints) -> _Tuples:
    """Step one cursor per message over the columns. `at` starts at the column count."""
    columns, count = len(binding.attnums), len(rows)
    kinds = np.empty((columns, count), np.uint8)
    starts, ends = np.empty((columns, count), np.int64), np.empty((columns, count), np.int64)
    last = len(data) - 5  # a cursor outside its message reads from here and is reported below
    cursor = at + 2
    # The two bytes of the count must exist before they are read.
    astray = cursor > end
    if astray.any():
        raise _misfit(stream, binding, rows, astray)
    stated = (data[at].astype(np.int64) << 8) | data[at + 1]
    if (stated != columns).any():
        raise _misfit(stream, binding, rows, stated != columns)
    for column in range(columns):
        safe = np.minimum(cursor, max(last, 0))
        kind = data[np.minimum(cursor, len(data) - 1)]
        text = kind == _TEXT
        length = np.where(text, be32(data, safe + 1), 0) if len(data) >= 5 else np.zeros(count, np.int64)
        astray |= (cursor >= end) | ~(text | (kind == _NULL) | (kind == _UNCHANGED))
        begin = cursor + np.where(text, 5, 1)
        cursor = begin + length
        astray |= cursor > end
        kinds[column], starts[column], ends[column] = kind, begin, cursor
    if astray.any():
        raise _misfit(stream, binding, rows, astray)
    return _Tuples(kinds.T, starts.T, ends.T, cursor)


def _misfit(stream: Stream, binding: Binding, rows: Ints, wrong: npt.NDArray[np.bool_]) -> DecodeError:
    index = int(rows[np.argmax(wrong)])
    return DecodeError(
        f"message {index} at {stream.lsn(index)}: tuple of relation {binding.relid} is malformed"
        f" or does not have the {len(binding.attnums)} columns of its RELATION message"
    )


def _images(
    stream: Stream, binding: Binding, data: Bytes, rows: Ints, tuples: _Tuples, present: npt.NDArray[np.bool_]
) -> pa.ListArray:
    """Return images indexed by attnum - 1. NULL means a NULL value, a missing column, or a row without an image."""
    count, columns = tuples.kinds.shape
    width = binding.width
    slots = np.empty((count, columns, 2), np.int32)
    slots[:, :, 0], slots[:, :, 1] = tuples.starts, tuples.ends
    flat = slots.reshape(-1)
    indexes = np.zeros((count, width), np.int32)
    missing = np.ones((count, width), bool)
    if columns:
        cells = np.array(binding.attnums, np.int64) - 1
        indexes[:, cells] = np.arange(0, 2 * count * columns, 2, dtype=np.int32).reshape(count, columns)
        missing[:, cells] = tuples.kinds != _TEXT
    if len(flat):
        raw = pa.Array.from_buffers(pa.binary(), len(flat) - 1, [None, pa.py_buffer(flat), pa.py_buffer(data)])
        cells_array = raw.take(_integers(pa.int32(), indexes.reshape(-1), ~missing.reshape(-1)))
    else:
        cells_array = pa.nulls(count * width, pa.binary())
    try:
        values = cells_array.cast(pa.string())  # validates UTF-8
    except pa.ArrowInvalid:
        raise _not_text(stream, binding, rows, cells_array) from None
    return _lists(values, present, width)


def _not_text(stream: Stream, binding: Binding, rows: Ints, cells: pa.Array) -> DecodeError:
    for number, cell in enumerate(cells.to_pylist()):
        try:
            (cell or b"").decode("utf-8")
        except UnicodeDecodeError as error:
            index = int(rows[number // binding.width])
            return DecodeError(
                f"row of relation {binding.relid} at {stream.lsn(index)}: column {number % binding.width + 1}"
                f" is not UTF-8 text ({error.reason} at byte {error.start})"
            )
    return DecodeError(f"a row of relation {binding.relid} after {Lsn(stream.lsn(int(rows[0])))} is not UTF-8 text")


def _lists(values: pa.Array, present: npt.NDArray[np.bool_], width: int) -> pa.ListArray:
    """Return lists of equal length where present, and NULL elsewhere."""
    offsets = np.zeros(len(present) + 1, np.int32)
    np.cumsum(present * np.int32(width), out=offsets[1:])
    return _list_array(offsets, values, present)


def _unchanged(binding: Binding, new: _Tuples, new_rows: Ints, count: int) -> pa.ListArray:
    """Return the attnums whose TOASTed value was not sent; an empty list if all values were sent."""
    row, column = np.nonzero(new.kinds == _UNCHANGED)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(new_rows[row], minlength=count), out=offsets[1:])
    return _list_array(offsets, _integers(pa.int32(), np.array(binding.attnums, np.int32)[column]))


def _same(attnums: tuple[int, ...], count: int) -> pa.ListArray:
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(attnums))
    return _list_array(offsets, _integers(pa.int32(), np.tile(np.array(attnums, np.int32), count)))


# Arrays are made from buffers. `pa.array` of a numpy array is slower and imports pandas, which costs a worker a second.


def _constant(text: str, count: int) -> pa.StringArray:
    data = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data * count)])


def _bitmap(valid: npt.NDArray[np.bool_] | bool, count: int) -> pa.Buffer | None:
    present = np.full(count, valid) if isinstance(valid, bool) else valid
    return None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))


def _integers(kind: pa.DataType, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | bool = True) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [_bitmap(valid, len(values)), buffer])


def _list_array(
    offsets: npt.NDArray[np.int32], values: pa.Array, valid: npt.NDArray[np.bool_] | bool = True
) -> pa.ListArray:
    count = len(offsets) - 1
    buffers = [_bitmap(valid, count), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(values.type), count, buffers, children=[values])


def _characters(chars: Bytes, present: npt.NDArray[np.bool_]) -> pa.StringArray:
    """Return one-letter strings, and NULL where not present. `chars` has only the present letters."""
    offsets = np.zeros(len(present) + 1, np.int32)
    np.cumsum(present, out=offsets[1:])
    buffers = [_bitmap(present, len(present)), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(chars))]
    return pa.Array.from_buffers(pa.string(), len(present), buffers)

"""Split COPY's text form into cells, and parse only cells with escapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_TAB, _NEWLINE, _BACKSLASH, _N = 9, 10, 92, 78
#: The escapes of COPY; the backslash itself is replaced before and after them.
_ESCAPES = (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r"), ("\\b", "\b"), ("\\f", "\f"), ("\\v", "\v"))
_HELD = "\0"  # replaces a backslash in between; never inside a PostgreSQL text
_NULL = b"\0N"  # never inside a PostgreSQL text
_HELD_BYTE = b"\xff"  # the same among bytes; never inside UTF-8
#: A larger block contains one or a few huge rows. It is read cell by cell, which needs a third of the memory.
_LARGE_BYTES = 32 << 20

Bytes = npt.NDArray[np.uint8]

# Arrays are made from buffers: `pa.array` imports pandas, which takes a second in each process.


def cells(lines: list[bytes]) -> pa.StringArray:
    """Return all cells of COPY text lines, row by row, unescaped.

    `lines` is emptied, so huge ones are not held twice. Tabs and newlines in values are always escaped, so each raw one
    ends a cell, and a table of strings needs no parser. The N of a NULL stays among the bytes, where no reader of an
    array looks: to cut it out would take as long as all the rest.
    """
    if sum(map(len, lines)) > _LARGE_BYTES:
        return _one_by_one(lines)
    text = b"".join(lines)
    lines.clear()
    data: Bytes = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero((data - _TAB) < 2)  # unsigned: smaller bytes wrap around
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts
    valid: npt.NDArray[np.bool_] | None = None
    backslashes = text.count(b"\\")
    two = np.flatnonzero(lengths == 2) if backslashes else ends[:0]
    # NULL is \N; a value of backslash and N is \\N.
    nulls = two[(data[starts[two]] == _BACKSLASH) & (data[starts[two] + 1] == _N)]
    if len(nulls):
        valid = np.ones(len(ends), np.bool_)
        valid[nulls] = False
        lengths[nulls] = 1
    if backslashes == len(nulls):  # no value has an escape
        return _strings(lengths, text.translate(None, b"\t\n\\"), valid)
    if len(nulls):
        kept = np.ones(len(data), np.bool_)
        kept[starts[nulls]] = False
        text = data[kept].tobytes()
    return _unescape(_strings(lengths, text.translate(None, b"\t\n"), valid))


def _strings(
    lengths: npt.NDArray[np.int64], packed: bytes | Bytes, valid: npt.NDArray[np.bool_] | None
) -> pa.StringArray:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(lengths), [bitmap, pa.py_buffer(offsets), pa.py_buffer(packed)])


def _unescape(array: pa.StringArray) -> pa.StringArray:
    """Undo COPY's escapes in the cells that have any."""
    escaped = pc.match_substring(array, "\\")  # NULL for NULL: those stay as they are
    plain = pc.replace_substring(array.filter(escaped), "\\\\", _HELD)
    for written, meant in _ESCAPES:
        plain = pc.replace_substring(plain, written, meant)
    plain = pc.replace_substring(plain, _HELD, "\\")
    return pc.replace_with_mask(array, escaped, plain)


def _one_by_one(lines: list[bytes]) -> pa.StringArray:
    """Do the same for huge rows; free each one when its cells are read."""
    found: list[bytes] = []
    valid: list[bool] = []
    lines.reverse()
    while lines:
        row = lines.pop().split(b"\t")
        row[-1] = row[-1][:-1]
        row.reverse()
        while row:
            cell = _plain(row.pop())
            valid.append(cell != _NULL)
            found.append(cell if valid[-1] else b"")
    lengths = np.fromiter(map(len, found), np.int64, len(found))
    return _strings(lengths, b"".join(found), np.array(valid, np.bool_))


def _plain(text: bytes) -> bytes:
    if b"\\" not in text:
        return text
    # A backslash of the value is written twice. When those are replaced, a single one starts an escape or NULL.
    text = text.replace(b"\\\\", _HELD_BYTE).replace(b"\\N", _NULL)
    for written, meant in _ESCAPES:
        text = text.replace(written.encode(), meant.encode())
    return text.replace(_HELD_BYTE, b"\\")


def numbers(kind: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    """Make an Arrow array of a NumPy one, without a copy."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def constant(kind: pa.DataType, value: int | str | list[int] | None, rows: int) -> pa.Array:
    """Make an array with the same value in every row."""
    if value is None:
        return pa.nulls(rows, kind)
    if isinstance(value, int):
        return numbers(kind, np.full(rows, value, kind.to_pandas_dtype()))
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(value))
    if isinstance(value, str):
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(value.encode() * rows)]
        return pa.Array.from_buffers(kind, rows, buffers)
    items = numbers(kind.value_type, np.tile(np.array(value, np.int32), rows))
    return pa.ListArray.from_arrays(numbers(pa.int32(), offsets), items)

"""Rows of a table inside an exported snapshot, as `R` events whose cells are byte-equal with the stream's text.

COPY's text form is what the types' output functions print, as in pgoutput (a cast to text is not: booleans, char(n) and
inet differ). One line is one image: columns that have no cell in the stream are selected as NULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from toolkit.catalog import TableVersion
from toolkit.config import Config
from toolkit.errors import SourceUnavailable
from toolkit.events import EVENT_SCHEMA
from toolkit.lsn import Lsn
from toolkit.names import quote_postgres
from toolkit.source.connection import Connection, connect, one_line
from toolkit.source.copyout import copy_blocks
from toolkit.source.slot import Cut

_TAB, _NEWLINE, _BACKSLASH, _N = 9, 10, 92, 78
#: What COPY writes for characters that it escapes; the backslash itself comes first and last.
_ESCAPES = (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r"), ("\\b", "\b"), ("\\f", "\f"), ("\\v", "\v"))
_HELD = "\0"  # stands for a backslash meanwhile; never inside a PostgreSQL text
_BLOCK_BYTES = 4 << 20

Bytes = npt.NDArray[np.uint8]


@contextmanager
def reader(config: Config, cut: Cut) -> Iterator[Connection]:
    """A read-only session that sees exactly what the cut's snapshot shows.

    Raises:
        SourceUnavailable: the snapshot is gone; its slot session has ended.
    """
    with connect(config) as conn:
        conn.execute("begin isolation level repeatable read, read only")
        try:
            conn.execute(f"set transaction snapshot '{cut.snapshot_name}'")
        except psycopg.Error as error:
            raise SourceUnavailable(f"importing the snapshot at {cut.lsn}: {one_line(error)}; run it again") from None
        yield conn
        if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            conn.execute("rollback")


def snapshot_batches(
    conn: Connection,
    table: TableVersion,
    lsn: Lsn,
    *,
    generation: int,
    batch_id: int = 0,
    schema_id: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Every published row of `table` as batches of `EVENT_SCHEMA`, about 4 MiB of text each.

    Args:
        conn: a session of `reader`.
        table: its version inside the same snapshot.
        lsn: the cut; the events stand at `lsn - 1` and end at `lsn`.
        batch_id: of the batch that will hold them; may be filled in later, as `schema_id`.

    Raises:
        SourceUnavailable: the server refused or broke off; the message names the table.
    """
    width = table.width
    absent = [c.attnum for c in table.columns if not c.published]
    ordinal = 0
    try:
        for messages in copy_blocks(conn, copy_statement(table), _BLOCK_BYTES):
            rows = len(messages)
            cells = _cells(b"".join(messages)) if width else pa.nulls(0, pa.string())
            if len(cells) != rows * width:
                raise SourceUnavailable(
                    f"copying {table.identifier}: {len(cells)} cells in {rows} rows of {width}; report this"
                )
            offsets = _numbers(pa.int32(), np.arange(rows + 1, dtype=np.int32) * np.int32(width))
            yield _batch(
                rows,
                {
                    "batch_id": batch_id,
                    "generation": generation,
                    "commit_lsn": int(lsn) - 1,
                    "end_lsn": int(lsn),
                    "origin": "snapshot",
                    "kind": "row",
                    "relid": table.relid,
                    "schema_id": schema_id,
                    "op": "R",
                    "unchanged": [],
                    "absent": absent,
                },
                {
                    "ordinal": _numbers(pa.int64(), np.arange(ordinal, ordinal + rows, dtype=np.int64)),
                    "new": pa.ListArray.from_arrays(offsets, cells),
                },
            )
            ordinal += rows
    except psycopg.Error as error:
        raise SourceUnavailable(f"copying {table.identifier}: {one_line(error)}") from None


def copy_statement(table: TableVersion) -> str:
    """COPY of the published columns and rows; one cell for each attnum up to the last live one.

    A table that is published itself gives its own rows only; a partitioned table published as such gives all.
    """
    names = {c.attnum: c.name for c in table.columns if c.published}
    cells = ", ".join(
        quote_postgres(names[attnum]) if attnum in names else "null" for attnum in range(1, table.width + 1)
    )
    only = "" if table.kind == "p" else "only "
    # The filter was printed by pg_get_expr() on the source under a pinned search_path: an expression, not input.
    condition = f" where {table.row_filter}" if table.row_filter else ""
    source = f"{quote_postgres(table.schema)}.{quote_postgres(table.name)}"
    return f"copy (select {cells} from {only}{source}{condition}) to stdout"


def _cells(text: bytes) -> pa.StringArray:
    """All cells of COPY text lines, row by row, unescaped.

    Tabs and newlines in values are always escaped, so each raw one ends a cell: a table of strings needs no parser.
    """
    data: Bytes = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero((data == _TAB) | (data == _NEWLINE))
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts
    kept = np.ones(len(data), np.bool_)
    kept[ends] = False
    valid = np.ones(len(ends), np.bool_)
    two = np.flatnonzero(lengths == 2)  # NULL is \N; a value of backslash and N is \\N
    nulls = two[(data[starts[two]] == _BACKSLASH) & (data[starts[two] + 1] == _N)]
    if len(nulls):
        valid[nulls] = False
        kept[starts[nulls]] = False
        kept[starts[nulls] + 1] = False
        lengths[nulls] = 0
    packed = data[kept]
    offsets = np.zeros(len(ends) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    array = pa.Array.from_buffers(
        pa.string(),
        len(ends),
        [_bitmap(valid) if len(nulls) else None, pa.py_buffer(offsets), pa.py_buffer(packed)],
    )
    if (packed == _BACKSLASH).any():
        array = _unescape(array)
    return array


def _bitmap(valid: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


# Arrays are made from buffers: `pa.array` imports pandas, which costs a process a second.


def _numbers(kind: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _constant(kind: pa.DataType, value: int | str | list[int] | None, rows: int) -> pa.Array:
    """The same value in every row."""
    if value is None:
        return pa.nulls(rows, kind)
    if isinstance(value, int):
        return _numbers(kind, np.full(rows, value, kind.to_pandas_dtype()))
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(value))
    if isinstance(value, str):
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(value.encode() * rows)]
        return pa.Array.from_buffers(kind, rows, buffers)
    items = _numbers(kind.value_type, np.tile(np.array(value, np.int32), rows))
    return pa.ListArray.from_arrays(_numbers(pa.int32(), offsets), items)


def _unescape(cells: pa.StringArray) -> pa.StringArray:
    """Undo COPY's escapes in the cells that have any."""
    escaped = pc.match_substring(cells, "\\")  # NULL for NULL: those stay as they are
    plain = pc.replace_substring(cells.filter(escaped), "\\\\", _HELD)
    for written, meant in _ESCAPES:
        plain = pc.replace_substring(plain, written, meant)
    plain = pc.replace_substring(plain, _HELD, "\\")
    return pc.replace_with_mask(cells, escaped, plain)


def _batch(rows: int, constants: Mapping[str, int | str | list[int] | None], columns: Mapping[str, pa.Array]) -> Any:
    """A batch of `EVENT_SCHEMA`: the given columns, the same value in every row for the constants, else NULL."""
    arrays = [
        columns[field.name] if field.name in columns else _constant(field.type, constants.get(field.name), rows)
        for field in EVENT_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


__all__ = ["copy_statement", "reader", "snapshot_batches"]

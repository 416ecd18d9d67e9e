"""Read and write Avro files, in which Iceberg keeps its lists of data files, without the long import of pyiceberg."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_FIXED = {"float": ("<f", 4), "double": ("<d", 8)}


class _Input:
    """Bytes, and how far they have been read."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise ValueError("the Avro file ends inside a value")
        found = self.data[self.at : end]
        self.at = end
        return found


_Read = Callable[[_Input], Any]
_Write = Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class File:
    """An Avro file whose header was read."""

    schema: bytes
    _codec: bytes
    _sync: bytes
    _data: bytes
    _start: int

    def records(self) -> Iterator[dict[str, Any]]:
        """Give the records.

        Raises:
            ValueError: the file is damaged.
        """
        given = _Input(self._data)
        given.at = self._start
        read = _reader_of(self.schema)
        while given.at < len(self._data):
            count, size = _long(given), _long(given)
            block = given.take(size)
            if given.take(_SYNC_BYTES) != self._sync:
                raise ValueError("a block of the Avro file does not end where it says")
            try:
                rows = _Input(block if self._codec == b"null" else zlib.decompress(block, -zlib.MAX_WBITS))
            except zlib.error as error:
                raise ValueError(f"a block of the Avro file is damaged: {error}") from None
            for _ in range(count):
                yield read(rows)


def open_file(data: bytes) -> File:
    """Read the header of an Avro file, uncompressed or deflated.

    Raises:
        ValueError: the file is damaged, or has what Iceberg's files do not have.
    """
    given = _Input(data)
    if given.take(len(_MAGIC)) != _MAGIC:
        raise ValueError("not an Avro file")
    header: Mapping[str, bytes] = _map(_bytes)(given)
    codec = header.get("avro.codec", b"null")
    if codec not in (b"null", b"deflate"):
        raise ValueError(f"an Avro file with codec {codec!r}")
    sync = given.take(_SYNC_BYTES)
    return File(header["avro.schema"], codec, sync, data, given.at)


def records(data: bytes) -> Iterator[dict[str, Any]]:
    """Give the records of an Avro file.

    Raises:
        ValueError: the file is damaged, or has what Iceberg's files do not have.
    """
    return open_file(data).records()


def to_bytes(schema: bytes, header: Mapping[str, bytes], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Make an Avro file with one block. A field that a row lacks is null.

    Raises:
        ValueError: a row does not fit the schema, or the schema has what Iceberg's files do not have.
    """
    write = _writer(json.loads(schema))
    block = b"".join(map(write, rows))
    named = {**header, "avro.schema": schema, "avro.codec": b"null"}
    pairs = b"".join(_prefixed(key.encode()) + _prefixed(value) for key, value in named.items())
    sync = os.urandom(_SYNC_BYTES)
    return b"".join([_MAGIC, _number(len(named)), pairs, _number(0), sync, _number(len(rows)), _prefixed(block), sync])


@cache
def _reader_of(schema: bytes) -> _Read:
    return _reader(json.loads(schema))


def _reader(schema: Any) -> _Read:
    if isinstance(schema, list):
        return _union([_reader(one) for one in schema])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return _record([(field["name"], _reader(field["type"])) for field in schema["fields"]])
    if kind == "array":
        return _array(_reader(schema["items"]))
    if kind == "map":
        return _map(_reader(schema["values"]))
    if kind == "fixed":
        return lambda given: given.take(schema["size"])
    if isinstance(kind, dict | list):
        return _reader(kind)
    if kind in _FIXED:
        shape, size = _FIXED[kind]
        return lambda given: struct.unpack(shape, given.take(size))[0]
    plain: dict[str, _Read] = {
        "null": lambda _: None,
        "boolean": lambda given: given.take(1) != b"\x00",
        "int": _long,
        "long": _long,
        "bytes": _bytes,
        "string": _text,
    }
    if kind not in plain:
        raise ValueError(f"an Avro file with values of type {kind!r}")
    return plain[kind]


def _writer(schema: Any) -> _Write:
    if isinstance(schema, list):
        return _one_of(schema)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        fields = [(field["name"], _writer(field["type"])) for field in schema["fields"]]
        return lambda row: b"".join(write(row.get(name)) for name, write in fields)
    if kind == "array":
        item = _writer(schema["items"])
        return lambda rows: (_number(len(rows)) + b"".join(map(item, rows)) if rows else b"") + _number(0)
    if isinstance(kind, dict | list):
        return _writer(kind)
    plain: dict[str, tuple[type, _Write]] = {
        "boolean": (bool, lambda value: b"\x01" if value else b"\x00"),
        "int": (int, _number),
        "long": (int, _number),
        "bytes": (bytes, _prefixed),
        "string": (str, lambda value: _prefixed(value.encode())),
    }
    if kind not in plain:
        return _refuse
    wanted, write = plain[kind]
    return lambda value: write(value) if isinstance(value, wanted) else _refuse(value)


def _one_of(branches: list[Any]) -> _Write:
    """Write a value of a union of null and one other type."""
    if len(branches) != 2 or "null" not in branches:
        return _refuse
    null = branches.index("null")
    write = _writer(branches[1 - null])
    return lambda value: _number(null) if value is None else _number(1 - null) + write(value)


def _refuse(value: Any) -> bytes:
    raise ValueError(f"the value {value!r} does not fit the schema of the Avro file")


def _number(value: int) -> bytes:
    left = (value << 1) ^ (value >> 63)
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def _prefixed(value: bytes) -> bytes:
    return _number(len(value)) + value


def _long(given: _Input) -> int:
    found = shift = 0
    data, at = given.data, given.at
    try:
        while True:
            byte = data[at]
            at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
    except IndexError:
        raise ValueError("the Avro file ends inside a number") from None
    given.at = at
    return (found >> 1) ^ -(found & 1)


def _bytes(given: _Input) -> bytes:
    return given.take(_long(given))


def _text(given: _Input) -> str:
    return _bytes(given).decode()


def _union(branches: list[_Read]) -> _Read:
    def read(given: _Input) -> Any:
        number = _long(given)
        if not 0 <= number < len(branches):
            raise ValueError("the Avro file has a value of an unknown branch")
        return branches[number](given)

    return read


def _record(fields: list[tuple[str, _Read]]) -> _Read:
    return lambda given: {name: read(given) for name, read in fields}


def _array(item: _Read) -> _Read:
    def read(given: _Input) -> list[Any]:
        found: list[Any] = []
        while count := _long(given):
            if count < 0:
                count = -count
                _long(given)  # the size of the block
            found += [item(given) for _ in range(count)]
        return found

    return read


def _map(value: _Read) -> _Read:
    pairs = _array(lambda given: (_text(given), value(given)))
    return lambda given: dict(pairs(given))

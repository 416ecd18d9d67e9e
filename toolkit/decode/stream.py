"""Find transactions, their positions, and the ordinal of every message of a spool in one vectorised pass."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from toolkit.decode.messages import NO_TIME, TIMES, unknown
from toolkit.values.errors import DecodeError
from toolkit.values.lsn import Lsn
from toolkit.values.spool import ROW_HEADER

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[Any]  # integers as narrow as their values allow, because a spool has millions of them

_BEGIN_SIZE, _COMMIT_SIZE = 21, 26
_KNOWN = np.zeros(256, bool)
_KNOWN[np.frombuffer(b"BCRYOMTIUD", np.uint8)] = True
_ROW = np.zeros(256, np.uint8)
_ROW[np.frombuffer(b"IUD", np.uint8)] = 1
ROW_BYTES = np.frombuffer(b"IUD", np.uint8)
_SPAN = 16 << 20
_SCANNED = 1 << 18  # messages whose xids are compared at once


def open_bytes(spool: str | Path | Bytes) -> Bytes:
    """Map the bytes of a spool, if it is a file and not in memory. It may be empty."""
    if isinstance(spool, np.ndarray):
        return spool
    path = spool
    if Path(path).stat().st_size == 0:
        return np.zeros(0, np.uint8)
    with Path(path).open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def release(data: Bytes) -> None:
    """Release the pages of a spool that were read so far. They are read again on demand."""
    owner: object = data.base
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if isinstance(owner, mmap.mmap):
        owner.madvise(mmap.MADV_DONTNEED)


def be32(data: Bytes, at: Ints) -> Ints:
    """Read unsigned big-endian 32-bit integers at ascending byte positions."""
    return _integers(data, at, 4)


def be64(data: Bytes, at: Ints) -> Ints:
    """Read signed big-endian 64-bit integers at ascending byte positions."""
    return _integers(data, at, 8)


def _integers(data: Bytes, at: Ints, size: int) -> Ints:
    value = np.empty(at.shape, np.int64)
    for part in _parts(data, at):
        mine = at[part]
        taken = data[mine].astype(np.int64)
        for step in range(1, size):
            taken <<= 8
            taken |= data[mine + step]
        value[part] = taken
    return value


def _bytes(data: Bytes, at: Ints) -> Bytes:
    """Read bytes at ascending positions."""
    value = np.empty(at.shape, np.uint8)
    for part in _parts(data, at):
        value[part] = data[at[part]]
    return value


def _parts(data: Bytes, at: Ints) -> Iterator[slice]:
    """Divide a pass over a spool so that only about `_SPAN` bytes of the map are in memory at once.

    The range of the positions is what counts, because each chunk of rows reads its own part of a spool of any size.
    """
    span = int(at[-1] - at[0]) if len(at) else 0
    if span <= _SPAN:
        yield slice(None)
        return
    step = max(1, len(at) * _SPAN // span)
    for first in range(0, len(at), step):
        yield slice(first, first + step)
        release(data)


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A scanned spool. The first group of fields has one value per message, the second one per transaction."""

    data: Bytes
    offsets: Ints
    types: Bytes
    weights: Counts  # ordinals that the message takes
    ordinals: Counts  # the first of these ordinals; without meaning for messages outside transactions

    begins: Ints  # message indexes
    commits: Ints
    commit_lsns: Ints
    end_lsns: Ints
    times: Ints  # microseconds since 2000-01-01 UTC, or NO_TIME
    xids: Ints  # 32 bit as sent, 64 bit once planned

    def __len__(self) -> int:
        return len(self.types)

    def message(self, index: int) -> bytes:
        """Return the bytes of one message."""
        return self.data[self.offsets[index] + ROW_HEADER : self.offsets[index + 1]].tobytes()

    def lsn(self, index: int) -> Lsn:
        """Return the position of the change record itself."""
        return Lsn(int(be64(self.data, self.offsets[index : index + 1] + 6)[0]))

    def relids(self, indexes: Ints) -> Ints:
        """Return the table of each of the row messages `indexes`."""
        return be32(self.data, self.offsets[indexes] + (ROW_HEADER + 1))


def scan(data: Bytes, offsets: Ints) -> Stream:
    """Find the transactions and number the changes.

    Raises:
        DecodeError: an unknown message, one outside a transaction, a transaction without end, a commit whose position
            is not the one its BEGIN announced, transactions out of commit order, or rows of a foreign transaction.
    """
    starts, sizes = offsets[:-1] + ROW_HEADER, np.diff(offsets) - ROW_HEADER
    if len(sizes) and (sizes.min() < 1 or offsets[-1] > len(data)):
        index = int(np.argmin(sizes)) if sizes.min() < 1 else len(sizes) - 1
        raise DecodeError(f"message {index} of the spool is empty or cut off")
    types = _bytes(data, starts)
    known = _KNOWN[types]
    if not known.all():
        index = int(np.argmin(known))
        raise unknown(bytes([types[index]]), index)
    begins, commits = np.flatnonzero(types == ord("B")), np.flatnonzero(types == ord("C"))
    weights = _weights(data, starts, sizes, types)
    _require_nesting(begins, commits, types, weights)
    _require_size(sizes, begins, _BEGIN_SIZE, "BEGIN")
    _require_size(sizes, commits, _COMMIT_SIZE, "COMMIT")

    commit_lsns, xids = be64(data, starts[begins] + 1), be32(data, starts[begins] + 17)
    stated = be64(data, starts[commits] + 2)
    if (stated != commit_lsns).any():
        first = int(np.argmax(stated != commit_lsns))
        raise DecodeError(
            f"message {commits[first]}: COMMIT at {Lsn(int(stated[first]))} ends a transaction whose BEGIN announced"
            f" {Lsn(int(commit_lsns[first]))}"
        )
    times, ends = be64(data, starts[begins] + 9), be64(data, starts[commits] + 10)
    unlike = (be64(data, starts[commits] + 18) != times) | (ends <= commit_lsns)
    if unlike.any():
        first = int(np.argmax(unlike))
        raise DecodeError(f"message {commits[first]}: COMMIT has another time than its BEGIN, or ends before it starts")
    if (np.diff(commit_lsns) <= 0).any():
        first = int(np.argmax(np.diff(commit_lsns) <= 0)) + 1
        raise DecodeError(
            f"message {begins[first]}: transaction at {Lsn(int(commit_lsns[first]))} comes after the one at"
            f" {Lsn(int(commit_lsns[first - 1]))}; pgoutput sends them in commit order"
        )
    del starts, sizes  # frees memory: a huge transaction is scanned in one piece
    ordinals = ordinals_of(weights, begins, 0)
    times = np.clip(times, *TIMES)
    # Of a transaction that came by replication, the server sends when it committed at its origin, not here.
    times[np.searchsorted(begins, np.flatnonzero(types == ord("O")), "right") - 1] = NO_TIME
    stream = Stream(data, offsets, types, weights, ordinals, begins, commits, commit_lsns, ends, times, xids)
    _require_xids(stream)
    return stream


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run of messages, possibly within one transaction. It holds everything except the bytes."""

    offsets: Ints  # n + 1 absolute offsets of the run's messages
    ordinal: int  # ordinal of the first message
    begins: Ints  # message index of each BEGIN; below 0 for a transaction that began before the run
    commit_lsns: Ints
    end_lsns: Ints
    times: Ints
    xids: Ints


def run_of(stream: Stream, first: int, stop: int) -> Run:
    """Return the messages [first, stop) of a stream as a run."""
    low, high = np.searchsorted(stream.commits, first), np.searchsorted(stream.begins, stop)
    mine = slice(low, high)
    return Run(
        stream.offsets[first : stop + 1], int(stream.ordinals[first]), stream.begins[mine] - first,
        stream.commit_lsns[mine], stream.end_lsns[mine], stream.times[mine], stream.xids[mine],
    )  # fmt: skip


def scan_run(data: Bytes, run: Run) -> Stream:
    """Return the stream of a run, without commits. `scan` has already verified the whole stream."""
    starts, sizes = run.offsets[:-1] + ROW_HEADER, np.diff(run.offsets) - ROW_HEADER
    types = _bytes(data, starts)
    weights = _weights(data, starts, sizes, types)
    begins = np.maximum(run.begins, 0)
    under_way = run.ordinal if len(begins) and run.begins[0] < 0 else 0
    return Stream(
        data, run.offsets, types, weights, ordinals_of(weights, begins, under_way), begins, begins[:0],
        run.commit_lsns, run.end_lsns, run.times, run.xids,
    )  # fmt: skip


def ordinals_of(weights: Counts, begins: Ints, first: int) -> Counts:
    """Return the ordinal of each message. `first` is the ordinal of message 0 if its transaction began before it."""
    largest = first + int(weights.sum(dtype=np.int64))
    ordinals: Counts = np.cumsum(weights, dtype=np.int32 if largest < 1 << 31 else np.int64)
    ordinals -= weights
    bases = ordinals[begins]
    bases[:1] -= first
    begun = int(begins[0]) if len(begins) else len(weights)
    ordinals[begun:] -= np.repeat(bases, np.diff(begins, append=len(weights)))
    return ordinals


def _weights(data: Bytes, starts: Ints, sizes: Ints, types: Bytes) -> Counts:
    """Return the number of ordinals that each message takes.

    I, U, D and transactional messages take one. A TRUNCATE takes one for each relation. All others take none.
    """
    for kind, least in ((b"M", 15), (b"T", 6)):
        _require_size(sizes, np.flatnonzero(types == kind[0]), least, "logical message or TRUNCATE", exact=False)
    truncates = np.flatnonzero(types == ord("T"))
    truncated = be32(data, starts[truncates] + 1)
    weights = _ROW[types].astype(np.min_scalar_type(int(truncated.max(initial=0))), copy=False)
    weights[truncates] = truncated
    logical = np.flatnonzero(types == ord("M"))
    weights[logical] = data[starts[logical] + 1] & 1
    return weights


def _require_nesting(begins: Ints, commits: Ints, types: Bytes, weights: Ints) -> None:
    edges = np.sort(np.concatenate([begins, commits]), kind="stable")
    wrong = types[edges] != np.where(np.arange(len(edges)) % 2, ord("C"), ord("B"))
    if wrong.any():
        index = int(edges[np.argmax(wrong)])
        raise DecodeError(f"message {index}: {chr(types[index])} does not match the transaction before it")
    if len(begins) != len(commits):
        raise DecodeError(f"the stream ends inside the transaction that begins at message {begins[-1]}")
    stray = ~_inside(begins, commits, len(types)) & ((types != ord("M")) | (weights != 0))
    if stray.any():
        index = int(np.argmax(stray))
        raise DecodeError(f"message {index}: {chr(types[index])} is outside any transaction")


def _inside(begins: Ints, commits: Ints, count: int) -> npt.NDArray[np.bool_]:
    """Return for each message whether it is part of a transaction, including BEGIN and COMMIT."""
    steps = np.zeros(count + 1, np.int8)
    steps[begins] += 1
    steps[commits + 1] -= 1
    return np.cumsum(steps[:count], dtype=np.int8).view(np.bool_)


def _require_size(sizes: Ints, indexes: Ints, size: int, name: str, *, exact: bool = True) -> None:
    wrong = sizes[indexes] != size if exact else sizes[indexes] < size
    if wrong.any():
        index = int(indexes[np.argmax(wrong)])
        raise DecodeError(f"message {index}: {name} has {sizes[index]} bytes, expected {size}")


def _require_xids(stream: Stream) -> None:
    """Compare the xid of each row with the xid of its BEGIN. This reveals a lost BEGIN and COMMIT."""
    rows = _inside(stream.begins, stream.commits, len(stream)) & (stream.types != ord("C"))
    rows &= (stream.types != ord("M")) | (stream.weights != 0)
    for first in range(0, len(stream), _SCANNED):
        indexes = first + np.flatnonzero(rows[first : first + _SCANNED])
        wanted = stream.xids[np.searchsorted(stream.begins, indexes, "right") - 1]
        found = be32(stream.data, stream.offsets[indexes] + 18)
        if (wanted != found).any():
            wrong = int(np.argmax(wanted != found))
            raise DecodeError(
                f"message {indexes[wrong]} belongs to transaction {found[wrong]} but is inside {wanted[wrong]}"
            )

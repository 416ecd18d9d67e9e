"""Do the part of a task that only executors of a cluster have: compare the code, and fetch bytes from the store.

Everything here runs in Spark's Python workers, which see no disk of the driver.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from toolkit.decode.stream import Bytes
from toolkit.lake import storage
from toolkit.values.errors import LakeError
from toolkit.values.installed_code import code_identity

_IN_MEMORY = 64 << 20  # bytes; a task of narrow rows has half of that
_COMPRESSION = "zstd"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The settings with which a task reads files of the store, and the code that the executor must have."""

    code: str  # `code_identity` of the driver
    properties: Mapping[str, str] = field(repr=False)  # of `storage`; they may have secrets

    def require_same_code(self) -> None:
        """Check that this executor has the driver's code.

        Raises:
            LakeError: it has other code; nothing was written.
        """
        found = code_identity()
        if found != self.code:
            raise LakeError(
                f"executor {socket.gethostname()} has toolkit {found}, and the driver has {self.code}; install the same"
                " version on both"
            )

    def fetched(self, place: str, size: int) -> Bytes:
        """Return the `size` bytes that the driver delivered to `place`.

        Up to 64 MB are in memory. More are in a file on the executor's disk, which has no name and ends with its
        process; only what is in use of it is in memory.

        Raises:
            OSError: they cannot be read, or are fewer or more.
        """
        data = np.empty(size, np.uint8) if size <= _IN_MEMORY else _on_disk(size)
        with (
            storage.open_file(place, self.properties) as file,
            pa.CompressedInputStream(file, _COMPRESSION) as plain,
        ):
            if plain.readinto(data) != size or plain.read(1):
                raise OSError(errno.EIO, f"has not {size} bytes", place)
        return data


def _on_disk(size: int) -> Bytes:
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)  # an error here: without room, the mapping would end the process
        return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)


@contextmanager
def to_deliver(place: str, properties: Mapping[str, str]) -> Iterator[pa.NativeFile]:
    """Open a file of the store that executors fetch, for writing.

    It is compressed, because to compress a byte takes less time than to send it to a store and back.

    Raises:
        OSError: it cannot be written.
    """
    with storage.create(place, properties) as file, pa.CompressedOutputStream(file, _COMPRESSION) as plain:
        yield plain


def examine(delivery: Delivery, place: str, content: bytes) -> str | None:
    """Return what prevents this executor from reading the driver's file at `place`, or that its code differs."""
    try:
        delivery.require_same_code()
        if delivery.fetched(place, len(content)).tobytes() != content:
            return f"executor {socket.gethostname()} reads other bytes at {place} than the driver wrote"
    except LakeError as error:
        return str(error)
    except OSError as error:
        reason = " ".join(str(error).split())[:300]
        return f"executor {socket.gethostname()} cannot read {place}: {reason}"
    return None

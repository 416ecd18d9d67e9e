"""Do the part of a task that only executors of a cluster have: compare the code, and fetch bytes from the store.

Everything here runs in Spark's Python workers, which see no disk of the driver.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from toolkit.lake import storage
from toolkit.values.errors import LakeError
from toolkit.values.installed_code import code_identity

_COPIED = 4 << 20  # bytes at once
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

    @contextmanager
    def fetched(self, place: str) -> Iterator[str]:
        """Copy a file of the store to the executor's disk for the block, and yield its path.

        The copy has no name, so it ends with its process. Only the bytes in use are in memory.

        Raises:
            OSError: it cannot be read.
        """
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
        with tempfile.TemporaryFile(dir=folder) as copy:
            with (
                storage.open_file(place, self.properties) as file,
                pa.CompressedInputStream(file, _COMPRESSION) as plain,
            ):
                shutil.copyfileobj(plain, copy, _COPIED)
            copy.flush()
            yield f"/dev/fd/{copy.fileno()}"


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
        with delivery.fetched(place) as path, Path(path).open("rb") as file:
            if file.read() != content:
                return f"executor {socket.gethostname()} reads other bytes at {place} than the driver wrote"
    except LakeError as error:
        return str(error)
    except OSError as error:
        reason = " ".join(str(error).split())[:300]
        return f"executor {socket.gethostname()} cannot read {place}: {reason}"
    return None

"""Bring the bytes that tasks read to the executors of a cluster: through the store of the warehouse.

In local mode tasks read the files of the driver themselves. On a cluster, each task gets a file of its own that holds
exactly its bytes. It lies under `.spool` in the warehouse, because a runner and its executors reach that in any case,
and it is deleted with the commit. The next run deletes what a killed run left behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from toolkit.decode.stream import open_bytes
from toolkit.lake import storage
from toolkit.lake.cluster import is_cluster, new_place, spool_folder
from toolkit.lake.executors import Delivery, to_deliver
from toolkit.lake.file_lists import listed_files
from toolkit.values.errors import LakeError
from toolkit.values.installed_code import code_identity

if TYPE_CHECKING:
    from toolkit.values.lake_access import LakeAccess

_LISTS = "delivered"  # folder of the lists, one for each batch
_COPIED = 4 << 20  # bytes at once
_UPLOADS = 4  # at once


@contextmanager
def delivered(access: LakeAccess, tasks: Sequence[Any]) -> Iterator[tuple[Sequence[Any], Delivery | None]]:
    """Return the tasks as workers of Spark can read them inside the block, with what an executor needs for that.

    Raises:
        LakeError: their bytes cannot be written to the store.
    """
    if not is_cluster(access):
        yield tasks, None
        return
    properties = storage.file_properties(access)
    with listed_files(access, _LISTS, properties) as files:
        copies = [_Copy(task.path, task.span, files.add(new_place(access))) for task in tasks]
        try:
            with ThreadPoolExecutor(_UPLOADS) as pool:
                for _ in pool.map(partial(_write, properties), copies):
                    pass
        except OSError as error:
            reason = " ".join(str(error).split())[:300]
            raise LakeError(
                f"writing {spool_folder(access)} for the executors: {reason}; correct the rights of this user there,"
                " and run it again"
            ) from None
        moved = [task.moved(copy.place) for task, copy in zip(tasks, copies, strict=True)]
        yield moved, Delivery(code_identity(), properties)


class _Copy(NamedTuple):
    """Bytes of a file of this machine, and their place in the store."""

    path: str
    span: tuple[int, int]
    place: str


def _write(properties: Mapping[str, str], copy: _Copy) -> None:
    data = open_bytes(copy.path)
    with to_deliver(copy.place, properties) as target:
        for first in range(*copy.span, _COPIED):
            target.write(data[first : min(first + _COPIED, copy.span[1])])

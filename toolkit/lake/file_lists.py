"""Keep a list of files on the runner's disk, so that the next run deletes what a killed run left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from toolkit.lake import storage
from toolkit.values.errors import LakeError
from toolkit.values.log_setup import logger

if TYPE_CHECKING:
    from toolkit.values.lake_access import LakeAccess

_log = logger(__name__)
_BEGUN_SECONDS = 86_400.0


class ListedFiles:
    """Places of files that are deleted at the end of the run, unless they leave the list before.

    Attributes:
        properties: what opens the files (`storage`); they may have secrets.
    """

    def __init__(self, properties: Mapping[str, str], listed: BinaryIO) -> None:
        self.properties = properties
        self.places: list[str] = []
        self._listed = listed

    def add(self, place: str) -> str:
        """List a place before its file is written.

        Raises:
            LakeError: the list cannot be written.
        """
        self.places.append(place)
        try:
            self._write([place])
        except OSError as error:
            raise LakeError(
                f"listing a new file in {self._listed.name}: {error.strerror}; free space there, and run it again"
            ) from None
        return place

    def replace(self, places: Sequence[str]) -> None:
        """List these places instead.

        That is forced to the disk: after a power cut the next run would delete what has left the list.

        Raises:
            OSError: it cannot be forced.
        """
        self.places = list(places)
        self._listed.truncate(0)
        self._write(places)
        os.fsync(self._listed.fileno())

    def _write(self, places: Sequence[str]) -> None:
        text = "".join(f"{place}\n" for place in places).encode()
        if self._listed.write(text) != len(text):  # without a buffer, which would be written again at the end
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def delete(self) -> None:
        """Delete every file that is listed."""
        for place in self.places:
            storage.delete(place, self.properties)


@contextmanager
def listed_files(access: LakeAccess, kind: str, properties: Mapping[str, str]) -> Iterator[ListedFiles]:
    """Write files inside the block. What is listed at its end is deleted. `kind` names the folder of the lists.

    Raises:
        LakeError: the list cannot be written, or files of a killed run cannot be deleted.
    """
    folder = access.work_dir / kind
    path = folder / f"{uuid.uuid4()}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in sorted(folder.glob("*.txt")):
            _delete_listed(left, properties)
        for begun in folder.glob("*.new"):
            _delete_begun(begun)
        listed = path.with_suffix(".new").open("ab", buffering=0)
    except OSError as error:
        raise LakeError(
            f"deleting what a killed run left behind, as {folder} lists it: {error.strerror or error}; correct that,"
            " and run it again"
        ) from None
    with listed:
        fcntl.flock(listed, fcntl.LOCK_EX)
        path.with_suffix(".new").rename(path)  # only now, so that no other run takes it for one of a killed run
        made = ListedFiles(properties, cast(BinaryIO, listed))
        try:
            yield made
        finally:
            try:
                made.delete()
                path.unlink()
            except OSError as error:  # the list is for the next run then
                _log.warning("files were not deleted", extra={"list": str(path), "reason": str(error)})


def _delete_begun(path: Path) -> None:
    """Delete a list that a run was killed before it could lock. It is empty. Others get their name within a moment."""
    with suppress(FileNotFoundError):
        if time.time() - path.stat().st_mtime > _BEGUN_SECONDS:
            path.unlink()


def _delete_listed(path: Path, properties: Mapping[str, str]) -> None:
    """Delete the files that a list names, and the list, unless its run still holds it."""
    with suppress(FileNotFoundError), path.open("r+", encoding="utf-8") as listed:  # its run may have ended
        try:
            fcntl.flock(listed, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        *lines, _ = listed.read().split("\n")  # of half a line after a power cut, `cdc maintain` deletes the file
        for line in lines:
            storage.delete(line, properties)
        path.unlink(missing_ok=True)

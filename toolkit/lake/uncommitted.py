"""Give places to the data files of a batch, and delete those that no commit took.

A file is written at its final place and committed afterwards. The places are also listed in a file of the runner, so
that the next run deletes what a killed run left behind. A place leaves the list before its commit begins: from then on
the catalog may name it. What a kill during a commit leaves behind is for `cdc maintain`.
"""

from __future__ import annotations

import fcntl
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from toolkit.lake import storage
from toolkit.lake.files import field_ids
from toolkit.values.errors import CommitConflict, LakeError
from toolkit.values.log_setup import logger

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from toolkit.values.config import Config

_log = logger(__name__)
_LISTS = "new-files"  # folder of the lists, one for each run


class NewFiles:
    """The data files of rows that one run writes to `raw.events`.

    Attributes:
        ids: the field id of each column (`files.field_ids`).
        properties: what opens the table's files (`storage`); they may have secrets.
    """

    def __init__(self, table: Table, listed: IO[str]) -> None:
        self.ids: Mapping[str, int] = field_ids(table.schema())
        self.properties: Mapping[str, str] = table.io.properties
        self._table, self._listed = table, listed
        self._open: list[str] = []

    def place(self, batch_id: int) -> str:
        """Give the place of a new file of rows of a batch."""
        from toolkit.lake.ledger import partition

        key = partition(self._table, batch_id, "row")
        name = f"{uuid.uuid4()}-copy-{batch_id}.parquet"
        location = self._table.location_provider().new_data_location(name, key)
        self._open.append(location)
        self._listed.write(f"{location}\n")
        self._listed.flush()
        return location

    @contextmanager
    def committing(self, places: Sequence[str]) -> Iterator[None]:
        """Commit files inside the block. They stay, unless another runner committed first."""
        self._list([place for place in self._open if place not in set(places)])
        try:
            yield
        except CommitConflict:
            self._list([*self._open, *places])
            raise

    def _list(self, places: list[str]) -> None:
        self._open = places
        self._listed.truncate(0)
        self._listed.writelines(f"{place}\n" for place in places)
        self._listed.flush()

    def delete_uncommitted(self) -> None:
        """Delete every file that was not committed."""
        for place in self._open:
            storage.delete(place, self.properties)


@contextmanager
def new_files(config: Config, table: Table) -> Iterator[NewFiles]:
    """Write and commit files inside the block. What is not committed at its end is deleted.

    Raises:
        LakeError: the list cannot be written, or files of a killed run cannot be deleted.
    """
    folder = config.work_dir / _LISTS
    path = folder / f"{uuid.uuid4()}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in sorted(folder.glob("*.txt")):
            _delete_listed(left, table.io.properties)
        listed = path.open("a", encoding="utf-8")
    except OSError as error:
        raise LakeError(
            f"deleting what a killed run left behind, as {folder} lists it: {error.strerror or error}; correct that,"
            " and run it again"
        ) from None
    with listed:
        fcntl.flock(listed, fcntl.LOCK_EX)
        made = NewFiles(table, listed)
        try:
            yield made
        finally:
            try:
                made.delete_uncommitted()
                path.unlink()
            except OSError as error:  # the list is for the next run then
                _log.warning("files of rows were not deleted", extra={"list": str(path), "reason": str(error)})


def _delete_listed(path: Path, properties: Mapping[str, str]) -> None:
    """Delete the files that a list names, and the list, unless its run still holds it."""
    with path.open("r+", encoding="utf-8") as listed:
        try:
            fcntl.flock(listed, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        for line in listed.read().splitlines():
            storage.delete(line, properties)
        path.unlink()


__all__ = ["NewFiles", "new_files"]

"""Give places to the data files of a batch, and delete those that no commit took.

A file is written at its final place and committed afterwards. The places are also listed in a file of the runner, so
that the next run deletes what a killed run left behind. A place leaves the list before its commit begins: from then on
the catalog may name it. What a kill during a commit leaves behind is for `cdc maintain`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toolkit.lake import log_layout
from toolkit.lake.file_lists import ListedFiles, listed_files
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.table_layout import field_ids, new_location
from toolkit.values.errors import CommitConflict

if TYPE_CHECKING:
    from toolkit.values.lake_access import LakeAccess

_LISTS = "new-files"  # folder of the lists, one for each run


class NewFiles:
    """The data files of rows that one run writes to `raw.events`.

    Attributes:
        ids: the field id of each column (`table_layout.field_ids`).
        properties: what opens the table's files (`storage`); they may have secrets.
    """

    def __init__(self, metadata: Mapping[str, Any], listed: ListedFiles) -> None:
        self.ids: Mapping[str, int] = field_ids(metadata)
        self.properties = listed.properties
        self._metadata, self._listed = metadata, listed

    def place(self, batch_id: int) -> str:
        """Return the place of a new file of rows of a batch."""
        return self._listed.add(new_location(self._metadata, "row", batch_id, f"{uuid.uuid4()}-copy-{batch_id}"))

    @contextmanager
    def committing(self, places: Sequence[str]) -> Iterator[None]:
        """Commit files inside the block. They stay, unless another runner committed first."""
        self._listed.replace([place for place in self._listed.places if place not in set(places)])
        try:
            yield
        except CommitConflict:
            self._listed.replace([*self._listed.places, *places])
            raise


@contextmanager
def new_files(access: LakeAccess) -> Iterator[NewFiles]:
    """Write and commit files inside the block. What is not committed at its end is deleted.

    Raises:
        LakeError: the list cannot be written, or files of a killed run cannot be deleted; or there is no `raw.events`.
    """
    log_layout.require(access)
    metadata, properties = open_catalog(access).opened(access.names.events)
    with listed_files(access, _LISTS, properties) as listed:
        yield NewFiles(metadata, listed)

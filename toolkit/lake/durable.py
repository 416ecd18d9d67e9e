"""Force what a commit wrote to the disk, before anything else forgets the same changes.

pyiceberg's commits are forced before the catalog names them. Spark's catalog names them first, so they are forced as
soon as Spark returns. A process that ends in between leaves that to the next one, before it builds on the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from toolkit.lake import storage
from toolkit.values.errors import LakeError
from toolkit.values.failpoints import Point, can_fail

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from toolkit.values.lake_access import LakeAccess


def sync_table(access: LakeAccess, table: Table, snapshots: Iterable[int]) -> None:
    """Force the metadata of a table to the disk, and the files, manifests and folders of these snapshots.

    Parquet writers and Iceberg do not do this. Only the catalog itself is already safe. Objects that an object store
    has acknowledged are durable already; their sizes are compared.

    Raises:
        LakeError: a file is missing or damaged, or cannot be forced to the disk. The slot must not move.
    """
    found = (snapshot for snapshot in map(table.snapshot_by_id, snapshots) if snapshot is not None)
    metadata = ((table.metadata_location, None),)
    sync_files(access, ".".join(table.name()), chain(metadata, _written(table.io, found)), table.io.properties)


def sync_snapshots(access: LakeAccess, name: str, io: FileIO, snapshots: Iterable[Snapshot]) -> None:
    """Force the files, manifests and folders of table snapshots to the disk that no metadata of a table names yet.

    Raises:
        LakeError: as `sync_table`.
    """
    sync_files(access, name, _written(io, snapshots), io.properties)


@can_fail(Point.FORCE)
def sync_files(
    access: LakeAccess, name: str, files: Iterable[tuple[str, int | None]], properties: Mapping[str, str]
) -> None:
    """Force files of a commit to a table to the disk, with the folders that name them. A size is compared.

    Raises:
        LakeError: as `sync_table`.
    """
    try:
        storage.force(files, access.warehouse, properties)
    except OSError as error:
        found = storage.in_words(error)
    except Exception as error:  # what half an Avro file raises depends on where it ends
        found = f"a manifest is damaged: {type(error).__name__}: {error}"
    else:
        return
    kept = "the slot was not moved; " if name == access.names.events else ""
    raise LakeError(
        f"forcing the files of {name} to the disk: {found}; {kept}correct the disk and {access.names.remedy(name)}"
    )


def _written(io: FileIO, snapshots: Iterable[Snapshot]) -> Iterator[tuple[str, int | None]]:
    """Yield each file that these table snapshots added, with its size in bytes if it is known."""
    from pyiceberg.manifest import ManifestEntryStatus

    for snapshot in snapshots:
        yield snapshot.manifest_list, None
        for manifest in snapshot.manifests(io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            yield manifest.manifest_path, manifest.manifest_length
            for entry in manifest.fetch_manifest_entry(io):
                if entry.status == ManifestEntryStatus.ADDED:
                    yield entry.data_file.file_path, entry.data_file.file_size_in_bytes

"""Force the files of a commit to the disk, before the slot or any other copy gives up the same changes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from toolkit.values.errors import LakeError

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from toolkit.values.config import Config


def sync_commit(config: Config, table: str, snapshot_id: int) -> None:
    """Force the files that a table snapshot added to the disk, with their manifests, the metadata and their folders.

    Parquet writers and Iceberg do not do this. Only the catalog's own file is already safe. Objects that an object
    store has acknowledged are durable already.

    Raises:
        LakeError: a file is missing or cannot be forced to the disk. The slot must not move.
    """
    from toolkit.lake.jdbc import JdbcCatalog

    try:
        _sync(config.warehouse, _local(_written(JdbcCatalog(config).load_table(table), snapshot_id)))
    except OSError as error:
        raise LakeError(
            f"forcing the files of {table} to the disk: {error.filename or ''} {error.strerror or error}; the slot was"
            " not moved; correct the disk and run `cdc doctor`"
        ) from None


def _written(table: Table, snapshot_id: int) -> Iterator[str]:
    """Give the locations of all files that a table snapshot created."""
    from pyiceberg.manifest import ManifestEntryStatus

    yield table.metadata_location
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return
    yield snapshot.manifest_list
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id != snapshot_id:
            continue
        yield manifest.manifest_path
        for entry in manifest.fetch_manifest_entry(table.io):
            if entry.status == ManifestEntryStatus.ADDED:
                yield entry.data_file.file_path


def _local(locations: Iterable[str]) -> Iterator[Path]:
    for location in locations:
        parsed = urlparse(location)
        if parsed.scheme in ("", "file"):
            yield Path(parsed.path if parsed.scheme else location)


def _sync(root: Path, files: Iterable[Path]) -> None:
    """Sync files, and then the folders that contain them, up to `root`."""
    folders: set[Path] = set()
    for file in files:
        _force(file)
        folders.update(folder for folder in file.parents if folder.is_relative_to(root))
    for folder in sorted(folders, key=lambda f: len(f.parts), reverse=True):
        _force(folder)


def _force(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


__all__ = ["sync_commit"]

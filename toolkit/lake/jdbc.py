"""Give pyiceberg the lake's catalog: the one SQLite table of Iceberg's JDBC catalog, without sqlalchemy.

The imports of pyiceberg's own `SqlCatalog` would add a second to an empty drain. The toolkit needs only two things of a
catalog: load a table, and replace its metadata file if no other process did so since.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.update import AddSnapshotUpdate, update_table_metadata

from toolkit.lake import durable
from toolkit.lake.clock import require_clock
from toolkit.lake.reads import BUSY_SECONDS, metadata_location
from toolkit.values.errors import LakeError
from toolkit.values.failpoints import Point, can_fail

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from toolkit.values.config import Config

_SWAP = """
UPDATE iceberg_tables SET metadata_location = :new, previous_metadata_location = :old
WHERE catalog_name = :catalog AND table_namespace = :namespace AND table_name = :name AND metadata_location = :old
"""


class JdbcCatalog:
    """The catalog methods that a `pyiceberg.table.Table` calls."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def load_table(self, identifier: str) -> Table:
        """Load the table `namespace.table` as it is now.

        Raises:
            NoSuchTableError: there is no such catalog or table.
        """
        location = metadata_location(self._config, identifier)
        if location is None:
            raise NoSuchTableError(f"no table {identifier} in {self._config.catalog_db}")
        io = load_file_io({}, location)
        metadata = FromInputFile.table_metadata(io.new_input(location))
        namespace, _, name = identifier.rpartition(".")
        # pyiceberg declares this protocol as an abstract class with twenty methods.
        return Table((namespace, name), metadata, location, io, self)  # type: ignore[arg-type]

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Write the next metadata file of a table and swap it in for the file that `table` was read from.

        Whatever the new metadata names is on the disk before the catalog names it.

        Raises:
            CommitFailedException: the table is not what it was when `table` was read; it is left as it stands.
            LakeError: the files cannot be forced to the disk, or the catalog is locked or cannot be written.
        """
        old = table.metadata_location
        log = table.metadata.snapshot_log[-1:]
        require_clock(".".join(table.name()), table.metadata.last_updated_ms, *(entry.timestamp_ms for entry in log))
        for requirement in requirements:
            requirement.validate(table.metadata)
        metadata = update_table_metadata(table.metadata, updates, metadata_location=old)
        provider = load_location_provider(metadata.location, metadata.properties)
        new = provider.new_table_metadata_file_location(_version(old) + 1)
        ToOutputFile.table_metadata(metadata, table.io.new_output(new))
        written = Table(table.name(), metadata, new, table.io, self)  # type: ignore[arg-type]
        added = (update.snapshot.snapshot_id for update in updates if isinstance(update, AddSnapshotUpdate))
        durable.sync_table(self._config, written, added)
        namespace, name = table.name()
        values = {"catalog": self._config.lake.catalog, "namespace": namespace, "name": name, "old": old, "new": new}
        if not _swapped(self._config, values):
            raise CommitFailedException(f"{namespace}.{name} was committed to by another process")
        return CommitTableResponse.model_construct(metadata=metadata, metadata_location=new)

    def force(self, identifier: str, snapshot_id: int) -> None:
        """Force a commit of another writer to the disk: Spark's catalog names files before they are there.

        Raises:
            LakeError: a file is missing or damaged, or cannot be forced to the disk. The slot must not move.
        """
        durable.sync_table(self._config, self.load_table(identifier), (snapshot_id,))

    @staticmethod
    def supports_server_side_planning() -> bool:
        """Whether the server plans scans, which it never does."""
        return False

    @staticmethod
    def _delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        """Delete metadata files that the table no longer names, if its `delete-after-commit` property is set."""
        kept = {entry.metadata_file for entry in metadata.metadata_log}
        for entry in base.metadata_log:
            if entry.metadata_file not in kept:
                io.delete(entry.metadata_file)


@can_fail(Point.SWAP)
def _swapped(config: Config, values: dict[str, str]) -> bool:
    try:
        with closing(sqlite3.connect(config.catalog_db, timeout=BUSY_SECONDS)) as connection, connection:
            return bool(connection.execute(_SWAP, values).rowcount)
    except sqlite3.Error as error:
        raise LakeError(
            f"committing to the catalog {config.catalog_db}: {error}; end the program that holds it or free space, and"
            " run it again"
        ) from None


def _version(location: str) -> int:
    """Give the number of a metadata file, which is the first part of its name."""
    found = re.match(r"\d+", location.rpartition("/")[2])
    return int(found[0]) if found else -1

"""Read and write the embedded catalog: the one SQLite table of Iceberg's JDBC catalog, without sqlalchemy.

A table's metadata file is read as JSON. The import of pyiceberg alone takes longer than `cdc status` may take, so
pyiceberg is used only to read and write rows. The imports of its own `SqlCatalog` would add a second to an empty drain.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.lake import folders, storage
from toolkit.lake.catalog_entries import change_of_entry, is_of_one_file, uncompressed
from toolkit.values.errors import LakeError, TableDamaged
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.locations import local_path
from toolkit.values.names import in_one_line

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import CommitTableResponse, Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from toolkit.values.lake_access import LakeAccess

#: How long to wait for a process that writes to the catalog's file.
BUSY_SECONDS = 30.0
#: Files that were still locked after the whole wait. This process does not wait for one again until it has read it.
_STILL_LOCKED: set[Path] = set()
_SWAP = """
UPDATE iceberg_tables SET metadata_location = :new, previous_metadata_location = :old
WHERE catalog_name = :catalog AND table_namespace = :namespace AND table_name = :name AND metadata_location = :old
"""


class SqliteCatalog:
    """The embedded catalog. It is also the catalog of the `pyiceberg.table.Table` objects that it returns."""

    def __init__(self, access: LakeAccess) -> None:
        self._access = access
        self._file = access.catalog_db
        self._kept: list[sqlite3.Connection] | None = None  # the open connection inside `reading`

    @property
    def where(self) -> str:
        """Return the path of the catalog's file."""
        return str(self._file)

    @property
    def folder(self) -> Path:
        """Return the folder of the catalog's file."""
        return self._file.parent

    def prepare(self) -> None:
        """Create the folder, and check that the file is writable.

        Raises:
            LakeError: it is not.
        """
        folders.require_writable("catalog", self.folder, "uri")
        if self._file.exists() and not (self._file.is_file() and os.access(self._file, os.W_OK)):
            raise LakeError(
                f"[lake] uri: {self._file} is not a writable file; change its permissions or set another uri"
            )

    # -- reading -------------------------------------------------------------------------------------------------

    @cached_property
    def _file_properties(self) -> dict[str, str]:
        return storage.file_properties(self._access)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Ask by one connection inside the block. To open one takes ten times as long as a question."""
        self._kept = []
        try:
            yield
        finally:
            for connection in self._kept:
                connection.close()
            self._kept = None

    def location(self, name: str) -> str | None:
        """Find the current metadata file of a table or view; None if there is no such catalog or table.

        Raises:
            LakeError: the catalog file is not a catalog, or cannot be read.
        """
        return self._locations(name)[0]

    def _locations(self, name: str) -> tuple[str | None, str | None]:
        """Return the current and the previous metadata file, as the catalog names them."""
        if not self._file.is_file():
            return None, None
        try:
            with self._opened() as connection:
                try:
                    row = connection.execute(
                        "SELECT metadata_location, previous_metadata_location FROM iceberg_tables"
                        " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?",
                        self._key(name),
                    ).fetchone()
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode != sqlite3.SQLITE_ERROR or _columns(connection):
                        raise
                    return None, None  # the file has no list of tables yet
        except sqlite3.OperationalError as error:
            raise LakeError(f"reading the catalog {self._file}: {error}; run it again, or restore that file") from None
        except sqlite3.DatabaseError as error:
            raise LakeError(
                f"reading the catalog {self._file}: {error}; [lake] uri must name an Iceberg catalog"
            ) from None
        return (row[0], row[1]) if row else (None, None)

    def metadata(self, name: str) -> dict[str, Any] | None:
        """Read the metadata file of a table or view; None if there is none.

        Raises:
            LakeError: the catalog names a metadata file that is missing or damaged.
        """
        found = self.read(name)
        return None if found is None else found[1]

    def opened(self, name: str) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Read the metadata of a table that must exist. Return it with the properties that open its files.

        Raises:
            LakeError: there is no such table, or its metadata file is missing or damaged.
        """
        found = self.metadata(name)
        if found is None:
            raise LakeError(f"no table {name} in {self._file}; run `cdc init`")
        return found, self._file_properties

    def read(self, name: str) -> tuple[str, dict[str, Any]] | None:
        """Find and read the metadata file of a table or view; None if there is none.

        Raises:
            LakeError: the catalog names a metadata file that is missing or damaged.
        """
        for attempt in (1, 2):
            location = self.location(name)
            if location is None:
                return None
            try:
                return location, self._parsed(location)
            except (OSError, ValueError) as error:
                # Between the two reads the table may have been dropped. Many commits may also have removed the file.
                if attempt == 2 or self.location(name) == location:
                    raise _damaged(name, location, error) from None
        return None

    def tables(self, namespace: str, kind: str) -> tuple[str, ...]:
        """List the tables or views of a namespace, in order; empty without a catalog.

        Raises:
            LakeError: the catalog cannot be read.
        """
        if not self._file.is_file():
            return ()
        try:
            with self._opened() as connection:
                if "iceberg_type" not in _columns(connection):
                    return ()
                rows = connection.execute(
                    "SELECT table_name FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ?"
                    " AND coalesce(iceberg_type, 'TABLE') = ? ORDER BY 1",
                    (self._access.lake.catalog, namespace, kind),
                ).fetchall()
        except sqlite3.OperationalError as error:
            raise LakeError(f"reading the catalog {self._file}: {error}; run it again, or restore that file") from None
        return tuple(row[0] for row in rows)

    def repair_statement(self, name: str) -> tuple[str, bool]:
        """Return the statement that makes the catalog name the file before, or forget the table."""
        before = self._locations(name)[1]
        usable = before is not None and self._readable(before)
        change = change_of_entry(self._access.lake.catalog, name, before if usable else None)
        what = "name the file before it" if usable else "forget it"
        change = re.sub(r'([\\"$`])', r"\\\1", change)  # between double quotes, a shell reads these
        return f'let the catalog {what} by sqlite3 {shlex.quote(str(self._file))} "{change}"', usable

    def _parsed(self, location: str) -> dict[str, Any]:
        return dict(json.loads(uncompressed(location, storage.read(location, self._file_properties))))

    def _readable(self, location: str) -> bool:
        try:
            return bool(self._parsed(location))
        except (OSError, ValueError):
            return False

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file to read it. A command reads it several times, and waits for a lock on it only once.

        It is opened for writing, too: after a kill, SQLite can only be read once a connection that may write has rolled
        the unfinished commit back.
        """
        try:
            if self._kept is None:
                with closing(self._connect()) as connection:
                    yield connection
            else:
                self._kept = self._kept or [self._connect()]
                yield self._kept[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                _STILL_LOCKED.add(self._file)
                for connection in self._kept or ():
                    connection.close()  # the next one does not wait
                self._kept = None if self._kept is None else []
            raise
        _STILL_LOCKED.discard(self._file)

    def _connect(self) -> sqlite3.Connection:
        seconds = 0.0 if self._file in _STILL_LOCKED else BUSY_SECONDS
        return sqlite3.connect(f"{self._file.as_uri()}?mode=rw", uri=True, timeout=seconds)

    def _key(self, name: str) -> tuple[str, str, str]:
        namespace, _, table = name.rpartition(".")
        return self._access.lake.catalog, namespace, table

    # -- what a `pyiceberg.table.Table` asks of its catalog --------------------------------------------------------

    def load_table(self, name: str | tuple[str, ...]) -> Table:
        """Load a table as it is now. pyiceberg names it by a tuple when it repeats a lost commit.

        Raises:
            NoSuchTableError: there is no such catalog or table.
            LakeError: the catalog names a metadata file that is missing or damaged.
        """
        from pyiceberg.exceptions import NoSuchTableError, ValidationError
        from pyiceberg.serializers import FromInputFile
        from pyiceberg.table import Table

        name = name if isinstance(name, str) else ".".join(name)
        location = self.location(name)
        if location is None:
            raise NoSuchTableError(f"no table {name} in {self._file}")
        io = storage.file_io(location, self._file_properties)
        try:
            metadata = FromInputFile.table_metadata(io.new_input(location))
        except (OSError, EOFError, ValueError, zlib.error, ValidationError) as error:
            raise _damaged(name, location, error) from None
        # pyiceberg declares this protocol as an abstract class with twenty methods.
        return Table(self._key(name)[1:], metadata, location, io, self)  # type: ignore[arg-type]

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Write the next metadata file of a table and swap it in for the file that `table` was read from.

        Whatever the new metadata names is on the disk before the catalog names it.

        Raises:
            CommitFailedException: the table is not what it was when `table` was read; it is left as it stands.
            LakeError: the files cannot be forced to the disk, or the catalog is locked or cannot be written.
        """
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.serializers import ToOutputFile
        from pyiceberg.table import CommitTableResponse, Table
        from pyiceberg.table.locations import load_location_provider
        from pyiceberg.table.update import AddSnapshotUpdate, update_table_metadata

        from toolkit.lake import durable
        from toolkit.lake.clock import require_clock

        old, name = table.metadata_location, ".".join(table.name())
        # Not `table.metadata`: callers of pyiceberg change properties there that are not to be committed.
        before = self.load_table(name)
        if before.metadata_location != old:
            raise CommitFailedException(f"{name} was committed to by another process")
        log = before.metadata.snapshot_log[-1:]
        require_clock(name, before.metadata.last_updated_ms, *(entry.timestamp_ms for entry in log))
        for requirement in requirements:
            requirement.validate(before.metadata)
        metadata = update_table_metadata(before.metadata, updates, metadata_location=old)
        provider = load_location_provider(metadata.location, metadata.properties)
        new = provider.new_table_metadata_file_location(self.version(old) + 1)
        ToOutputFile.table_metadata(metadata, table.io.new_output(new))
        written = Table(table.name(), metadata, new, table.io, self)  # type: ignore[arg-type]
        added = (update.snapshot.snapshot_id for update in updates if isinstance(update, AddSnapshotUpdate))
        durable.sync_table(self._access, written, added)
        if not self.swap(name, old, new):
            raise CommitFailedException(f"{name} was committed to by another process")
        return CommitTableResponse.model_construct(metadata=metadata, metadata_location=new)

    @property
    def of_files(self) -> SqliteCatalog:
        """Return this catalog: it names the metadata file of each table."""
        return self

    def swap(self, name: str, old: str, new: str) -> bool:
        """Let the catalog name another metadata file of a table; False if it no longer names `old`.

        Raises:
            LakeError: the catalog is locked or cannot be written.
        """
        catalog, namespace, table = self._key(name)
        values = {"catalog": catalog, "namespace": namespace, "name": table, "old": old, "new": new}
        return _swapped(self._file, values)

    @staticmethod
    def version(location: str) -> int:
        """Return the number of a metadata file, which is the first part of its name."""
        found = re.match(r"\d+", location.rpartition("/")[2])
        return int(found[0]) if found else -1

    def forget_metadata(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Delete metadata files that a table no longer names, if its `delete-after-commit` property is set."""
        if after.get("properties", {}).get("write.metadata.delete-after-commit.enabled") != "true":
            return
        kept = {entry["metadata-file"] for entry in after["metadata-log"]}
        for entry in before.get("metadata-log", []):
            if entry["metadata-file"] not in kept:
                storage.delete(entry["metadata-file"], self._file_properties)

    @staticmethod
    def supports_server_side_planning() -> bool:
        """Return that no server plans scans."""
        return False

    @staticmethod
    def _delete_old_metadata(io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        """Delete metadata files that the table no longer names, if its `delete-after-commit` property is set."""
        kept = {entry.metadata_file for entry in metadata.metadata_log}
        for entry in base.metadata_log:
            if entry.metadata_file not in kept:
                io.delete(entry.metadata_file)


@can_fail(Point.SWAP)
def _swapped(file: Path, values: dict[str, str]) -> bool:
    try:
        with closing(sqlite3.connect(file, timeout=BUSY_SECONDS)) as connection, connection:
            return bool(connection.execute(_SWAP, values).rowcount)
    except sqlite3.Error as error:
        raise LakeError(
            f"committing to the catalog {file}: {error}; end the program that holds it or free space, and run it again"
        ) from None


def _columns(connection: sqlite3.Connection) -> set[str]:
    """Return the columns of the catalog's list of tables; empty before the first table."""
    return {row[0] for row in connection.execute("SELECT name FROM pragma_table_info('iceberg_tables')").fetchall()}


def _damaged(name: str, location: str, error: Exception) -> LakeError:
    text = in_one_line(str(error))[:300]
    place = local_path(location) or location
    damaged = TableDamaged(f"table {name}: metadata file {place} cannot be read: {text}; run `cdc doctor`")
    return damaged if is_of_one_file(error) else LakeError(str(damaged))

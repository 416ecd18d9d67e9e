"""Read and write, through pyiceberg, any catalog that both Spark and pyiceberg support.

pyiceberg's catalogs for a database and for a Hive metastore have no views; `PostgresCatalog` and `ViewsOfHive` add
them. Everything else is pyiceberg's.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from toolkit.lake import pandas_on_demand
from toolkit.lake.catalog_entries import is_of_one_file, metadata_text
from toolkit.values.errors import CdcError, LakeError, TableDamaged
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.modes import CatalogKind

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import CommitTableResponse, Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from toolkit.lake.postgres_catalog import PostgresCatalog
    from toolkit.values.lake_access import LakeAccess

#: The opened catalogs of this process by their properties: each has a connection, and a REST catalog its settings.
_opened: dict[tuple[tuple[str, str], ...], Catalog] = {}
#: Modules whose errors say that a catalog cannot be reached, or that it refuses.
_REFUSING = ("sqlalchemy.", "requests.", "pyiceberg.", "thrift.", "hive_metastore.")


class AnyCatalog:
    """A catalog that pyiceberg supports. It is also the catalog of the `pyiceberg.table.Table` objects that it returns.

    Args:
        config: the lake.
        where: the catalog's place for messages, without secrets.
        properties: what pyiceberg needs to open it.
        secrets: values that no message may contain.
    """

    def __init__(self, access: LakeAccess, where: str, properties: Mapping[str, str], secrets: tuple[str, ...]) -> None:
        self._access = access
        self._properties = {**properties, "name": access.lake.catalog}
        self._secrets = secrets
        self.where = where
        self.folder: Path | None = None

    @property
    def _catalog(self) -> Catalog:
        key = tuple(sorted(self._properties.items()))
        if key not in _opened:
            _opened[key] = _open(self._properties)
        return _opened[key]

    @property
    def _database(self) -> PostgresCatalog | None:
        """Return the catalog if it is in a database, which answers a question by one query."""
        return cast("PostgresCatalog", self._catalog) if self._properties["type"] == "sql" else None

    def reading(self) -> AbstractContextManager[None]:
        """Do nothing: the connections of the process are kept."""
        return nullcontext()

    def prepare(self) -> None:
        """Ask the catalog for a view, and a metastore for a setting.

        Raises:
            LakeError: it cannot be reached, refuses this user, has no views, or keeps the types of columns.
        """
        try:
            self.tables(self._access.names.raw, "VIEW")
        except NotImplementedError:
            raise LakeError(
                f"the catalog {self.where} does not offer views, and `published` needs them; use another catalog, or"
                ' set view-endpoints-supported = "true" in [lake.properties] if it has them'
            ) from None
        if self._properties["type"] == CatalogKind.HIVE:
            self._require_changeable()

    def _require_changeable(self) -> None:
        from toolkit.lake.hive_catalog import KEEPS_TYPES, ViewsOfHive

        with self._asked("reading a setting"):
            kept = isinstance(self._catalog, ViewsOfHive) and self._catalog.keeps_types()
        if kept:
            raise LakeError(
                f"the metastore {self.where} keeps the types of columns, so tables could not follow ALTER TABLE;"
                f" set {KEEPS_TYPES} = false in its configuration, and start it again"
            )

    # -- reading -------------------------------------------------------------------------------------------------

    def location(self, name: str) -> str | None:
        """Find the current metadata file of a table; None if there is no such catalog or table.

        Raises:
            LakeError: the catalog cannot be read.
        """
        from pyiceberg.exceptions import NoSuchTableError

        if (database := self._database) is not None:
            with self._asked(f"reading the entry of {name}"):
                return database.location(name)
        try:
            return self.load_table(name).metadata_location
        except NoSuchTableError:
            return None

    def metadata(self, name: str) -> dict[str, Any] | None:
        """Read the metadata of a table or view; None if there is none.

        Raises:
            LakeError: the catalog cannot be read, or names metadata that is missing or damaged.
        """
        for attempt in (1, 2):
            with self._asked(f"reading the metadata of {name}"):
                try:
                    return self._metadata(name)
                except FileNotFoundError:  # many commits since may have removed it
                    if attempt == 2:
                        raise
        return None

    def _metadata(self, name: str) -> dict[str, Any] | None:
        from pyiceberg.exceptions import NoSuchTableError, NoSuchViewError

        if (database := self._database) is not None:
            return database.metadata(name)
        try:
            found = self._catalog.load_table(name)
            # pyiceberg cannot print what it has read of a table of format 3.
            return dict(json.loads(metadata_text(found.io, found.metadata_location)))
        except NoSuchTableError:
            with suppress(NoSuchViewError):
                return dict(json.loads(self._catalog.load_view(name).metadata.model_dump_json()))
        return None

    def opened(self, name: str) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Read the metadata of a table that must exist. Return it with the properties that open its files.

        Raises:
            LakeError: there is no such table, or the catalog cannot be read.
        """
        from pyiceberg.exceptions import NoSuchTableError

        try:
            table = self.load_table(name)
        except NoSuchTableError:
            raise LakeError(f"no table {name} in {self.where}; run `cdc init`") from None
        return dict(json.loads(table.metadata.model_dump_json())), table.io.properties

    def tables(self, namespace: str, kind: str) -> tuple[str, ...]:
        """List the tables or views of a namespace, in order; empty without a catalog.

        Raises:
            LakeError: the catalog cannot be read.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError

        try:
            with self._asked(f"listing {namespace}"):
                listed = self._catalog.list_views if kind == "VIEW" else self._catalog.list_tables
                return tuple(sorted(name for *_, name in listed(namespace)))
        except NoSuchNamespaceError:
            return ()

    @property
    def of_files(self) -> None:
        """Return None: every commit goes through pyiceberg."""
        return None

    def repair_statement(self, name: str) -> tuple[str, bool]:
        """Return the statement for the database of the catalog, or what to ask of a catalog that is a server."""
        if (database := self._database) is not None:
            with self._asked(f"reading the entry of {name}"):
                statement, usable = database.change_of_entry(name)
                return f'let the catalog {self.where} give that file up by the statement "{statement}"', usable
        return f"let the catalog {self.where} forget {name} by a DROP without PURGE", False

    # -- what a `pyiceberg.table.Table` asks of its catalog --------------------------------------------------------

    def load_table(self, name: str | tuple[str, ...]) -> Table:
        """Load a table as it is now.

        Raises:
            NoSuchTableError: there is no such catalog or table.
            LakeError: the catalog cannot be read, or names metadata that is missing or damaged.
        """
        from pyiceberg.table import Table

        with self._asked(f"reading the metadata of {name if isinstance(name, str) else '.'.join(name)}"):
            found = self._catalog.load_table(name)
        # pyiceberg declares this protocol as an abstract class with twenty methods.
        return Table(found.name(), found.metadata, found.metadata_location, found.io, self, found.config)  # type: ignore[arg-type]

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Let the catalog write the next metadata of a table, if the table still is as the requirements say.

        The files that a table snapshot names are on the disk before the catalog names it, and the metadata file before
        this returns.

        Raises:
            CommitFailedException: another process has changed the table; it is left as it stands.
            LakeError: files cannot be forced to the disk, or it is not known whether the commit landed.
        """
        from pyiceberg import exceptions
        from pyiceberg.table import CommitTableResponse, Table
        from pyiceberg.table.update import AddSnapshotUpdate

        from toolkit.lake import durable
        from toolkit.lake.clock import require_clock

        name = ".".join(table.name())
        log = table.metadata.snapshot_log[-1:]
        require_clock(name, table.metadata.last_updated_ms, *(entry.timestamp_ms for entry in log))
        added = [update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate)]
        durable.sync_snapshots(self._access, name, table.io, added)
        with self._asked(f"committing to {name}", unknown=True):
            try:
                response = _committed(self._catalog, table, requirements, updates)
            except exceptions.CommitFailedException:
                # Also the answer to a request that a proxy has sent twice, and that has landed the first time.
                found = self._catalog.load_table(name)
                if not added or any(found.snapshot_by_id(snapshot.snapshot_id) is None for snapshot in added):
                    raise
                response = CommitTableResponse.model_construct(
                    metadata=found.metadata, metadata_location=found.metadata_location
                )
        written = Table(table.name(), response.metadata, response.metadata_location, table.io, self)  # type: ignore[arg-type]
        durable.sync_table(self._access, written, ())
        return response

    @staticmethod
    def supports_server_side_planning() -> bool:
        """Return that the server is not asked to plan scans."""
        return False

    def _delete_old_metadata(self, io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:
        """Delete metadata files that the table no longer names. A REST catalog does so itself."""
        from pyiceberg.catalog import MetastoreCatalog

        if isinstance(self._catalog, MetastoreCatalog):
            self._catalog._delete_old_metadata(io, base, metadata)

    @contextmanager
    def _asked(self, what: str, *, unknown: bool = False) -> Iterator[None]:
        """Turn what a catalog, its driver or its damaged metadata raise into one line without secrets."""
        from pyiceberg import exceptions

        try:
            yield
        except (
            CdcError,
            NotImplementedError,
            exceptions.CommitFailedException,
            exceptions.NoSuchNamespaceError,
            exceptions.NoSuchTableError,
            exceptions.NoSuchViewError,
        ):
            raise
        except Exception as error:
            text = self._in_one_line(error)
            if not (unknown or type(error).__module__.startswith(_REFUSING)):
                damaged = TableDamaged(f"{what}: it cannot be read: {text}; run `cdc doctor`")
                raise (damaged if is_of_one_file(error) else LakeError(str(damaged))) from None
            maybe = " (it is not known whether it landed; the next run finds out)" if unknown else ""
            raise LakeError(
                f"{what}: the catalog {self.where} refuses: {text}{maybe}; correct that, or [lake], and run it again"
            ) from None

    def _in_one_line(self, error: Exception) -> str:
        cause = getattr(error, "orig", None) or error  # of sqlalchemy: the driver's own error
        text = " ".join(str(cause).split()) or type(cause).__name__
        for secret in sorted(filter(None, self._secrets), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text[:300]


@can_fail(Point.SWAP)
def _committed(
    catalog: Catalog, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
) -> CommitTableResponse:
    return catalog.commit_table(table, requirements, updates)


def _open(properties: Mapping[str, str]) -> Catalog:
    opened: Catalog
    pandas_on_demand.settle_pyarrow()
    if properties["type"] == "sql":
        from toolkit.lake.postgres_catalog import PostgresCatalog

        opened = PostgresCatalog(**properties)
    elif properties["type"] == CatalogKind.HIVE:
        try:
            from toolkit.lake.hive_catalog import ViewsOfHive
        except ModuleNotFoundError:
            raise LakeError(
                'a Hive metastore as catalog: package thrift is not installed; run pip install "cdc-toolkit[hive]"'
            ) from None
        opened = ViewsOfHive(**properties)
    else:
        from toolkit.lake.rest_catalog import LimitedRest

        opened = LimitedRest(**properties)
    atexit.register(opened.close)
    return opened

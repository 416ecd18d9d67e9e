"""Give pyiceberg's `SqlCatalog` the views of Iceberg's JDBC catalog, which are entries of the same table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, NoSuchViewError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table
from pyiceberg.view import View
from pyiceberg.view.metadata import ViewMetadata

from toolkit.lake.catalog_entries import change_of_entry, metadata_text

_ENTRY = "catalog_name = %(catalog)s and table_namespace = %(namespace)s"
_NO_TABLE = "42P01"  # PostgreSQL's undefined_table: Spark makes the tables of a new catalog


class PostgresCatalog(SqlCatalog):
    """A catalog in PostgreSQL. Where its tables are missing it is an empty one."""

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        """Load a table."""
        with _no_tables(NoSuchTableError(f"table {identifier} does not exist: the catalog has no tables yet")):
            return super().load_table(identifier)

    def location(self, identifier: str) -> str | None:
        """Find the current metadata file of a table, in one query; None if there is no such table."""
        found = self._entries(identifier, "and coalesce(iceberg_type, 'TABLE') = 'TABLE'")
        return next((location for location, _ in found), None)

    def metadata(self, identifier: str) -> dict[str, Any] | None:
        """Read the metadata of a table or view, with one query and one request to the store; None if there is none."""
        for location, _ in self._entries(identifier, ""):
            return dict(json.loads(metadata_text(self._io, location)))
        return None

    def list_tables(self, namespace: str | tuple[str, ...]) -> list[tuple[str, ...]]:
        """List the tables of a namespace; none if there is no such namespace."""
        return self._listed(namespace, "TABLE")

    def list_views(self, namespace: str | tuple[str, ...]) -> list[tuple[str, ...]]:
        """List the views of a namespace; none if there is no such namespace."""
        return self._listed(namespace, "VIEW")

    def load_view(self, identifier: str | tuple[str, ...]) -> View:
        """Load a view.

        Raises:
            NoSuchViewError: there is none of this name.
        """
        for location, _ in self._entries(identifier, "and iceberg_type = 'VIEW'"):
            text = metadata_text(self._io, location)
            return View(self.identifier_to_tuple(identifier), ViewMetadata.model_validate_json(text))
        raise NoSuchViewError(f"view {identifier} does not exist")

    def change_of_entry(self, identifier: str) -> tuple[str, bool]:
        """Return the statement that makes the catalog name the previous metadata file, or drop the table's entry.

        The second value is whether it names the previous file.
        """
        before = next((previous for _, previous in self._entries(identifier, "")), None)
        usable = before is not None and self._io.new_input(before).exists()
        return change_of_entry(self.name, identifier, before if usable else None), usable

    @cached_property
    def _io(self) -> FileIO:
        """Return what opens files of the warehouse. It keeps its connections to the store."""
        return load_file_io(self.properties)

    def _listed(self, namespace: str | tuple[str, ...], kind: str) -> list[tuple[str, ...]]:
        name = self.namespace_to_string(namespace)
        found = self._rows(
            f"select table_name from iceberg_tables where {_ENTRY} and coalesce(iceberg_type, 'TABLE') = %(kind)s",
            {"catalog": self.name, "namespace": name, "kind": kind},
        )
        return [(name, row[0]) for row in found]

    def _entries(self, identifier: str | tuple[str, ...], further: str) -> list[Any]:
        """Return the current and the previous metadata file of the entry of this name, if there is one."""
        namespace = self.namespace_to_string(self.namespace_from(identifier))
        return self._rows(
            "select metadata_location, previous_metadata_location from iceberg_tables"
            f" where {_ENTRY} and table_name = %(table)s {further}",
            {"catalog": self.name, "namespace": namespace, "table": self.table_name_from(identifier)},
        )

    def _rows(self, statement: str, values: dict[str, str]) -> list[Any]:
        found: list[Any] = []
        with _no_tables(), self.engine.connect() as connection:
            found = list(connection.exec_driver_sql(statement, values))
        return found


@contextmanager
def _no_tables(instead: Exception | None = None) -> Iterator[None]:
    """Treat a catalog without tables as an empty one: raise `instead`, if it is given."""
    try:
        yield
    except Exception as error:
        if getattr(getattr(error, "orig", None), "sqlstate", None) != _NO_TABLE:
            raise
        if instead is not None:
            raise instead from None

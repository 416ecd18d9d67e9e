"""Give pyiceberg's `HiveCatalog` the views of Iceberg's Hive catalog, which are views of the metastore."""

from __future__ import annotations

from typing import Any

from hive_metastore.ttypes import NoSuchObjectException
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.exceptions import NoSuchViewError
from pyiceberg.io import load_file_io
from pyiceberg.view import View
from pyiceberg.view.metadata import ViewMetadata

from toolkit.lake.entries import metadata_text

_KIND = "table_type"  # the parameter of an entry that says whether it is a table or a view of Iceberg
_VIEW = "iceberg-view"


class ViewsOfHive(HiveCatalog):
    """A catalog in a Hive metastore."""

    def list_views(self, namespace: str | tuple[str, ...]) -> list[tuple[str, ...]]:
        """List the views of a namespace; none if there is no such namespace."""
        name = self.identifier_to_database(namespace)
        with self._client as client:
            entries = client.get_table_objects_by_name(dbname=name, tbl_names=client.get_all_tables(db_name=name))
        return [(name, entry.tableName) for entry in entries if _is_view(entry)]

    def load_view(self, identifier: str | tuple[str, ...]) -> View:
        """Load a view.

        Raises:
            NoSuchViewError: there is none of this name.
        """
        missing = NoSuchViewError(f"view {identifier} does not exist")
        namespace, name = self.identifier_to_database_and_table(identifier)
        try:
            with self._client as client:
                entry = client.get_table(dbname=namespace, tbl_name=name)
        except NoSuchObjectException:
            raise missing from None
        if not _is_view(entry):
            raise missing
        location = entry.parameters["metadata_location"]
        text = metadata_text(load_file_io(self.properties, location), location)
        return View((namespace, name), ViewMetadata.model_validate_json(text))


def _is_view(entry: Any) -> bool:
    return str(entry.parameters.get(_KIND)).lower() == _VIEW


__all__ = ["ViewsOfHive"]

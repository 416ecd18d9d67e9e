"""Give pyiceberg's `HiveCatalog` a time limit, and the views of Iceberg's Hive catalog: views of the metastore."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import urlparse

from hive_metastore.ttypes import NoSuchObjectException
from pyiceberg.catalog import URI
from pyiceberg.catalog.hive import (
    HIVE_KERBEROS_AUTH,
    HIVE_KERBEROS_AUTH_DEFAULT,
    HIVE_KERBEROS_SERVICE_NAME,
    HIVE_KERBEROS_SERVICE_NAME_DEFAULT,
    HiveCatalog,
    _HiveClient,
)
from pyiceberg.exceptions import NoSuchViewError
from pyiceberg.io import load_file_io
from pyiceberg.utils.properties import property_as_bool
from pyiceberg.view import View
from pyiceberg.view.metadata import ViewMetadata
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TSaslClientTransport, TTransportBase

from toolkit.lake.catalog_entries import metadata_text

_KIND = "table_type"  # the parameter of an entry that says whether it is a table or a view of Iceberg
_VIEW = "iceberg-view"
#: pyiceberg has no limit. A metastore whose own database is gone may keep a connection open without an answer.
_ANSWER_SECONDS = 120.0
#: A setting of the metastore, which compares columns by their place. With it, no table follows a column that is dropped
#: or gets another type.
KEEPS_TYPES = "hive.metastore.disallow.incompatible.col.type.changes"


class _LimitedClient(threading.local, _HiveClient):
    """A client of a metastore that must answer each call within two minutes, with a connection for each thread.

    A client of pyiceberg has one connection, which a second thread exchanges while the first one uses it.
    """

    def _init_thrift_transport(self) -> TTransportBase:
        place = urlparse(self._uri)
        socket = TSocket(place.hostname, place.port)
        socket.setTimeout(_ANSWER_SECONDS * 1000)
        if not self._kerberos_auth:
            return TBufferedTransport(socket)
        return TSaslClientTransport(socket, host=place.hostname, service=self._kerberos_service_name)


class ViewsOfHive(HiveCatalog):
    """A catalog in a Hive metastore."""

    @staticmethod
    def _create_hive_client(properties: dict[str, str]) -> _HiveClient:
        return _LimitedClient(
            properties[URI].partition(",")[0],  # pyiceberg connects later, and so tries no other either
            properties.get("ugi"),
            property_as_bool(properties, HIVE_KERBEROS_AUTH, HIVE_KERBEROS_AUTH_DEFAULT),
            properties.get(HIVE_KERBEROS_SERVICE_NAME, HIVE_KERBEROS_SERVICE_NAME_DEFAULT),
        )

    def keeps_types(self) -> bool:
        """Return whether the metastore refuses columns of other types than a table had at the same places."""
        with self._client as client:
            return str(client.get_config_value(KEEPS_TYPES, "true")).lower() == "true"

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

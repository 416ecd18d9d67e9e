"""Open files and objects by pyiceberg's FileIO, with what it leaves out. `storage.file_properties` names it."""

from __future__ import annotations

from datetime import timedelta

from pyarrow.fs import FileSystem, GcsFileSystem
from pyiceberg.io import ADLS_SAS_TOKEN, GCS_SERVICE_HOST, GCS_TOKEN, GCS_TOKEN_EXPIRES_AT_MS
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties
from pyiceberg.utils.datetime import millis_to_datetime

from toolkit.lake.signed_store import without_signatures
from toolkit.values.locations import local_path

_PATIENCE = timedelta(
    seconds=30
)  # with a store that does not answer; without a limit Google's client tries for 15 minutes


class StoreFileIO(PyArrowFileIO):
    """pyiceberg's own FileIO, which gives up on a store that does not answer, and knows addresses with an account.

    A file of this machine may be in a folder with `?` or `#` in its name, which pyiceberg takes for parts of a URL.
    """

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Give scheme, bucket or container with its account, and the path that the client of the store expects."""
        if (local := local_path(location)) is not None:
            return "file", "", str(local.absolute())
        scheme, place, path = PyArrowFileIO.parse_location(location, properties)
        container, account, _ = place.partition("@")
        return scheme, place, f"{container}{path.removeprefix(place)}" if account else path

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        """Give a client that writes an object of less than ten megabytes in one request. pyiceberg's makes three."""
        make, (settings,) = super()._initialize_s3_fs(netloc).__reduce__()
        return make({**settings, "allow_delayed_open": True})

    def _initialize_azure_fs(self) -> FileSystem:
        store = super()._initialize_azure_fs()
        return without_signatures(store) if self.properties.get(ADLS_SAS_TOKEN) else store

    def _initialize_gcs_fs(self) -> FileSystem:
        protocol, _, host = self.properties.get(GCS_SERVICE_HOST, "https://").partition("://")
        expires = self.properties.get(GCS_TOKEN_EXPIRES_AT_MS)
        return GcsFileSystem(
            access_token=self.properties.get(GCS_TOKEN),
            credential_token_expiration=millis_to_datetime(int(expires)) if expires else None,
            scheme=protocol,
            endpoint_override=host or None,
            retry_time_limit=_PATIENCE,
        )

"""Read and change what a catalog has of one table or view: its metadata file, and its entry in a database."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.io import FileIO


def change_of_entry(catalog: str, name: str, location: str | None) -> str:
    """Return the statement by which a JDBC catalog names another metadata file of `namespace.table`, or forgets it."""
    namespace, _, table = name.rpartition(".")
    key = {"catalog_name": catalog, "table_namespace": namespace, "table_name": table}
    where = " and ".join(f"{column} = {_text(value)}" for column, value in key.items())
    if location is None:
        return f"delete from iceberg_tables where {where}"
    return f"update iceberg_tables set metadata_location = {_text(location)} where {where}"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def metadata_text(io: FileIO, location: str) -> bytes:
    """Read a metadata file of a table or view, which may be compressed."""
    with io.new_input(location).open() as file:
        return uncompressed(location, file.read())


def is_of_one_file(error: Exception) -> bool:
    """Return whether an error says that a file is missing or damaged. Others say that the store cannot be read."""
    return isinstance(error, FileNotFoundError | gzip.BadGzipFile) or not isinstance(error, OSError)


def uncompressed(location: str, data: bytes) -> bytes:
    """Return the text of the metadata file at a location, which may be compressed.

    Raises:
        ValueError: a part of the compressed file is missing or damaged.
    """
    try:
        return gzip.decompress(data) if location.endswith(".gz.metadata.json") else data
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"not a whole compressed file: {error}") from None

"""Read, write, find, delete and force files of tables by their location: a path of this machine, or an object.

No other module of the lake treats a location of a table as a path. Objects go through pyiceberg's FileIO, which gets
its properties from the configuration (`file_properties`) or from the table. Local files do not: the import of
pyiceberg takes longer than `cdc status` may take.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.lake import folders, pandas_on_demand
from toolkit.values import object_store
from toolkit.values.errors import LakeError
from toolkit.values.locations import local_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import FileMetaData
    from pyiceberg.io import FileIO

    from toolkit.values.lake_access import LakeAccess

_READ = 8 << 20  # bytes of an object in one request
_IO = {"py-io-impl": "toolkit.lake.store_io.StoreFileIO"}
#: The FileIO of each store by its properties. It keeps the connections of the store open.
_opened: dict[tuple[tuple[str, str], ...], FileIO] = {}


def file_properties(access: LakeAccess, place: str | None = None) -> dict[str, str]:
    """Return the properties by which pyiceberg opens files of the lake, or of another place. They may have secrets."""
    place = place or access.warehouse
    return {**_IO, **object_store.pyiceberg_settings(place, access.lake.properties, os.environ)}


def file_io(location: str, properties: Mapping[str, str]) -> FileIO:
    """Return the FileIO that opens a location."""
    pandas_on_demand.settle_pyarrow()
    from pyiceberg.io import load_file_io

    if local_path(location) is not None:
        return load_file_io(dict(_IO), location)
    key = tuple(sorted(properties.items()))
    if key not in _opened:
        _opened[key] = load_file_io(dict(properties), location)
    return _opened[key]


def open_file(location: str, properties: Mapping[str, str]) -> Any:
    """Open a file for reading, from its start to its end. A store is asked for 8 MB at a time.

    Raises:
        OSError: it is missing or cannot be read.
    """
    path = local_path(location)
    if path is not None:
        return path.open("rb")
    return file_io(location, {**properties, "buffer-size": str(_READ)}).new_input(location).open(seekable=False)


def read(location: str, properties: Mapping[str, str]) -> bytes:
    """Read a whole file.

    Raises:
        OSError: it is missing or cannot be read.
    """
    path = local_path(location)
    if path is not None:
        return path.read_bytes()
    with file_io(location, properties).new_input(location).open() as file:
        return file.read()


def footer(location: str, properties: Mapping[str, str]) -> tuple[FileMetaData, int]:
    """Read the footer of a Parquet file. Return it with the file's size in bytes.

    Raises:
        OSError: it is missing or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = local_path(location)
    try:
        if path is not None:
            with path.open("rb") as file:
                return pq.read_metadata(file), os.fstat(file.fileno()).st_size
        found = file_io(location, properties).new_input(location)
        with found.open() as file:
            return pq.read_metadata(file), len(found)
    except pa.ArrowInvalid as error:
        raise OSError(errno.EIO, f"is damaged: {' '.join(str(error).split())[:200]}", location) from None


def row_groups(location: str, columns: Sequence[str], properties: Mapping[str, str]) -> Iterator[pa.Table]:
    """Read columns of a Parquet file, one row group at a time.

    Raises:
        OSError: it is missing or damaged.
    """
    import pyarrow.parquet as pq

    path = local_path(location)
    opened = file_io(location, properties).new_input(location).open() if path is None else path.open("rb")
    with opened as file, decoding(location):
        found = pq.ParquetFile(file)
        for number in range(found.num_row_groups):
            yield found.read_row_group(number, columns, use_threads=False)


def in_words(error: OSError) -> str:
    """Return the file of an error, if it names one, and what is wrong with it."""
    return " ".join(filter(None, (error.filename, error.strerror or str(error))))


@contextlib.contextmanager
def decoding(location: str) -> Iterator[None]:
    """Name the file whose bytes are decoded inside the block, if they are damaged.

    Raises:
        OSError: they are.
    """
    try:
        yield
    except (ValueError, KeyError) as error:
        raise OSError(errno.EIO, f"is damaged: {' '.join(str(error).split())[:200]}", location) from None


def create(location: str, properties: Mapping[str, str]) -> Any:
    """Open a file for writing, in place of any that is there. An object exists when the file is closed.

    Raises:
        OSError: it cannot be written.
    """
    path = local_path(location)
    if path is None:
        return file_io(location, properties).new_output(location).create(overwrite=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("wb")


def delete(location: str, properties: Mapping[str, str]) -> None:
    """Delete a file, if it exists.

    Raises:
        OSError: it cannot be deleted.
    """
    path = local_path(location)
    if path is not None:
        path.unlink(missing_ok=True)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop keeps a checksum beside each file
        return
    with contextlib.suppress(FileNotFoundError):
        file_io(location, properties).delete(location)


def force(files: Iterable[tuple[str, int | None]], root: str, properties: Mapping[str, str]) -> None:
    """Make files durable, each given with its size in bytes if that is known.

    Local files are synced, and then the folders that name them, up to `root`. An object store acknowledges an object
    when it is durable; the size that the store gives for it is compared.

    Raises:
        OSError: a file is missing, has another size, or cannot be synced.
    """
    top = local_path(root)
    named: set[Path] = set()
    for location, size in files:
        file = local_path(location)
        if file is None:
            _require_size(location, len(file_io(location, properties).new_input(location)), size)
            continue
        _sync(file, size)
        named.update(folder for folder in file.parents if top is not None and folder.is_relative_to(top))
    for folder in sorted(named, key=lambda f: len(f.parts), reverse=True):
        _sync(folder)


def _sync(path: Path, size: int | None = None) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _require_size(str(path), os.fstat(descriptor).st_size, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_size(location: str, found: int, size: int | None) -> None:
    if size is not None and found != size:
        raise OSError(errno.EIO, f"has {found} bytes and not {size}", location)


def find(folder: str, pattern: str, properties: Mapping[str, str]) -> str | None:
    """Find a file under `folder` whose path below it matches a pattern, in which `*` also matches `/`.

    Raises:
        OSError: the folder cannot be listed.
    """
    places = (place for place, _ in files_in(folder, properties))
    return next((place for place in places if fnmatch(place.removeprefix(f"{folder}/"), pattern)), None)


def files_in(folder: str, properties: Mapping[str, str]) -> Iterator[tuple[str, datetime]]:
    """List the files under `folder`, each with the time when it was written; none if there is no such folder.

    Raises:
        OSError: the folder cannot be listed.
    """
    root = local_path(folder)
    if root is not None:
        for path in root.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # a writer may rename or delete it meanwhile
                found = path.stat()
                if stat.S_ISREG(found.st_mode):
                    written = datetime.fromtimestamp(found.st_mtime, UTC)
                    yield f"{folder}/{path.relative_to(root).as_posix()}", written
        return
    from pyarrow.fs import FileSelector, FileType
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = file_io(folder, properties)
    assert isinstance(io, PyArrowFileIO)
    scheme, netloc, base = io.parse_location(folder, io.properties)
    listed = io.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(base, allow_not_found=True, recursive=True))
    for info in listed:
        if info.type == FileType.File:
            yield f"{folder}{info.path.removeprefix(base)}", info.mtime


def missing(files: Iterable[str], folder: str, properties: Mapping[str, str]) -> list[str]:
    """Return those of the files that are not there. One listing of `folder`, which has most of them, finds the others.

    Raises:
        OSError: the folder cannot be listed.
    """

    def bare(location: str) -> str:  # a local one may be written as a path or with `file:`
        return str(local_path(location) or location)

    def is_lost(file: str) -> bool:
        try:
            read(file, properties)
        except OSError:
            return True
        return False

    there = {bare(place) for place, _ in files_in(folder, properties)}
    return [file for file in files if bare(file) not in there and is_lost(file)]


def names(folder: str, properties: Mapping[str, str]) -> list[str]:
    """List the files under `folder` by their paths below it; none if there is no such folder.

    Raises:
        OSError: the folder cannot be listed.
    """
    return [place.removeprefix(f"{folder}/") for place, _ in files_in(folder, properties)]


def publish(location: str, data: bytes, content_type: str, properties: Mapping[str, str]) -> None:
    """Write a file that people open by its address: a store gives the browser the kind of the file.

    Raises:
        OSError: it cannot be written.
    """
    if local_path(location) is not None:
        with create(location, properties) as file:
            file.write(data)
        return
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = file_io(location, properties)
    assert isinstance(io, PyArrowFileIO)
    scheme, netloc, path = io.parse_location(location, io.properties)
    with io.fs_by_scheme(scheme, netloc).open_output_stream(path, metadata={"Content-Type": content_type}) as stream:
        stream.write(data)


def require_writable(warehouse: str, properties: Mapping[str, str]) -> None:
    """Check that the warehouse is writable; create its folder on this machine.

    Raises:
        LakeError: it cannot be created or written.
    """
    path = local_path(warehouse)
    if path is not None:
        folders.require_writable("warehouse", path, "warehouse")
        return
    probe = f"{warehouse}/.cdc-probe-{os.getpid()}"
    try:
        with create(probe, properties) as file:
            file.write(b"x")
        delete(probe, properties)
    except OSError as error:
        reason = " ".join(str(error).split())[:300]
        raise LakeError(
            f"the lake's warehouse {warehouse} is not writable: {reason}; correct [lake] warehouse, its properties or"
            " the rights of this user"
        ) from None

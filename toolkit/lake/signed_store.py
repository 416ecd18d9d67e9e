"""Keep the signature of a shared access signature out of the errors of a store.

Arrow's client of Azure appends the signature to the URL of each request, and repeats that URL in each error. The
errors go to messages, logs and reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileSystemHandler, PyFileSystem

_QUERY = re.compile(r"(https?://[^\s'\"?]+)\?[^\s'\"]*")


def without_signatures(store: FileSystem) -> FileSystem:
    """Return the same store, whose errors have no query of a URL."""
    return PyFileSystem(_Store(store))


@contextmanager
def _unsigned() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.args = tuple(_QUERY.sub(r"\1", arg) if isinstance(arg, str) else arg for arg in error.args)
        if isinstance(error.strerror, str):
            error.strerror = _QUERY.sub(r"\1", error.strerror)
        raise


class _Stream:
    """An open file of the store. It is buffered there already."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)

    def read(self, count: int = -1) -> bytes:
        with _unsigned():
            return bytes(self._file.read(None if count < 0 else count))

    def write(self, data: Any) -> int:
        with _unsigned():
            return int(self._file.write(data))

    def seek(self, place: int, whence: int = 0) -> int:
        with _unsigned():
            return int(self._file.seek(place, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def flush(self) -> None:
        with _unsigned():
            self._file.flush()

    def close(self) -> None:
        with _unsigned():
            self._file.close()


class _Store(FileSystemHandler):  # type: ignore[misc]
    """The methods of a store, each with errors that may be shown."""

    def __init__(self, store: FileSystem) -> None:
        self._store = store

    def get_type_name(self) -> str:
        return str(self._store.type_name)

    def normalize_path(self, path: str) -> str:
        return str(self._store.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        with _unsigned():
            return list(self._store.get_file_info(paths))

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        with _unsigned():
            return list(self._store.get_file_info(selector))

    def create_dir(self, path: str, recursive: bool) -> None:
        with _unsigned():
            self._store.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        with _unsigned():
            self._store.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        with _unsigned():
            self._store.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise PermissionError("a store is not emptied as a whole: delete its folders by name")

    def delete_file(self, path: str) -> None:
        with _unsigned():
            self._store.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        with _unsigned():
            self._store.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        with _unsigned():
            self._store.copy_file(src, dest)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        with _unsigned():
            return pa.PythonFile(_Stream(self._store.open_input_stream(path, compression=None)), mode="r")

    def open_input_file(self, path: str) -> pa.NativeFile:
        with _unsigned():
            return pa.PythonFile(_Stream(self._store.open_input_file(path)), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        with _unsigned():
            file = self._store.open_output_stream(path, compression=None, metadata=metadata or None)
        return pa.PythonFile(_Stream(file), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        with _unsigned():
            file = self._store.open_append_stream(path, compression=None, metadata=metadata or None)
        return pa.PythonFile(_Stream(file), mode="w")

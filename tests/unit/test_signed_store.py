"""No error of a store has the signature by which the store lets this runner in."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow.fs as pafs
import pytest

from toolkit.lake import storage
from toolkit.lake.signed_store import without_signatures
from toolkit.lake.store_io import StoreFileIO
from toolkit.values.config import Config, LakeConfig
from toolkit.values.errors import LakeError

pytestmark = pytest.mark.unit
_PLANTED = "PLANTED"


class _Refusing(BaseHTTPRequestHandler):
    def _refuse(self) -> None:
        self.send_response(403)
        self.send_header("x-ms-error-code", "AuthenticationFailed")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_PUT = do_HEAD = do_DELETE = do_PATCH = _refuse

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def access(tmp_path: Path) -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    Thread(target=server.serve_forever, daemon=True).start()
    properties = {
        "adls.sas-token": f"sv=2024&sig={_PLANTED}",
        "adls.endpoint": f"http://127.0.0.1:{server.server_port}",
    }
    lake = LakeConfig(warehouse="abfss://lake@acct.dfs.core.windows.net/w", properties=properties)
    yield Config(root=tmp_path, lake=lake).lake_access
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "work",
    [
        storage.read,
        storage.create,
        storage.delete,
        lambda place, properties: storage.publish(place, b"x", "text/plain", properties),
        storage.names,
        lambda place, properties: storage.force([(place, 1)], place, properties),
    ],
)
def test_a_refusal_of_azure_does_not_repeat_the_signature(access: Any, work: Callable[..., object]) -> None:
    with pytest.raises(OSError, match="acct") as refused:
        work(f"{access.warehouse}/a", storage.file_properties(access))
    assert _PLANTED not in "".join(traceback.format_exception(refused.value))


def test_the_message_about_a_warehouse_has_no_signature(access: Any) -> None:
    with pytest.raises(LakeError, match="is not writable") as refused:
        storage.require_writable(access.warehouse, storage.file_properties(access))
    assert _PLANTED not in str(refused.value)


def test_files_are_written_read_listed_and_deleted_as_before(tmp_path: Path) -> None:
    store = without_signatures(pafs.LocalFileSystem())
    place = f"{tmp_path}/a.gz"
    with store.open_output_stream(place, compression=None, metadata={"Content-Type": "x"}) as stream:
        stream.write(b"0123456789")
    with store.open_input_file(place) as file:
        assert (file.read(), file.size(), file.read_at(4, 3)) == (b"0123456789", 10, b"3456")
    with store.open_input_stream(place, compression=None) as stream:
        assert stream.read(4) + stream.read() == b"0123456789"
    assert [(info.path, info.size) for info in store.get_file_info(pafs.FileSelector(str(tmp_path)))] == [(place, 10)]
    store.delete_file(place)
    with pytest.raises(FileNotFoundError):
        store.open_input_file(place)


def test_a_store_is_not_emptied_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    store = without_signatures(pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()))
    with pytest.raises(PermissionError, match="delete its folders by name"):
        store.delete_dir_contents("", accept_root_dir=True)
    assert (tmp_path / "a").exists()


def test_a_store_without_a_signature_is_asked_directly() -> None:
    io = StoreFileIO({"adls.account-name": "acct", "adls.account-key": "a2V5"})
    assert isinstance(io.fs_by_scheme("abfss", "lake@acct"), pafs.AzureFileSystem)

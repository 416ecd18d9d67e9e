"""The connections to a Hive metastore: how long a command waits on one, and whose it is."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from toolkit.lake import hive_catalog
from toolkit.lake.lake_catalog import open_catalog
from toolkit.values.config import Config
from toolkit.values.errors import LakeError

pytestmark = pytest.mark.unit


def test_a_metastore_that_takes_a_call_and_does_not_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a limit, a scheduled run would wait for ever and hold the lease."""
    monkeypatch.setattr(hive_catalog, "_ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("CDC_LAKE__TYPE", "hive")
        monkeypatch.setenv("CDC_LAKE__URI", f"thrift://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(LakeError, match=r"listing raw: the catalog thrift://127\.0\.0\.1:\d+ refuses: .*timeout"):
            open_catalog(Config(root=tmp_path).lake_access).tables("raw", "TABLE")


def test_each_thread_has_a_connection_of_its_own() -> None:
    """`cdc run` reads views in threads: one exchanged and closed the connection that another was using."""
    with socket.create_server(("127.0.0.1", 0)) as metastore:
        client = hive_catalog._LimitedClient(f"thrift://127.0.0.1:{metastore.getsockname()[1]}", None, False, "hive")
        with client:
            mine = client._transport

            def use() -> None:
                with client:
                    assert client._transport is not mine and client._transport.isOpen()

            other = threading.Thread(target=use)
            other.start()
            other.join(10)
            assert client._transport is mine and mine.isOpen()

"""What a command does with a Hive metastore that does not answer."""

from __future__ import annotations

import socket
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

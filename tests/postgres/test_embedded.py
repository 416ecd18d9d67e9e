"""The embedded server: there when asked for, gone without a trace afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.support_postgres import tcp_conninfo
from toolkit.demo import server as embedded
from toolkit.demo.server import EmbeddedServer
from toolkit.values.errors import ConfigError, SourceUnavailable

pytestmark = pytest.mark.postgres

_OWNER = """
import sys
from pathlib import Path
from toolkit.demo.server import EmbeddedServer
with EmbeddedServer(Path(sys.argv[1]), 16) as server:
    print(server.data, server.conninfo(), sep="|", flush=True)
    sys.stdin.read()
"""


def _servers_on(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in part for part in process.info["cmdline"] or ()):
            found.append(process)
    return found


@pytest.mark.parametrize("major", [16, 18])
def test_serves_and_leaves_nothing(tmp_path: Path, major: int) -> None:
    home = tmp_path / "made"
    with EmbeddedServer(home, major) as server:
        with psycopg.connect(server.conninfo()) as conn:
            assert conn.info.server_version // 10000 == major
            assert conn.execute("show wal_level").fetchone() == ("logical",)
        with psycopg.connect(tcp_conninfo(server)):
            pass
        with pytest.raises(psycopg.OperationalError, match=r"password authentication failed"):
            psycopg.connect(tcp_conninfo(server, password="wrong"))
        assert _servers_on(server.data)
        data = server.data
    assert not _servers_on(data)
    assert not home.exists()


def test_keeps_data_over_restart_and_crash(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, 16) as server:
        with psycopg.connect(server.conninfo()) as conn:
            conn.execute("create table t as select 1 as a")
        server.restart(immediate=True, work_mem="8MB")
        with psycopg.connect(server.conninfo()) as conn:
            assert conn.execute("select a, current_setting('work_mem') from t").fetchone() == (1, "8MB")


def test_gone_after_an_exception(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), EmbeddedServer(tmp_path, 16) as server:
        raise KeyboardInterrupt
    assert not server.running
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_gone_after_its_owner(tmp_path: Path, number: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert owner.stdout is not None
    folder, conninfo = owner.stdout.readline().strip().split("|")
    left = _servers_on(Path(folder))
    assert left
    owner.send_signal(number)
    owner.communicate()
    _, alive = psutil.wait_procs(left, timeout=30)
    assert alive == []
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(conninfo)


def test_start_failure_names_the_cause() -> None:
    with (
        pytest.raises(SourceUnavailable, match=r"16 did not start: .*shared_buffers"),
        EmbeddedServer(None, 16, {"shared_buffers": "plenty"}),
    ):
        pass


def test_the_supervisor_of_a_server_that_ends_at_once_ends_too(tmp_path: Path) -> None:
    shells = []
    for n in range(40):
        (tmp_path / str(n)).mkdir()
        command = ["/bin/sh", "-c", embedded._SUPERVISOR, "sh", str(tmp_path / "data"), str(tmp_path / str(n)), "true"]
        shells.append(subprocess.Popen(command, stdin=subprocess.PIPE))  # the pipe stays open
    with ExitStack() as stack:
        for shell in shells:
            stack.enter_context(shell)  # closes the pipe, by which one that still runs ends
        assert [shell.wait(20) for shell in shells] == [0] * 40


def test_unknown_major_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no version 9"):
        EmbeddedServer(None, 9)

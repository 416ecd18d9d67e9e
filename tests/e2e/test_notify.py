"""`[notify]` receives a failed command. The log can be one JSON object a line."""

from __future__ import annotations

import json
import platform
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from toolkit.lake.lease import LEASE_NAME, hold_lease
from toolkit.values import config, resources

_AWAY = '[source]\nconninfo = "host=127.0.0.1 port=1 dbname=x"\n'


def _cdc(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "cdc.toml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "toolkit.cli", *words]
    return subprocess.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(resources.ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def _program(folder: Path, code: int = 0) -> str:
    """A `[notify] command` that appends what it reads to a file."""
    script = f"import sys; open({str(folder / 'noticed')!r}, 'a').write(sys.stdin.read() + chr(10)); sys.exit({code})"
    return f"[notify]\ncommand = {json.dumps([sys.executable, '-c', script])}\n"


def _reported(folder: Path) -> list[dict[str, Any]]:
    file = folder / "noticed"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def test_a_failed_run_is_reported(tmp_path: Path) -> None:
    done = _cdc(tmp_path, _AWAY + _program(tmp_path), "run")
    assert done.returncode == 1
    (notice,) = _reported(tmp_path)
    assert (notice["command"], notice["exit_code"], notice["result"]) == ("run", 1, None)
    assert "127.0.0.1" in notice["problem"] and f"cdc: {notice['problem']}" in done.stderr
    lake = str(tmp_path / "lake" / "warehouse")
    assert (notice["host"], notice["lake"], notice["prefix"]) == (platform.node(), lake, "")
    assert notice["text"] == f"cdc run of {lake} on {platform.node()}, exit code 1: {notice['problem']}"
    # The planted fault of this file: who only looks is not notified, and no one is where no one is named.
    assert _cdc(tmp_path, _AWAY + _program(tmp_path), "doctor").returncode == 1
    assert _cdc(tmp_path, _AWAY, "run").returncode == 1
    assert len(_reported(tmp_path)) == 1


def test_a_report_that_fails_changes_nothing_else(tmp_path: Path) -> None:
    done = _cdc(tmp_path, _AWAY + _program(tmp_path, code=7), "drain")
    assert done.returncode == 1 and "[notify] command failed" in done.stderr
    gone = _cdc(tmp_path, _AWAY + '[notify]\ncommand = ["/nowhere/mail"]\n', "drain")
    assert gone.returncode == 1 and "/nowhere/mail" in gone.stderr
    secret = "http://127.0.0.1:1/t0ken"  # no one listens there
    hidden = _cdc(tmp_path, f'{_AWAY}[notify]\nwebhook = "{secret}"\n', "drain")
    assert hidden.returncode == 1 and "webhook failed" in hidden.stderr and "t0ken" not in hidden.stderr


def test_a_webhook_that_is_no_http_changes_nothing_else(tmp_path: Path) -> None:
    """The traceback of http.client had the URL with its token, and the exit code was 1, not 4."""

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"220 no HTTP\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/t0ken"
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        for webhook, kind in ((url, "BadStatusLine"), (f"{url} with a blank", "InvalidURL")):
            text = f'{_AWAY}[log]\nformat = "json"\n[notify]\nlease_minutes = 0\nwebhook = "{webhook}"\n'
            (tmp_path / "cdc.toml").write_text(text, encoding="utf-8")
            with hold_lease(config.load(str(tmp_path / "cdc.toml")).lake_access):
                done = _cdc(tmp_path, text, "drain")
            assert done.returncode == 4 and kind in done.stderr, done.stderr
            assert "Traceback" not in done.stderr and "t0ken" not in done.stderr


def test_a_program_that_cannot_be_named_changes_nothing_else(tmp_path: Path) -> None:
    done = _cdc(tmp_path, _AWAY + '[notify]\ncommand = ["/bin/mail\\u0000"]\n', "drain")
    assert done.returncode == 1 and "[notify] command failed" in done.stderr and "Traceback" not in done.stderr


@contextmanager
def _listening() -> Iterator[tuple[str, list[bytes]]]:
    posted: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook", posted
        finally:
            server.shutdown()
            thread.join()


def test_a_webhook_gets_the_same(tmp_path: Path) -> None:
    with _listening() as (url, posted):
        assert _cdc(tmp_path, f'{_AWAY}[notify]\nwebhook = "{url}"\n', "check").returncode == 1
    (notice,) = map(json.loads, posted)
    assert (notice["command"], notice["exit_code"]) == ("check", 1)


@pytest.mark.parametrize(("held", "count"), [(timedelta(0), 0), (timedelta(days=300), 1)])
def test_a_lease_that_is_held_for_long_is_reported(tmp_path: Path, held: timedelta, count: int) -> None:
    since = datetime.now(UTC) - held
    text = _AWAY + _program(tmp_path)
    (tmp_path / "cdc.toml").write_text(text, encoding="utf-8")
    made = config.load(str(tmp_path / "cdc.toml"))
    with hold_lease(made.lake_access):
        lease = made.lake_access.work_dir / LEASE_NAME
        lease.write_text(f"pid 1 on elsewhere since {since:%Y-%m-%dT%H:%M:%SZ}\n", encoding="utf-8")
        assert _cdc(tmp_path, text, "run").returncode == 4
    assert [notice["exit_code"] for notice in _reported(tmp_path)] == [4] * count


def test_the_log_is_one_json_object_a_line(tmp_path: Path) -> None:
    """76 of 78 lines of a scheduled run's file were no JSON."""
    done = _cdc(tmp_path, _AWAY + '[log]\nformat = "json"\nlevel = "info"\n[notify]\ncommand = ["/nowhere"]\n', "run")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["level"] for line in lines] == ["error", "warning"] and "127.0.0.1" in lines[0]["event"]
    shown = _cdc(tmp_path, _AWAY, "doctor", "--output", "json")
    assert len(shown.stdout.splitlines()) == 1 and json.loads(shown.stdout)

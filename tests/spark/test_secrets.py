"""Secrets of `[spark]` and the ports of Spark: nothing for other users of the machine to read or to reach."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from toolkit.lake import java, session
from toolkit.values.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_PLANTED = "pl4nted é = : # \\"
_LOOK = f"""
import os, stat, sys
from pathlib import Path
from toolkit.lake import session
from toolkit.values.config import Config
settings = {{"spark.sql.catalog.x.password": {_PLANTED!r}, "spark.master": "local[1]"}}
config = Config(root=Path(sys.argv[1]), spark=settings)
spark = session.own_session(config.lake_access)
assert spark.conf.get("spark.sql.catalog.x.password") == {_PLANTED!r}
assert spark._sc._jsc.sc().conf().get("spark.sql.catalog.x.password") == {_PLANTED!r}
shown = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.parent.name in
         (str(spark._sc._gateway.proc.pid), str(os.getpid()))]
print(len(shown), any(b"pl4nted" in line for line in shown[:]))
"""


def test_no_setting_of_spark_is_on_a_command_line_or_left_in_a_file(tmp_path: Path) -> None:
    look = _LOOK.replace("str(os.getpid())", "''")  # this program's own text has it
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(java.__file__).parents[2]), "TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, "-c", look, str(tmp_path)], capture_output=True, text=True, timeout=240, check=False,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "False"]
    holders = [p for p in tmp_path.rglob("*") if p.is_file() and b"pl4nted" in p.read_bytes()]
    assert holders == []


def test_the_ports_of_spark_are_on_loopback_and_ask_for_a_secret(spark: SparkSession) -> None:
    gateway: Any = spark._sc._gateway
    listening = dict(_listening(gateway.proc.pid))
    assert listening
    assert {port: address for port, address in listening.items() if not address.is_loopback} == {}
    jvm: Any = spark._jvm
    assert jvm.org.apache.spark.SparkEnv.get().securityManager().isAuthenticationEnabled()
    # An endpoint of the driver closes a connection that does not begin with the handshake.
    port = int(spark._sc.getConf().get("spark.driver.port") or 0)
    assert port in listening
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
        stranger.sendall((21).to_bytes(8, "big") + b"\x03" + bytes(8) + (0).to_bytes(4, "big"))
        with stranger.makefile("rb") as replies:
            reply = replies.read(int.from_bytes(replies.read(8), "big") - 8)
        assert b"AuthRpcHandler" in reply and b"NettyRpcHandler" not in reply


def test_a_cluster_is_asked_for_secrets_and_encryption(tmp_path: Path) -> None:
    for master, wanted in (
        ("yarn", ("true", "true")),
        ("spark://h:7077", ("true", "true")),
        ("local[2]", ("true", None)),
    ):
        settings = session.spark_settings(Config(root=tmp_path, spark={"spark.master": master}).lake_access)
        assert (settings.get("spark.authenticate"), settings.get("spark.network.crypto.enabled")) == wanted
        assert "spark.authenticate.secret" not in settings


def _listening(pid: int) -> Iterator[tuple[int, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """Port and address of every TCP socket on which a process listens."""
    own = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] != "0A" or f"socket:[{fields[9]}]" not in own:
                continue
            address, port = fields[1].split(":")
            words = bytes.fromhex(address)
            packed = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
            found = ipaddress.ip_address(packed)
            mapped = getattr(found, "ipv4_mapped", None)
            yield int(port, 16), mapped or found

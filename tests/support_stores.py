"""Object stores on loopback, each a server over a folder that really speaks the protocol of its kind.

Maven fetches S3Proxy, Go the server of Google's protocol, and npm Azurite. Where the tool that does so is missing, the
tests skip.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests import support_java
from toolkit.lake import storage
from toolkit.values.config import Config, LakeConfig

_HERE = Path(__file__).parent
_BUCKET = "lake"
KINDS = ("s3", "gs", "abfss")


@dataclass(frozen=True)
class Store:
    """One running server."""

    kind: str
    warehouse: str
    folder: Path
    """Where the server keeps what it was sent."""
    properties: dict[str, str]
    """The properties of `[lake]` without the keys."""
    keys: dict[str, str]
    """The keys as properties of `[lake]`."""
    wrong: tuple[dict[str, str], str]
    """Keys that the server refuses, and what its client then says."""
    away: dict[str, str]
    """The property by which no server answers."""
    variables: dict[str, str] = field(default_factory=dict)
    """The keys as variables, which the clients of the store read themselves."""
    environment: dict[str, str] = field(default_factory=dict)
    """Further variables that the clients need with this server."""
    server: support_java.Server | None = field(default=None, repr=False)
    """Its process."""

    @property
    def secrets(self) -> list[str]:
        """What must be nowhere but in the configuration."""
        return [value for value in self.keys.values() if len(value) > 16]

    @property
    def section(self) -> str:
        """The `[lake]` section of a configuration, without the keys."""
        lines = (f"{json.dumps(key)} = {json.dumps(value)}" for key, value in self.properties.items())
        return "\n".join(["[lake]", f"warehouse = {json.dumps(self.warehouse)}", "[lake.properties]", *lines, ""])

    def objects(self, pattern: str = "*") -> set[str]:
        """The locations of all objects below the warehouse that match a pattern, in which `*` also matches `/`."""
        config = Config(lake=LakeConfig(warehouse=self.warehouse, properties=self.properties | self.keys))
        found = {place for place, _ in storage.files_in(self.warehouse, storage.file_properties(config.lake_access))}
        return {place for place in found if fnmatch(place.removeprefix(f"{self.warehouse}/"), pattern)}


@contextlib.contextmanager
def _s3(server: str, folder: Path) -> Iterator[Store]:
    key, secret = "cdc-tests", secrets.token_hex(20)
    environment = {"STORE_KEY": key, "STORE_SECRET": secret}
    source = str(_HERE / "s3_store" / "S3Store.java")
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", server, source, str(folder), _BUCKET]
    with support_java.served(command, environment, folder.with_suffix(".log")) as running:
        yield Store(
            "s3",
            f"s3://{_BUCKET}/ware/house",
            folder,
            {"s3.endpoint": running.address, "s3.path-style-access": "true", "client.region": "eu-north-1"},
            {"s3.access-key-id": key, "s3.secret-access-key": secret},
            ({"s3.access-key-id": key, "s3.secret-access-key": "wr0ng"}, "SIGNATURE_DOES_NOT"),
            {"s3.endpoint": "http://127.0.0.1:9"},
            {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret},
            # S3Proxy does not know the checksums that AWS's clients append to what they send.
            {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required"},
            running,
        )


@contextlib.contextmanager
def _gs(server: str, folder: Path) -> Iterator[Store]:
    token = secrets.token_hex(20)
    expires = {"gcs.oauth2.token-expires-at": "4102444800000"}
    command = [server, str(folder), _BUCKET]
    with support_java.served(command, {"STORE_TOKEN": token}, folder.with_suffix(".log")) as running:
        yield Store(
            "gs",
            f"gs://{_BUCKET}/ware/house",
            folder,
            {"gcs.service.host": running.address},
            {"gcs.oauth2.token": token, **expires},
            ({"gcs.oauth2.token": "wr0ng", **expires}, "UNAUTHENTICATED"),
            {"gcs.service.host": "http://127.0.0.1:9"},
        )


@contextlib.contextmanager
def _abfss(server: str, folder: Path) -> Iterator[Store]:
    from pyarrow.fs import AzureFileSystem

    account, key = "cdctests", base64.b64encode(secrets.token_bytes(64)).decode()
    environment = {"STORE_ACCOUNT": account, "STORE_KEY": key, "NODE_PATH": server}
    command = ["node", str(_HERE / "azure_store" / "server.js"), str(folder)]
    with support_java.served(command, environment, folder.with_suffix(".log")) as running:
        where = {"blob_storage_authority": running.address.removeprefix("http://"), "blob_storage_scheme": "http"}
        where |= {name.replace("blob", "dfs"): value for name, value in where.items()}
        AzureFileSystem(account, account_key=key, **where).create_dir(_BUCKET)
        yield Store(
            "abfss",
            f"abfss://{_BUCKET}@{account}.dfs.core.windows.net/ware/house",
            folder,
            {"adls.endpoint": running.address},
            {"adls.account-key": key},
            ({"adls.account-key": base64.b64encode(b"wr0ng").decode()}, "AuthorizationFailure"),
            {"adls.endpoint": "http://127.0.0.1:9"},
        )


def _abfss_server(folder: Path) -> str:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: there is no server of Azure's storage protocol to test with")
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock", "azurite@3.35.0"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=600)
    return str(folder / "node_modules")


def _s3_server(folder: Path) -> str:
    return support_java.classpath(_HERE / "s3_store", folder, "object store")


def _gs_server(folder: Path) -> str:
    if shutil.which("go") is None:
        pytest.skip("Go is not installed: there is no server of Google's storage protocol to test with")
    program = folder / "server"
    command = ["go", "build", "-o", str(program), "."]
    subprocess.run(command, cwd=_HERE / "gcs_store", check=True, capture_output=True, timeout=600)
    return str(program)


_SERVERS: dict[str, tuple[Callable[[Path], str], Callable[[str, Path], contextlib.AbstractContextManager[Store]]]] = {
    "s3": (_s3_server, _s3),
    "gs": (_gs_server, _gs),
    "abfss": (_abfss_server, _abfss),
}


@pytest.fixture(scope="session")
def store_servers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Give the program of the server of a kind; it is fetched and built once."""
    made: dict[str, str] = {}

    def server(kind: str) -> str:
        if kind not in made:
            made[kind] = _SERVERS[kind][0](tmp_path_factory.mktemp(kind))
        return made[kind]

    return server


@contextlib.contextmanager
def running_store(kind: str, server: str, folder: Path) -> Iterator[Store]:
    """A server of a kind over `folder / store`, which ends with the block."""
    (folder / "store").mkdir()
    with _SERVERS[kind][1](server, folder / "store") as made:
        yield made


__all__ = ["KINDS", "Store", "running_store", "store_servers"]

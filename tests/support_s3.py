"""An S3 server on loopback: S3Proxy over a folder. Maven fetches it; where Maven or a JDK is missing, tests skip."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests import support_java

_PROGRAM = Path(__file__).with_name("s3_store")
_BUCKET = "lake"


@dataclass(frozen=True)
class Store:
    """One running server. `folder` has each object as a file."""

    endpoint: str
    folder: Path
    key: str = "cdc-tests"
    secret: str = field(default_factory=lambda: secrets.token_hex(20))
    #: S3Proxy does not know the checksums that AWS's clients append to what they send.
    environment = {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required"}  # noqa: RUF012

    @property
    def warehouse(self) -> str:
        """The location of a warehouse."""
        return f"s3://{_BUCKET}/ware/house"

    @property
    def properties(self) -> dict[str, str]:
        """The properties of `[lake]` without the keys."""
        return {"s3.endpoint": self.endpoint, "s3.path-style-access": "true", "client.region": "eu-north-1"}

    @property
    def section(self) -> str:
        """The `[lake]` section of a configuration, without the keys."""
        lines = (f"{key} = {json.dumps(value)}" for key, value in self.properties.items())
        return "\n".join(["[lake]", f"warehouse = {json.dumps(self.warehouse)}", "[lake.properties]", *lines, ""])

    @property
    def keys(self) -> dict[str, str]:
        """The keys as properties of `[lake]`."""
        return {"s3.access-key-id": self.key, "s3.secret-access-key": self.secret}

    @property
    def variables(self) -> dict[str, str]:
        """The keys as variables, which AWS's clients read themselves."""
        return {"AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret}

    def objects(self, pattern: str = "**/*") -> set[str]:
        """The locations of all objects that match a pattern below the warehouse."""
        root = self.folder / _BUCKET / "ware" / "house"
        return {f"{self.warehouse}/{p.relative_to(root)}" for p in root.glob(pattern) if p.is_file()}


@pytest.fixture(scope="session")
def s3_classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The jar of the server."""
    return support_java.classpath(_PROGRAM, tmp_path_factory.mktemp("s3"), "object store")


@contextlib.contextmanager
def s3_store(classpath: str, folder: Path) -> Iterator[Store]:
    """A server over `folder / store`, which ends with the block."""
    made = Store("", folder / "store")
    made.folder.mkdir()
    environment = {"STORE_KEY": made.key, "STORE_SECRET": made.secret}
    arguments = [str(made.folder), _BUCKET]
    with support_java.served(
        classpath, _PROGRAM / "S3Store.java", arguments, environment, folder / "store.log"
    ) as address:
        yield replace(made, endpoint=address)


__all__ = ["Store", "s3_classpath", "s3_store"]

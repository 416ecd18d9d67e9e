"""The kinds of catalog that a lake can have, each a real one: `lake_section` gives the `[lake]` section of a new one.

The database of the PostgreSQL catalog is on the embedded server. The REST catalog is Iceberg's own, on loopback; Maven
fetches its jars. A test that needs it is skipped where Maven or a JDK is missing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyspark
import pytest

from tests import support_java
from tests.support_postgres import fresh_database
from tests.support_stores import Store, running_store, store_servers
from toolkit.demo.server import EmbeddedServer

_PROGRAM = Path(__file__).with_name("rest_catalog")
_METASTORE = Path(__file__).with_name("hive_metastore") / "HiveMetastore.java"
_SPARK = Path(pyspark.__file__).parent / "jars"
KINDS = ("sqlite", "postgresql", "rest", "hive")


@contextlib.contextmanager
def postgresql_catalog(server: EmbeddedServer) -> Iterator[dict[str, object]]:
    """An empty database that becomes the catalog."""
    with fresh_database(server) as conninfo:
        name = psycopg.conninfo.conninfo_to_dict(conninfo)["dbname"]
        uri = f"jdbc:postgresql://127.0.0.1:{server.port}/{name}?user={server.user}"
        yield {"uri": uri, "properties": {"jdbc.password": server.password}}


@pytest.fixture(scope="session")
def rest_classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The jars of the REST catalog; those of Hadoop are Spark's."""
    jars = support_java.classpath(_PROGRAM, tmp_path_factory.mktemp("rest"), "REST catalog")
    hadoop = sorted(_SPARK.glob("hadoop-client-*.jar"))
    return os.pathsep.join([jars, *map(str, hadoop)])


@contextlib.contextmanager
def rest_catalog(
    classpath: str, folder: Path, warehouse: str, store: Store | None = None
) -> Iterator[tuple[dict[str, object], support_java.Server]]:
    """A REST catalog over a file of `folder`, which ends with the block. `store` has a warehouse that is no folder."""
    token = secrets.token_urlsafe(16)
    environment = {"HOME": os.environ["HOME"], "REST_TOKEN": token}
    if store is not None:
        files = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **store.properties, **store.keys}
        files |= {"s3.retry.num-retries": "1"}  # its own waiting for a store that is killed is not what is tested
        environment |= store.environment | {"REST_FILES": "\n".join(f"{key}={value}" for key, value in files.items())}
    program = ["-cp", classpath, str(_PROGRAM / "RestCatalog.java"), f"jdbc:sqlite:{folder / 'rest.db'}", warehouse]
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", *program]
    with support_java.served(command, environment, folder / "rest.log") as running:
        yield {"type": "rest", "uri": running.address, "properties": {"token": token}}, running


@contextlib.contextmanager
def hive_metastore(folder: Path, warehouse: str, *, keeps_types: str = "false") -> Iterator[dict[str, object]]:
    """A Hive metastore over a database in `folder`, which ends with the block. All of its jars are Spark's."""
    if shutil.which("javac") is None:
        pytest.skip("a JDK is not installed: there is no Hive metastore to test with")
    options = [f"-Dderby.stream.error.file={folder / 'derby.log'}", "-Dlog4j2.level=ERROR"]
    program = ["-cp", f"{_SPARK}/*", str(_METASTORE), str(folder), warehouse]
    command = ["java", "-Xmx384m", "-XX:TieredStopAtLevel=1", *options, *program]
    variables = {"HOME": os.environ["HOME"], "SERVER_KEEPS_TYPES": keeps_types}
    with support_java.served(command, variables, folder / "metastore.log") as running:
        yield {"type": "hive", "uri": running.address.replace("http:", "thrift:"), "properties": {}}


@contextlib.contextmanager
def lake_section(
    request: pytest.FixtureRequest, kind: str, folder: Path, store: Store | None = None
) -> Iterator[dict[str, Any]]:
    """The `[lake]` section of a new catalog of a kind, whose warehouse is `folder / lake / warehouse`.

    Of a kind with a store at its end (`sqlite+s3`), the warehouse is in an object store. Its keys are properties of
    the section, or with the catalog in a file, variables in `environment` if the store's clients know any.
    """
    kind, _, stored = kind.partition("+")
    if stored:
        with running_store(stored, request.getfixturevalue("store_servers")(stored), folder) as made:
            keys, variables = ({}, made.variables) if kind == "sqlite" and made.variables else (made.keys, {})
            with lake_section(request, kind, folder, made) as section:
                properties = {**made.properties, **keys, **section.get("properties", {})}
                environment = made.environment | variables
                yield {**section, "warehouse": made.warehouse, "properties": properties, "environment": environment}
    elif kind == "sqlite":
        yield {}
    elif kind == "postgresql":
        with postgresql_catalog(request.getfixturevalue("pg16")) as made:
            yield made
    elif kind == "hive":
        with hive_metastore(folder, str(folder / "lake" / "warehouse")) as made:
            yield made
    else:
        warehouse = str(folder / "lake" / "warehouse") if store is None else store.warehouse
        with rest_catalog(request.getfixturevalue("rest_classpath"), folder, warehouse, store) as (section, _):
            yield section


__all__ = [
    "KINDS", "hive_metastore", "lake_section", "postgresql_catalog", "rest_catalog", "rest_classpath", "store_servers",
]  # fmt: skip

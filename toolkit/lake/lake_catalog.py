"""Define what the toolkit needs of a lake's catalog without a JVM, and open the configured one.

Only this module and the catalogs themselves know the kind of a catalog. All names are `namespace.table`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from toolkit.lake import jars, storage
from toolkit.values import object_store
from toolkit.values.catalog_uri import SQLITE, read_postgres
from toolkit.values.modes import CatalogKind

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from toolkit.values.lake_access import LakeAccess

_CONNECT_SECONDS = 10
_UNKNOWN = ("08000", "08006", "08007")  # SQLSTATE of a connection that was lost while a statement ran
_SECRET = re.compile(r"password|secret|token|credential|(access|account)[.-]?key|^header\.", re.IGNORECASE)
#: What opening a catalog imports of libraries. SQLAlchemy imports the module of the database and driver in an address.
_MODULES = {
    CatalogKind.JDBC: ("pyiceberg.catalog.sql", "sqlalchemy.dialects.postgresql.psycopg"),
    CatalogKind.REST: ("pyiceberg.catalog.rest",),
    CatalogKind.HIVE: ("pyiceberg.catalog.hive",),
}


class FileCatalog(Protocol):
    """A catalog that names the metadata file of each table."""

    def read(self, name: str) -> tuple[str, dict[str, Any]] | None:
        """Find and read the metadata file of a table."""

    def swap(self, name: str, old: str, new: str) -> bool:
        """Name another metadata file; False if `old` is no longer the current one."""

    def version(self, location: str) -> int:
        """Return the number of a metadata file."""

    def forget_metadata(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Delete metadata files that a table no longer names, if its properties ask for that."""


class LakeCatalog(Protocol):
    """The catalog of a lake."""

    @property
    def where(self) -> str:
        """Return the catalog's place for messages, without secrets."""

    @property
    def folder(self) -> Path | None:
        """Return the folder of this machine that the catalog writes to; None if it is a server."""

    def prepare(self) -> None:
        """Check whether the catalog can be used, before anything else is made. Create its folder if it has one.

        Raises:
            LakeError: it cannot be reached or written.
        """

    def reading(self) -> AbstractContextManager[None]:
        """Keep a connection to the catalog for the questions of a thread inside the block."""

    def location(self, name: str) -> str | None:
        """Find the current metadata file of a table; None if there is no such catalog or table.

        Raises:
            LakeError: the catalog cannot be read.
        """

    def metadata(self, name: str) -> dict[str, Any] | None:
        """Read the metadata of a table or view, as the Iceberg specification lays it out; None if there is none.

        Raises:
            LakeError: the catalog cannot be read, or it names metadata that is missing or damaged.
        """

    def opened(self, name: str) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Read the metadata of a table that must exist. Return it with the properties that open its files.

        Raises:
            LakeError: there is no such table, or the catalog cannot be read.
        """

    def tables(self, namespace: str, kind: str) -> tuple[str, ...]:
        """List the tables of a namespace (or, with kind `VIEW`, its views), in order; empty without a catalog.

        Raises:
            LakeError: the catalog cannot be read.
        """

    def load_table(self, name: str | tuple[str, ...]) -> Table:
        """Load a table as it is now. A commit on it succeeds only if no other process changed the table since.

        What a commit wrote is on the disk before the commit returns.

        Raises:
            NoSuchTableError: there is no such catalog or table.
            LakeError: the catalog cannot be read.
        """

    @property
    def of_files(self) -> FileCatalog | None:
        """Return this catalog if it only names the metadata file of each table; None if pyiceberg must commit."""

    def repair_statement(self, name: str) -> tuple[str, bool]:
        """Return how a person makes the catalog drop the current metadata file of a table or view, which is damaged.

        Return the procedure, and whether the table is then as it was before the last commit. Otherwise the catalog
        forgets the table.
        """


def open_catalog(access: LakeAccess) -> LakeCatalog:
    """Return the catalog of a lake. This reads nothing and connects to nothing."""
    if _embedded(access):
        from toolkit.lake.sqlite_catalog import SqliteCatalog

        return SqliteCatalog(access)
    from toolkit.lake.any_catalog import AnyCatalog

    place = read_postgres(access.lake.uri).where if access.lake.type == CatalogKind.JDBC else access.lake.uri
    return AnyCatalog(access, place, _pyiceberg_properties(access), tuple(secrets_of(access).values()))


def modules_of(access: LakeAccess) -> tuple[str, ...]:
    """Return the modules of libraries that opening the catalog imports; none for the embedded one."""
    return () if _embedded(access) else _MODULES[access.lake.type]


def folder_of(access: LakeAccess, namespace: str) -> str:
    """Return the folder in which the catalog makes the tables of a namespace, if it is not a server's own choice."""
    return f"{access.warehouse}/{namespace}{'.db' if access.lake.type == CatalogKind.HIVE else ''}"


def force(access: LakeAccess, name: str, snapshot_id: int) -> None:
    """Force a commit of another writer to the disk: Spark's catalogs name files before they are on the disk.

    Raises:
        LakeError: a file is missing or damaged, or cannot be forced to the disk. The slot must not move.
    """
    from toolkit.lake import durable

    durable.sync_table(access, open_catalog(access).load_table(name), (snapshot_id,))


def _embedded(access: LakeAccess) -> bool:
    return access.lake.type == CatalogKind.JDBC and access.lake.uri.startswith(SQLITE)


def jars_of(access: LakeAccess) -> dict[str, str]:
    """Return the settings by which Spark resolves the jars that this lake needs."""
    needed = ["org.apache.iceberg:iceberg-spark-runtime-4.1_2.13"]
    if access.lake.type == CatalogKind.JDBC:
        needed.append("org.xerial:sqlite-jdbc" if _embedded(access) else "org.postgresql:postgresql")
    return jars.settings_for(*needed, *object_store.jars(access.warehouse))


def forbid_repeated_commits(spark: SparkSession, name: str) -> None:
    """Let Spark's catalog in a database fail where the answer to a statement was lost, not send the statement again.

    The commit may have landed. The repeated one is then refused, for the catalog names another metadata file, and
    Iceberg deletes the files of a commit that was refused: the table would name files that are gone. Of a commit that
    failed in another way it deletes nothing. A statement that was never sent, or was rolled back, is still repeated.
    """
    kind, uri = (spark.conf.get(f"spark.sql.catalog.{name}.{key}", "") for key in ("type", "uri"))
    if kind != CatalogKind.JDBC or str(uri).startswith(SQLITE):
        return
    catalog = _opened(spark, name).icebergCatalog()
    if catalog.getClass().getSimpleName() == "CachingCatalog":
        catalog = _field(catalog, "catalog")
    repeated = _field(_field(catalog, "connections"), "retryableStatusCodes")
    for state in filter(repeated.contains, _UNKNOWN):  # another run in this JVM may have removed them
        repeated.remove(state)


def _opened(spark: SparkSession, name: str) -> Any:
    """Return a catalog of a session. Spark opens it with the settings of the active one, perhaps of another lake."""
    assert spark._jvm is not None
    sessions = spark._get_j_spark_session_class(spark._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        return spark._jsparkSession.sessionState().catalogManager().catalog(name)
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _field(instance: Any, name: str) -> Any:
    """Return the value of a private field of an object of the JVM. Iceberg has no setting for it."""
    field = instance.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(instance)


def spark_properties(access: LakeAccess) -> dict[str, str]:
    """Return the properties of Spark's catalog that say which catalog it is, and how its files are opened."""
    lake = access.lake
    files = object_store.spark_settings(access.warehouse, lake.properties, os.environ)
    if lake.type == CatalogKind.REST:
        return {"type": "rest", "uri": lake.uri, **files}
    if lake.type == CatalogKind.HIVE:
        return {"type": "hive", "uri": lake.uri, "warehouse": access.warehouse, **files}
    found = {"type": "jdbc", "jdbc.schema-version": "V1", "warehouse": access.warehouse}
    if _embedded(access):
        # The time-out is in milliseconds. Another process may lock the file for a moment.
        return {**found, "uri": f"{SQLITE}{access.catalog_db}", "jdbc.busy_timeout": "30000", **files}
    # User and password are properties of their own: Spark redacts them by their names.
    database = read_postgres(lake.uri)
    login = {"jdbc.user": database.user, "jdbc.password": database.password}
    return {**found, "uri": database.jdbc, **{key: value for key, value in login.items() if value}, **files}


def _pyiceberg_properties(access: LakeAccess) -> dict[str, str]:
    lake = access.lake
    files = storage.file_properties(access)
    if lake.type == CatalogKind.REST:
        return {"type": "rest", "uri": lake.uri, **lake.properties, **files}
    if lake.type == CatalogKind.HIVE:  # Spark's own client is of Hive 2, and writes columns with the types of that
        return {"type": "hive", "uri": lake.uri, "hive.hive2-compatible": "true", **lake.properties, **files}
    given = spark_properties(access)
    user, password = given.get("jdbc.user", ""), given.get("jdbc.password", "")
    further = {key: value for key, value in lake.properties.items() if not key.startswith("jdbc.")}
    return {
        "type": "sql",
        "uri": read_postgres(lake.uri).sqlalchemy(user, password, _CONNECT_SECONDS),
        "init_catalog_tables": "false",  # Spark makes them, with the schema that its catalog wants
        "pool_pre_ping": "true",  # the server may have ended a connection that was not used for a while
        "warehouse": access.warehouse,
        **further,
        **files,
    }


def secrets_of(access: LakeAccess) -> dict[str, str]:
    """Return the properties of Spark's catalog that must not be shown or stored, with their values."""
    return {key: value for key, value in spark_properties(access).items() if _SECRET.search(key)}

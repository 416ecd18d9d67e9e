"""Say what the toolkit asks of a lake's catalog without a JVM, and open the one that is configured.

Only this module and the catalogs themselves know the kind of a catalog. All names are `namespace.table`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from toolkit.values.config import Config


class LakeCatalog(Protocol):
    """The catalog of a lake."""

    @property
    def where(self) -> str:
        """Give the catalog's place for messages, without secrets."""

    @property
    def folder(self) -> Path | None:
        """Give the folder of this machine that the catalog writes to; None if it is a server."""

    def prepare(self) -> None:
        """Find out whether the catalog can be used, before anything else is made. Create its folder if it has one.

        Raises:
            LakeError: it cannot be reached or written.
        """

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

    def tables(self, namespace: str, kind: str) -> tuple[str, ...]:
        """List the tables of a namespace (or, with kind `VIEW`, its views), in order; empty without a catalog.

        Raises:
            LakeError: the catalog cannot be read.
        """

    def load_table(self, name: str) -> Table:
        """Load a table as it is now. A commit on it succeeds only if no other process changed the table since.

        What a commit wrote is on the disk before the commit returns.

        Raises:
            NoSuchTableError: there is no such catalog or table.
            LakeError: the catalog cannot be read.
        """

    def mend(self, name: str) -> tuple[str, bool]:
        """Say how a person makes the catalog give up the current metadata file of a table or view, which is damaged.

        Return the procedure, and whether the table is then as it was before the last commit. Otherwise the catalog
        forgets the table.
        """


def open_catalog(config: Config) -> LakeCatalog:
    """Give the catalog of a lake. This reads nothing and connects to nothing."""
    from toolkit.lake.sqlite_catalog import SqliteCatalog

    return SqliteCatalog(config)


def force(config: Config, name: str, snapshot_id: int) -> None:
    """Force a commit of another writer to the disk: Spark's catalogs name files before they are there.

    Raises:
        LakeError: a file is missing or damaged, or cannot be forced to the disk. The slot must not move.
    """
    from toolkit.lake import durable

    durable.sync_table(config, open_catalog(config).load_table(name), (snapshot_id,))


def spark_properties(config: Config) -> dict[str, str]:
    """Give the properties of Spark's catalog that say which catalog it is."""
    return {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{config.catalog_db}",
        "jdbc.schema-version": "V1",
        "jdbc.busy_timeout": "30000",  # milliseconds; another process may lock the file for a moment
        "warehouse": str(config.warehouse),
    }


__all__ = ["LakeCatalog", "force", "open_catalog", "spark_properties"]

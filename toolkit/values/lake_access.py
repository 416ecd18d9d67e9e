"""Define where the lake is and how it is opened: the sections `[lake]` and `[spark]`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from toolkit.values.capture_rules import Section
from toolkit.values.catalog_uri import SQLITE, require_catalog
from toolkit.values.durations import MOST_DAYS
from toolkit.values.locations import local_path, scheme
from toolkit.values.modes import CatalogKind
from toolkit.values.namespaces import Namespaces, checked_prefix
from toolkit.values.object_store import require_settings, require_warehouse


class LakeConfig(Section):
    """The Iceberg side."""

    warehouse: str = "lake/warehouse"
    """Folder of the Iceberg tables: a path of this machine, or an address in `s3://`, `gs://` or `abfss://`."""
    work_dir: str | None = None
    """Folder of this machine for lease, spool, logs and reports, another one for each lake; default: the folder that
    `warehouse` is in, or `lake` if that is in an object store."""
    catalog: str = "lake"
    """Name of the Spark catalog."""
    type: CatalogKind = CatalogKind.JDBC
    """Kind of the Iceberg catalog."""
    uri: str = Field(default="jdbc:sqlite:lake/catalog.db", validate_default=True, repr=False)
    """Where the catalog is: `jdbc:sqlite:<path>` (a file that the toolkit makes), `jdbc:postgresql://host:port/database`,
    with type `rest` the URL of the server, or with type `hive` `thrift://host:port`."""
    properties: dict[str, str] = Field(default_factory=dict, repr=False)
    """Further properties of catalog and store by their names in Iceberg, such as `token`, `jdbc.password` or
    `s3.endpoint`. Spark and the commands without Spark get the same ones. Their values are never printed."""
    reports: str = ""
    """Folder of this machine, or `s3://bucket/prefix`, to which each check copies its reports and Data Docs, and each
    build dbt's results. If empty, they are only in `work_dir` and in the dbt project."""
    prefix: Annotated[str, AfterValidator(checked_prefix)] = ""
    """Prefix of the source's namespaces, for several sources in one lake: with `shop` they are `shop_raw`,
    `shop_current`, `shop_published` and so on. Lease, logs and reports are then in `sources/shop` of `work_dir`."""
    keep_days: float = Field(default=7.0, ge=0, le=MOST_DAYS)
    """Days that `cdc maintain` keeps table snapshots and tags. Tags of published tables and your own tags stay."""

    @property
    def names(self) -> Namespaces:
        """Return the names of this source's namespaces and tables."""
        return Namespaces(self.prefix)

    @field_validator("warehouse", "reports")
    @classmethod
    def _supported_place(cls, value: str) -> str:
        require_warehouse(value)
        return value

    @field_validator("type", mode="before")
    @classmethod
    def _with_views(cls, value: object) -> object:
        if value == "glue":
            raise ValueError("`published` needs views, and Iceberg's catalog for AWS Glue has none; use another one")
        return value

    @field_validator("uri")
    @classmethod
    def _supported(cls, value: str, info: ValidationInfo) -> str:
        if "type" in info.data:
            require_catalog(info.data["type"], value)
        return value

    @field_validator("properties")
    @classmethod
    def _not_its_place(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        own = {"type", "uri", "catalog-impl", "jdbc.schema-version", "warehouse", "io-impl", "py-io-impl"}
        if info.data.get("type") == CatalogKind.REST:
            own.remove("warehouse")  # the server's own name for one of its warehouses
        for key in value:
            if key in own:
                raise ValueError(f"{key!r} is not a further property; [lake] type, uri and warehouse name the catalog")
        return value

    @model_validator(mode="after")
    def _reachable(self) -> LakeConfig:
        for place in (self.warehouse, self.reports):
            require_settings(place, self.properties, os.environ)
        return self


@dataclass(frozen=True, slots=True)
class LakeAccess:
    """Both sections as one value, which is handed down to everything that opens the lake."""

    root: Path  # the folder that relative paths start from
    lake: LakeConfig
    spark: Mapping[str, str]

    @property
    def names(self) -> Namespaces:
        """Return the names of this source's namespaces and tables."""
        return self.lake.names

    def path(self, text: str) -> Path:
        """Make a configured path absolute. One that begins with `~/` is in the home folder."""
        home = text == "~" or text.startswith("~/")
        return (self.root / (Path(text).expanduser() if home else text)).resolve()

    @property
    def warehouse(self) -> str:
        """Return the location of the lake's tables: an absolute path, or an address without a slash at its end."""
        given = self.lake.warehouse
        return given.rstrip("/") if scheme(given) else str(self.path(given))

    @property
    def catalog_db(self) -> Path:
        """Return the file of the embedded catalog, which `[lake] uri` names with `jdbc:sqlite:`."""
        return self.path(self.lake.uri.removeprefix(SQLITE))

    @property
    def work_dir(self) -> Path:
        """Return the folder of this machine for lease, spool, logs and reports. Each prefix has its own one in it."""
        warehouse = local_path(self.warehouse)
        beside = self.path("lake") if warehouse is None else warehouse.parent
        folder = self.path(self.lake.work_dir) if self.lake.work_dir else beside
        return folder / "sources" / self.lake.prefix if self.lake.prefix else folder

"""Read `cdc.toml` and its environment overrides.

Every key is also `CDC_<SECTION>__<KEY>` in the environment. Relative paths are relative to the folder of `cdc.toml`.
libpq does all of the connecting, so passwords are never parsed, logged or stored here.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from toolkit.values.catalog_uri import SQLITE, require_catalog, require_one_catalog
from toolkit.values.errors import ConfigError
from toolkit.values.locations import local_path, scheme
from toolkit.values.modes import (
    Capture,
    CatalogKind,
    CommandText,
    LogDrain,
    LogFormat,
    LogLevel,
    NewTables,
    Selection,
    Triggers,
)
from toolkit.values.names import nearest, quote_postgres, selects
from toolkit.values.object_store import require_settings, require_warehouse

DEFAULT_NAME = "cdc.toml"


class _Section(BaseModel):
    # The text below a key is its meaning in docs/reference/configuration.md.
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TableConfig(_Section):
    """How the tables of a pattern are captured: `[table."public.orders"]`."""

    capture: Capture | None = None
    """How the tables of this pattern are captured; default: as `[source] capture`. `both` captures them twice and
    compares (`cdc audit`); `schema` keeps their schema versions and no rows."""
    triggers: Triggers = Triggers.ROW
    """Kind of change-log trigger. `statement` costs less for bulk changes and more for single rows."""


class SourceConfig(_Section):
    """The PostgreSQL side."""

    conninfo: str = ""
    """libpq connection string, URI or `service=...`; if empty, libpq uses the `PG*` variables. Put passwords into
    pgpass or the service file."""
    publication: str | tuple[str, ...] = "cdc"
    """One publication, or a list of several that the slot is read with."""
    slot: str = "cdc"
    """Name of the logical replication slot."""
    tables: tuple[str, ...] = ("public.*",)
    """Tables to capture, as patterns over `schema.table`."""
    exclude: tuple[str, ...] = ()
    """Tables not to capture, as patterns; it wins over `tables`."""
    new_tables: NewTables = NewTables.PROPOSE
    """`publish` captures new tables from their CREATE: it publishes whole schemas, or with `exclude` table by table;
    `propose` adds them at the next `cdc init`."""
    scope: Selection = Selection.TABLES
    """`published` captures what others put into the publications and never edits a publication; `tables` then has no
    effect."""
    capture: Literal[Capture.SLOT, Capture.CHANGE_LOG] = Capture.SLOT
    """How tables are captured, unless `[table]` says otherwise: by logical decoding, or by triggers."""
    change_log_drain: LogDrain = LogDrain.AUTO
    """How the change log is read. `auto`: through the slot if `wal_level` is `logical`, else by ticks."""
    drainer: str = ""
    """Role that drains, checks and repairs with REPLICATION and SELECT only; `cdc init`, run by another role, grants
    it the rest. If empty, the role of `cdc init` drains."""
    reader: str = ""
    """Role that runs `cdc status` and `cdc doctor` and reads no row of a table; `cdc init` grants it that."""

    @field_validator("scope")
    @classmethod
    def _not_edited(cls, value: Selection, info: ValidationInfo) -> Selection:
        if value == Selection.PUBLISHED and info.data.get("new_tables") == NewTables.PUBLISH:
            raise ValueError(
                'new_tables = "publish" edits the publication; whoever keeps it can publish a whole schema'
            )
        return value

    @property
    def publications(self) -> tuple[str, ...]:
        """Give every publication that the slot is read with."""
        return (self.publication,) if isinstance(self.publication, str) else self.publication

    @property
    def own(self) -> str | None:
        """Give the publication that `cdc init` creates, edits and drops: the first; None if others maintain all."""
        return self.publications[0] if self.scope == Selection.TABLES else None

    @property
    def others(self) -> tuple[str, ...]:
        """Give the publications that others maintain. All of their tables are captured."""
        return tuple(name for name in self.publications if name != self.own)

    @property
    def whole_schemas(self) -> bool:
        """Whether whole schemas are published. A whole schema cannot leave out a table."""
        return self.new_tables == NewTables.PUBLISH and not self.exclude

    @property
    def publication_names(self) -> str:
        """Give the publications in the form of pgoutput, which messages also show."""
        return ", ".join(quote_postgres(name) for name in self.publications)

    def names(self, schema: str, name: str) -> bool:
        """Whether a table belongs in the toolkit's own publication."""
        return self.own is not None and selects(self.tables, self.exclude, schema, name)

    def names_in_full(self, schema: str, name: str) -> bool:
        """Whether `tables` has the exact name of a table, and not only a pattern that matches it."""
        return f"{schema}.{name}" in self.tables

    def asks_for(self, schema: str, name: str) -> bool:
        """Whether a table should be captured if it is published."""
        return selects(("*.*",) if self.others else self.tables, self.exclude, schema, name)

    @field_validator("publication")
    @classmethod
    def _named_once(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        names = (value,) if isinstance(value, str) else value
        if not names or not all(names) or len(set(names)) < len(names):
            raise ValueError("a publication is one name, or a list of different ones")
        return value

    @field_validator("reader")
    @classmethod
    def _another_role(cls, value: str, info: ValidationInfo) -> str:
        if value and value == info.data.get("drainer"):
            raise ValueError("the reader is another role than the drainer, or none")
        return value

    @field_validator("slot")
    @classmethod
    def _slot_name(cls, value: str) -> str:
        if not value or len(value) > 63 or not all(c.islower() or c.isdigit() or c == "_" for c in value):
            raise ValueError("a slot name has lower case letters, digits and underscores, 63 at most")
        return value


class LakeConfig(_Section):
    """The Iceberg side."""

    warehouse: str = "lake/warehouse"
    """Folder of the Iceberg tables on this machine, or `s3://bucket/prefix`."""
    work_dir: str | None = None
    """Folder of this machine for lease, spool, logs and reports; default: the folder that `warehouse` is in, or
    `lake` if that is in an object store."""
    catalog: str = "lake"
    """Name of the Spark catalog."""
    type: CatalogKind = CatalogKind.JDBC
    """Kind of the Iceberg catalog."""
    uri: str = Field(default="jdbc:sqlite:lake/catalog.db", validate_default=True, repr=False)
    """Where the catalog is: `jdbc:sqlite:<path>` (a file that the toolkit makes), `jdbc:postgresql://host:port/database`,
    or with type `rest` the URL of the server."""
    properties: dict[str, str] = Field(default_factory=dict, repr=False)
    """Further properties of catalog and store by their names in Iceberg, such as `token`, `jdbc.password` or
    `s3.endpoint`. Spark and the commands without Spark get the same ones. Their values are never printed."""
    keep_days: float = Field(default=7.0, ge=0)
    """Days that `cdc maintain` keeps table snapshots and tags. Tags of published tables stay."""

    @field_validator("warehouse")
    @classmethod
    def _supported_place(cls, value: str) -> str:
        require_warehouse(value)
        return value

    @field_validator("type", mode="before")
    @classmethod
    def _with_views(cls, value: object) -> object:
        if value in ("hive", "glue"):
            why = "pyiceberg lists none in a Hive metastore" if value == "hive" else "Iceberg's Glue catalog has none"
            raise ValueError(f"`published` needs views, and {why}; use its REST endpoint with type = 'rest'")
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
        require_settings(self.warehouse, self.properties, os.environ)
        return self


class DrainConfig(_Section):
    """How much a drain reads at once."""

    max_changes: int = Field(default=1_000_000, gt=0)
    """Messages that one peek may return, rounded up to whole transactions."""
    batch_changes: int = Field(default=1_000_000, gt=0)
    """Messages of one commit, rounded up to whole transactions."""
    spool_dir: str | None = None
    """Folder of this machine for the bytes of a peek; default: beside the lake."""


#: Commands that change neither the shape of a table, nor a value, nor how rows are identified.
WITHOUT_EFFECT = ("CREATE INDEX", "REINDEX")


class DdlConfig(_Section):
    """What is kept of captured DDL."""

    ignore: tuple[str, ...] = ()
    """Command tags that leave no event: `CREATE INDEX`, `REINDEX`. Others can change what a row means and are
    refused."""
    sql: CommandText = CommandText.KEEP
    """What to keep of a command's text. Without the text every rewrite makes its table stale."""

    @field_validator("ignore")
    @classmethod
    def _without_effect(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        for tag in tags:
            if tag not in WITHOUT_EFFECT:
                raise ValueError(
                    f"{tag!r} can change a table's shape, its values or its replica identity, so its event is needed;"
                    f" only {' and '.join(WITHOUT_EFFECT)} can be left out"
                )
        return tags


class SnapshotConfig(_Section):
    """How tables are copied."""

    workers: int = Field(default_factory=lambda: min(8, os.cpu_count() or 1), ge=0)
    """Processes that copy tables; default: one for each core, at most 8. 0 copies in the command's own process."""
    piece_mb: float = Field(default=256.0, gt=0)
    """Largest part of a table's file that one worker reads at a time."""
    lock_seconds: float = Field(default=30.0, gt=0)
    """Seconds to wait for another session's lock; the refusal names that session."""
    heal_mb: float = Field(default=1024.0, ge=0)
    """Total size of the stale tables that `cdc run --heal` copies again."""


class CheckConfig(_Section):
    """How parity is proved."""

    buckets: int = Field(default=4096, gt=0)
    """Hash buckets of a table. Only differing buckets are read row by row."""
    samples: int = Field(default=20, ge=0)
    """Rows that the report lists for each class of difference."""
    cut_seconds: float = Field(default=30.0, gt=0)
    """Seconds to wait for an exact cut, and for a table's lock, before the table is `not_taken`."""
    sessions: int = Field(default_factory=lambda: min(4, os.cpu_count() or 1), gt=0)
    """Sessions that read a large table of the source at once; default: one for each core, at most 4."""
    full_rows: int = Field(default=1_000_000, ge=0)
    """Tables of this size are proven by touched keys between two full proofs, if `full_hours` is set."""
    full_tables: int = Field(default=100, ge=0)
    """Smaller tables that a check compares whole although nothing touched them, if `full_hours` is set."""
    full_hours: float = Field(default=0.0, ge=0)
    """Hours after which a table is compared whole in any case. 0 compares every table whole each time."""
    fresh_hours: float = Field(default=24.0, gt=0)
    """A published table whose proof is older fails the suite `published`, and `cdc status` exits with 3."""
    deprecated_days: float = Field(default=30.0, ge=0)
    """Days for which a view of `published` keeps the name of a table that was renamed or dropped."""


class DbtConfig(_Section):
    """The dbt project that builds the tables for users."""

    project_dir: str = "dbt_project"
    """Folder of the dbt project."""
    threads: int = Field(default=2, gt=0)
    """Tables that are built, or published, at once."""


class LogConfig(_Section):
    """The log on standard error."""

    format: LogFormat = LogFormat.TEXT
    """`json` writes one object per line; `--output json` does the same."""
    level: LogLevel = LogLevel.WARNING
    """`info` reports each stage with its figures, as `--verbose` does."""


class NotifyConfig(_Section):
    """Who is notified when `run`, `drain`, `build`, `check`, `repair` or `maintain` fails or finds something wrong."""

    command: tuple[str, ...] = ()
    """Program and arguments, run with a JSON object on standard input: `command`, `exit_code`, `at`, `problem`,
    `result`."""
    webhook: str = ""
    """URL that the same object is posted to. It is never printed."""
    lease_minutes: float = Field(default=60.0, ge=0)
    """A lease that is held (exit code 4) is reported only when it has been held longer than this."""


class LimitsConfig(_Section):
    """Limits beyond which `cdc status` exits with 3 and `cdc doctor` reports an error."""

    free_mb: float = Field(default=500.0, ge=0)
    """Free space of the folders of warehouse, catalog and spool."""
    wal_mb: float = Field(default=10_000.0, gt=0)
    """WAL that the server keeps for the slot."""
    transaction_minutes: float = Field(default=120.0, gt=0)
    """Age of the oldest transaction of the source that has written: the slot keeps the WAL from before it."""


class Config(BaseSettings):
    """The whole configuration. `root` is the folder that relative paths start from."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="CDC_", env_nested_delimiter="__", env_ignore_empty=True
    )

    root: Path = Field(default_factory=Path.cwd)
    source: SourceConfig = SourceConfig()
    lake: LakeConfig = LakeConfig()
    spark: dict[str, str] = Field(default_factory=dict)
    drain: DrainConfig = DrainConfig()
    ddl: DdlConfig = DdlConfig()
    snapshot: SnapshotConfig = SnapshotConfig()
    check: CheckConfig = CheckConfig()
    dbt: DbtConfig = DbtConfig()
    log: LogConfig = LogConfig()
    notify: NotifyConfig = NotifyConfig()
    limits: LimitsConfig = LimitsConfig()
    table: dict[str, TableConfig] = Field(default_factory=dict)

    @field_validator("spark")
    @classmethod
    def _spark_settings(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        for key in value:
            if not key.startswith("spark."):
                raise ValueError(f"{key!r} is no setting of Spark; did you mean 'spark.{key}'?")
            if near := _misspelled(key):
                raise ValueError(f"{key!r} is no setting of Spark; did you mean {near!r}?")
        if "lake" in info.data:
            require_one_catalog(info.data["lake"].catalog, value)
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment override the file."""
        return env_settings, init_settings

    def capture_of(self, schema: str, name: str) -> TableConfig:
        """Give how a table is captured: the first pattern of `[table]` that matches it, or else `[source] capture`."""
        for pattern, chosen in self.table.items():
            if selects((pattern,), (), schema, name):
                return chosen if chosen.capture else chosen.model_copy(update={"capture": self.source.capture})
        return TableConfig(capture=self.source.capture)

    def through_slot(self, schema: str, name: str) -> bool:
        """Whether the slot sends a table's own rows. Rows of other tables come as rows of the change log."""
        return self.capture_of(schema, name).capture in (Capture.SLOT, Capture.BOTH)

    @property
    def uses_change_log(self) -> bool:
        """Whether any table may be captured by triggers."""
        chosen = {self.source.capture, *(t.capture for t in self.table.values())}
        return not chosen.isdisjoint({Capture.CHANGE_LOG, Capture.BOTH})

    def path(self, text: str) -> Path:
        """Make a configured path absolute."""
        return (self.root / text).resolve()

    @property
    def warehouse(self) -> str:
        """Give the location of the lake's tables: an absolute path, or an address without a slash at its end."""
        given = self.lake.warehouse
        return given.rstrip("/") if scheme(given) else str(self.path(given))

    @property
    def catalog_db(self) -> Path:
        """Give the file of the embedded catalog, which `[lake] uri` names with `jdbc:sqlite:`."""
        return self.path(self.lake.uri.removeprefix(SQLITE))

    @property
    def project_dir(self) -> Path:
        """Give the folder of the dbt project."""
        return self.path(self.dbt.project_dir)

    @property
    def work_dir(self) -> Path:
        """Give the folder of this machine for lease, spool, logs and reports."""
        if self.lake.work_dir:
            return self.path(self.lake.work_dir)
        folder = local_path(self.warehouse)
        return self.path("lake") if folder is None else folder.parent


#: Keys whose value is never printed.
_SECRET = frozenset({"source.conninfo", "lake.uri", "lake.warehouse", "notify.webhook"})


def load(path: str | None = None) -> Config:
    """Read the configuration: `path`, or `CDC_CONFIG`, or `cdc.toml` in the working directory if it exists.

    Raises:
        ConfigError: the file is missing, its TOML is malformed, or a key is unknown or unusable; the message names it.
    """
    named = path or os.environ.get("CDC_CONFIG")
    file = Path(named or DEFAULT_NAME)
    data: dict[str, Any] = {}
    if file.is_file():
        try:
            data = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: not valid TOML: {error}; correct it there") from None
    elif named:
        raise ConfigError(f"{file}: no such configuration file; create it or give another --config")
    _known_variables()
    data.setdefault("root", file.resolve().parent)
    if isinstance(spark := data.get("spark"), dict):
        data["spark"] = _flatten(spark)
    lake = data.get("lake")
    if isinstance(lake, dict) and isinstance(properties := lake.get("properties"), dict):
        lake["properties"] = _flatten(properties)
    try:
        return Config(**data)
    except SettingsError:
        raise ConfigError("a variable CDC_... for a section or a list is not valid JSON; write it as JSON") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        # The value of another key, or a whole section, may contain a password.
        shown = key not in _SECRET and "." in key and not key.startswith(("spark", "lake.properties"))
        plain = isinstance(first["input"], str | int | float) and first["type"] != "extra_forbidden"
        found = f", found {first['input']!r}" if shown and plain else ""
        message = _unknown(first["loc"]) if first["type"] == "extra_forbidden" else first["msg"]
        raise ConfigError(
            f"{file if file.is_file() else 'configuration'}: {key}: {message}{found}; correct it there"
        ) from None


def _known_variables() -> None:
    """Refuse variables of sections that do not exist: `CDC_SAUCE__SLOT` would be ignored."""
    for name in sorted(os.environ):
        section, parts, _ = name.lower().removeprefix("cdc_").partition("__")
        if name.lower().startswith("cdc_") and parts and section not in Config.model_fields:
            raise ConfigError(f"variable {name}: no section {section!r}: {_unknown((section,))}; rename or unset it")


#: Prefixes of settings whose names users choose.
_FREE = ("spark.hadoop.", "spark.sql.catalog.", "spark.executorEnv.", "spark.kubernetes.", "spark.yarn.appMasterEnv.")


def _misspelled(key: str) -> str | None:
    """Give the Spark setting that a key is probably meant to be. Other keys are left to Spark and its extensions."""
    known = Path(__file__).with_name("spark_settings.txt").read_text(encoding="ascii").split()
    if key in known or key.startswith(_FREE):
        return None
    return next(iter(difflib.get_close_matches(key, known, n=1, cutoff=0.93)), None)


def _unknown(place: tuple[int | str, ...]) -> str:
    """Say that the key does not exist, and name the key of that section with the most similar spelling."""
    known: Any = Config
    for part in place[:-1]:
        if known is dict:
            known = TableConfig
        else:
            kind = known.model_fields[str(part)].annotation
            known = kind if isinstance(kind, type) else dict
    return f"unknown key; {nearest(str(place[-1]), [] if known is dict else list(known.model_fields))}"


def _flatten(table: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten settings, which may be quoted (`"spark.x.y" = 1`) or nested, into one mapping."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat |= _flatten(value, name + ".")
        else:
            flat[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat

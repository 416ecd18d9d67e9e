"""Read `cdc.toml` and its environment overrides.

Every key is also `CDC_<SECTION>__<KEY>` in the environment. Relative paths are relative to the folder of `cdc.toml`.
libpq does all of the connecting, so passwords are never parsed, logged or stored here.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from toolkit.values.capture_rules import CaptureRules, Section, SourceConfig, TableConfig
from toolkit.values.catalog_uri import require_one_catalog
from toolkit.values.durations import MOST_DAYS, MOST_SECONDS
from toolkit.values.errors import ConfigError
from toolkit.values.lake_access import LakeAccess, LakeConfig
from toolkit.values.modes import (
    LogFormat,
    LogLevel,
)
from toolkit.values.names import nearest
from toolkit.values.source_access import WITHOUT_EFFECT, DdlConfig, DrainConfig, SnapshotConfig, SourceAccess
from toolkit.values.spark_keys import flatten, misspelled

DEFAULT_NAME = "cdc.toml"


class CheckConfig(Section):
    """Settings of checks."""

    buckets: int = Field(default=4096, gt=0, le=1 << 20)
    """Hash buckets of a table. Only differing buckets are read row by row."""
    samples: int = Field(default=20, ge=0)
    """Rows that the report lists for each class of difference."""
    cut_seconds: float = Field(default=30.0, gt=0, le=MOST_SECONDS)
    """Seconds to wait for an exact cut, and for a table's lock, before the table is `not_taken`."""
    sessions: int = Field(default_factory=lambda: min(4, os.cpu_count() or 1), gt=0)
    """Sessions that read a large table of the source at once; default: one for each core, at most 4."""
    full_rows: int = Field(default=1_000_000, ge=0)
    """Tables of this size are proven by touched keys between two full proofs, if `full_hours` is set."""
    full_tables: int = Field(default=100, ge=0)
    """Smaller tables that a check compares whole although nothing touched them, if `full_hours` is set."""
    full_hours: float = Field(default=0.0, ge=0, le=MOST_DAYS * 24)
    """Hours after which a table is compared whole in any case. 0 compares every table whole each time."""
    fresh_hours: float = Field(default=24.0, gt=0, le=MOST_DAYS * 24)
    """A published table whose proof is older fails the suite `published`, and `cdc status` exits with 3."""
    deprecated_days: float = Field(default=30.0, ge=0, le=MOST_DAYS)
    """Days for which a view of `published` keeps the name of a table that was renamed or dropped."""


class DbtConfig(Section):
    """The dbt project that builds the tables for users."""

    project_dir: str = "dbt_project"
    """Folder of the dbt project."""
    threads: int = Field(default=2, gt=0)
    """Tables that are built, or published, at once."""


@dataclass(frozen=True, slots=True)
class DbtProject:
    """The section `[dbt]` with its folder as an absolute path."""

    folder: Path
    threads: int


class LogConfig(Section):
    """The log on standard error."""

    format: LogFormat = LogFormat.TEXT
    """`json` writes one object per line; `--output json` does the same."""
    level: LogLevel = LogLevel.WARNING
    """`info` reports each stage with its figures, as `--verbose` does."""


class NotifyConfig(Section):
    """Receivers of a notice when `run`, `drain`, `build`, `check`, `repair` or `maintain` does not succeed."""

    command: tuple[str, ...] = ()
    """Program and arguments, run with a JSON object on standard input: `text`, `command`, `exit_code`, `at`, `problem`,
    `result`, `host`, `lake`, `prefix`."""
    webhook: str = ""
    """URL that the same object is posted to. It is never printed."""
    lease_minutes: float = Field(default=60.0, ge=0, le=MOST_DAYS * 24 * 60)
    """A lease that is held (exit code 4) is reported only when it has been held longer than this."""

    @field_validator("command")
    @classmethod
    def _names_a_program(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value and not value[0]:
            raise ValueError("its first word must be a program")
        return value

    @field_validator("webhook")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        if value and not re.match(r"https?://[^/]", value):
            raise ValueError("it must be a URL that begins with https:// or http://")
        return value


class LimitsConfig(Section):
    """Limits beyond which `cdc status` exits with 3 and `cdc doctor` reports an error."""

    free_mb: float = Field(default=500.0, ge=0)
    """Free space of the folders of warehouse, catalog and spool."""
    wal_mb: float = Field(default=10_000.0, gt=0)
    """WAL that the server keeps for the slot."""
    transaction_minutes: float = Field(default=120.0, gt=0, le=MOST_DAYS * 24 * 60)
    """Age of the oldest transaction of the source that has written: the slot keeps the WAL from before it."""


class _Variables(EnvSettingsSource):
    """The environment, but for `CDC_ROOT`, which another program may use: `root` is the folder of the file."""

    def __call__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__call__().items() if key != "root"}


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
            if near := misspelled(key):
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
        return _Variables(settings_cls), init_settings

    @property
    def capture_rules(self) -> CaptureRules:
        """Return what decides which tables are captured, and how: `[source]` and `[table]`."""
        return CaptureRules(self.source, self.table)

    @property
    def lake_access(self) -> LakeAccess:
        """Return what opens the lake: `[lake]`, `[spark]` and the folder that relative paths start from."""
        return LakeAccess(self.root, self.lake, self.spark)

    @property
    def source_access(self) -> SourceAccess:
        """Return what reads the source: what is captured, and the bounds of drains, copies and cuts."""
        lake = self.lake_access
        return SourceAccess(
            self.capture_rules, self.drain, self.snapshot, self.ddl, self.check.cut_seconds, self.check.sessions,
            lake.path(self.drain.spool_dir) if self.drain.spool_dir else lake.work_dir / "spool"
        )  # fmt: skip

    @property
    def dbt_project(self) -> DbtProject:
        """Return the dbt project that builds the tables."""
        return DbtProject(self.lake_access.path(self.dbt.project_dir), self.dbt.threads)


#: What the file and the environment may set.
_SECTIONS = tuple(name for name in Config.model_fields if name != "root")
#: Keys whose value is never printed.
_SECRET = frozenset({"source.conninfo", "lake.uri", "lake.warehouse", "lake.reports", "notify.webhook"})


def load(path: str | None = None) -> Config:
    """Read the configuration: `path`, or `CDC_CONFIG`, or `cdc.toml` in the working directory if it exists.

    Raises:
        ConfigError: the file is missing or unreadable, its TOML is malformed, or a key is unknown or unusable; the
            message names it.
    """
    named = path or os.environ.get("CDC_CONFIG")
    file = Path(named or DEFAULT_NAME)
    data: dict[str, Any] = {}
    try:
        there = file.is_file()
        if there:
            data = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}; correct it there") from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; change its permissions or give another --config") from None
    if named and not there:
        found = "not a regular file" if file.exists() else "no such configuration file"
        raise ConfigError(f"{file}: {found}; create it or give another --config")
    _known_variables()
    if "root" in data:
        raise ConfigError(f"{file}: root: {_unknown(('root',))}; correct it there")
    data["root"] = file.resolve().parent
    if isinstance(spark := data.get("spark"), dict):
        data["spark"] = flatten(spark)
    lake = data.get("lake")
    if isinstance(lake, dict) and isinstance(properties := lake.get("properties"), dict):
        lake["properties"] = flatten(properties)
    try:
        return Config(**data)
    except SettingsError:
        raise ConfigError(
            f"variable {_not_json()}: not valid JSON, as a section or a list must be; write it as JSON, such as"
            """ CDC_SOURCE__TABLES='["public.*"]'"""
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        # The value of another key, or a whole section, may contain a password.
        shown = key not in _SECRET and "." in key and not key.startswith(("spark", "lake.properties"))
        plain = isinstance(first["input"], str | int | float) and first["type"] != "extra_forbidden"
        found = f", found {first['input']!r}" if shown and plain else ""
        message = _unknown(first["loc"]) if first["type"] == "extra_forbidden" else first["msg"]
        if first["type"] == "tuple_type":
            message = "must be a list, such as [...]"
        place = _variable(first["loc"]) or (file if there else "configuration")
        raise ConfigError(f"{place}: {key}: {message}{found}; correct it there") from None


def _known_variables() -> None:
    """Refuse variables of sections that do not exist: `CDC_SAUCE__SLOT` would be ignored."""
    for name in sorted(os.environ):
        section, parts, _ = name.lower().removeprefix("cdc_").partition("__")
        if name.lower().startswith("cdc_") and parts and section not in _SECTIONS:
            raise ConfigError(f"variable {name}: no section {section!r}: {_unknown((section,))}; rename or unset it")


def _variable(place: tuple[int | str, ...]) -> str | None:
    """Describe the variable that has the value of a key; None if the file has it."""
    given = {name.lower(): name for name, value in os.environ.items() if value}
    parts = [str(part).lower() for part in place]
    counts = range(len(parts), min(1, len(parts) - 1), -1)  # one name alone is a section of the wrong type
    names = ("__".join(["cdc_" + parts[0], *parts[1:count]]) for count in counts)
    return next((f"variable {given[name]}" for name in names if name in given), None)


def _not_json() -> str:
    """Return the first variable that does not have the JSON which its key needs. Its value may be a secret."""
    for name, value in sorted(os.environ.items()):
        alone = EnvSettingsSource(Config)
        alone.env_vars = {name.lower(): value}
        try:
            alone()
        except SettingsError:
            return name
    return "CDC_..."


def _unknown(place: tuple[int | str, ...]) -> str:
    """Describe an unknown key, with the most similar key of its section."""
    known: Any = Config
    for part in place[:-1]:
        if known is dict:
            known = TableConfig
        else:
            kind = known.model_fields[str(part)].annotation
            known = kind if isinstance(kind, type) else dict
    names = _SECTIONS if known is Config else () if known is dict else known.model_fields
    return f"unknown key; {nearest(str(place[-1]), names)}"


__all__ = [
    "DEFAULT_NAME",
    "WITHOUT_EFFECT",
    "CheckConfig",
    "Config",
    "DbtConfig",
    "DdlConfig",
    "DrainConfig",
    "LakeConfig",
    "LimitsConfig",
    "LogConfig",
    "NotifyConfig",
    "SnapshotConfig",
    "SourceConfig",
    "TableConfig",
    "load",
]

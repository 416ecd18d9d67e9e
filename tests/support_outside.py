"""Compare what readers other than Spark get of `published` with its views."""

from __future__ import annotations

import importlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from toolkit.lake.published_tables import duckdb_script, published_tables, scan_published
from toolkit.lake.storage import file_properties
from toolkit.values.config import Config
from toolkit.values.resources import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def duck(config: Config, script: str) -> Iterator[Any]:
    """DuckDB after a script, with its extensions installed from the wheels and nothing from a network."""
    connection = duckdb.connect(
        config={
            "extension_directory": str(config.root / "duckdb"),
            "autoinstall_extension_repository": str(config.root / "no_such_repository"),
        }
    )
    with connection:
        for name in ("avro", "httpfs", "iceberg"):
            wheel = Path(str(importlib.import_module(f"duckdb_extension_{name}").__file__)).parent
            connection.execute(f"install '{next(wheel.rglob('*.duckdb_extension'))}'")
        connection.execute("set timezone = 'UTC'")
        if config.lake_access.warehouse.startswith("s3://"):
            connection.execute(_secret(file_properties(config.lake_access)))
        connection.execute(script)
        yield connection


def _secret(properties: Mapping[str, str]) -> str:
    """Give the statement of the guide with the properties of a lake."""
    guide = (ROOT / "docs" / "guides" / "outside.md").read_text(encoding="utf-8")
    statement: str
    (statement,) = re.findall(r"^create secret .*?;$", guide, re.MULTILINE | re.DOTALL)
    key, secret = "s3.access-key-id", "s3.secret-access-key"
    words = {
        "MY_KEY": properties[key] if key in properties else os.environ["AWS_ACCESS_KEY_ID"],
        "MY_SECRET": properties[secret] if secret in properties else os.environ["AWS_SECRET_ACCESS_KEY"],
        "eu-north-1": properties["client.region"],
        "store.example:9000": properties["s3.endpoint"].removeprefix("http://"),
    }
    for word, value in words.items():
        assert statement.count(word) == 1, word
        statement = statement.replace(word, value)
    return statement


def rows_by_reader(config: Config, spark: SparkSession) -> dict[str, dict[str, tuple[list[str], Counter[str]]]]:
    """Columns and rows of each published table as each reader has them."""
    found: dict[str, dict[str, tuple[list[str], Counter[str]]]] = {}
    with duck(config, duckdb_script(config.lake_access)) as connection:
        for table in published_tables(config.lake_access):
            name = table.relation
            readers = {
                "spark": spark.table(f"published.{name}").toArrow(),
                "pyiceberg": scan_published(config.lake_access, table.table).to_arrow(),
                "duckdb": connection.sql(f"select * from published.{name}").to_arrow_table(),
            }
            found[name] = {reader: (read.column_names, _rows(read.to_pylist())) for reader, read in readers.items()}
    return found


def assert_readers_agree(config: Config, spark: SparkSession) -> dict[str, int]:
    """Assert that every reader has the rows of each view, and give their numbers."""
    found = rows_by_reader(config, spark)
    for name, readers in found.items():
        for reader in ("pyiceberg", "duckdb"):
            assert readers[reader] == readers["spark"], (name, reader)
    return {name: readers["spark"][1].total() for name, readers in found.items()}


def _rows(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Texts of rows: NaN equals itself there, and a time is in UTC whatever its zone is called."""
    return Counter(repr([_utc(value) for value in row.values()]) for row in rows)


def _utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is not None else value

"""A table is replaced only as it was found, whatever catalog the lake has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support_catalogs import hive_metastore, lake_section, rest_classpath, store_servers
from tests.support_shop import Shop
from toolkit.lake import reads, table_commit
from toolkit.lake.lake_catalog import open_catalog
from toolkit.lake.session import own_session, stop_session
from toolkit.values import config as configuration
from toolkit.values.errors import LakeError
from toolkit.values.lake_access import LakeAccess
from toolkit.values.process_env import environment

__all__ = ["rest_classpath", "store_servers"]
pytestmark = [pytest.mark.spark, pytest.mark.wide]
_NAME = "current.late"


@pytest.fixture(params=["rest", "hive", "sqlite+s3"])
def access(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LakeAccess]:
    with lake_section(request, request.param, tmp_path) as section:
        made = Shop(tmp_path, "dbname=none", section)
        with environment({**made.environment, "CDC_LAKE__PROPERTIES": json.dumps(made.properties)}):
            yield configuration.load(str(tmp_path / "cdc.toml")).lake_access
            stop_session()


def test_a_late_replacement_takes_nothing_back(access: LakeAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = own_session(access)
    spark.sql("create namespace if not exists current")
    java, rows = table_commit.Java(spark), pa.table({"id": pa.array([1, 2], pa.int32())})

    def commit(tag: str | None, since: int | None) -> table_commit.Commit:
        return table_commit.Commit({"format-version": "3"}, {"cdc.applied-batch": "1"}, tag, since)

    table_commit.replace_table(java, access, _NAME, [("id", "int")], rows, commit("one", None))
    first = reads.snapshot_id(access, _NAME)
    table_commit.replace_by_query(spark, access.lake.catalog, _NAME, "select 'x' as v", commit("two", first))
    second = reads.snapshot_id(access, _NAME)
    table_commit.replace_table(java, access, _NAME, [("id", "int")], rows, commit("three", second))
    third = reads.snapshot_id(access, _NAME)
    assert reads.tags(access, _NAME) == {"one": first, "two": second, "three": third}
    assert [row[0] for row in spark.sql(f"select v from {_NAME} version as of 'two'").collect()] == ["x"]
    assert spark.table(_NAME).count() == 2
    real = table_commit._commit_replacement

    def late(*arguments: Any) -> None:
        spark.sql(f"insert into {_NAME} values (77)")
        real(*arguments)

    monkeypatch.setattr(table_commit, "_commit_replacement", late)
    with pytest.raises(LakeError, match="another process has changed it"):
        table_commit.replace_by_query(spark, access.lake.catalog, _NAME, "select 'y' as v", commit("late", third))
    assert sorted(row[0] for row in spark.table(_NAME).collect()) == [1, 2, 77]
    with pytest.raises(LakeError, match="another process has changed it"):
        table_commit.replace_table(java, access, "current.fresh", [("id", "int")], rows, commit(None, first))


def test_a_metastore_that_keeps_the_types_of_columns_is_refused(tmp_path: Path) -> None:
    """A replacement whose first column is a number, where it was a text, failed with an unknown state."""
    with hive_metastore(tmp_path, str(tmp_path / "lake" / "warehouse"), keeps_types="true") as section:
        Shop(tmp_path, "dbname=none", dict(section))
        with pytest.raises(LakeError, match=r"set hive\.metastore\.disallow\.\S+ = false in its configuration"):
            open_catalog(configuration.load(str(tmp_path / "cdc.toml")).lake_access).prepare()

"""What is written for readers other than Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import duckdb
import pytest

from toolkit.lake import published_tables
from toolkit.lake.published_tables import PublishedTable
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_the_script_for_duckdb_runs_no_statement_of_a_tables_name(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """The owner of a table may write a line break into its name. DuckDB ends a comment at a carriage return too."""
    name, now = f'public."a{end}create table stolen as select 1; --"', datetime(2026, 1, 1, tzinfo=UTC)
    found = PublishedTable(name, "public__a", Lsn(1), now, "identical", "proven_g1_1", 1, "/nowhere", ("id",))
    monkeypatch.setattr(published_tables, "published_tables", lambda _: (found,))
    script = published_tables.duckdb_script(Config().lake_access)
    with duckdb.connect() as connection:
        read = "from iceberg_scan('/nowhere', snapshot_from_id = 1)"
        connection.execute(script.replace(read, "from (select 1 as id)"))
        shown = connection.execute("select table_schema, table_name from information_schema.tables").fetchall()
    assert shown == [("published", "public__a")]

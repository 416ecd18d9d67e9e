"""A table that is excluded later: what the lake has of it stays, and is not taken for its rows of today."""

from __future__ import annotations

import psycopg
import pytest

from tests import commands
from tests.support_ledger import lake_of
from toolkit.history import rows_at_lsn
from toolkit.ops import status_report
from toolkit.values.config import Config
from toolkit.values.errors import NotProven

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.spark,
    pytest.mark.dbt,
    pytest.mark.parametrize("pg", ["pg16"], indirect=True),
]


def test_rows_of_an_excluded_table_are_those_of_an_earlier_lsn_and_said_to_be(
    database: str, lake: Config, caplog: pytest.LogCaptureFixture
) -> None:
    """They were shown without a word."""
    config = lake.model_copy(update={"source": lake.source.model_copy(update={"conninfo": database})})
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("create table public.kept (id int primary key); create table public.left_out (id int primary key)")
        conn.execute("insert into public.left_out values (1)")
        commands.init(config)
        commands.build(config)
        excluding = config.model_copy(
            update={"source": config.source.model_copy(update={"exclude": ("public.left_out",)})}
        )
        commands.init(excluding)
        conn.execute("insert into public.left_out values (2)")
        conn.execute("insert into public.kept values (1)")
    lsn = commands.drain(excluding).committed_lsn
    commands.build(excluding)
    assert rows_at_lsn.rows(lake_of(excluding), "kept") == [{"id": "1"}] and not caplog.records
    assert rows_at_lsn.rows(lake_of(excluding), "left_out") == [{"id": "1"}]
    (warned,) = caplog.records
    assert warned.getMessage() == "rows of a table that is not captured any more"
    with pytest.raises(NotProven, match="left the publication"):
        rows_at_lsn.rows(lake_of(excluding), "left_out", as_of=lsn)
    assert [(t.table, t.state) for t in status_report.status(excluding).tables] == [("public.kept", "ok")]

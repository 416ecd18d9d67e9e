"""Several publications up to the tables for people: proven as the server merges them, red where it sends less."""

from __future__ import annotations

import psycopg
import pytest

from tests import commands
from tests.support_postgres import run_sql
from toolkit.lake import session
from toolkit.ops import status_report
from toolkit.values.config import Config

pytestmark = [pytest.mark.e2e, pytest.mark.wide, pytest.mark.parametrize("pg", ["pg18"], indirect=True)]

_TABLES = """
create table public.t (id int primary key, n int, v text);
alter table public.t replica identity full;
insert into public.t select i, i * 10, 'v' || i from generate_series(1, 20) i;
create table public.u (id int primary key, v text, secret text);
insert into public.u values (1, 'x', 's'), (2, 'y', 's');
create table public.later (id int primary key);
insert into public.later values (1);
create publication low for table public.t where (n < 50), public.u (id, v);
create publication high for table public.t where (n > 150), public.u (id, v);
create publication more for table public.t where (n > 150), public.later;
"""
_CHANGES = """
update public.t set n = n + 45 where id in (1, 2, 3, 18);
update public.t set n = 20 where id = 10;
delete from public.t where id in (4, 20);
insert into public.t values (30, 5, 'in'), (31, 100, 'out'), (32, 500, 'in');
update public.u set v = 'z', secret = 'changed' where id = 2;
"""


def _check(config: Config) -> dict[str, str]:
    report = commands.check(config, ())
    return {t.table.removeprefix("public."): t.status for t in report.tables}


def test_what_several_publications_send_is_proven(database: str, lake: Config) -> None:
    source = lake.source.model_copy(update={"conninfo": database, "scope": "published", "publication": ("low", "high")})
    config = lake.model_copy(update={"source": source})
    run_sql(config, _TABLES)
    commands.init(config)
    run_sql(config, _CHANGES)
    assert _check(config) == {"t": "identical", "u": "identical"}
    spark = session.own_session(config.lake_access)
    kept = {r["id"] for r in spark.sql("select id from current.public__t").collect()}
    with psycopg.connect(database) as conn:
        assert kept == {row[0] for row in conn.execute("select id from t where n < 50 or n > 150")}
    assert "secret" not in spark.table("current.public__u").columns

    three = config.model_copy(update={"source": source.model_copy(update={"publication": ("low", "high", "more")})})
    assert commands.init(three).rows == {"public.later": 1}
    run_sql(three, "update public.t set n = n + 100 where id < 8; insert into public.later values (2)")
    assert _check(three) == {"t": "identical", "u": "identical", "later": "identical"}

    two = config.model_copy(update={"source": source.model_copy(update={"publication": ("high", "more")})})
    commands.init(two)
    run_sql(two, "insert into public.t values (40, 1, 'unexplained'), (41, 900, 'captured')")
    commands.drain(two)
    red = {t.table: t.reason for t in status_report.status(two).tables if t.state != "ok"}
    assert set(red) == {"public.t"} and "row_filter" in str(red["public.t"])
    commands.repair(two, ["public.t"])
    assert _check(two) == {"t": "identical", "u": "identical", "later": "identical"}


def test_rows_of_a_table_whose_key_is_not_published_are_all_there(database: str, lake: Config) -> None:
    """All had the key NULL, so that one row of a copy was left, and one of those that were inserted, in a table that
    was ok.
    """
    source = lake.source.model_copy(update={"conninfo": database, "scope": "published", "publication": ("part",)})
    config = lake.model_copy(update={"source": source})
    run_sql(
        config,
        "create table public.t (id int primary key, v text)",
        "insert into public.t values (1, 'x'), (2, 'x'), (3, 'y')",
        "create publication part for table public.t (v)",
    )
    commands.init(config)
    assert _check(config) == {"t": "identical"}
    run_sql(config, "insert into public.t values (4, 'x'), (5, 'z')")
    commands.drain(config)
    commands.build(config)
    spark = session.own_session(config.lake_access)
    for layer in ("current", "history"):
        rows = spark.sql(f"select v from {layer}.public__t order by v").collect()
        assert [row["v"] for row in rows] == ["x", "x", "x", "y", "z"], layer
    assert _check(config) == {"t": "identical"}

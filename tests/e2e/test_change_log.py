"""The change log on real servers, end to end: init, tick drain, build, check."""

from __future__ import annotations

import time

import psycopg
import pytest

from tests.support_writers import TABLES, folded_rows, journal_inserts, source_rows, writing
from toolkit import build, initialise, states
from toolkit import drain as draining
from toolkit.config import Config
from toolkit.lake.ledger import Ledger
from toolkit.quality import check as checking

pytestmark = pytest.mark.e2e

_TABLES = """
create table public.item (id bigint primary key, name text, price numeric(10, 2), tags text[], raw json);
create table public.bag (a int, b text);
insert into public.item select i, 'n' || i, i, array['x', 'y "z"'], '{"a": 1, "a": 2}' from generate_series(1, 50) as i;
insert into public.bag values (1, 'x'), (1, 'x'), (2, null);
"""


def _config(lake: Config, conninfo: str, drain: str, **more: object) -> Config:
    source = {"conninfo": conninfo, "capture": "change_log", "change_log_drain": drain, **more}
    return lake.model_copy(update={"source": lake.source.model_copy(update=source)})


def _sql(config: Config, *statements: str) -> None:
    with psycopg.connect(config.source.conninfo, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement)


def _check(config: Config, *tables: str):
    return checking.check(config, tables, drain=draining.drain, build=build.build)


def test_the_whole_path_by_ticks(database: str, lake: Config):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(_TABLES)
    config = _config(lake, database, "tick")
    assert initialise.init(config).rows == {"public.item": 50, "public.bag": 3}
    _sql(
        config,
        "insert into item values (100, E'a\\\\b \"c\", (d)', 1.5, null, '\"\\u0000\"')",
        "update item set name = '' where id = 1",
        "update item set id = 200 where id = 2",
        "delete from item where id = 3",
        "insert into bag values (1, 'x'), (3, '')",
        "delete from bag where a = 2",
        "update bag set b = 'y' where a = 3",
    )
    assert draining.drain(config).changes == 8
    assert draining.drain(config).changes == 0
    report = _check(config)
    assert {t.table: t.status for t in report.tables} == {"public.item": "identical", "public.bag": "identical"}
    assert {s.state for s in states.table_states(Ledger(config))} == {"ok"}


@pytest.fixture(params=["tick", "slot"])
def by(request: pytest.FixtureRequest) -> str:
    """Each way to drain the change log in turn."""
    return str(request.param)


def _prove(config: Config, seconds: float, seed: int) -> dict[str, int]:
    """Drain again and again under eight writers; then everything must be there once. Gives counts for the report."""
    conninfo = config.source.conninfo
    with psycopg.connect(conninfo, autocommit=True) as conn:
        conn.execute(TABLES)
    initialise.init(config)
    drains, until = 0, time.monotonic() + seconds
    with writing(conninfo, seed=seed) as writers:
        while drains < 2 or time.monotonic() < until:
            draining.drain(config)
            drains += 1
    draining.drain(config)
    with psycopg.connect(conninfo, autocommit=True) as conn:
        writers.poll_watermark(conn)
        written = {row[0] for row in conn.execute("select seq from journal").fetchall()}
    inserts = journal_inserts(config)
    assert written - inserts.keys() == set(), "missed"
    assert [seq for seq, n in inserts.items() if n > 1 or seq not in written] == [], "doubled or never committed"
    folded = folded_rows(config)
    for table in ("public.item", "public.bag", "public.journal"):
        assert folded[table] == source_rows(conninfo, table), table
    missed = len(written - writers.seen_by_watermark)
    return {"transactions": len(written), "drains": drains, "missed by a sequence watermark": missed}


def test_trap_121_eight_writers_nothing_is_missed_or_doubled(database: str, lake: Config, by: str, seed: int):
    report = _prove(_config(lake, database, by), 3, seed)
    print(report)
    assert report["missed by a sequence watermark"] > 0, "this run could not have caught a drain by sequence"


@pytest.mark.long
def test_trap_121_eight_writers_for_a_minute(database: str, lake: Config, by: str, seed: int):
    report = _prove(_config(lake, database, by), 60, seed)
    print(report)
    assert report["missed by a sequence watermark"] > 0

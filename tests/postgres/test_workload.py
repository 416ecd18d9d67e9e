"""The traffic of the demo does what it says, beside DDL, on every server."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from toolkit.demo.workload import DdlStep, Load, create_shop, ddl_story, run_step
from toolkit.values.errors import CdcError

pytestmark = pytest.mark.postgres


def test_traffic_goes_on_through_the_ddl_story(database: str, seed: int) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        create_shop(conn)
        with Load(database, seed=seed, transactions=200) as load:
            for step in ddl_story():
                run_step(conn, step, load.names)
            counts = load.wait()
        assert counts.committed + counts.rolled_back + counts.refused == 600
        assert counts.committed > 500
        assert counts.rolled_back > 0
        columns = conn.execute(
            "select table_name, column_name from information_schema.columns where table_schema = 'public'"
        ).fetchall()
        assert ("customers", "telephone") in columns
        assert ("order_lines", "quantity") in columns
        assert ("refunds", "amount") in columns
        never = conn.execute("select count(*) from public.audit where actor = 'nobody'").fetchone()
        assert never == (0,)


def test_the_payload_is_stored_out_of_line(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        create_shop(conn)
        smallest = conn.execute("select min(pg_column_size(payload)) from public.events").fetchone()
        assert smallest is not None
        assert smallest[0] > 2000
        attribute = conn.execute(
            "select attstorage from pg_attribute where attrelid = 'public.events'::regclass and attname = 'payload'"
        ).fetchone()
        assert attribute == ("e",)


def test_an_error_of_a_session_is_not_swallowed(database: str) -> None:
    nowhere = make_conninfo(database, dbname="nowhere")
    with pytest.raises(CdcError, match="load session 0"), Load(nowhere, sessions=1, transactions=5) as load:
        load.wait()


def test_ddl_that_gets_no_lock_gives_up(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn, psycopg.connect(database) as other:
        create_shop(conn)
        other.execute("select count(*) from public.orders")
        with pytest.raises(CdcError, match="no lock within"):
            run_step(conn, DdlStep("x", ("alter table public.orders add column x int",)), seconds=0.5)

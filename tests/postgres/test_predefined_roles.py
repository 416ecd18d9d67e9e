"""Members of PostgreSQL's predefined roles neither read nor write what the toolkit keeps on the source."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest

from tests.support_change_log import Log, with_table

pytestmark = pytest.mark.postgres


def test_members_of_pg_read_all_data_read_no_row(log: Log) -> None:
    """They read the signing key, with which DDL messages and beacons can be forged, and every image in the log."""
    log = with_table(log, "public.*", triggers="row")
    log.conn.execute("create table public.first (id int primary key)")
    log.install()
    log.conn.execute("insert into public.first values (1)")
    with psycopg.connect(log.config.source.conninfo, autocommit=True) as reader:
        reader.execute("create role reads_all; grant pg_read_all_data to reads_all")
        try:
            tables = reader.execute(
                "select oid::regclass::text from pg_class"
                " where relnamespace = 'cdc'::regnamespace and relkind in ('r', 'p')"
            ).fetchall()
            counts = [reader.execute(f"select count(*) from {name}".encode()).fetchone() for (name,) in tables]
            assert len(tables) > 5 and sum(row[0] > 0 for row in counts if row) >= 3
            reader.execute("set role reads_all")
            for (name,) in tables:
                assert reader.execute(f"select count(*) from {name}".encode()).fetchone() == (0,), name
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="function reads_log"):
                reader.execute("select count(*) from cdc.logged_changes")
            reader.execute("set row_security = off")
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
                reader.execute("select * from cdc.signing_key")
        finally:
            reader.execute("reset role; drop role reads_all")


def test_members_of_pg_write_all_data_write_no_row(log: Log) -> None:
    """A row of the settings would switch capture off, and a row of the log would become a row of the lake."""
    log = with_table(log, "public.*", triggers="row")
    log.conn.execute("create table public.first (id int primary key)")
    log.install()
    log.conn.execute("insert into public.first values (1)")
    log.tick()
    with psycopg.connect(log.config.source.conninfo, autocommit=True) as writer:
        writer.execute("create role writes_all; grant pg_read_all_data, pg_write_all_data to writes_all")
        try:
            found = writer.execute(
                "select oid::regclass::text from pg_class"
                " where relnamespace = 'cdc'::regnamespace and relkind in ('r', 'p', 'v')"
            ).fetchall()
            names = [name for (name,) in found if name != "cdc.logged_changes"]
            before = [writer.execute(f"table {name}".encode()).fetchall() for name in names]
            for name in (*names, "cdc.logged_changes"):
                deletes = () if name.startswith("cdc.change_log") else (f"delete from {name}",)  # one marks a loss
                copied = f"select * from {name} limit 1"
                if name == "cdc.logged_changes":  # which they cannot read
                    copied = "values (0, '1'::xid8, '0/1'::pg_lsn, 1::oid, 'I'::\"char\", null, null)"
                for statement in (*deletes, f"insert into {name} {copied}"):
                    writer.execute("set role writes_all")
                    with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectNotInPrerequisiteState):
                        writer.execute(statement.encode())
                    with suppress(psycopg.errors.InsufficientPrivilege):
                        writer.execute("insert into cdc.settings values ('paused', '')")
                    writer.execute("reset role")
            assert [writer.execute(f"table {name}".encode()).fetchall() for name in names] == before
        finally:
            writer.execute("reset role; drop role writes_all")

"""Guards that no other test would miss: settings of functions, rights of PUBLIC, and what is waited for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from toolkit.capture import drift
from toolkit.source import change_log, copyout, guard, install, peek, slot
from toolkit.source.connection import Connection, connect
from toolkit.values.config import Config
from toolkit.values.errors import DecodeError, SlotError
from toolkit.values.lsn import Lsn

pytestmark = pytest.mark.postgres

_TEXTS = {
    "datestyle=ISO", "intervalstyle=postgres", "timezone=UTC", "bytea_output=hex", "extra_float_digits=3",
    "lc_monetary=C",
}  # fmt: skip
_EVENT = {"timezone=UTC", "standard_conforming_strings=on", "row_security=off", "lock_timeout=500ms"}
#: Settings, beside the search_path, without which another session's settings change what a function writes or may do.
PINNED_BY_FUNCTION: dict[str, set[str]] = {
    "capture_command": _EVENT,
    "capture_drop": _EVENT,
    "capture_rewrite": _EVENT,
    "capture_truncate": {"timezone=UTC"},
    "keep_publications": {"lock_timeout=500ms"},
    "capture_failed": {"lock_timeout=0"},
    "write_message": {"lock_timeout=0"},
    "log_row": {*_TEXTS, "row_security=off", "lock_timeout=0"},
    "log_rows": {*_TEXTS, "row_security=off", "lock_timeout=0"},
    "log_truncate": {*_TEXTS, "row_security=off", "lock_timeout=0"},
    "table_snapshots": {*_TEXTS, "quote_all_identifiers=off"},
}
#: Their bodies name the schema of everything.
_QUALIFIED = {"pin", "present"}


@pytest.fixture
def installed(source: Config) -> Iterator[Connection]:
    """Everything that `cdc init` can install, the change log too."""
    config = source.model_copy(update={"source": source.source.model_copy(update={"capture": "change_log"})})
    with connect(config.source) as conn:
        conn.execute("create table public.t (id int primary key)")
        install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
        yield conn


def test_functions_pin_the_settings_that_they_depend_on(installed: Connection) -> None:
    rows = installed.execute(
        "select p.proname, coalesce(p.proconfig, '{}'), p.prosqlbody is not null"
        " from pg_proc as p where p.pronamespace = 'cdc'::regnamespace and p.proname !~ '^present_'"
    ).fetchall()
    found = {name: {re.sub("^[A-Za-z_]+", lambda m: m[0].lower(), s) for s in settings} for name, settings, _ in rows}
    parsed = {name for name, _, when_made in rows if when_made}  # no name is looked up when they run
    for name, settings in found.items():
        wanted = PINNED_BY_FUNCTION.get(name, set())
        if name not in parsed | _QUALIFIED:
            wanted = wanted | {"search_path=pg_catalog, pg_temp"}  # temporary objects come last, not first
        assert wanted <= settings, name
    assert PINNED_BY_FUNCTION.keys() <= found.keys()


def test_public_has_no_right_in_the_schema(installed: Connection) -> None:
    rows = installed.execute(
        "select p.oid::regprocedure::text from pg_proc as p"
        " where p.pronamespace = 'cdc'::regnamespace and has_function_privilege('public', p.oid, 'execute')"
        " union all select c.oid::regclass::text from pg_class as c where c.relnamespace = 'cdc'::regnamespace"
        " and c.relkind in ('r', 'p', 'v') and has_table_privilege('public', c.oid,"
        " 'select, insert, update, delete, truncate, references, trigger')"
        " union all select 'schema' where has_schema_privilege('public', 'cdc', 'usage, create')"
    ).fetchall()
    assert rows == []


def test_a_transaction_timeout_of_the_database_does_not_end_a_drain(source: Config) -> None:
    with connect(source.source) as conn:
        if conn.info.server_version < 170000:
            pytest.skip("this server has no transaction_timeout")
        conn.execute(f"alter database {conn.info.dbname} set transaction_timeout = '1s'".encode())
    with psycopg.connect(source.source.conninfo) as plain:
        assert plain.execute("show transaction_timeout").fetchone() == ("1s",)
    with connect(source.source) as conn:
        assert conn.execute("show transaction_timeout").fetchone() == ("0",)


def test_an_observation_waits_until_what_it_shows_is_flushed(pg: Any, source: Config) -> None:
    with connect(source.source) as conn, psycopg.connect(source.source.conninfo, autocommit=True) as app:
        conn.execute("create table public.t (id int primary key)")
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        conn.execute("alter system set wal_writer_delay = '10s'")
        conn.execute("select pg_reload_conf()")
        try:
            app.execute("set synchronous_commit = off")
            app.execute("alter table public.t add column v text")
            written = app.execute("select pg_current_wal_insert_lsn()::text").fetchone()
            seen = drift.observe(conn, source.capture_rules, ())
        finally:
            conn.execute("alter system reset wal_writer_delay")
            conn.execute("select pg_reload_conf()")
        assert written is not None and seen is not None
        assert '"v"' in "".join(seen.tables.values())
        assert seen.upto >= Lsn.parse(written[0])
        assert slot.flush_lsn(conn) >= seen.upto


def test_a_setting_of_the_database_that_switches_capture_off_changes_its_state(source: Config) -> None:
    with connect(source.source) as conn:
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        before = guard.capture_state(conn)
        conn.execute(f"alter database {conn.info.dbname} set cdc.capture = 'off'".encode())
        assert guard.capture_state(conn).state != before.state


class _StopsShort:
    """A server that moves a slot less far than it was asked to; no version of PostgreSQL is known to."""

    def execute(self, *_: object) -> _StopsShort:
        return self

    def fetchone(self) -> tuple[str]:
        return ("0/10",)


def test_an_advance_that_stops_short_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class State:
        confirmed_flush_lsn = Lsn(0x8)

    monkeypatch.setattr(slot, "flush_lsn", lambda _: Lsn(0x100))
    monkeypatch.setattr(slot, "read_slot", lambda *_: State)
    with pytest.raises(SlotError, match="the server stopped at 0/10"):
        slot.advance(_StopsShort(), "cdc", Lsn(0x20))  # type: ignore[arg-type]


def test_a_copy_without_its_trailer_is_an_error(source: Config, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(source.source) as conn:
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
            pass
        conn.execute("select pg_logical_emit_message(true, 'one', 'row')")
        upto = slot.flush_lsn(conn)
        peek.peek(conn, source.source, upto=upto, max_changes=None, directory=tmp_path)
        cut = lambda *given: [[m for m in block if m != b"\xff\xff"] for block in copyout.copy_blocks(*given)]  # noqa: E731
        monkeypatch.setattr(peek, "copy_blocks", cut)
        with pytest.raises(DecodeError, match="without its trailer"):
            peek.peek(conn, source.source, upto=upto, max_changes=None, directory=tmp_path)


def test_a_log_that_is_not_whole_is_not_purged(installed: Connection) -> None:
    installed.execute("select cdc.log_table('public.t'::regclass, false)")
    installed.execute("insert into public.t values (1)")
    assert change_log.purge(installed, slot.shown(installed)) == ()  # the part that is written to is another one now
    installed.execute("drop table cdc.change_log_none")
    assert change_log.purge(installed, slot.shown(installed)) == ()
    assert installed.execute("select count(*) from cdc.change_log").fetchone() == (1,)
    installed.execute("create table cdc.change_log_none partition of cdc.change_log (check (false)) default")
    assert change_log.purge(installed, slot.shown(installed)) == (0,)


def test_a_row_that_comes_while_a_purge_looks_is_kept(installed: Connection, source: Config) -> None:
    """The first look waits here in the middle of its statement, which therefore does not see the row."""
    row = "insert into cdc.change_log (part, lsn, relid, op) values (1, '0/1', 1, 'I')"
    installed.execute(row)
    installed.execute("""
        create schema slow; grant usage on schema slow to public;
        create function slow.pg_visible_in_snapshot(xid8, pg_snapshot) returns boolean language plpgsql as $$ begin
          perform pg_catalog.pg_advisory_xact_lock_shared(1);
          return pg_catalog.pg_visible_in_snapshot($1, $2);
        end $$;
        alter function cdc.purge_log(pg_snapshot) set search_path = slow, pg_catalog, pg_temp
    """)
    drained = slot.shown(installed)
    waits = "select exists (select from pg_locks where locktype = 'advisory' and pid = %s and not granted)"
    with ThreadPoolExecutor(1) as pool, connect(source.source) as other:
        other.execute("select pg_advisory_lock(1)")
        purge = pool.submit(change_log.purge, installed, drained)
        while not purge.done() and other.execute(waits, [installed.pgconn.backend_pid]).fetchone() != (True,):
            pass
        assert not purge.done()
        other.execute(row)
        other.execute("select pg_advisory_unlock(1)")
        assert (purge.result(), other.execute("select count(*) from cdc.change_log").fetchone()) == ((), (2,))

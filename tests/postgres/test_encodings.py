"""Databases that are not UTF8: converted where the server can, refused by name where it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support_postgres import drop_database, inserted, stream
from tests.trap_world import PAIR, World
from toolkit.demo.server import EmbeddedServer
from toolkit.source import catalog, install, preflight, slot, snapshot_rows
from toolkit.source.connection import connect
from toolkit.source.peek import peek
from toolkit.values.config import Config, SourceConfig
from toolkit.values.errors import DecodeError
from toolkit.values.modes import Capture, LogDrain

pytestmark = pytest.mark.postgres


@contextmanager
def _database(server: EmbeddedServer, encoding: str) -> Iterator[Config]:
    name = f"e_{encoding.lower()}"
    with psycopg.connect(server.conninfo(), autocommit=True) as admin:
        admin.execute(f"create database {name} template template0 encoding '{encoding}' lc_collate 'C' lc_ctype 'C'")
        try:
            yield Config(source=SourceConfig(conninfo=server.conninfo(name), slot=name))
        finally:
            drop_database(admin, name)


@pytest.mark.parametrize(("encoding", "word"), [("LATIN1", "é"), ("EUC_JP", "日本"), ("WIN1251", "Привет")])
def test_trap_113_other_encodings_arrive_as_utf8_both_ways(pg: EmbeddedServer, encoding: str, word: str) -> None:
    with _database(pg, encoding) as config, connect(config.source) as conn:
        conn.execute(f'create table public.t (id int primary key, "{word}" text)')
        install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
        with slot.create_slot(config.source, config.source.slot, cut_seconds=config.check.cut_seconds):
            pass
        conn.execute(f"insert into public.t values (1, '{word}')")
        conn.execute(f"alter table public.t add column z text default '{word}'")
        assert inserted(stream(conn, config)) == [["1", word]]
        with (
            slot.create_slot(config.source, cut_seconds=config.check.cut_seconds) as cut,
            snapshot_rows.reader(config.source, cut) as reader,
        ):
            (table,) = (t for t in catalog.published_tables(reader) if t.name == "t")
            (batch,) = snapshot_rows.snapshot_batches(reader, table, cut.lsn, generation=1)
        assert batch.to_pylist()[0]["new"] == ["1", word, word]
        assert (table.columns[1].name, table.columns[2].missing) == (word, word)


def test_an_encoding_with_two_codes_for_a_character_is_named(pg: EmbeddedServer) -> None:
    """Two rows with distinct keys were one in the lake. Each check found it, and no repair lasted."""
    for encoding, named in (("EUC_JP", True), ("EUC_KR", False)):
        with _database(pg, encoding) as config, connect(config.source) as conn:
            found = [f.found for f in preflight.preflight(conn, config.capture_rules, ddl=config.ddl)]
            assert any("two codes that are one in UTF-8" in one for one in found) == named
    with psycopg.connect(pg.conninfo(), client_encoding="UTF8") as conn:
        row = conn.execute("select convert_from('\\xa2e2', 'EUC_JP') = convert_from('\\xadf0', 'EUC_JP')").fetchone()
        assert row == (True,)


def test_trap_113_bytes_that_are_no_text_stop_the_drain_by_name(pg: EmbeddedServer, tmp_path: Path) -> None:
    with _database(pg, "SQL_ASCII") as config, connect(config.source) as conn:
        conn.execute("create table public.t (id int primary key, a text)")
        install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
        assert any("SQL_ASCII" in f.found for f in preflight.preflight(conn, config.capture_rules, ddl=config.ddl))
        with slot.create_slot(config.source, config.source.slot, cut_seconds=config.check.cut_seconds):
            pass
        conn.execute("insert into public.t values (1, 'é')")
        assert inserted(stream(conn, config)) == [["1", "é"]]
        with psycopg.connect(config.source.conninfo, autocommit=True, client_encoding="SQL_ASCII") as raw:
            raw.execute(b"insert into public.t values (2, '\xe9')")
        before = slot.require_slot(conn, config.source).confirmed_flush_lsn
        with pytest.raises(
            DecodeError, match=r"0xe9 at [0-9A-F]+/[0-9A-F]+: a value there is no text .*new-generation"
        ):
            peek(conn, config.source, upto=slot.flush_lsn(conn), max_changes=None, directory=tmp_path)
        assert slot.require_slot(conn, config.source).confirmed_flush_lsn == before


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_bytes_that_are_no_text_in_the_change_log_are_named(pg: EmbeddedServer, tmp_path: Path) -> None:
    """The advice was to run the drain again, which never helped; a new log without the value does."""
    ticks: dict[str, Any] = {"capture": Capture.CHANGE_LOG, "change_log_drain": LogDrain.TICK}
    with ExitStack() as stack:
        world = World(stack.enter_context(_database(pg, "SQL_ASCII")), tmp_path, stack)
        log = world.start(*PAIR, **ticks)
        raw = stack.enter_context(
            psycopg.connect(world.config.source.conninfo, autocommit=True, client_encoding="SQL_ASCII")
        )
        raw.execute(b"insert into t values (3, '\xe9')")
        with pytest.raises(DecodeError, match=r"0xe9 .*no text of the encoding; correct it .*--new-generation`$"):
            log.drain()
        raw.execute(b"update t set v = 'e' where id = 3")
        log.conn.close()
        world.start()
        world.exact("t")

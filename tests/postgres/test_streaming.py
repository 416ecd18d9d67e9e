"""Streaming the slot: the bytes of a peek, without room on the server, and nothing is acknowledged."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests import commands
from tests.postgres.test_snapshot_log import current, on_source, sql
from tests.support_lake import plain_lake
from tests.support_ledger import ledger_of
from tests.support_postgres import WAL_HEADERS, WAL_PAGE, fill_page, serve
from toolkit.lake.ledger import Ledger
from toolkit.ops import status_report
from toolkit.rawlog.batch import BatchRecord
from toolkit.source import connection, install, peek, slot, streaming
from toolkit.source.connection import Connection, connect
from toolkit.values.config import CheckConfig, Config, SourceConfig
from toolkit.values.errors import HistoryDiverged, SlotError, SourceUnavailable
from toolkit.values.lsn import Lsn

__all__ = ["plain_lake"]
pytestmark = pytest.mark.postgres
_LARGE = "insert into public.t select {first} + i, repeat('x', 20000) from generate_series(1, {rows}) as i"


@pytest.fixture
def conn(source: Config) -> Iterator[Connection]:
    with connect(source.source) as connected:
        connected.execute("create table public.t (id int primary key, a text)")
        install.install(connected, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
            pass
        yield connected


def _of_every_kind(conn: Connection) -> None:
    """Write each message of the protocol, signed ones and foreign ones, in transactions and outside."""
    conn.execute("insert into public.t select i, repeat('é', i) from generate_series(1, 300) as i")
    conn.execute("create table public.unpublished (id int)")
    conn.execute("insert into public.unpublished select generate_series(1, 10000)")
    conn.execute("alter table public.t add column b int")
    slot.emit_beacon(conn)
    conn.execute("update public.t set b = 1 where id < 5; delete from public.t where id = 7")
    conn.execute("begin; savepoint s; insert into public.t values (-1); rollback to s; savepoint q;")
    conn.execute("insert into public.t values (-2, null, 0); release q; commit")
    conn.execute("truncate public.t")
    for prefix in ("app", "cdc.ddl", "cdc.beacon", "cdc.apart", "p" * 62, "p" * 63, "p" * 64, "p" * 9000):
        for inside in (True, False):
            for content in ("", "x" * 20, "0" * 64 + "{}"):
                conn.execute("select pg_logical_emit_message(%s, %s, %s)", [inside, prefix, content])
    conn.execute("insert into public.t values (8, 'last', null)")


def _folder(base: Path, name: str) -> Path:
    (base / name).mkdir()
    return base / name


def _position(conn: Connection, config: Config) -> Lsn:
    state = slot.read_slot(conn, config.source.slot)
    assert state is not None
    return state.confirmed_flush_lsn


def test_a_stream_gives_the_bytes_of_a_peek(source: Config, conn: Connection, tmp_path: Path) -> None:
    _of_every_kind(conn)
    at, upto = _position(conn, source), slot.flush_lsn(conn)
    conn.execute("insert into public.t values (9, 'beyond', null)")
    peeked = peek.peek(conn, source.source, upto=upto, max_changes=None, directory=_folder(tmp_path, "peek"))
    streamed = peek.stream(conn, source.source, upto=upto, max_changes=None, directory=_folder(tmp_path, "stream"))
    assert len(streamed) > 400
    assert streamed.path.read_bytes() == peeked.path.read_bytes()
    assert (streamed.offsets == peeked.offsets).all()
    assert (streamed.upto_lsn, streamed.complete) == (upto, True)
    assert _position(conn, source) == at, "a stream consumes nothing"
    assert slot.advance(conn, source.source.slot, upto) == upto, "and leaves the slot free"


def test_every_prefix_of_a_stream_is_that_of_the_peek(source: Config, conn: Connection, tmp_path: Path) -> None:
    """Cut by count, and at the ends of records: before and after COMMITs and messages outside of transactions."""
    _of_every_kind(conn)
    end = slot.flush_lsn(conn)
    with closing(streaming.messages(conn, source.source, upto=end)) as found:
        read = list(found)
    commits = [int.from_bytes(data[at : at + 8], "big") for _, _, data in read if data[:1] == b"C" for at in (2, 10)]
    alone = [lsn for lsn, xid, _ in read if not xid]
    assert len(alone) == 24
    spans = [(upto, None) for upto in (*commits[::7], *alone[::3])]
    for number, (upto, count) in enumerate([*spans, (end, 1), (end, 301), (end, 400), (end, 10**6)]):
        folders = (_folder(tmp_path, f"{which}{number}") for which in ("peek", "stream"))
        peeked = peek.peek(conn, source.source, upto=Lsn(upto), max_changes=count, directory=next(folders))
        streamed = peek.stream(conn, source.source, upto=Lsn(upto), max_changes=count, directory=next(folders))
        assert streamed.path.read_bytes() == peeked.path.read_bytes(), (upto, count)
        assert streamed.complete == peeked.complete


def test_trap_010_no_read_goes_beyond_the_header_of_a_page(source: Config, conn: Connection, tmp_path: Path) -> None:
    """Up to a position in a header, the server decodes the COMMIT that follows it too."""
    for number in range(20):
        with conn.transaction():
            conn.execute("insert into public.t values (%s, 'x')", [number])
            filled = fill_page(conn)
        if filled:
            break
    upto, folder = slot.flush_lsn(conn), _folder(tmp_path, "whole")
    last = peek.peek(conn, source.source, upto=upto, max_changes=None, directory=folder).path.read_bytes()[-24:]
    commit = int.from_bytes(last[:8], "big")  # of the COMMIT message: its LSN, its end, its time
    assert commit % WAL_PAGE in WAL_HEADERS
    rows = []
    for upto in (Lsn(commit - commit % WAL_PAGE), Lsn(commit - 8), Lsn(commit), Lsn(commit + 1)):
        folders = (_folder(tmp_path, f"{which}{upto.tag}") for which in ("peek", "stream"))
        peeked = peek.peek(conn, source.source, upto=upto, max_changes=None, directory=next(folders))
        streamed = peek.stream(conn, source.source, upto=upto, max_changes=None, directory=next(folders))
        assert streamed.path.read_bytes() == peeked.path.read_bytes(), upto
        rows.append(len(peeked))
    assert rows[0] == rows[1] == rows[2] < rows[3]


def test_a_stream_ends_where_nothing_is_published(source: Config, conn: Connection, tmp_path: Path) -> None:
    """At the end of the WAL, also behind the switch of a segment and at the header of a page."""
    message = b"select pg_logical_emit_message(false, 'x', repeat('x', 8000))"
    for statement in (b"select pg_switch_wal()", b"checkpoint", message, message):
        conn.execute(statement)
        upto = slot.flush_lsn(conn)
        with closing(streaming.messages(conn, source.source, upto=upto)) as found:
            assert all(data[:1] == b"M" for _, _, data in found)
        assert slot.advance(conn, source.source.slot, upto) == upto


def test_a_stream_leaves_the_slot_free_while_the_server_decodes_more(source: Config, conn: Connection) -> None:
    """A server that sends nothing does not notice that its client has gone."""
    conn.execute("create table public.unpublished (id int)")
    conn.execute("insert into public.t values (1)")
    conn.execute("insert into public.unpublished select generate_series(1, 300000)")
    with closing(streaming.messages(conn, source.source, upto=slot.flush_lsn(conn))) as found:
        while next(found)[2][:1] != b"C":
            pass
    state = slot.read_slot(conn, source.source.slot)
    assert state is not None and not state.active


def test_refusals_of_a_stream_are_those_of_a_peek(source: Config, conn: Connection, tmp_path: Path) -> None:
    upto = slot.flush_lsn(conn)
    missing = source.model_copy(update={"source": source.source.model_copy(update={"slot": "missing"})})
    with pytest.raises(SlotError, match=r"reading slot 'missing'.*does not exist"):
        peek.stream(conn, missing.source, upto=upto, max_changes=None, directory=tmp_path)
    conn.execute(_LARGE.format(first=0, rows=200))
    with closing(streaming.messages(conn, source.source, upto=slot.flush_lsn(conn))) as found:
        next(found)
        with connect(source.source) as other, pytest.raises(SlotError, match="is active for PID"):
            peek.stream(other, source.source, upto=upto, max_changes=None, directory=tmp_path)


class _Wire:
    """A port of loopback that passes bytes on to a server's socket, until `left` of them came back."""

    def __init__(self, conninfo: str) -> None:
        given = conninfo_to_dict(conninfo)
        self._target = f"{given['host']}/.s.PGSQL.{given['port']}"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.left: int | None = None
        self.conninfo = make_conninfo(conninfo, host="127.0.0.1", port=self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            for pair in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, back: bool) -> None:
        with closing(source), closing(target), suppress(OSError):
            while data := source.recv(4096):
                if back and self.left is not None:
                    self.left -= len(data)
                    if self.left < 0:
                        return self._cut(source, target)
                target.sendall(data)

    @staticmethod
    def _cut(*sockets: socket.socket) -> None:
        for one in sockets:
            one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@contextmanager
def _wire(config: Config) -> Iterator[tuple[_Wire, Config]]:
    with closing(_Wire(config.source.conninfo)) as wire:
        source = config.source.model_copy(update={"conninfo": wire.conninfo})
        yield wire, config.model_copy(update={"source": source})


def test_a_stream_that_is_cut_off_is_an_error_and_comes_again(source: Config, conn: Connection, tmp_path: Path) -> None:
    conn.execute(_LARGE.format(first=0, rows=300))
    at, upto = _position(conn, source), slot.flush_lsn(conn)
    peeked = peek.peek(conn, source.source, upto=upto, max_changes=None, directory=_folder(tmp_path, "peek"))
    with _wire(source) as (wire, behind):
        for left in (3_000_000, 5_900_000):
            wire.left = left
            with pytest.raises(SourceUnavailable, match=r"reading slot .* run it again"):
                peek.stream(conn, behind.source, upto=upto, max_changes=None, directory=tmp_path)
            assert _position(conn, source) == at
        wire.left = None
        streamed = peek.stream(conn, behind.source, upto=upto, max_changes=None, directory=_folder(tmp_path, "stream"))
    assert streamed.path.read_bytes() == peeked.path.read_bytes()


def test_a_stream_that_the_server_ends_is_an_error(source: Config, conn: Connection) -> None:
    conn.execute(_LARGE.format(first=0, rows=300))
    with closing(streaming.messages(conn, source.source, upto=slot.flush_lsn(conn))) as found:
        next(found)
        state = slot.read_slot(conn, source.source.slot)
        assert state is not None and state.active
        conn.execute("select pg_terminate_backend(%s)", [state.active_pid])
        with pytest.raises(psycopg.OperationalError):
            for _ in found:
                pass


def test_a_stream_that_has_to_answer_does_not_move_the_slot(source: Config, conn: Connection) -> None:
    """The server asks after half of wal_sender_timeout; without an answer it would end the stream."""
    options = f"{conninfo_to_dict(source.source.conninfo).get('options', '')} -c wal_sender_timeout=400ms"
    given = source.source.model_copy(update={"conninfo": make_conninfo(source.source.conninfo, options=options)})
    impatient = source.model_copy(update={"source": given})
    for number in range(3):
        conn.execute(_LARGE.format(first=number * 1000, rows=10))
    at, upto = _position(conn, source), slot.flush_lsn(conn)
    end = upto + (1 << 20)  # not written yet: the stream waits, is asked and answers
    with closing(streaming.messages(conn, impatient.source, upto=Lsn(end))) as found:
        assert sum(next(found)[2][:1] == b"C" for _ in range(37)) == 3
        writer = threading.Thread(target=_write_late, args=(source, end))
        writer.start()
        for _ in found:
            pass
        writer.join()
    assert _position(conn, source) == at


def _write_late(config: Config, end: int) -> None:
    with connect(config.source) as conn:
        conn.execute("select pg_sleep(2)")  # five times as long as the server waits for an answer
        while slot.flush_lsn(conn) <= end:
            conn.execute("create table public.noise as select generate_series(1, 20000) as i; drop table public.noise")
        conn.execute("insert into public.t values (-1)")


def test_a_stream_that_ends_at_a_shutdown_of_the_server_is_an_error(tmp_path: Path) -> None:
    """A server that is stopped ends it in good order, before what is still to be read."""
    with serve(16) as server:
        config = Config(source=SourceConfig(conninfo=server.conninfo(), slot="cdc_stop"))
        with connect(config.source) as conn:
            conn.execute("create table public.t (id int primary key, a text)")
            install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
            with slot.create_slot(config.source, config.source.slot, cut_seconds=config.check.cut_seconds):
                pass
            conn.execute("insert into public.t values (1)")
            upto = Lsn(slot.flush_lsn(conn) + (1 << 20))
            timer = threading.Timer(1, lambda: server.restart(immediate=False))
            timer.start()
            with pytest.raises(psycopg.OperationalError):
                for _ in streaming.messages(conn, config.source, upto=upto):
                    pass
            timer.join()


# -- drains of a server whose temporary files are limited


@pytest.fixture
def config(database: str, plain_lake: Config) -> Config:
    """A captured table, and no room for more than 2 MB of what a peek collects."""
    name = conninfo_to_dict(database)["dbname"]
    given = SourceConfig(conninfo=database, slot=f"cdc_{name}")
    config = Config(root=plain_lake.root, source=given, check=CheckConfig(cut_seconds=20.0))
    sql(config, "create table public.t (id int primary key, a text)")
    commands.init(config)
    return config


def _limit(config: Config, size: str = "2MB") -> None:
    name = conninfo_to_dict(config.source.conninfo)["dbname"]
    sql(config, f"alter database {name} set temp_file_limit = '{size}'")


def _late_beacons(monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    """Let others write rows of 12 MB between what a drain reads and its beacon."""
    whole = slot.emit_beacon

    def late(conn: Connection) -> tuple[str, Lsn]:
        sql(config, *(_LARGE.format(first=k * 100, rows=20) for k in range(30)))
        return whole(conn)

    with monkeypatch.context() as patch:
        patch.setattr(slot, "emit_beacon", late)
        commands.drain(config)


def test_a_drain_goes_on_where_the_beacon_is_beyond_what_the_server_can_collect(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    _late_beacons(monkeypatch, config)
    _limit(config)
    last = ledger_of(config).last()
    assert last is not None and last.beacon_lsn is not None and last.beacon_lsn > last.complete_to
    done = commands.drain(config)
    assert (done.changes, done.batches > 2) == (600, True)
    assert current(config, "t") == on_source(config, "t")


def test_a_beacon_is_missed_beyond_what_the_server_can_collect_too(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream proves the history; without the beacon nothing is written and nothing moves."""
    _late_beacons(monkeypatch, config)
    _limit(config)
    before = ledger_of(config).last()
    assert before is not None and before.beacon is not None
    monkeypatch.setattr(Ledger, "last", _forged(Ledger.last))
    with connection.connect(config.source) as conn:
        at = _position(conn, config)
        with pytest.raises(HistoryDiverged, match=r"beacon 0{32} .* is not in the stream"):
            commands.drain(config)
        assert _position(conn, config) == at
    monkeypatch.undo()


def _forged(read: Callable[[Ledger], BatchRecord | None]) -> Callable[[Ledger], BatchRecord | None]:
    def last(self: Ledger) -> BatchRecord | None:
        found = read(self)
        return None if found is None else replace(found, beacon="0" * 32)

    return last


def test_a_killed_drain_is_continued_where_the_beacon_is_beyond_what_the_server_can_collect(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between commit and advance; the beacon is proven before the slot moves, also by `cdc status`."""
    with monkeypatch.context() as patch:
        patch.setattr(slot, "advance", lambda conn, name, lsn: lsn)
        sql(config, "insert into public.t values (-1, 'x')")
        _late_beacons(monkeypatch, config)
    _limit(config)
    last = ledger_of(config).last()
    assert last is not None
    with connection.connect(config.source) as conn:
        assert _position(conn, config) < last.complete_to
    assert status_report.status(config).problem is None
    assert commands.drain(config).changes == 600
    assert current(config, "t") == on_source(config, "t")


def test_one_transaction_too_large_for_the_servers_temp_files_is_streamed(config: Config) -> None:
    _limit(config)
    sql(config, "insert into public.t values (-1, 'before')", _LARGE.format(first=0, rows=600))
    sql(config, *(f"insert into public.t values ({-n}, 'after')" for n in range(2, 40)))
    done = commands.drain(config)
    assert done.changes == 639
    assert done.batches < 6, "what comes after the large one is not read transaction by transaction"
    assert current(config, "t") == on_source(config, "t")
    sql(config, "insert into public.t values (-100, 'again')")
    assert commands.drain(config).changes == 1


def test_a_drain_whose_stream_is_cut_off_loses_and_doubles_nothing(config: Config) -> None:
    _limit(config)
    sql(config, "insert into public.t values (-1, 'before')", _LARGE.format(first=0, rows=600))
    with _wire(config) as (wire, behind):
        wire.left = 6_000_000
        with pytest.raises(SourceUnavailable, match="run it again"):
            commands.drain(behind)
        wire.left = None
        commands.drain(behind)
    assert current(config, "t") == on_source(config, "t")

"""The peek: the same bytes every time, whole transactions, nothing consumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg
import pytest

from tests.support_postgres import inserted, stream
from toolkit.source import install, slot
from toolkit.source.connection import Connection, connect
from toolkit.source.peek import peek
from toolkit.values.config import Config
from toolkit.values.errors import PreflightFailed, SlotError
from toolkit.values.lsn import Lsn
from toolkit.values.spool import ROW_HEADER, Spool

pytestmark = pytest.mark.postgres


@pytest.fixture
def conn(source: Config) -> Iterator[Connection]:
    with connect(source.source) as connection:
        connection.execute("create table public.t (id int primary key, a text)")
        install.install(connection, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
            pass
        yield connection


def _messages(spool: Spool) -> list[tuple[int, int, bytes]]:
    data = spool.path.read_bytes()
    assert len(data) == spool.offsets[-1]
    found = []
    for start, stop in zip(spool.offsets[:-1], spool.offsets[1:], strict=True):
        row = data[start:stop]
        lsn, xid = int.from_bytes(row[6:14], "big"), int.from_bytes(row[18:22], "big")
        assert int.from_bytes(row[22:26], "big") == len(row) - ROW_HEADER
        found.append((lsn, xid, row[ROW_HEADER:]))
    return found


def _fill(conn: Connection, transactions: int, rows: int) -> None:
    for t in range(transactions):
        conn.execute(
            "insert into public.t select %s + i, repeat('é', i) from generate_series(1, %s) as i", [t * rows, rows]
        )


def test_equals_the_stream_in_cold_sessions(source: Config, conn: Connection, tmp_path: Path) -> None:
    _fill(conn, 5, 40)
    conn.execute("delete from public.t where id % 2 = 0; truncate public.t; alter table public.t add column b int")
    upto = slot.flush_lsn(conn)
    spools = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        with connect(source.source) as cold:
            spools.append(peek(cold, source.source, upto=upto, max_changes=None, directory=folder))
    assert spools[0].complete and spools[0].upto_lsn == upto
    first, second = (_messages(s) for s in spools)
    assert first == second
    assert [(lsn, data) for lsn, _, data in first] == stream(conn, source)
    assert first[1:] != second[:-1]  # the comparison can fail
    assert {data[:1] for _, _, data in first} == {b"B", b"R", b"I", b"D", b"T", b"M", b"C"}


def test_trap_011_count_cuts_between_transactions(source: Config, conn: Connection, tmp_path: Path) -> None:
    _fill(conn, 6, 50)
    upto = slot.flush_lsn(conn)
    whole = _messages(peek(conn, source.source, upto=upto, max_changes=None, directory=tmp_path))
    for limit in (1, 52, 60, len(whole) - 1):
        spool = peek(conn, source.source, upto=upto, max_changes=limit, directory=tmp_path)
        messages = _messages(spool)
        assert not spool.complete
        assert limit <= len(messages) <= limit + 53
        assert messages[-1][2][:1] == b"C"
        assert messages == whole[: len(messages)]
    assert peek(conn, source.source, upto=upto, max_changes=len(whole) + 1, directory=tmp_path).complete
    assert peek(
        conn, source.source, upto=upto, max_changes=2**40, directory=tmp_path
    ).complete  # as a user may say "all"


def test_trap_010_upto_is_an_end_lsn(source: Config, conn: Connection, tmp_path: Path) -> None:
    _fill(conn, 2, 1)
    messages = stream(conn, source)
    commit, end = (int.from_bytes(messages[-1][1][at : at + 8], "big") for at in (2, 10))
    for upto, rows in ((commit, 1), (end - 1, 2), (end, 2)):
        spool = peek(conn, source.source, upto=Lsn(upto), max_changes=None, directory=tmp_path)
        assert len(inserted([(lsn, data) for lsn, _, data in _messages(spool)])) == rows


def test_empty(source: Config, conn: Connection, tmp_path: Path) -> None:
    spool = peek(conn, source.source, upto=slot.flush_lsn(conn), max_changes=10, directory=tmp_path)
    assert (len(spool), spool.complete, spool.path.stat().st_size) == (0, True, 0)
    assert spool.offsets.dtype == np.int64
    assert conn.execute("select 1").fetchone() == (1,)  # the session is idle again


def test_large_values(source: Config, conn: Connection, tmp_path: Path) -> None:
    conn.execute("insert into public.t values (1, repeat('x', 30000000)), (2, 'y')")
    spool = peek(conn, source.source, upto=slot.flush_lsn(conn), max_changes=None, directory=tmp_path)
    rows = inserted([(lsn, data) for lsn, _, data in _messages(spool)])
    assert [len(row[1] or "") for row in rows] == [30000000, 1]


def test_quoted_publication(source: Config, conn: Connection, tmp_path: Path) -> None:
    odd = source.model_copy(update={"source": source.source.model_copy(update={"publication": """o'd "p", x"""})})
    install.install(conn, odd.capture_rules, ddl=odd.ddl, lock_seconds=odd.snapshot.lock_seconds)
    slot.drop_slot(conn, source.source.slot)
    with slot.create_slot(odd.source, source.source.slot, cut_seconds=odd.check.cut_seconds):
        pass
    _fill(conn, 1, 3)
    spool = peek(conn, odd.source, upto=slot.flush_lsn(conn), max_changes=None, directory=tmp_path)
    assert len(spool) == 6
    conn.execute("""drop publication "o'd ""p"", x" """)


def test_113_text_is_utf8_whatever_the_role_says(source: Config, conn: Connection, tmp_path: Path) -> None:
    with psycopg.connect(source.source.conninfo, autocommit=True) as plain:
        plain.execute(f"alter role postgres in database {plain.info.dbname} set client_encoding = 'LATIN1'")
    _fill(conn, 1, 2)
    with connect(source.source) as cold:
        spool = peek(cold, source.source, upto=slot.flush_lsn(cold), max_changes=None, directory=tmp_path)
    assert inserted([(lsn, data) for lsn, _, data in _messages(spool)]) == [["1", "é"], ["2", "éé"]]


def test_refusals_leave_the_session_usable(source: Config, conn: Connection, tmp_path: Path) -> None:
    _fill(conn, 1, 1)
    upto = slot.flush_lsn(conn)
    missing = source.model_copy(update={"source": source.source.model_copy(update={"slot": "missing"})})
    with pytest.raises(SlotError, match=r"reading slot 'missing'.*does not exist"):
        peek(conn, missing.source, upto=upto, max_changes=None, directory=tmp_path)
    assert conn.execute("select 1").fetchone() == (1,)
    unknown = source.model_copy(update={"source": source.source.model_copy(update={"publication": "nothing"})})
    if conn.info.server_version < 180000:  # 18 warns in its log and sends nothing
        with pytest.raises(PreflightFailed, match='publication "nothing" does not exist at a position of the log'):
            peek(conn, unknown.source, upto=upto, max_changes=None, directory=tmp_path)
    else:
        assert len(peek(conn, unknown.source, upto=upto, max_changes=None, directory=tmp_path)) == 0
    assert conn.execute("select 1").fetchone() == (1,)

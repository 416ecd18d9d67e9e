"""While a batch is committed, the next peek is read; nothing of the guarantees of a drain changes by that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support_log import Log
from toolkit.rawlog.memory import MemoryLog
from toolkit.source import peek, read_ahead, slot
from toolkit.source.connection import Connection
from toolkit.source.read_ahead import ReadAhead
from toolkit.values.config import Config, SourceConfig
from toolkit.values.errors import HistoryDiverged, LakeError, SlotError
from toolkit.values.lsn import Lsn
from toolkit.values.spool import Spool

pytestmark = pytest.mark.postgres

_ROWS = 10  # of a transaction, which is one peek


@pytest.fixture
def log(source: Config, tmp_path: Path) -> Iterator[Log]:
    """A log of one table, with five transactions to drain in five peeks."""
    with psycopg.connect(source.source.conninfo, autocommit=True) as conn:
        conn.execute("create table public.t (id int primary key, a text)")
        drain = source.drain.model_copy(update={"max_changes": _ROWS})
        with Log.started(source.model_copy(update={"drain": drain}), tmp_path) as log:
            for first in range(0, 5 * _ROWS, _ROWS):
                conn.execute("insert into public.t select %s + i, 'x' from generate_series(0, 9) i", [first])
            yield log


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ReadAhead]:
    """Each peek that was begun ahead."""
    found: list[ReadAhead] = []

    class Noted(ReadAhead):
        def __init__(self, *arguments: object, **named: object) -> None:
            super().__init__(*arguments, **named)  # type: ignore[arg-type]
            found.append(self)

    monkeypatch.setattr(read_ahead, "ReadAhead", Noted)
    return found


def _slots(log: Log) -> list[str]:
    return [name for (name,) in log.conn.execute("select slot_name from pg_replication_slots order by 1")]


def _rows(log: Log) -> list[str]:
    return [e["new"][0] for e in log.of("row") if e["op"] == "I"]


@pytest.fixture
def sizes(log: Log, made: list[ReadAhead], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Messages of each peek that ended before what precedes it was committed. A commit waits for it."""
    commit, ended = MemoryLog.commit, list[int]()

    def hold(*arguments: object, **named: object) -> object:
        if len(ended) < len(made):
            before = slot.read_slot(log.conn, log.config.source.slot)
            ended.append(len(made[-1]._peek.result(30)))
            assert slot.read_slot(log.conn, log.config.source.slot) == before
        return commit(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryLog, "commit", hold)
    return ended


def test_the_next_peek_is_read_while_a_batch_is_committed(log: Log, sizes: list[int]) -> None:
    log.drain()
    _require_whole(log)
    assert [size for size in sizes if size > 0] == [_ROWS + 3] * 4  # with begin, relation and commit


def test_a_copy_of_the_slot_that_was_not_moved_is_refused(
    log: Log, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends again what is being committed."""
    moved = slot.advance
    monkeypatch.setattr(
        slot, "advance", lambda conn, name, lsn: moved(conn, name, lsn) if name == log.config.source.slot else lsn
    )
    with pytest.raises(SlotError, match=r"sent the transaction again that ends at .* and the log is complete to"):
        log.drain()
    assert _rows(log) == [str(n) for n in range(_ROWS)]
    monkeypatch.undo()
    log.drain()
    _require_whole(log)


@pytest.mark.parametrize("ahead", [False, True], ids=["in_turns", "ahead"])
@pytest.mark.parametrize("peeks", [0, 1, 2])
def test_what_another_client_consumes_during_a_drain_is_missed(
    log: Log, monkeypatch: pytest.MonkeyPatch, ahead: bool, peeks: int
) -> None:
    """The next peek lacked it, the slot ended where the ledger did, and every table stayed ok."""
    begun, ends, done = peek.peek, [Lsn(0)], list[str]()
    for (end,) in log.conn.execute(
        "select lsn::text from pg_logical_slot_peek_binary_changes(%s, null, null, 'proto_version', '1',"
        " 'publication_names', 'cdc') where substr(data, 1, 1) = 'C'",
        [log.config.source.slot],
    ):
        ends.append(Lsn.parse(end))

    def consumed(conn: Connection, source: SourceConfig, **more: Any) -> Spool:
        if not ahead and source.slot != log.config.source.slot:
            raise SlotError("no slot is free")
        if len(done) == peeks:
            slot.advance(log.conn, log.config.source.slot, ends[peeks + 2])
        done.append(source.slot)
        return begun(conn, source, **more)

    monkeypatch.setattr(peek, "peek", consumed)
    with pytest.raises(HistoryDiverged, match="consumed by another client"):
        log.drain()
    monkeypatch.undo()
    with pytest.raises(HistoryDiverged, match="consumed by another client"):
        log.drain()


def test_a_drain_goes_on_where_no_slot_is_free(log: Log, made: list[ReadAhead]) -> None:
    row = log.conn.execute("select setting::int from pg_settings where name = 'max_replication_slots'").fetchone()
    assert row is not None
    taken = [f"cdc_taken_{n}" for n in range(row[0] - len(_slots(log)))]
    with psycopg.connect(log.config.source.conninfo, autocommit=True) as conn:
        for name in taken:
            conn.execute("select pg_create_physical_replication_slot(%s, false, true)", [name])
        log.drain()
        for name in taken:
            conn.execute("select pg_drop_replication_slot(%s)", [name])
    assert len(made) >= 4 and {type(one._peek.exception()) for one in made} == {SlotError}
    _require_whole(log)


def test_messages_outside_of_transactions_leave_nothing_out(log: Log, sizes: list[int]) -> None:
    """A peek may end within messages that belong to no transaction, and even hold nothing else."""
    for number in range(5 * _ROWS):
        log.conn.execute("select pg_logical_emit_message(%s, 'x', %s)", [number % 25 == 24, f"said {number}"])
    log.drain()
    assert len(sizes) > 4
    said = [e["payload"]["sha256"] for e in log.of("message") if e["payload"].get("prefix") == "x"]
    assert len(said) == len(set(said)) == 2  # others are not of the log
    _require_whole(log)


def test_a_drain_that_fails_ends_what_is_read_ahead(
    log: Log, made: list[ReadAhead], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peek ahead would take an hour."""
    begun = threading.Event()

    def endless(conn: Connection, *_: object, **__: object) -> None:
        begun.set()
        conn.execute("select pg_catalog.pg_sleep(3600)")

    def refused(*_: object, **__: object) -> None:
        assert begun.wait(30)
        raise LakeError("the disk is full; free some")

    first = peek.peek
    monkeypatch.setattr(
        peek,
        "peek",
        lambda conn, source, **more: (first if source.slot == log.config.source.slot else endless)(
            conn, source, **more
        ),
    )
    monkeypatch.setattr(MemoryLog, "commit", refused)
    with pytest.raises(LakeError, match="the disk is full"):
        log.drain()
    assert made[0]._peek.done()
    monkeypatch.undo()
    log.drain()
    _require_whole(log)


def _require_whole(log: Log) -> None:
    """Each row is there once, and nothing of the peeks is left."""
    assert _rows(log) == [str(n) for n in range(5 * _ROWS)]
    assert _slots(log) == [log.config.source.slot]
    assert list(log.config.source_access.spool_dir.iterdir()) == []

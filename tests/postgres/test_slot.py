"""The slot: exact cuts under load, refusals that name the cause, advancing, beacons."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests import commands
from tests.support_lake import plain_lake
from tests.support_ledger import ledger_of
from tests.support_postgres import consume, hmac_key, inserted, logical_messages, stream, verifies
from toolkit.demo.server import EmbeddedServer
from toolkit.ops import status_report
from toolkit.rawlog.states import table_states
from toolkit.source import install, locks, slot, snapshot_rows
from toolkit.source.connection import Connection, connect
from toolkit.source.locks import LockTimeout
from toolkit.values.config import Config
from toolkit.values.errors import SlotError
from toolkit.values.lsn import Lsn

__all__ = ["plain_lake"]
pytestmark = pytest.mark.postgres


@pytest.fixture
def conn(source: Config) -> Iterator[Connection]:
    with connect(source.source) as connection:
        connection.execute("create table public.t (id bigserial primary key, who text)")
        install.install(connection, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        yield connection


def _with(config: Config, *, cut_seconds: float) -> Config:
    return config.model_copy(update={"check": config.check.model_copy(update={"cut_seconds": cut_seconds})})


def test_trap_036_cut_is_exact_under_writers(
    pg: EmbeddedServer, source: Config, conn: Connection, tmp_path: object
) -> None:
    """Rows visible in the exported snapshot are exactly the rows of commits below L."""
    script = f"{tmp_path}/write.sql"
    with open(script, "w") as file:  # noqa: PTH123
        file.write("begin; insert into public.t (who) values ('a'); insert into public.t (who) values ('b'); commit;\n")
    with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
        pass
    bench = subprocess.Popen(
        [pg.program("pgbench"), "-n", "-c", "4", "-T", "60", "-f", script, source.source.conninfo],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    cuts: list[tuple[Lsn, set[str]]] = []
    try:
        for _ in range(12):
            with (
                slot.create_slot(source.source, cut_seconds=source.check.cut_seconds) as cut,
                snapshot_rows.reader(source.source, cut) as reader,
            ):
                rows = reader.execute("select id::text from public.t").fetchall()
                cuts.append((cut.lsn, {row[0] for row in rows}))
    finally:
        bench.terminate()
        bench.wait()
    messages = stream(conn, source)
    commits: list[tuple[int, set[str]]] = []
    ids: set[str] = set()
    for _, data in messages:
        if data[:1] == b"I":
            ids.add(str(inserted([(0, data)])[0][0]))
        elif data[:1] == b"C":
            commits.append((int.from_bytes(data[2:10], "big"), ids))
            ids = set()
    assert cuts[-1][1] != cuts[0][1]  # there was load
    for lsn, seen in cuts:
        below = set().union(*(found for commit, found in commits if commit < lsn))
        assert seen == below
    lsn, seen = cuts[-1]  # planted fault: one commit later is not the same cut
    beyond = next(found for commit, found in commits if commit >= lsn)
    assert seen != set().union(*(found for commit, found in commits if commit < lsn), beyond)


def test_a_slots_snapshot_is_a_text_that_the_server_reads_back(source: Config, conn: Connection) -> None:
    """Those that roll back while a slot is made leave its xmin above its xmax; the server refuses such a text."""
    for _ in range(5):  # the background writer may log the running transactions at a moment that hides it
        printed, shown = _snapshot_beside_rollbacks(source, conn)
        low, high, _ = printed.split(":")
        assert conn.execute("select %s::pg_snapshot::text", [shown]).fetchone() == (f"{low}:{low}:",)
        if int(low) > int(high):
            break
    else:
        pytest.fail("the server prints another text now; this test shows nothing")
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        conn.execute("select %s::pg_snapshot", [printed])


def _snapshot_beside_rollbacks(source: Config, conn: Connection) -> tuple[str, str]:
    """The snapshot of a slot made while transactions roll back: as the server prints it, and as we show it."""
    conninfo = source.source.conninfo
    texts: list[str] = []

    def cut() -> None:
        with (
            slot.create_slot(source.source, cut_seconds=source.check.cut_seconds) as taken,
            snapshot_rows.reader(source.source, taken) as reader,
        ):
            row = reader.execute("select pg_catalog.pg_current_snapshot()::text").fetchone()
            assert row is not None
            texts.extend((row[0], slot.shown(reader)))

    with ExitStack() as stack:
        first, second, third, last = (stack.enter_context(psycopg.connect(conninfo)) for _ in range(4))
        waited_for = _write(first)
        thread = threading.Thread(target=cut)
        thread.start()
        _wait_until_waiting(conn, waited_for)
        _write(second)
        second.rollback()
        waited_for = _write(third)
        first.rollback()
        _wait_until_waiting(conn, waited_for)
        _write(last)  # where no one is running, both are taken from the next id
        third.rollback()
        thread.join(30)
    printed, shown = texts
    return printed, shown


def _write(session: psycopg.Connection[Any]) -> str:
    """Give the session's transaction an id, and return it."""
    row = session.execute("select pg_current_xact_id()::xid::text").fetchone()
    assert row is not None
    return str(row[0])


def _wait_until_waiting(conn: Connection, xid: str) -> None:
    """Until a session waits for the end of that transaction."""
    waits = "select exists (select from pg_locks where transactionid = %s::xid and not granted)"
    for _ in range(1500):
        if conn.execute(waits, [xid]).fetchone() == (True,):
            return
        time.sleep(0.02)
    raise AssertionError(f"no session waits for {xid}")


def test_trap_025_blocked_creation_names_the_pid(source: Config, conn: Connection) -> None:
    with psycopg.connect(source.source.conninfo, application_name="report") as blocker:
        blocker.execute("insert into public.t (who) values ('open')")
        pid = blocker.info.backend_pid
        with (
            pytest.raises(SlotError, match=rf"every running transaction, and pid {pid} \(postgres report, idle in tra"),
            slot.create_slot(source.source, source.source.slot, cut_seconds=0.5),
        ):
            pass
    assert slot.read_slot(conn, source.source.slot) is None


def test_a_prepared_transaction_that_blocks_is_named_as_one(source: Config, conn: Connection) -> None:
    """It was called "pid prepared transaction"."""
    with psycopg.connect(source.source.conninfo, autocommit=True) as other:
        other.execute("begin; insert into public.t (who) values ('open'); prepare transaction 'orphan'")
        with (
            pytest.raises(SlotError, match=r"transaction, and prepared transaction orphan \(postgres, prepared, "),
            slot.create_slot(source.source, source.source.slot, cut_seconds=0.5),
        ):
            pass
        other.execute("rollback prepared 'orphan'")


def test_a_prepared_transaction_that_holds_a_lock_is_named_with_what_ends_it(source: Config, conn: Connection) -> None:
    """No session has it: the lock was said to be held by a session that has just ended, at each attempt."""
    with psycopg.connect(source.source.conninfo, autocommit=True) as other:
        other.execute("begin; insert into public.t (who) values ('open'); prepare transaction 'it''s'")
        with pytest.raises(LockTimeout, match=r"held by prepared transaction it's \(postgres, prepared, ") as refused:
            locks.insist(conn, "locking t", lambda: conn.execute("lock table public.t"), seconds=3)
        assert str(refused.value).endswith("run: commit prepared 'it''s', or rollback prepared 'it''s'")
        other.execute("rollback prepared 'it''s'")
        locks.insist(conn, "locking t", lambda: conn.execute("lock table public.t"), seconds=3)


def test_temporary_slot_ends_with_the_cut(source: Config, conn: Connection) -> None:
    with slot.create_slot(source.source, cut_seconds=source.check.cut_seconds) as cut:
        name = cut.slot
        state = slot.read_slot(conn, name)
        assert state is not None
        assert cut.lsn == state.confirmed_flush_lsn
    row = conn.execute("select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s", [name])
    assert row.fetchall() in ([], [(True,)])  # closing takes the server a moment
    while slot.read_slot(conn, name) is not None:
        pass


def test_taken_name(source: Config, conn: Connection) -> None:
    with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
        pass
    with (
        pytest.raises(SlotError, match=r"a slot of that name exists already"),
        slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds),
    ):
        pass


def test_refusals(pg: EmbeddedServer, source: Config, conn: Connection) -> None:
    name = source.source.slot
    with pytest.raises(SlotError, match=r"does not exist on the source; run `cdc init`"):
        slot.require_slot(conn, source.source)
    conn.execute("select pg_create_physical_replication_slot(%s)", [name])
    with pytest.raises(SlotError, match=r"is a physical slot"):
        slot.require_slot(conn, source.source)
    slot.drop_slot(conn, name)
    with psycopg.connect(pg.conninfo(), autocommit=True) as other:
        other.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    with pytest.raises(SlotError, match=r"belongs to database 'postgres', and the source is 't\d+'"):
        slot.require_slot(conn, source.source)
    slot.drop_slot(conn, name)
    with slot.create_slot(source.source, name, cut_seconds=source.check.cut_seconds):
        pass
    assert slot.require_slot(conn, source.source).name == name  # and a good one passes


def test_trap_019_active_slot_names_the_pid(source: Config, conn: Connection) -> None:
    with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
        pass
    with contextlib.closing(connect(source.source, replication=True)) as walsender:
        walsender.pgconn.send_query(
            f"START_REPLICATION SLOT {source.source.slot} LOGICAL 0/0"
            " (proto_version '1', publication_names 'cdc')".encode()
        )
        walsender.pgconn.get_result()
        with pytest.raises(SlotError, match=rf"in use by pid {walsender.info.backend_pid}; .*pg_terminate_backend"):
            slot.require_slot(conn, source.source)
        with pytest.raises(SlotError, match=rf"active for PID {walsender.info.backend_pid}"):
            slot.drop_slot(conn, source.source.slot)


def test_trap_021_lost_slot(tmp_path: object) -> None:
    with EmbeddedServer(None, 16, {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"}) as server:
        config = Config().model_copy(
            update={"source": Config().source.model_copy(update={"conninfo": server.conninfo()})}
        )
        with connect(config.source) as conn:
            install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
            with slot.create_slot(config.source, "cdc", cut_seconds=config.check.cut_seconds):
                pass
            for _ in range(4):
                conn.execute(
                    "select pg_logical_emit_message(false, 'fill', repeat('x', 9000000)); select pg_switch_wal()"
                )
            conn.execute("checkpoint")
            with pytest.raises(SlotError, match=r"slot 'cdc' is lost.*--new-generation"):
                slot.require_slot(conn, config.source)


def test_trap_021_the_remedy_of_a_lost_slot(plain_lake: Config) -> None:
    """The new log was refused with the message that asks for it, and the status asked for `cdc init` beside it."""
    with EmbeddedServer(None, 18, {"min_wal_size": "32MB"}) as server, psycopg.connect(server.conninfo()) as user:
        user.autocommit = True
        user.execute("create table t (id int primary key)")
        source = plain_lake.source.model_copy(update={"conninfo": server.conninfo()})
        config = plain_lake.model_copy(update={"source": source})
        commands.init(config)
        user.execute("alter system set max_slot_wal_keep_size = '1MB'")
        user.execute("select pg_reload_conf()")
        for _ in range(4):
            user.execute("select pg_logical_emit_message(false, 'fill', repeat('x', 9000000)); select pg_switch_wal()")
        user.execute("insert into t values (1)")
        user.execute("checkpoint")
        with pytest.raises(SlotError, match=r"slot '\w+' is lost.*start a new log with `cdc init --new-generation`"):
            commands.drain(config)
        summary = status_report.status(config).summary
        assert "--new-generation" in summary and "run `cdc init`" not in summary
        user.execute("alter system reset max_slot_wal_keep_size")
        user.execute("select pg_reload_conf()")
        assert commands.init(config, new_generation=True).rows == {"public.t": 1}
        user.execute("insert into t values (2)")
        assert commands.drain(config).changes == 1
        assert [s.state for s in table_states(ledger_of(config))] == ["ok"]


def test_trap_006_advance_never_beyond_the_flushed_wal(source: Config, conn: Connection) -> None:
    name = source.source.slot
    with slot.create_slot(source.source, name, cut_seconds=source.check.cut_seconds) as cut:
        pass
    conn.execute("insert into public.t (who) values ('a')")
    target = slot.flush_lsn(conn)
    with pytest.raises(SlotError, match=r"has flushed its WAL only to"):
        slot.advance(conn, name, Lsn(target + 10_000_000))
    state = slot.read_slot(conn, name)
    assert state is not None and state.confirmed_flush_lsn == cut.lsn  # nothing was lost
    assert len(inserted(stream(conn, source))) == 1
    assert slot.advance(conn, name, target) == target
    assert slot.advance(conn, name, cut.lsn) == target  # backwards is no move
    assert inserted(stream(conn, source)) == []
    with pytest.raises(SlotError, match=r"it does not exist"):
        slot.advance(conn, "missing", target)


def test_trap_026_beacon(source: Config, conn: Connection) -> None:
    with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
        pass
    key = hmac_key(conn)
    consume(conn, source)
    nonce, lsn = slot.emit_beacon(conn)
    messages = stream(conn, source)
    ((prefix, content),) = logical_messages(messages)
    assert prefix == "cdc.beacon"
    assert verifies(content, key)
    assert not verifies(content, b"another key")
    body = json.loads(content[64:])
    assert body["nonce"] == nonce
    end = int.from_bytes(messages[-1][1][10:18], "big")
    assert end <= lsn <= slot.flush_lsn(conn)


def test_wait_flush_reaches_asynchronous_commits(source: Config, conn: Connection) -> None:
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(source.source.conninfo, autocommit=True, options="-c synchronous_commit=off") as writer:
            while not stop.is_set():
                writer.execute("insert into public.t (who) values ('async')")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
            pass
        for _ in range(10):
            seen = conn.execute("select pg_current_wal_insert_lsn()::text").fetchone()
            assert seen is not None
            reached = slot.wait_flush(conn)
            assert Lsn.parse(seen[0]) <= reached <= slot.flush_lsn(conn)
    finally:
        stop.set()
        thread.join()
    assert logical_messages(stream(conn, source)) == []  # and leaves no message behind

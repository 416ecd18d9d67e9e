"""Cuts without a slot: exactly the commits below L, under load and in front of what keeps a slot waiting."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tests import commands
from tests.support_lake import plain_lake
from tests.support_ledger import ledger_of
from tests.support_postgres import inserted, stream, waiting_for_a_standby
from toolkit.demo.server import EmbeddedServer
from toolkit.lake.evidence import unseen_xids
from toolkit.source import exact_cut, install, slot
from toolkit.source.connection import Connection, connect
from toolkit.source.opened import Source
from toolkit.values.config import Config
from toolkit.values.errors import SlotError
from toolkit.values.lsn import Lsn
from toolkit.values.visibility import Visibility

__all__ = ["plain_lake"]
pytestmark = pytest.mark.postgres


@pytest.fixture
def conn(source: Config) -> Iterator[Connection]:
    with connect(source.source) as connection:
        connection.execute("create table public.t (id bigserial primary key, who text)")
        install.install(connection, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
            pass
        yield connection


@contextmanager
def _cut(config: Config, in_log: Collection[int] = ()) -> Iterator[tuple[Lsn, set[str]]]:
    """L and the ids that its snapshot shows."""
    with connect(config.source) as session, connect(config.source) as other, ExitStack() as stack:
        state = slot.read_slot(other, config.source.slot)
        assert state is not None
        lsn = exact_cut.without_slot(
            Source(config.source_access, session),
            stack,
            drained=state.confirmed_flush_lsn,
            unseen=lambda seen: [x for x in in_log if not seen.sees(x)],
        )
        yield lsn, {row[0] for row in session.execute("select id::text from public.t").fetchall()}


def _hasty(config: Config, seconds: float = 0.3) -> Config:
    return config.model_copy(update={"check": config.check.model_copy(update={"cut_seconds": seconds})})


def _ids(messages: list[tuple[int, bytes]]) -> list[tuple[int, set[str]]]:
    """(commit LSN, inserted ids) of each transaction of the stream."""
    found: list[tuple[int, set[str]]] = []
    ids: set[str] = set()
    for _, data in messages:
        if data[:1] == b"I":
            ids.add(str(inserted([(0, data)])[0][0]))
        elif data[:1] == b"C":
            found.append((int.from_bytes(data[2:10], "big"), ids))
            ids = set()
    return found


def test_trap_033_a_cut_under_writers_is_exact(
    pg: EmbeddedServer, source: Config, conn: Connection, tmp_path: Path
) -> None:
    script = tmp_path / "write.sql"
    script.write_text(
        "begin; insert into public.t (who) values ('a'); savepoint s;"
        " insert into public.t (who) values ('b'); commit;\n"
    )
    bench = subprocess.Popen(
        [pg.program("pgbench"), "-n", "-c", "4", "-T", "60", "-f", str(script), source.source.conninfo],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    cuts = []
    try:
        for _ in range(8):
            with _cut(source) as made:
                cuts.append(made)
    finally:
        bench.terminate()
        bench.wait()
    conn.execute("insert into public.t (who) values ('after the last cut')")
    commits = _ids(stream(conn, source))
    assert cuts[0][1] != cuts[-1][1]  # there was load
    for lsn, seen in cuts:
        assert seen == set().union(*(ids for commit, ids in commits if commit < lsn))
    lsn, seen = cuts[-1]  # planted fault: one commit later is not the same cut
    assert seen != set().union(
        *(ids for commit, ids in commits if commit <= lsn), next(i for c, i in commits if c >= lsn)
    )


def test_trap_034_an_open_transaction_keeps_a_slot_waiting_but_no_cut(
    source: Config, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn.execute("insert into public.t (who) values ('done')")
    monkeypatch.setattr(exact_cut, "_PATIENCE", 0.0)
    assert exact_cut.slot_at_once(Source(source.source_access, conn))
    with psycopg.connect(source.source.conninfo) as open_one:
        open_one.execute("insert into public.t (who) values ('open')")
        assert not exact_cut.slot_at_once(Source(source.source_access, conn))
        with _cut(source) as (lsn, seen):
            assert seen == {"1"}
            open_one.commit()
            assert [ids for commit, ids in _ids(stream(conn, source)) if commit < lsn] == [{"1"}]


def test_without_a_free_slot_none_is_asked_for(pg: EmbeddedServer, source: Config, conn: Connection) -> None:
    row = conn.execute("select setting::int from pg_settings where name = 'max_replication_slots'").fetchone()
    used = conn.execute("select count(*) from pg_replication_slots").fetchone()
    assert row is not None
    assert used is not None
    names = [f"full_{n}" for n in range(row[0] - used[0])]
    try:
        for name in names:
            conn.execute("select pg_create_physical_replication_slot(%s)", [name])
        assert not exact_cut.slot_at_once(Source(source.source_access, conn))
    finally:
        for name in names:
            slot.drop_slot(conn, name)
    assert exact_cut.slot_at_once(Source(source.source_access, conn))


def test_trap_029_a_commit_that_no_session_sees_yet_is_in_no_cut(source: Config, conn: Connection) -> None:
    with waiting_for_a_standby(source.source.conninfo, "insert into public.t (who) values ('waits')") as (pid, xid):
        committed = {c.xid for c in exact_cut.commits(conn, source.source, slot.flush_lsn(conn), 0)}
        assert xid in committed
        with _cut(source) as (lsn, seen):  # it comes last: a cut right before it is exact
            assert seen == set().union(*(ids for commit, ids in _ids(stream(conn, source)) if commit < lsn))
        # Once the log holds it, no snapshot is that old.
        with (
            pytest.raises(SlotError, match=rf"pid {pid} \(SyncRep\) committed and is not visible yet"),
            _cut(_hasty(source), {xid}),
        ):
            pass
        # A later commit that is visible, behind one that is not: no L distinguishes them.
        conn.execute("insert into public.t (who) values ('local')")
        with pytest.raises(SlotError, match="in another order than they committed"), _cut(_hasty(source)):
            pass
    with _cut(source) as (lsn, seen):
        assert seen == set().union(*(ids for commit, ids in _ids(stream(conn, source)) if commit < lsn))


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_a_commit_that_waits_over_many_drains_is_not_forgotten(database: str, plain_lake: Config) -> None:
    source = plain_lake.source.model_copy(update={"conninfo": database, "slot": "cdc_waits"})
    config = plain_lake.model_copy(update={"source": source})
    with psycopg.connect(database, autocommit=True) as session:
        session.execute("create table public.t (id bigserial primary key, who text)")
    commands.init(config)
    with (
        connect(config.source) as conn,
        waiting_for_a_standby(config.source.conninfo, "insert into public.t (who) values ('waits')") as (_, xid),
    ):
        commands.drain(config)
        last = ledger_of(config).last()
        assert last is not None
        ledger_of(config).append_empty(replace(last, batch_id=last.batch_id + 60, beacon=None))
        row = conn.execute("select pg_current_snapshot()::text").fetchone()
        assert row is not None
        assert unseen_xids(config.lake_access, ledger_of(config), Visibility.parse(row[0])) == frozenset([xid])
        earlier = ledger_of(config).last()
        assert earlier is not None
        ledger_of(config).append_empty(replace(earlier, batch_id=earlier.batch_id + 1, generation=2))
        assert not unseen_xids(config.lake_access, ledger_of(config), Visibility.parse(row[0])), "of another source"
    with psycopg.connect(database) as session:
        row = session.execute("select pg_current_snapshot()::text").fetchone()
    assert row is not None
    assert not unseen_xids(config.lake_access, ledger_of(config), Visibility.parse(row[0]))
    commands.uninstall(config)


def test_the_holder_of_a_lock_is_named(source: Config, conn: Connection) -> None:
    row = conn.execute("select 'public.t'::regclass::oid::int8").fetchone()
    assert row is not None
    assert exact_cut.holders(conn, row[0]) == ""
    with psycopg.connect(source.source.conninfo, application_name="migration") as holder:
        holder.execute("lock table public.t")
        assert f"pid {holder.info.backend_pid} (migration, " in exact_cut.holders(conn, row[0])


SEEN = Visibility.parse("100:110:103,105")


@pytest.mark.parametrize(
    ("stream_of", "wanted"),
    [
        ([], 50),
        ([(99, 60, 68), (101, 70, 78)], 78),
        ([(99, 60, 68), (103, 70, 78)], 68),
        ([(103, 60, 68)], 50),
        ([(103, 60, 68), (99, 70, 78)], None),
        ([(110, 60, 68), (104, 70, 78), (105, 80, 88)], None),
        ([(104, 60, 68), (105, 68, 76), (110, 76, 84)], 68),
    ],
)
def test_a_position_exists_only_where_the_visible_come_first(
    stream_of: list[tuple[int, int, int]], wanted: int | None
) -> None:
    commits = [exact_cut.Commit(xid, Lsn(commit), Lsn(end)) for xid, commit, end in stream_of]
    assert exact_cut.position(SEEN, commits, Lsn(50)) == wanted

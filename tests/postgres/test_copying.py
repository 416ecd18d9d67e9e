"""Pieces of tables copied by worker processes on one exported snapshot: every row once, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest

from tests.support_lake import copiers_of
from tests.support_postgres import fresh_database
from toolkit.capture.copy_workers import Copied, Item, Task
from toolkit.demo.server import EmbeddedServer
from toolkit.rawlog.arrow import EVENT_SCHEMA
from toolkit.source import catalog, install, locks, slot, snapshot_rows
from toolkit.source.connection import Connection, connect
from toolkit.values.config import Config, SnapshotConfig, SourceConfig
from toolkit.values.errors import LakeError, SourceUnavailable
from toolkit.values.failpoints import VARIABLE
from toolkit.values.table import TableVersion

pytestmark = pytest.mark.postgres

one_server = pytest.mark.parametrize("pg", ["pg18"], indirect=True)


@pytest.fixture
def config(source: Config) -> Config:
    return source.model_copy(update={"snapshot": SnapshotConfig(workers=2, lock_seconds=20)})


@pytest.fixture
def conn(config: Config) -> Iterator[Connection]:
    with connect(config.source) as connection:
        yield connection


def prepare(conn: Connection, config: Config, *statements: str) -> None:
    """Make tables and capture them."""
    for statement in statements:
        conn.execute(statement)
    install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)


@contextmanager
def cut_of(config: Config) -> Iterator[slot.Cut]:
    with slot.create_slot(config.source, cut_seconds=config.check.cut_seconds) as cut:
        yield cut


def tasks_of(
    config: Config, cut: slot.Cut, folder: Path, *names: str, parts: int = 1, together: bool = False
) -> list[Task]:
    """One task a piece; or one task for everything."""
    items = []
    with snapshot_rows.reader(config.source, cut) as reader:
        for relid, payload in catalog.snapshot_json(reader).items():
            table = TableVersion.from_json(json.loads(payload))
            if not names or table.name in names:
                pieces, _ = snapshot_rows.pieces(reader, table, snapshot_rows.Cutting(parts))
                items += [Item(relid, payload, 5, piece, snapshot_rows.Images()) for piece in pieces]
    runs = [items] if together else [[item] for item in items]
    return [Task(str(folder / f"{n}.parquet"), 3, 7, tuple(run)) for n, run in enumerate(runs)]


def images(copied: list[Copied]) -> Counter[tuple[str | None, ...]]:
    """How often each image is in the files; what the tasks say must agree with the files."""
    found: Counter[tuple[str | None, ...]] = Counter()
    for done in copied:
        table = pq.read_table(done.task.place)
        assert table.num_rows == sum(done.rows.values())
        assert table.schema.names == EVENT_SCHEMA.names
        found.update(tuple(image) for image in table.column("new").to_pylist())
    return found


def shown(reader: Connection, query: str) -> Counter[tuple[str | None, ...]]:
    """What the snapshot shows, as text."""
    return Counter(tuple(None if v is None else str(v) for v in row) for row in reader.execute(query).fetchall())


def run(
    config: Config,
    cut: slot.Cut,
    tasks: list[Task],
    *,
    workers: int = 2,
    report: Callable[[int, int], None] = lambda rows, size: None,
) -> tuple[list[Copied], dict[int, tuple[str, bool]]]:
    with copiers_of(config, cut, workers, report) as copiers:
        return copiers.run(tasks)


def test_trap_036_pieces_of_one_cut_hold_each_row_once_while_rows_move(
    config: Config, conn: Connection, tmp_path: Path
) -> None:
    prepare(
        conn,
        config,
        "create table public.t (id int primary key, a text, n int) with (fillfactor = 60)",
        "insert into public.t select i, repeat('x', 200), 0 from generate_series(1, 20000) i",
    )
    stop = threading.Event()
    moved = threading.Event()

    def write() -> None:
        with psycopg.connect(config.source.conninfo, autocommit=True) as writer:
            n = 0
            while not stop.is_set():
                n += 1
                writer.execute("update public.t set n = n + 1, a = a || 'y' where id %% 50 = %s", [n % 50])
                writer.execute("delete from public.t where id = %s", [n])
                writer.execute("insert into public.t values (%s, 'new', 0)", [100000 + n])
                if n == 20:
                    moved.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        moved.wait(30)
        with cut_of(config) as cut, snapshot_rows.reader(config.source, cut) as reader:
            moved.clear()
            tasks = tasks_of(config, cut, tmp_path, parts=8)
            assert len(tasks) > 4
            done, refused = run(config, cut, tasks)
            expected = shown(reader, "select id, a, n from public.t")
    finally:
        stop.set()
        thread.join()
    assert not refused
    assert images(done) == expected
    ordinals = [n for c in done for n in pq.read_table(c.task.place, columns=["ordinal"]).column(0).to_pylist()]
    assert len(ordinals) == len(set(ordinals))
    one = pq.read_table(done[0].task.place).slice(0, 1).to_pylist()[0]
    assert (one["commit_lsn"], one["end_lsn"]) == (cut.lsn - 1, cut.lsn)
    assert (one["batch_id"], one["generation"], one["schema_id"], one["op"]) == (7, 3, 5, "R")
    lost = images(done[1:])  # planted fault: a piece is missing
    assert lost != expected


@one_server
@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_a_dead_worker_does_not_end_the_snapshot(config: Config, conn: Connection, tmp_path: Path, how: str) -> None:
    """Once by SIGKILL of the process, once by ending its session on the server."""
    prepare(
        conn,
        config,
        "create table public.t (id int primary key, a text)",
        "insert into public.t select i, repeat('x', 500) from generate_series(1, 40000) i",
    )
    counted = Counter[str]()
    struck = threading.Event()

    with cut_of(config) as cut, copiers_of(config, cut, 2, lambda r, s: strike(r)) as copiers:

        def strike(rows: int) -> None:
            counted["rows"] += rows
            worker = copiers._pool[0].process
            if worker is None or struck.is_set():
                return
            struck.set()
            if how == "kill":
                os.kill(worker.pid, signal.SIGKILL)
            else:
                conn.execute("select pg_terminate_backend(pid) from pg_stat_activity where query like 'copy (select%'")

        done, refused = copiers.run(tasks_of(config, cut, tmp_path, parts=4))
    assert struck.is_set()
    assert not refused
    assert images(done) == Counter({(str(i), "x" * 500): 1 for i in range(1, 40001)})
    assert counted["rows"] == 40000  # what the dead worker had read is not counted twice


@one_server
def test_a_task_that_kills_every_worker_ends_the_snapshot_by_name(
    config: Config, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(conn, config, "create table public.t (id int primary key); insert into public.t values (1)")
    monkeypatch.setenv(VARIABLE, "copy.before=sigkill")
    with cut_of(config) as cut:
        message = r"copying public\.t: 3 workers ended without an answer, the last: signal 9"
        with pytest.raises(SourceUnavailable, match=message):
            run(config, cut, tasks_of(config, cut, tmp_path))


@one_server
@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_cannot_be_written_is_named(config: Config, conn: Connection, tmp_path: Path, workers: int) -> None:
    prepare(conn, config, "create table public.t (id int primary key); insert into public.t values (1)")
    (tmp_path / "file").touch()
    with cut_of(config) as cut, pytest.raises(LakeError, match=r"a copy to .*/0\.parquet: (Not a dir|File exists)"):
        run(config, cut, tasks_of(config, cut, tmp_path / "file"), workers=workers)


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("drop table public.t", "was dropped or renamed"),
        ("alter table public.t rename to other", "was dropped or renamed"),
        ("truncate public.t", "was truncated, rewritten or replaced"),
        ("vacuum full public.t", "was truncated, rewritten or replaced"),
        ("alter table public.t alter n type bigint", "was truncated, rewritten or replaced"),
        ("alter table public.t drop column a", "lost or renamed a column"),
        (
            "alter table public.t rename a to c; alter table public.t rename b to a;alter table public.t rename c to b",
            "has another column 'a'",
        ),
    ],
)
@one_server
def test_a_table_that_moved_after_the_cut_is_left_out_by_name(
    config: Config, conn: Connection, tmp_path: Path, ddl: str, reason: str
) -> None:
    """PostgreSQL would show no rows, other rows, or the values of another column, and no error."""
    prepare(
        conn,
        config,
        "create table public.t (id int primary key, a text, b text, n int)",
        "insert into public.t values (1, 'a', 'b', 1)",
        "create table public.keep (id int primary key); insert into public.keep values (1), (2)",
    )
    with cut_of(config) as cut:
        tasks = tasks_of(config, cut, tmp_path, together=True)
        conn.execute(ddl)
        done, refused = run(config, cut, tasks, workers=0)
    ((message, again),) = refused.values()
    assert message == f"public.t {reason} after the snapshot was taken; run it again"
    assert again
    assert images(done) == Counter({("1",): 1, ("2",): 1})


@one_server
def test_ddl_that_leaves_the_rows_alone_does_not_disturb(config: Config, conn: Connection, tmp_path: Path) -> None:
    prepare(conn, config, "create table public.t (id int primary key, a text); insert into public.t values (1, 'a')")
    with cut_of(config) as cut:
        tasks = tasks_of(config, cut, tmp_path)
        conn.execute("alter table public.t add column later int default 7; insert into public.t values (2, 'b', 8)")
        done, refused = run(config, cut, tasks, workers=0)
    assert not refused
    assert images(done) == Counter({("1", "a"): 1})


def test_partitions_are_those_of_the_cut(config: Config, conn: Connection, tmp_path: Path) -> None:
    """A leaf numbers its columns in its own way; what is attached or detached later does not count."""
    prepare(
        conn,
        config,
        "create table public.r (id int, b text, g int generated always as (id + 1) stored, primary key (id))"
        " partition by range (id)",
        "create table public.r1 partition of public.r for values from (0) to (10)",
        "create table public.r2 (b text, gone int, id int not null, g int generated always as (id + 1) stored)",
        "alter table public.r2 drop column gone",
        "alter table public.r attach partition public.r2 for values from (10) to (20)",
        "create table public.empty partition of public.r for values from (20) to (30)",
        "create table public.later (like public.r including generated); insert into public.later values (30, 'late')",
        "insert into public.r values (1, 'one'), (11, 'eleven')",
        "create publication cdc for table public.r where (id <> 5) with (publish_via_partition_root)",
        "insert into public.r values (5, 'filtered')",
    )
    with cut_of(config) as cut:
        tasks = tasks_of(config, cut, tmp_path, "r")
        conn.execute("alter table public.r attach partition public.later for values from (30) to (40)")
        conn.execute("alter table public.r detach partition public.r2")
        done, refused = run(config, cut, tasks, workers=0)
        again = tasks_of(config, cut, tmp_path, "r")
    assert not refused
    assert images(done) == Counter({("1", "one", None): 1, ("11", "eleven", None): 1})
    assert {c.task.items[0].piece.name for c in done} == {"r1", "r2", "empty"}
    assert [t.items[0].piece.name for t in again] == [t.items[0].piece.name for t in tasks]


@one_server
def test_a_table_of_another_access_method_is_copied_to_its_end(
    config: Config, conn: Connection, tmp_path: Path
) -> None:
    """Only heap tables are cut by pages; of others no one knows what their row addresses mean."""
    prepare(
        conn,
        config,
        "create access method h2 type table handler heap_tableam_handler",
        "create table public.t (id int primary key, a text) using h2",
        "insert into public.t select i, repeat('x', 200) from generate_series(1, 1000) i",
    )
    with cut_of(config) as cut:
        done, refused = run(config, cut, tasks_of(config, cut, tmp_path, parts=8), workers=0)
    assert not refused
    assert len(done) == 1
    assert images(done) == Counter({(str(i), "x" * 200): 1 for i in range(1, 1001)})


@one_server
def test_an_index_that_is_made_again_is_waited_for_within_bounds(
    config: Config, conn: Connection, tmp_path: Path
) -> None:
    """The table's own lock is to be had; planning opens its indexes, and waited for a REINDEX without end."""
    prepare(conn, config, "create table public.t (id int primary key)")
    short = config.model_copy(update={"snapshot": SnapshotConfig(workers=0, lock_seconds=0.5)})
    with (
        cut_of(config) as cut,
        psycopg.connect(
            config.source.conninfo, application_name="nightly job", options="-c idle_in_transaction_session_timeout=5s"
        ) as holder,
    ):
        tasks = tasks_of(config, cut, tmp_path)
        holder.execute("reindex table public.t")
        _, refused = run(short, cut, tasks, workers=0)
        ((message, again),) = refused.values()
        assert again and "nightly job" in message
        holder.rollback()
        _, refused = run(short, cut, tasks, workers=0)
        assert not refused


@one_server
def test_a_lock_is_waited_for_within_bounds_and_its_holder_is_named(
    config: Config, conn: Connection, tmp_path: Path
) -> None:
    prepare(conn, config, "create table public.t (id int primary key)")
    short = config.model_copy(update={"snapshot": SnapshotConfig(workers=0, lock_seconds=1.5)})
    with cut_of(config) as cut, psycopg.connect(config.source.conninfo, application_name="nightly job") as holder:
        tasks = tasks_of(config, cut, tmp_path)
        holder.execute("lock table public.t in access exclusive mode")
        _, refused = run(short, cut, tasks, workers=0)
        ((message, again),) = refused.values()
        assert message.startswith(f"copying public.t: waited 1.5 s for a lock held by pid {holder.info.backend_pid} ")
        assert "nightly job" in message
        assert again
        holder.rollback()
        done, refused = run(short, cut, tasks, workers=0)
    assert not refused
    assert len(done) == 1


@one_server
def test_a_reader_does_not_keep_the_users_ddl_waiting(config: Config, conn: Connection, tmp_path: Path) -> None:
    """Locks are given back piece by piece, although the transaction stays open."""
    prepare(conn, config, "create table public.t (id int primary key); insert into public.t values (1)")
    with cut_of(config) as cut, copiers_of(config, cut, 0) as copiers:
        copiers.run(tasks_of(config, cut, tmp_path))
        conn.execute("set lock_timeout = '2s'")
        conn.execute("alter table public.t add column b int")


@one_server
def test_a_wait_for_another_session_is_reset_afterwards(config: Config, conn: Connection) -> None:
    with locks.waiting(conn, "testing", seconds=3):
        assert conn.execute("show lock_timeout").fetchone() == ("3s",)
    assert conn.execute("show lock_timeout").fetchone() == ("0",)


def test_another_server_behind_the_same_name_is_refused(pg16: EmbeddedServer, pg18: EmbeddedServer) -> None:
    """A load balancer may lead each connection to another server; snapshot names are alike everywhere."""
    with fresh_database(pg16) as one, fresh_database(pg18) as other:
        config = Config(source=SourceConfig(conninfo=one, slot="cdc_lb"))
        elsewhere = Config(source=SourceConfig(conninfo=other, slot="cdc_lb"))
        with (
            cut_of(config) as cut,
            cut_of(elsewhere) as namesake,
            pytest.raises(SourceUnavailable, match=r"another server .*load balancer"),
            # The worst case: the name exists there too.
            snapshot_rows.reader(elsewhere.source, replace(cut, snapshot_name=namesake.snapshot_name)),
        ):
            pass


@pytest.mark.wide
@one_server
def test_memory_does_not_grow_with_the_rows(config: Config, conn: Connection, tmp_path: Path) -> None:
    """The peak of a worker's own memory, in MB; of small rows, where whatever is kept of each would show."""

    def peak(rows: int) -> float:
        conn.execute(f"truncate public.t; insert into public.t select i, i from generate_series(1, {rows}) as i")
        conn.execute("vacuum analyze public.t")
        found = 0.0

        def look(_: int, __: int) -> None:
            nonlocal found
            for worker in copiers._pool:
                if worker.process is not None:
                    status = Path(f"/proc/{worker.process.pid}/smaps_rollup").read_text()
                    own = re.findall(r"Private_(?:Dirty|Clean): +(\d+) kB", status)
                    found = max(found, sum(map(int, own)) / 1024)

        with cut_of(config) as cut, copiers_of(config, cut, 1, look) as copiers:
            done, refused = copiers.run(tasks_of(config, cut, tmp_path))
        assert not refused and sum(c.rows[relid] for c in done for relid in c.rows) == rows
        return found

    prepare(conn, config, "create table public.t (id int primary key, n int)")
    few, many = peak(1_000_000), peak(4_000_000)  # from a million on a row group is full
    assert many < few + 24, f"{few:.0f} MB, and {many:.0f} MB for three million rows more"


@one_server
def test_huge_values_and_empty_tables(config: Config, conn: Connection, tmp_path: Path) -> None:
    """Values of 40 MB of text and 32 MB of bytes in one row, with escapes, by way of the cells one by one."""
    prepare(
        conn,
        config,
        "create table public.t (id int primary key, a text, b bytea, c text)",
        "insert into public.t select 1, repeat(E'a\\\\b\\n', 10000000), decode(repeat('5c00', 16000000), 'hex'), null",
        "insert into public.t values (2, '', '', E'\\\\N')",
        "create table public.empty (id int primary key)",
    )
    with cut_of(config) as cut:
        done, refused = run(config, cut, tasks_of(config, cut, tmp_path), workers=0)
    assert not refused
    found = images(done)
    assert found == Counter(
        {("1", "a\\b\n" * 10000000, "\\x" + "5c00" * 16000000, None): 1, ("2", "", "\\x", "\\N"): 1}
    )


@pytest.mark.long
@one_server
def test_values_of_a_hundred_megabytes(config: Config, conn: Connection, tmp_path: Path) -> None:
    """Each row of three such values is 400 MB of COPY text; a worker holds a few times one row, never two rows."""
    prepare(
        conn,
        config,
        "create table public.t (id int primary key, a text, b bytea, c text)",
        "insert into public.t select i, repeat('a' || chr(92) || 'b' || chr(10), 25000000),"
        " decode(repeat('5c00', 50000000), 'hex'),"
        " repeat('x', 100000000) from generate_series(1, 3) i",
    )
    with cut_of(config) as cut, copiers_of(config, cut, 1) as copiers:
        done, refused = copiers.run(tasks_of(config, cut, tmp_path))
        process = copiers._pool[0].process
        assert process is not None
        status = Path(f"/proc/{process.pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) // 1024
    assert not refused
    table = pq.read_table(done[0].task.place, columns=["new"])
    found = [[None if v is None else (len(v), v[-4:]) for v in row] for row in table.column(0).to_pylist()]
    for row in found:
        assert row[1:] == [(100_000_000, "a\\b\n"), (200_000_002, "5c00"), (100_000_000, "xxxx")]
    print(f"peak of the worker: {peak} MB")
    assert peak < 2600


def test_trap_037_a_policy_leaves_the_table_out_by_name(config: Config, conn: Connection, tmp_path: Path) -> None:
    prepare(
        conn,
        config,
        "create table public.t (id int primary key); insert into public.t values (1), (2)",
        "create table public.keep (id int primary key); insert into public.keep values (1)",
        "alter table public.t enable row level security; create policy p on public.t using (id = 1)",
    )
    role = f"reader_{conn.info.dbname}"
    conn.execute(f"create role {role} login replication")
    conn.execute(f"grant select on all tables in schema public, cdc to {role}; grant usage on schema cdc to {role}")
    conn.execute(f"grant execute on all functions in schema cdc to {role}; grant pg_read_all_data to {role}")
    try:
        with cut_of(config) as cut:
            tasks = tasks_of(config, cut, tmp_path, together=True)
            with copiers_of(config, cut, 0) as copiers:
                copiers._own().execute(f"set local role {role}")
                done, refused = copiers.run(tasks)
    finally:
        conn.execute(f"drop owned by {role}; drop role {role}")
    ((message, again),) = refused.values()
    assert "copying public.t: " in message
    assert "row-level security" in message
    assert not again
    assert images(done) == Counter({("1",): 1})


def test_rows_copied_equal_the_stream_by_every_path(config: Config, conn: Connection, tmp_path: Path) -> None:
    """The vectorised cells, the cells one by one, and what the server prints."""
    from toolkit.source import copytext

    prepare(
        conn,
        config,
        "create table public.t (id int primary key, a text, b text)",
        r"""insert into public.t values (1, E'\\N', null), (2, E'a\tb\\', E'\n\r\b\f\v\\t'), (3, null, ''),
            (4, 'x', null), (5, E'\x01\x08', 'é')""",
    )
    with cut_of(config) as cut, snapshot_rows.reader(config.source, cut) as reader:
        expected = shown(reader, "select id, a, b from public.t")
        done, _ = run(config, cut, tasks_of(config, cut, tmp_path), workers=0)
        assert images(done) == expected
        large = copytext._LARGE_BYTES
        try:
            copytext._LARGE_BYTES = 0
            done, _ = run(config, cut, tasks_of(config, cut, tmp_path), workers=0)
        finally:
            copytext._LARGE_BYTES = large
        assert images(done) == expected

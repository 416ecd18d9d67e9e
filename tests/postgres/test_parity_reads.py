"""What a check reads of the source: rows that print as they did at the cut, and of touched keys no more than those."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tests.support_postgres import fingerprints, fresh_database, mostly_one_server
from toolkit.demo.server import EmbeddedServer
from toolkit.quality import source_rows
from toolkit.quality.incremental import Proof
from toolkit.quality.row_classes import classify
from toolkit.source import catalog, exact_cut, guard, install, row_lines, slot
from toolkit.source.connection import Connection, connect
from toolkit.source.opened import Source
from toolkit.values.config import Config, SourceConfig
from toolkit.values.lsn import Lsn
from toolkit.values.resources import load
from toolkit.values.row_line import Comparison, comparison, fields
from toolkit.values.table import TableVersion

pytestmark = pytest.mark.postgres

READ = """
select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_catalog.pg_stat_xact_user_tables where relname = %s
"""


def _plan(conn: Connection, name: str) -> Comparison:
    tables = (TableVersion.from_json(json.loads(text)) for (text,) in conn.execute(load("parity/bare_tables").encode()))
    return comparison(next(t for t in tables if t.name == name), 1)


@pytest.mark.parametrize("key", ["id", "id, shop"])
def test_the_source_reads_the_touched_keys_alone(database: str, key: str) -> None:
    config = Config(source=SourceConfig(conninfo=database))
    read = {}
    with connect(config.source) as conn:
        for rows in (2_000, 50_000):
            conn.execute(f"create table public.t{rows} (id bigint, shop int, body text, primary key ({key}))".encode())
            conn.execute(f"insert into public.t{rows} select i, i % 7, 'x' from generate_series(1, {rows}) i".encode())
            conn.execute(f"vacuum analyze public.t{rows}".encode())
        for rows in (2_000, 50_000):
            plan = _plan(conn, f"t{rows}")
            keys = [(str(i), str(i % 7))[: len(plan.key)] for i in range(3, rows, rows // 20)]
            with row_lines.inside_snapshot(conn, None, seconds=5):
                with row_lines.lines(conn, plan, keys=keys) as blocks:
                    lines = [one for block in blocks for one in block]
                found = sorted(fields(one, plan.natives) for one in lines)
                assert found == sorted((str(i), str(i % 7), "x") for i in range(3, rows, rows // 20))
                (read[rows],) = conn.execute(READ, [f"t{rows}"]).fetchone() or ()
    assert read[50_000] == len(keys) == 20
    assert read[2_000] <= 2_000


def test_labels_renamed_after_the_snapshot_are_refused(source: Config) -> None:
    """The snapshot prints its old rows by the new label: no difference to the lake as of the cut."""
    with connect(source.source) as conn, connect(source.source) as other:
        other.execute("create type public.mood as enum ('well', 'ill')")
        other.execute("create type public.pair as (one public.mood, two int)")
        other.execute("create table public.felt (id int primary key, mood public.mood, pairs public.pair[])")
        other.execute("""insert into public.felt values (1, 'ill', '{"(ill,1)"}')""")
        install.install(other, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        (relid,) = other.execute("select 'public.felt'::regclass::oid::int8").fetchone() or ()

        def plan() -> Comparison:
            return comparison(TableVersion.from_json(json.loads(catalog.snapshots_of(other, [relid])[relid])), 1)

        def read(of: Comparison) -> list[Any]:
            found = []
            with source_rows.lines(conn, other, of) as blocks:
                found += [fields(one, of.natives) for block in blocks for one in block]
            return found

        before = plan()
        with row_lines.inside_snapshot(conn, None, seconds=5):
            assert read(before) == [("1", "ill", '{"(ill,1)"}')]
            other.execute("alter type public.mood add value 'better' before 'ill'")
            assert read(before) == [("1", "ill", '{"(ill,1)"}')]  # new values alter no text
            other.execute("alter type public.mood rename value 'ill' to 'sick'")
            with row_lines.lines(conn, before) as blocks:
                found = [fields(one, before.natives) for block in blocks for one in block]
                assert found == [("1", "sick", '{"(sick,1)"}')]
            with pytest.raises(row_lines.TableMoved, match="altered while it was read"):
                read(before)
            assert not source_rows.alike(before, plan())
            renamed = plan()
            other.execute("alter type public.pair add attribute three int")
            with pytest.raises(row_lines.TableMoved, match="altered while it was read"):
                read(renamed)


@pytest.mark.parametrize(
    ("there", "back"),
    [
        ("type public.mood rename value 'ill' to 'sick'", "type public.mood rename value 'sick' to 'ill'"),
        ("type public.pair add attribute three int", "type public.pair drop attribute three"),
    ],
)
def test_a_type_that_is_altered_and_restored_while_a_check_reads_is_no_difference(
    source: Config, there: str, back: str
) -> None:
    with connect(source.source) as conn, connect(source.source) as other, connect(source.source) as writer:
        writer.execute("create type public.mood as enum ('well', 'ill')")
        writer.execute("create type public.pair as (one int, two int)")
        writer.execute("create table public.felt (id int primary key, mood public.mood, pairs public.pair[])")
        writer.execute("""insert into public.felt values (1, 'ill', '{"(1,2)"}')""")
        install.install(writer, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        (relid,) = other.execute("select 'public.felt'::regclass::oid::int8").fetchone() or ()
        plan = comparison(TableVersion.from_json(json.loads(catalog.snapshots_of(other, [relid])[relid])), 1)
        with row_lines.inside_snapshot(conn, None, seconds=5):
            conn.execute("select 1")
            found = []
            with (
                pytest.raises(row_lines.TableMoved, match="altered while it was read"),
                source_rows.lines(conn, other, plan) as blocks,
            ):
                writer.execute(f"alter {there}".encode())
                found += [fields(one, plan.natives) for block in blocks for one in block]
                writer.execute(f"alter {back}".encode())
            assert found != [("1", "ill", '{"(1,2)"}')]
            with source_rows.lines(conn, other, plan) as blocks:
                assert [fields(one, plan.natives) for block in blocks for one in block] == [("1", "ill", '{"(1,2)"}')]


class _Beside:
    """Opens sessions for `parity.lines`, and knows them afterwards."""

    def __init__(self, config: Config, first: Callable[[], None] = lambda: None) -> None:
        self.config, self.first, self.opened = config, first, list[Connection]()

    def __call__(self) -> Connection:
        self.first()
        self.opened.append(connect(self.config.source))
        return self.opened[-1]


@pytest.fixture
def large(source: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Comparison]:
    """A table of some shares, of pages that are full, half empty and empty."""
    monkeypatch.setattr(row_lines, "_SHARE_BYTES", 1 << 16)
    with connect(source.source) as conn:
        conn.execute("create table public.large (id int primary key, body text)")
        conn.execute("insert into public.large select i, repeat('x', 100) from generate_series(1, 20000) i")
        conn.execute("delete from public.large where id % 3 = 0 and id < 9000 or id between 12000 and 13000")
        conn.execute("vacuum analyze public.large")
        yield _plan(conn, "large")


def _lines(conn: Connection, plan: Comparison, *others: _Beside) -> list[bytes]:
    with row_lines.lines(conn, plan, others=others) as blocks:
        return sorted(line for block in blocks for line in block)


def test_several_sessions_read_each_row_of_the_snapshot_once(source: Config, large: Comparison) -> None:
    with (
        connect(source.source) as conn,
        connect(source.source) as writer,
        row_lines.inside_snapshot(conn, None, seconds=5),
    ):
        alone = _lines(conn, large)
        assert len(alone) == 20_000 - 2_999 - 1_001
        writer.execute("update public.large set body = 'new' where id % 2 = 0")
        writer.execute("insert into public.large values (30000, 'behind what was the last page')")
        beside = [_Beside(source) for _ in range(3)]
        assert _lines(conn, large, *beside) == alone
        assert [len(b.opened) for b in beside] == [1, 1, 1]
        assert all(b.opened[0].closed for b in beside)
        keys = [("1",), ("2",)]
        with row_lines.lines(conn, large, keys, others=[unused := _Beside(source)]) as blocks:
            assert [len(block) for block in blocks] == [2]
        assert not unused.opened, "a few keys are read by one"


def test_several_sessions_read_partitions_through_a_row_filter(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_lines, "_SHARE_BYTES", 1 << 15)
    config = Config(source=SourceConfig(conninfo=database))
    with connect(config.source) as conn:
        conn.execute("create table public.root (id int primary key, v text) partition by range (id)")
        for n, end in enumerate((100, 101, 20_000)):  # few rows, one, and by far the most
            start = (0, 100, 101)[n]
            conn.execute(
                f"create table public.p{n} partition of public.root for values from ({start}) to ({end})".encode()
            )
        conn.execute("insert into public.root select i, repeat('v', 50) from generate_series(0, 19999) i")
        plan = _plan(conn, "root")
        plan = replace(plan, table=replace(plan.table, row_filter="id % 5 <> 0"))
        with row_lines.inside_snapshot(conn, None, seconds=5):
            alone = _lines(conn, plan)
            assert len(alone) == 16_000
            assert _lines(conn, plan, beside := _Beside(config)) == alone
            assert beside.opened


def test_a_session_that_has_to_wait_behind_the_users_ddl_is_left_out(source: Config, large: Comparison) -> None:
    """The DDL waits for the first session, and who comes behind it for the DDL: no one would ever go on."""
    ddl = psycopg.connect(source.source.conninfo, autocommit=True)
    waiting = threading.Thread(target=ddl.execute, args=["alter table public.large add n int"])

    def alter() -> None:
        waiting.start()
        held = "select exists (select from pg_locks where relation = 'public.large'::regclass and not granted)"
        with connect(source.source) as conn:
            for _ in range(1500):
                if conn.execute(held).fetchone() == (True,):
                    return
                time.sleep(0.02)
        raise AssertionError("the DDL does not wait")

    with ddl, connect(source.source) as conn, row_lines.inside_snapshot(conn, None, seconds=5):
        assert len(_lines(conn, large, beside := _Beside(source, alter))) == 16_000
        assert beside.opened
        assert waiting.is_alive() or ddl.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        waiting.join(10)
        assert not waiting.is_alive(), "the lock is given back when all is read"


def test_a_table_that_ddl_holds_costs_this_table_alone(source: Config, large: Comparison) -> None:
    """Asking for its size waited for the lock too, and took the whole snapshot along."""
    with connect(source.source) as conn, psycopg.connect(source.source.conninfo) as ddl:
        ddl.execute("lock table public.large in access exclusive mode")
        with row_lines.inside_snapshot(conn, None, seconds=0.2):
            with pytest.raises(row_lines.TableMoved, match="is locked by another session's DDL"):
                _lines(conn, large, _Beside(source))
            ddl.rollback()
            assert len(_lines(conn, large, _Beside(source))) == 16_000


def test_a_session_on_another_server_is_left_out(source: Config, large: Comparison, pg: EmbeddedServer) -> None:
    with connect(source.source) as conn, connect(source.source) as other:
        conn.execute("select 1")
        with row_lines.inside_snapshot(conn, None, seconds=5):
            strange = _Beside(source)
            with pytest.MonkeyPatch.context() as patch:
                identity = slot.server_identity
                patch.setattr(slot, "server_identity", lambda c: "another" if c in strange.opened else identity(c))
                assert len(_lines(conn, large, strange)) == 16_000
            assert strange.opened[0].closed
        del other


def test_a_session_that_breaks_off_ends_the_reading(source: Config, large: Comparison) -> None:
    with (
        connect(source.source) as conn,
        connect(source.source) as admin,
        row_lines.inside_snapshot(conn, None, seconds=5),
    ):
        threads = threading.active_count()
        beside = _Beside(source)
        with pytest.raises(psycopg.OperationalError), row_lines.lines(conn, large, others=[beside]) as blocks:
            admin.execute("select pg_terminate_backend(%s, 5000)", [beside.opened[0].info.backend_pid])
            for _ in blocks:
                pass
        assert len(_lines(conn, large)) == 16_000, "the first session is as it was"
        with row_lines.lines(conn, large, others=[later := _Beside(source)]) as blocks:
            assert next(blocks)  # and no more: whoever takes them may stop
        assert later.opened[0].closed
        assert threading.active_count() == threads
        assert len(_lines(conn, large)) == 16_000


TREE = (
    "create table public.root (id int primary key, v text) partition by range (id)",
    "create table public.low partition of public.root for values from (0) to (100) partition by range (id)",
    "create table public.low_1 partition of public.low for values from (0) to (50)",
    "create table public.low_2 partition of public.low for values from (50) to (100)",
    "create table public.high partition of public.root for values from (100) to (200)",
    "insert into public.root select i, 'v' from generate_series(10, 190, 10) i",
    "create table public.filled (id int primary key, v text)",
    "insert into public.filled values (250, 'v')",
)


@mostly_one_server
@pytest.mark.parametrize(
    "ddl",
    [
        "alter table public.root detach partition public.high",
        "alter table public.low detach partition public.low_1",
        "alter table public.root detach partition public.high concurrently",
        "alter table public.root attach partition public.filled for values from (200) to (300)",
        "truncate public.low_1",
        "drop table public.low_2",
    ],
)
def test_partitions_of_another_day_are_refused(database: str, ddl: str) -> None:
    """The server reads a partitioned table by the partitions of now: no difference to the lake as of the cut."""
    config = Config(source=SourceConfig(conninfo=database))
    with connect(config.source) as conn, connect(config.source) as other:
        for statement in TREE:
            other.execute(statement.encode())
        plan = _plan(conn, "root")

        def read() -> int:
            with row_lines.lines(conn, plan) as blocks:
                return sum(len(block) for block in blocks)

        with row_lines.inside_snapshot(conn, None, seconds=5):
            assert read() == 19
            other.execute(ddl.encode())
            with pytest.raises(row_lines.TableMoved, match=r"public\.root"):
                read()


@mostly_one_server
def test_a_partition_attached_between_look_and_read_is_refused(database: str) -> None:
    """ATTACH does not wait for readers of the root, nor they for it."""
    config = Config(source=SourceConfig(conninfo=database))
    with connect(config.source) as conn, connect(config.source) as other:
        for statement in TREE:
            other.execute(statement.encode())
        plan = _plan(conn, "root")
        with (
            row_lines.inside_snapshot(conn, None, seconds=5),
            pytest.raises(row_lines.TableMoved, match="partitions"),
            row_lines.lines(conn, plan) as blocks,
        ):
            other.execute("alter table public.root attach partition public.filled for values from (200) to (300)")
            assert sum(len(block) for block in blocks) == 20


@mostly_one_server
def test_children_by_inheritance_are_no_part_of_their_parent(database: str) -> None:
    config = Config(source=SourceConfig(conninfo=database))
    with connect(config.source) as conn, connect(config.source) as other:
        other.execute("create table public.parent (id int primary key)")
        other.execute("create table public.child () inherits (public.parent)")
        other.execute("insert into public.parent values (1)")
        other.execute("insert into public.child values (2)")
        plan = _plan(conn, "parent")
        with row_lines.inside_snapshot(conn, None, seconds=5):
            conn.execute("select 1")
            other.execute("truncate public.child")
            with psycopg.connect(database) as holder:
                holder.execute("lock table public.child")
                with row_lines.lines(conn, plan) as blocks:
                    found = [fields(one, plan.natives) for block in blocks for one in block]
                    assert found == [("1",)]


@mostly_one_server
def test_another_row_filter_is_another_table(source: Config) -> None:
    with connect(source.source) as conn:
        conn.execute("create table public.t (id int primary key, v int)")
        conn.execute("insert into public.t values (1, 1), (2, 2)")
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)

        def plan() -> Comparison:
            return comparison(catalog.published_tables(conn)[0], 1)

        before = plan()
        (name,) = source.source.publications
        conn.execute(f"alter publication {name} set table public.t where (id > 1)".encode())
        assert source_rows.alike(before, before)
        assert not source_rows.alike(before, plan())
        conn.execute(f"alter publication {name} set table public.t (id)".encode())
        assert not source_rows.alike(before, plan())


@mostly_one_server
@pytest.mark.parametrize("ddl", ["alter table public.t alter v type int using v + 1", "truncate public.leaf"])
def test_a_cut_without_a_slot_is_behind_ddl_that_wrote_no_row(source: Config, ddl: str) -> None:
    """Its snapshot shows what the DDL did; an L before it would have the lake built without."""
    with connect(source.source) as conn, connect(source.source) as session, ExitStack() as stack:
        conn.execute("create table public.t (id int primary key, v int)")
        conn.execute("create table public.root (id int primary key) partition by range (id)")
        conn.execute("create table public.leaf partition of public.root for values from (0) to (10)")
        conn.execute("insert into public.root values (1)")
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        conn.execute(f"alter publication {source.source.own} set (publish_via_partition_root = true)".encode())
        guard.guard(conn)
        with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds) as made:
            drained = made.lsn
        conn.execute(ddl.encode())
        committed = slot.flush_lsn(conn)
        lsn = exact_cut.without_slot(Source(source.source_access, session), stack, drained=drained, unseen=lambda _: ())
        assert drained < lsn <= committed
        (last,) = exact_cut.commits(conn, source.source, committed, 0)
        assert last.end_lsn == lsn


@pytest.mark.parametrize("kind", ["text collate public.same", "public.citext"])
@pytest.mark.parametrize("at_once", [1, 5_000])
def test_keys_that_are_equal_in_other_letters_are_read_once(
    pg15: EmbeddedServer, kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log names the old and the new spelling; both are the same key to the server, and two keys to the lake."""
    with fresh_database(pg15) as conninfo, connect(Config(source=SourceConfig(conninfo=conninfo)).source) as conn:
        conn.execute("create collation public.same (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        conn.execute("create extension citext schema public")
        conn.execute(f"create table public.t (code {kind} primary key, v int)".encode())
        conn.execute("insert into public.t values ('ABC', 1), ('b', 2), ('ß', 3)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            conn.execute("insert into public.t values ('abc', 1)")
        monkeypatch.setattr(row_lines, "_KEYS_AT_ONCE", at_once)
        plan = _plan(conn, "t")
        for way in ("on", "off"):  # the server joins the keys to the table by its index, or the table to the keys
            conn.execute(f"set enable_nestloop = {way}; set enable_seqscan = {'off' if way == 'on' else 'on'}".encode())
            with (
                row_lines.inside_snapshot(conn, None, seconds=5),
                row_lines.lines(conn, plan, keys=[("abc",), ("ABC",), ("gone",), ("ß",)]) as blocks,
            ):
                lines = [one for block in blocks for one in block]
            assert sorted(fields(one, plan.natives) for one in lines) == [("ABC", "1"), ("ß", "3")]
        lake = [one.replace(b"ABC", b"abc") for one in lines]  # planted fault: one letter
        found = classify(lines, lake, columns=["code", "v"], key=plan.key, natives=plan.natives, samples=5)
        assert (found.identical, found.modified, found.added, found.removed) == (1, 0, 1, 1)


@mostly_one_server
def test_a_text_that_changes_without_an_event_is_read_in_each_check(source: Config) -> None:
    """The proof of such a table was carried: the check said `identical`, and published a text of before."""
    with connect(source.source) as conn:
        conn.execute("create table public.old_name ()")
        conn.execute("create table public.named (id int primary key, o regclass)")
        conn.execute("create table public.plain (id int primary key, v int)")
        conn.execute("insert into public.named values (1, 'public.old_name')")
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        relids = {table.name: table.relid for table in catalog.published_tables(conn)}
        before = fingerprints(conn)
        conn.execute("alter table public.old_name rename to new_name")
        assert fingerprints(conn)[relids["named"]] == before[relids["named"]]
        proofs = {relid: Proof(Lsn(1), 1, 1, 1, Lsn(1), datetime.now(UTC), digest) for relid, digest in before.items()}
        with row_lines.inside_snapshot(conn, None, seconds=5):
            taken = source_rows.take(Source(source.source_access, conn), source.check, set(), proofs)
    assert taken[relids["plain"]].proof is not None
    assert (taken[relids["named"]].proof, taken[relids["named"]].figures is None) == (None, False)

"""First copies and repairs in the log: killed, moved, scoped, under load, in another generation."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import commands
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from toolkit.capture import copy, copy_workers
from toolkit.capture.repair_scope import Scope
from toolkit.lake.ledger import Ledger
from toolkit.rawlog import states
from toolkit.rawlog.event import Baseline, Covers
from toolkit.source import connection, slot
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError, HistoryDiverged, LakeError, SourceUnavailable, UnknownTable
from toolkit.values.lsn import Lsn

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg18"], indirect=True)]


either_way = pytest.mark.parametrize("by", ["slot", "tick"], indirect=True)


@pytest.fixture
def by(request: pytest.FixtureRequest) -> str:
    """How changes are drained."""
    return str(getattr(request, "param", "slot"))


@pytest.fixture
def config(source: Config, plain_lake: Config, by: str) -> Iterator[Config]:
    """Two tables with a key, captured by no one yet."""
    config = source.model_copy(update={"root": plain_lake.root})
    if by == "tick":
        chosen = config.source.model_copy(update={"capture": "change_log", "change_log_drain": "tick"})
        config = config.model_copy(update={"source": chosen})
    sql(
        config,
        "create table public.a (id int primary key, x text, y text)",
        "insert into public.a select i, 'x' || i, 'y' from generate_series(1, 20) i",
        "create table public.b (id int primary key)",
        "insert into public.b select generate_series(1, 5)",
    )
    yield config


def sql(config: Config, *statements: str) -> None:
    with psycopg.connect(config.source.conninfo, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement)


def of(config: Config, name: str) -> states.TableState:
    return {s.table: s for s in states.table_states(ledger_of(config))}[f"public.{name}"]


def current(config: Config, name: str) -> dict[str | None, list[str | None]]:
    """Images by key of column 1: a plain fold of the log, as of its end."""
    relid = of(config, name).relid
    last = ledger_of(config).last()
    assert last is not None
    start = max(
        (int(e.commit_lsn), e.ordinal)
        for e in ledger_of(config).baselines()
        if e.relid == relid and e.generation == last.generation and e.payload.scope == Covers.ALL
    )
    found: dict[str | None, list[str | None]] = {}
    wanted = f"kind in ('row', 'truncate') and relid = {relid} and generation = {last.generation}"
    for e in rows_in_log(config, wanted):
        if (e["commit_lsn"], e["ordinal"]) < start:
            continue
        if e["op"] == "T":
            found.clear()
            continue
        removed = None if e["old"] is None else found.pop(e["old"][0], [])  # a deleted row, or the key that it had
        if e["op"] == "D":
            continue
        before = found.get(e["new"][0], []) if removed is None else removed
        image = [
            (before[n] if n < len(before) else None) if n + 1 in (e["unchanged"] or ()) else cell
            for n, cell in enumerate(e["new"])
        ]
        found[image[0]] = image
    return found


def at(config: Config, name: str, lsn: Lsn) -> str:
    """Whether the rows of a table can be known as of an LSN."""
    return next(s.state for v, s in states.states_at(ledger_of(config), lsn, {}) if v.table.name == name)


def on_source(config: Config, name: str) -> dict[str | None, list[str | None]]:
    with psycopg.connect(config.source.conninfo) as conn:
        rows = conn.execute(f"select * from public.{name}").fetchall()
    return {str(row[0]): [None if v is None else str(v) for v in row] for row in rows}


class Killed(BaseException):
    """Stands for SIGKILL where it strikes."""


@either_way
def test_trap_135_init_killed_between_tables_keeps_the_finished_ones(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "_GROUP_BYTES", 1)  # each table a batch of its own
    whole = copy_workers.Copiers.run
    runs: list[int] = []

    def run(self: copy_workers.Copiers, tasks: Any) -> Any:
        runs.append(len(tasks))
        if len(runs) == 2:
            raise Killed
        return whole(self, tasks)

    with monkeypatch.context() as patch:
        patch.setattr(copy_workers.Copiers, "run", run)
        with pytest.raises(Killed):
            commands.init(config)
    assert of(config, "a").state == "ok"
    first = [e["batch_id"] for e in rows_in_log(config)]
    sql(config, "insert into public.a values (100, 'late', null)", "insert into public.b values (100)")
    done = commands.init(config)
    assert done.rows == {"public.b": 6}  # `a` is not copied again
    assert {s.state for s in states.table_states(ledger_of(config))} == {"ok"}
    assert [e["batch_id"] for e in rows_in_log(config, "op = 'R'")][: len(first)] == first
    for name in "ab":
        assert current(config, name) == on_source(config, name)
    assert commands.init(config).rows == {}


def test_a_table_that_moves_during_its_copy_starts_again_under_a_new_cut(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = copy_workers.Copiers.run
    cuts: list[slot.Cut] = []

    def run(self: copy_workers.Copiers, tasks: Any) -> Any:
        cuts.append(self._cut)
        if len(cuts) == 1:
            sql(config, "truncate public.a", "insert into public.a values (7, 'after', null)")
        return whole(self, tasks)

    monkeypatch.setattr(copy_workers.Copiers, "run", run)
    done = commands.init(config)
    assert done.rows == {"public.a": 1, "public.b": 5}
    assert not done.left_out
    commands.drain(config)
    assert len({c.lsn for c in cuts}) == 2
    assert current(config, "a") == on_source(config, "a") == {"7": ["7", "after", None]}


def test_a_table_dropped_during_its_copy_is_named_and_the_others_are_copied(
    config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = copy_workers.Copiers.run

    def run(self: copy_workers.Copiers, tasks: Any) -> Any:
        sql(config, "drop table if exists public.a")
        return whole(self, tasks)

    monkeypatch.setattr(copy_workers.Copiers, "run", run)
    done = commands.init(config)
    assert done.rows == {"public.b": 5}
    assert done.left_out == {}  # it is gone, so nothing is missing
    (record,) = [r for r in caplog.records if r.getMessage() == "not copied at this cut"]
    assert vars(record)["reason"] == "public.a was dropped or renamed after the snapshot was taken; run it again"
    commands.drain(config)
    assert [s.table for s in states.table_states(ledger_of(config))] == ["public.b"]


def test_a_dead_slot_session_ends_the_copy_and_the_next_one_is_whole(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exported snapshot lives in the session of its slot."""
    commands.init(config)
    whole = copy_workers.Copiers.run

    def run(self: copy_workers.Copiers, tasks: Any) -> Any:
        sql(config, "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots where temporary")
        return whole(self, tasks)

    before = len(rows_in_log(config))
    with monkeypatch.context() as patch:
        patch.setattr(copy_workers.Copiers, "run", run)
        with pytest.raises(SourceUnavailable, match="does not exist; run it again"):
            commands.repair(config, ["public.a"])
    assert len(rows_in_log(config)) == before
    assert commands.repair(config, ["public.a"]).rows == {"public.a": 20}
    assert current(config, "a") == on_source(config, "a")


@either_way
def test_a_repair_under_load_meets_the_stream_without_a_seam(config: Config) -> None:
    commands.init(config)
    sql(config, "alter table public.a alter x type varchar using x || '!'")  # says nothing of its rows
    commands.drain(config)
    assert of(config, "a").state == "stale"
    stop, wrote = threading.Event(), threading.Event()

    def write() -> None:
        with psycopg.connect(config.source.conninfo, autocommit=True) as conn:
            n = 1000
            while not stop.is_set():
                n += 1
                conn.execute("insert into public.a values (%s, 'w', null)", [n])
                conn.execute("update public.a set x = x || '.' where id = %s", [n % 20 + 1])
                conn.execute("delete from public.a where id = %s", [n - 5])
                if n == 1010:
                    wrote.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert wrote.wait(30)
        done = commands.repair(config, ["public.a"])
    finally:
        stop.set()
        thread.join()
    commands.drain(config)
    assert current(config, "a") == on_source(config, "a")
    state = of(config, "a")
    assert (state.state, state.repaired_lsn, state.remedy) == ("stale", done.lsn, "cdc check public.a")
    relid = state.relid
    for proven, expected in ((Lsn(done.lsn - 8), "stale"), (done.lsn, "ok")):
        found = states.table_states(ledger_of(config), {relid: proven})
        assert next(s.state for s in found if s.relid == relid) == expected


@either_way
def test_a_repair_without_names_takes_what_is_stale_and_goes_on_after_a_kill(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "_GROUP_BYTES", 1)
    commands.init(config)
    sql(config, "alter table public.a alter x type varchar using x || '!'", "alter table public.b alter id type text")
    commands.drain(config)
    assert (of(config, "a").state, of(config, "b").state) == ("stale", "stale")
    whole = Ledger.append
    commits: list[int] = []

    def append(self: Ledger, *arguments: Any) -> int:
        if arguments[0].origin == "snapshot":
            commits.append(1)
            if len(commits) == 2:
                raise Killed
        return whole(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", append)
        with pytest.raises(Killed):
            commands.repair(config)
    assert of(config, "a").repaired_lsn is not None
    assert of(config, "b").repaired_lsn is None
    done = commands.repair(config)
    assert list(done.rows) == ["public.b"]
    assert commands.repair(config).rows == {}
    assert current(config, "b") == on_source(config, "b")
    assert not list((config.lake_access.work_dir / "spool").glob("run-*"))
    assert not list((config.lake_access.work_dir / "new-files").iterdir())


@either_way
def test_a_repair_of_columns_puts_these_and_leaves_the_others(config: Config) -> None:
    commands.init(config)
    sql(config, "alter table public.a alter x type varchar using x || '!'", "update public.a set y = 'z' where id = 3")
    commands.drain(config)
    assert current(config, "a") != on_source(config, "a")
    relid = of(config, "a").relid
    done = commands.repair(config, ["public.a"], scope=Scope(columns=("x",)))
    assert done.rows == {"public.a": 20}
    assert current(config, "a") == on_source(config, "a")
    put = rows_in_log(config, f"kind = 'row' and relid = {relid} and origin = 'snapshot' and op = 'U'")
    assert {tuple(e["unchanged"]) for e in put} == {(3,)}
    assert {e["new"][2] for e in put} == {None}
    (proof,) = [e for e in ledger_of(config).baselines() if e.payload.scope == Covers.COLUMNS]
    assert proof.payload == Baseline(done.lsn, 20, Covers.COLUMNS, ("x",))
    assert of(config, "a").repaired_lsn == done.lsn
    assert at(config, "a", done.lsn) == "stale"  # no one knows whether the other columns were left alone
    sql(config, "update public.a set y = 'later' where id = 4")
    commands.drain(config)
    assert current(config, "a") == on_source(config, "a")


def test_a_repair_of_a_partition_reads_that_partition(config: Config) -> None:
    sql(
        config,
        "create table public.r (id int primary key, x text) partition by range (id)",
        "create table public.r1 partition of public.r for values from (0) to (10)",
        "create table public.loose (id int primary key, x text)",
        "insert into public.loose select i, 'loose' from generate_series(10, 14) i",
        "insert into public.r values (1, 'one')",
        "create publication cdc for table public.r, public.a, public.b with (publish_via_partition_root)",
    )
    commands.init(config)
    sql(config, "alter table public.r attach partition public.loose for values from (10) to (20)")
    commands.drain(config)
    assert of(config, "r").state == "stale"
    assert set(current(config, "r")) == {"1"}
    with pytest.raises(ConfigError, match=r"no partition public\.nowhere; there are public\.loose, public\.r1"):
        commands.repair(config, ["public.r"], scope=Scope(partition="public.nowhere"))
    done = commands.repair(config, ["public.r"], scope=Scope(partition="public.loose"))
    assert done.rows == {"public.r": 5}
    assert current(config, "r") == on_source(config, "r")
    assert of(config, "r").repaired_lsn == done.lsn
    assert at(config, "r", done.lsn) == "stale"


def test_a_scope_that_cannot_be_is_refused_before_anything_is_copied(config: Config) -> None:
    sql(config, "create table public.bag (v int)", "alter table public.bag replica identity full")
    commands.init(config)
    before = len(ledger_of(config).baselines())
    for table, scope, message in (
        ("public.bag", Scope(columns=("v",)), r"public\.bag: its rows have no key"),
        ("public.a", Scope(columns=("nope",)), r"no published column 'nope'; there are id, x, y"),
        ("public.a", Scope(partition="public.b"), r"public\.a: it has no partitions of its own"),
        ("public.bag", Scope(rows=({"v": "1"},)), r"its rows have no key.* `cdc repair public\.bag`"),
        ("public.a", Scope(rows=({"id": "1"}, {"x": "1"})), r"public\.a: its rows are named by id, not by x"),
        ("public.a", Scope(rows=()), r"public\.a: its rows are named by id, not by nothing"),
    ):
        with pytest.raises(ConfigError, match=message):
            commands.repair(config, [table], scope=scope)
    with pytest.raises(ConfigError, match="exactly one table"):
        commands.repair(config, ["public.a", "public.b"], scope=Scope(columns=("id",)))
    with pytest.raises(UnknownTable, match=r"public\.nope"):
        commands.repair(config, ["public.nope"])
    assert len(ledger_of(config).baselines()) == before


def test_trap_092_a_table_of_which_not_everything_is_sent_is_not_known_by_a_copy(config: Config) -> None:
    """The next update would not come. Nor is a table known that is born so."""
    config = config.model_copy(update={"source": config.source.model_copy(update={"new_tables": "publish"})})
    commands.init(config)
    sql(config, "alter publication cdc set (publish = 'insert')", "update public.a set x = 'unexplained' where id = 1")
    commands.repair(config, ["public.a"])
    sql(
        config,
        "update public.a set x = 'unexplained as well' where id = 2",
        "create table public.late (id int primary key)",
    )
    lsn = commands.drain(config).committed_lsn
    assert at(config, "a", lsn) == "stale"
    assert [s.table for _, s in states.states_at(ledger_of(config), lsn, {}) if s.state == "ok"] == []
    sql(config, "alter publication cdc set (publish = 'insert, update, delete, truncate')")
    commands.drain(config)
    done = commands.repair(config, ["public.a"])
    assert at(config, "a", done.lsn) == "ok"
    assert current(config, "a") == on_source(config, "a")


def test_a_repair_takes_the_small_tables_within_its_limit(config: Config) -> None:
    sql(config, "insert into public.b select generate_series(1000, 60000)")
    commands.init(config)
    sql(config, "alter table public.a alter x type varchar using x || '!'", "alter table public.b alter id type text")
    commands.drain(config)
    small = config.model_copy(update={"snapshot": config.snapshot.model_copy(update={"heal_mb": 1.0})})
    repaired = commands.repair_stale(small)
    assert repaired is not None
    assert list(repaired.rows) == ["public.a"]
    assert of(config, "b").repaired_lsn is None
    assert commands.repair_stale(small) is None  # the rest is too large: it stays red, by name
    repaired = commands.repair_stale(config)
    assert repaired is not None
    assert list(repaired.rows) == ["public.b"]


def test_a_table_that_left_the_publication_does_not_keep_the_others_from_their_repair(config: Config) -> None:
    commands.init(config)
    sql(config, "alter publication cdc drop table public.a", "alter table public.b alter id type text")
    commands.drain(config)
    assert (of(config, "a").state, of(config, "b").state) == ("stale", "stale")
    assert list(commands.repair(config).rows) == ["public.b"]
    sql(config, "alter table public.b alter id type varchar using id || '!'")
    commands.drain(config)
    repaired = commands.repair_stale(config)
    assert repaired is not None
    assert list(repaired.rows) == ["public.b"]
    assert of(config, "a").state == "stale"


def test_a_copy_above_the_log_is_refused(config: Config) -> None:
    commands.init(config)
    sql(config, "insert into public.b values (77)")
    with (
        slot.create_slot(config.source, cut_seconds=config.check.cut_seconds) as cut,
        pytest.raises(LakeError, match="the log ends below it"),
    ):
        commands.copy_tables(config, cut)


def test_trap_035_rows_of_a_table_that_joins_late_are_all_there(config: Config) -> None:
    """A writer that is open while a table joins has written rows that decoding will never send."""
    commands.init(config)
    sql(config, "create table public.late (id int primary key)")
    with psycopg.connect(config.source.conninfo) as writer:
        writer.execute("insert into public.late values (1)")
        with connection.connect(config.source) as conn:
            conn.execute("alter publication cdc add table public.late")
        writer.execute("insert into public.late values (2)")
    sql(config, "insert into public.late values (3)")
    commands.drain(config)
    assert of(config, "late").state == "stale"
    done = commands.init(config)
    assert done.rows == {"public.late": 3}
    assert current(config, "late") == on_source(config, "late")
    assert of(config, "late").state == "ok"


def test_a_new_generation_has_a_log_of_its_own(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    commands.init(config)
    sql(config, "insert into public.b values (50)", "alter table public.a alter x type varchar using x || '!'")
    commands.drain(config)
    assert of(config, "a").state == "stale"
    with connection.connect(config.source) as conn:
        slot.drop_slot(conn, config.source.slot)
    sql(config, "insert into public.b values (51)")  # never decoded
    with pytest.raises(HistoryDiverged, match=r"cdc init --new-generation"):
        commands.init(config)
    monkeypatch.setattr(copy, "_GROUP_BYTES", 1)
    whole = copy_workers.Copiers.run
    runs: list[int] = []

    def run(self: copy_workers.Copiers, tasks: Any) -> Any:
        runs.append(1)
        if len(runs) == 2:
            raise Killed
        return whole(self, tasks)

    with monkeypatch.context() as patch:
        patch.setattr(copy_workers.Copiers, "run", run)
        with pytest.raises(Killed):
            commands.init(config, new_generation=True)
    ledger = ledger_of(config)
    last = ledger.last()
    assert last is not None and last.generation == 2
    assert (of(config, "a").state, of(config, "a").from_lsn) == ("ok", None)  # the gap was the other generation's
    done = commands.init(config)  # goes on in the generation that was begun
    assert (done.generation, list(done.rows)) == (2, ["public.b"])
    sql(config, "insert into public.b values (52)", "alter table public.b add column later int default 3")
    commands.drain(config)
    assert set(current(config, "b")) == set(on_source(config, "b"))
    assert {v.generation for v in ledger_of(config).latest_versions().values()} == {2}
    ids = [v.schema_id for v in ledger_of(config).schema_versions() if v.generation == 2]
    assert sorted(ids) == list(range(1, len(ids) + 1))
    keys = [(e["generation"], e["commit_lsn"], e["ordinal"], e["relid"]) for e in rows_in_log(config)]
    assert len(keys) == len(set(keys))
    batches = [b.batch_id for b in ledger_of(config).batches()]
    assert batches == list(range(1, len(batches) + 1))


def test_enum_labels_are_those_of_the_cut(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """COPY prints a label as it is now: rows at the cut would show one that came later."""
    sql(
        config,
        "create type public.mood as enum ('sad', 'ok')",
        "create table public.e (id int primary key, m public.mood[])",  # inside another type, too
        "insert into public.e values (1, '{sad}')",
    )
    whole = copy_workers.Copiers.run
    runs: list[int] = []

    def run(self: copy_workers.Copiers, tasks: Any) -> Any:
        runs.append(len(tasks))
        if len(runs) == 1:
            sql(config, "alter type public.mood rename value 'sad' to 'blue'", "alter type public.mood add value 'new'")
        return whole(self, tasks)

    monkeypatch.setattr(copy_workers.Copiers, "run", run)
    done = commands.init(config)
    assert done.rows == {"public.a": 20, "public.b": 5, "public.e": 1}
    commands.drain(config)
    relid = of(config, "e").relid
    (row,) = rows_in_log(config, f"op = 'R' and relid = {relid}")
    assert row["new"][1] == "{blue}"
    renamed = [e for e in ledger_of(config).ddl_events() if "rename value" in str(e.payload.sql)]
    assert [e.end_lsn < row["end_lsn"] for e in renamed] == [True]  # the row is from after it got that label
    assert len(runs) == 3  # all, the others without it, and it alone under a new cut


def test_what_a_killed_run_spooled_is_removed_by_the_next(config: Config, tmp_path: Path) -> None:
    commands.init(config)
    left = config.lake_access.work_dir / "spool" / "run-killed"
    left.mkdir(parents=True)
    (left / ".held").write_bytes(b"")
    (left / "copy-1-0.parquet").write_bytes(b"half a file")
    commands.repair(config, ["public.b"])
    assert not left.exists()

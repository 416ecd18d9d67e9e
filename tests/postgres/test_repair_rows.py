"""A repair of single rows in the log: found by the texts of their keys, no other touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import commands
from tests.postgres.test_snapshot_log import at, by, config, current, either_way, of, on_source, sql
from tests.support_corpus import HOSTILE, SETUP, available, cells, columns
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from toolkit.capture import copy, copy_workers, repair_scope
from toolkit.rawlog import states
from toolkit.rawlog.event import Baseline, Covers
from toolkit.source import catalog, connection, install, slot, snapshot_rows
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn

__all__ = ["by", "config", "plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg18"], indirect=True)]


def _put(config: Config, name: str) -> list[tuple[str, list[str | None]]]:
    """What repairs have put into the log of a table: operation and image, in order."""
    where = f"relid = {of(config, name).relid} and kind = 'row' and origin = 'snapshot' and op <> 'R'"
    return [(e["op"], e["old"] if e["op"] == "D" else e["new"]) for e in rows_in_log(config, where)]


def test_rows_are_found_by_keys_of_every_built_in_type(source: Config) -> None:
    """By the texts that the log has, whatever the database is set to; what is no value of the type finds nothing."""
    with connection.connect(source.source) as conn:
        conn.execute(SETUP)
        kinds = available(conn)
        names = [name for name, _ in columns(kinds)]
        listed = ", ".join(f"{name} {kind}" for name, kind in columns(kinds))
        conn.execute(f"create table public.corpus (id int primary key, {listed})")
        for cell in cells(kinds):
            conn.execute(f"insert into public.corpus (id, {cell.column}) values ({cell.row}, {cell.value})")
        for setting, value in HOSTILE.items():
            conn.execute(f"alter role postgres in database {conn.info.dbname} set {setting} = '{value}'")
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
    with (
        slot.create_slot(source.source, cut_seconds=source.check.cut_seconds) as cut,
        snapshot_rows.reader(source.source, cut) as reader,
    ):
        table = next(t for t in catalog.published_tables(reader) if t.name == "corpus")

        def read(images: snapshot_rows.Images, key: tuple[int, ...]) -> list[list[str | None]]:
            reported = replace(table, key_attnums=key)
            batches = snapshot_rows.snapshot_batches(reader, reported, cut.lsn, generation=1, images=images)
            return [row["new"] for batch in batches for row in batch.to_pylist()]

        rows = read(snapshot_rows.Images(), (1,))
        for n, name in enumerate(names, 1):
            texts = sorted({text for row in rows if (text := row[n]) is not None})
            assert texts, name
            keys = texts[::2]
            found = read(snapshot_rows.Images("U", keys=(*((k,) for k in keys), ("'\\ no value\n",))), (n + 1,))
            # NULL prints as '' there; a column of a key has none.
            assert [row for row in found if row[n] is not None] == [row for row in rows if row[n] in keys], name
        both = tuple((row[0] or "", row[1] or "") for row in rows[:3])
        assert read(snapshot_rows.Images("U", keys=((both[0][0], "other"), *both[1:])), (1, 2)) == [
            row for row in rows if (row[0], row[1]) in both[1:]
        ]


def test_a_text_that_a_cast_would_cut_is_another_key(
    config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And keys of the user's own types, and of several columns, in another order than the table's; read by workers."""
    sql(
        config,
        "create domain public.code as varchar(4) check (value <> 'none')",
        "create type public.mood as enum ('sad, ''but'' ok', 'ok')",
        "create table public.c (m public.mood, v text, c public.code, primary key (c, m))",
        "insert into public.c values ('ok', 'v', 'abcd'), ('ok', 'v', 'b'), ('sad, ''but'' ok', 'v', 'b')",
    )
    commands.init(config)
    monkeypatch.setattr(copy, "_WORKERS_FROM", 0)
    keys = [("ok", "abcdef"), ("none", "none"), ("sad, 'but' ok", "b")]
    scope = repair_scope.Scope(rows=tuple({"m": m, "c": c} for m, c in keys * 2))
    assert commands.repair(config, ["public.c"], scope=scope).rows == {"public.c": 1}
    (said,) = (r for r in caplog.records if r.message == "not all of the named rows are on the source")
    assert (said.__dict__["named"], said.__dict__["found"]) == (3, 1)  # a mistyped key looked like a repaired row
    deleted = [("D", [m, None, c]) for m, c in keys]
    assert _put(config, "c") == [*deleted, ("U", ["sad, 'but' ok", "v", "b"])]


@either_way
def test_named_rows_are_as_at_the_cut_and_what_came_later_stands_behind(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.init(config)
    sql(config, "alter table public.a alter x type varchar using x || '!'")  # says nothing of its rows
    sql(config, "delete from public.a where id = 3", "update public.a set y = 'before' where id = 4")
    commands.drain(config)
    others = {key: row for key, row in current(config, "a").items() if key not in ("2", "4", "5", "6")}
    whole = copy_workers.Copiers.run

    def run(self: copy_workers.Copiers, tasks: Any) -> Any:
        sql(
            config,
            "update public.a set y = 'after' where id = 4",
            "delete from public.a where id = 5",
            "update public.a set id = 60 where id = 6",
            "insert into public.a values (3, 'back', null)",
        )
        return whole(self, tasks)

    monkeypatch.setattr(copy_workers.Copiers, "run", run)
    keys = tuple({"id": str(n)} for n in (2, 3, 4, 5, 6))
    done = commands.repair(config, ["public.a"], scope=repair_scope.Scope(rows=keys))
    assert done.rows == {"public.a": 4}
    assert sorted(image[:3] for op, image in _put(config, "a") if op == "U") == [
        ["2", "x2!", "y"], ["4", "x4!", "before"], ["5", "x5!", "y"], ["6", "x6!", "y"],
    ]  # fmt: skip
    commands.drain(config)
    wanted, found = on_source(config, "a"), current(config, "a")
    assert {k: found.pop(k) for k in ("2", "3", "4", "60")} == {k: wanted[k] for k in ("2", "3", "4", "60")}
    assert found == {k: row for k, row in others.items() if k != "3"}  # as the log had them: not right, and not touched
    # Only a check can say whether these rows were enough.
    (proof,) = [e for e in ledger_of(config).baselines() if e.payload.scope == Covers.ROWS]
    assert proof.payload == Baseline(done.lsn, 4, Covers.ROWS, keys=5)
    state = of(config, "a")
    assert (state.state, state.repaired_lsn, state.remedy) == ("stale", done.lsn, "cdc check public.a")
    assert at(config, "a", done.lsn) == "stale"
    for proven in (Lsn(done.lsn - 8), done.lsn):  # the check notes a baseline: without it the rest is not known
        assert states.unproven(ledger_of(config), {state.relid: proven}) == (
            {state.relid: proven} if proven >= done.lsn else {}
        )
        states_ = states.table_states(ledger_of(config), {state.relid: proven})
        assert next(s.state for s in states_ if s.relid == state.relid) == "stale"


def test_rows_of_partitions_filters_and_column_lists(config: Config) -> None:
    sql(
        config,
        "create table public.r (id int primary key, x text) partition by range (id)",
        "create table public.r1 partition of public.r for values from (0) to (10)",
        "create table public.r2 (x text, gone int, id int not null)",  # numbers its columns in its own way
        "alter table public.r2 drop column gone",
        "alter table public.r attach partition public.r2 for values from (10) to (20)",
        "insert into public.r values (1, 'one'), (2, 'two'), (11, 'eleven'), (12, 'twelve')",
        "create table public.f (id int primary key, x text)",
        "insert into public.f values (1, 'in'), (2, 'in'), (30, 'out')",
        "create table public.l (secret text, id int primary key, x text)",
        "insert into public.l values ('s', 1, 'one'), ('s', 2, 'two')",
        "create publication cdc for table public.r, public.a, public.b, public.f where (id < 10), public.l (id, x)"
        " with (publish_via_partition_root)",
    )
    commands.init(config)
    for table, keys, wanted in (
        ("r", ("1", "11", "15"), [["1", "one"], ["11", "eleven"]]),
        ("f", ("1", "30"), [["1", "in"]]),  # the other one is not there, as far as the filter says
        ("l", ("2",), [[None, "2", "two"]]),
    ):
        rows = tuple({"id": key} for key in keys)
        commands.repair(config, [f"public.{table}"], scope=repair_scope.Scope(rows=rows))
        reported = _put(config, table)
        assert [image for op, image in reported if op == "U"] == wanted
        assert [image[table == "l"] for op, image in reported if op == "D"] == list(keys)
    assert current(config, "r") == on_source(config, "r")
    assert set(current(config, "f")) == {"1", "2"}


def test_a_part_does_not_vouch_for_the_names_of_objects(config: Config) -> None:
    """The text of regclass changes without an event: what a part did not read is known no better by it."""
    sql(
        config,
        "create table public.g (id int primary key, o regclass)",
        "insert into public.g values (1, 'public.a'), (2, 'public.b')",
    )
    commands.init(config)
    sql(config, "alter table public.b rename to c", "insert into public.g values (3, null)")
    commands.drain(config)
    before = of(config, "g")
    assert before.state == "stale"
    commands.repair(config, ["public.g"], scope=repair_scope.Scope(rows=({"id": "1"},)))
    assert (of(config, "g").state, of(config, "g").from_lsn) == ("stale", before.from_lsn)
    commands.repair(config, ["public.g"])
    assert of(config, "g").state == "ok"


def test_a_part_is_repaired_although_the_catalog_has_dropped_what_older_rows_need(config: Config) -> None:
    """A former label, and a default that a rewrite has stored: both were taken for columns that the log lacks."""
    sql(
        config,
        "create type public.mood as enum ('sad', 'glad')",
        "create table public.m (id int primary key, v public.mood)",
        "insert into public.m values (1, 'sad'), (2, 'sad')",
    )
    commands.init(config)
    sql(config, "alter type public.mood rename value 'sad' to 'grey'", "alter table public.b add v int default 7")
    commands.drain(config)
    sql(config, "vacuum full public.b")
    commands.drain(config)
    for name in ("m", "b"):
        for scope in (repair_scope.Scope(rows=({"id": "1"},)), repair_scope.Scope(columns=("v",))):
            assert commands.repair(config, [f"public.{name}"], scope=scope).rows[f"public.{name}"] > 0
    assert _put(config, "m") == [("D", ["1", None]), *(("U", [key, "grey"]) for key in ("1", "1", "2"))]

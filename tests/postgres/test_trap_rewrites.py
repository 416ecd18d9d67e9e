"""Rewrites of tables without rows are exact; of all others the log cannot say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trap_world import ROOT, World
from toolkit.capture import copy
from toolkit.source import ticks

pytestmark = pytest.mark.postgres

_RETYPED = "alter v type text using v || '!'"


def test_trap_068_a_rewrite_of_an_empty_table_is_exact(world: World) -> None:
    """It was stale, although no stored value can have changed."""
    log = world.start(
        "create table never (id int primary key, v int)",
        "create table truncated (id int primary key, v int)",
        "create table filled (id int primary key)",
        "create table refilled (id int primary key, v int)",
        "create table r (id int primary key, v int) partition by range (id)",
        "create table r1 partition of r for values from (0) to (10)",
        "insert into truncated values (1, 1), (2, 2)",
        "insert into refilled values (1, 1)",
    )
    world.sql(
        f"alter table never {_RETYPED}", "insert into never values (1, 'a')",
        "begin", "truncate truncated", f"alter table truncated {_RETYPED}", "insert into truncated values (3, 'c')",
        "commit",
        "alter table filled add column f float8 default random(), add column s serial",
        "insert into filled values (1), (2)",
        "begin", "truncate refilled", "insert into refilled values (2, 2)", "truncate refilled",
        "alter table refilled add column f float8 default random(), alter v type bigint using v + 1",
        "insert into refilled values (3, 3)", "commit",
        f"alter table r {_RETYPED}", "insert into r values (1, 'a')",
    )  # fmt: skip
    log.drain()
    assert world.stale() == {}
    world.exact("never", "truncated", "filled", "refilled")
    world.sql("update never set v = 'b'", "delete from truncated", "update refilled set v = 4")
    log.drain()
    world.exact("never", "truncated", "filled", "refilled")


def test_trap_068_a_rewrite_of_a_table_that_may_hold_rows_is_stale(world: World) -> None:
    """Rows of the same transaction count, and pages from which every row was deleted."""
    log = world.start(
        "create table deleted (id int primary key, v int) with (vacuum_truncate = off)",
        "create table written (id int primary key, v int)",
        "create table held (id int primary key)",
        "insert into deleted values (1, 1)",
        "insert into held values (1)",
    )
    world.sql(
        "delete from deleted", f"alter table deleted {_RETYPED}",
        "begin", "insert into written values (1, 1)", f"alter table written {_RETYPED}", "commit",
        "alter table held add column r float8 default random()",
    )  # fmt: skip
    log.drain()
    assert world.stale().keys() == {"public.deleted", "public.written", "public.held"}


def test_trap_068_a_rewrite_of_a_root_is_exact_if_every_partition_is_empty(world: World) -> None:
    log = world.start(*ROOT)
    world.sql("truncate r", f"alter table r {_RETYPED}", "insert into r values (1, 'a'), (11, 'b')")
    log.drain()
    assert world.stale() == {}
    world.exact("r")
    world.sql("truncate r", "insert into r values (1, 'a')", f"alter table r {_RETYPED}")
    log.drain()
    assert world.stale().keys() == {"public.r"}


def test_trap_068_a_trigger_that_writes_after_the_look_at_a_table_makes_it_stale(world: World) -> None:
    """Event triggers fire in the order of their names: one of the user's own may insert before the rewrite."""
    log = world.start(
        "create table t (id int primary key, v text)",
        "create function fill() returns event_trigger language plpgsql as"
        " $$ begin insert into public.t values (1, 'x'); end $$",
        "create event trigger zz on table_rewrite execute function fill()",
    )
    world.sql(f"alter table t {_RETYPED}")
    log.drain()
    assert world.stale().keys() == {"public.t"}


@pytest.mark.parametrize(
    ("change", "left_out"),
    [
        ("alter type pair add attribute c int", True),
        ("alter type pair drop attribute b", True),
        ("alter table other add column c int", True),
        ("alter type mood rename value 'ok' to 'fine'", True),
        ("alter type mood add value 'best'", False),
        ("alter type apart rename value 'x' to 'y'", False),
    ],
)
def test_trap_078_a_type_altered_while_its_table_is_copied(world: World, change: str, left_out: bool) -> None:
    """A copy printed composites as they were after its LSN, and the table was ok as of LSNs before the change."""
    log = world.start(
        "create type mood as enum ('ok')", "create type apart as enum ('x')", "create type pair as (a int, b int)",
        "create table other (id int primary key, v text)",
        "create table t (id int primary key, p pair[], o other, m mood)",
        "insert into t values (1, array['(1,2)'::pair], '(1,x)', 'ok')",
    )  # fmt: skip
    log.drain()
    relid = world.relid("t")
    with ticks.exact_cut(log.config.capture_rules, cut_seconds=log.config.check.cut_seconds) as cut:
        log.drain(cut=cut)
        shown = log.select(relid)
        world.sql(change)
        assert bool(log.copy(cut, ["public.t"]).left_out) is left_out
    assert log.rows(relid, cut.lsn) == shown
    log.repair("public.t")
    log.drain()
    world.exact("t")


def test_trap_070_and_077_a_comparison_keeps_what_the_catalog_has_lost(world: World) -> None:
    """VACUUM FULL drops a TOAST table that is not needed, and missing values. Rows of the log need the values still."""
    log = world.start(
        "create type mood as enum ('sad', 'ok')",
        "create table t (id int primary key, v text, m mood)",
        "insert into t values (1, 'x', 'sad')",
    )
    world.sql(
        "alter table t add d int default 42", "alter table t drop v", "alter type mood rename value 'sad' to 'blue'"
    )
    log.drain()
    world.exact("t")
    world.sql("vacuum full t")
    log.drain()
    assert world.stale() == {}
    world.exact("t")


@pytest.mark.parametrize(
    ("change", "back"),
    [
        ("alter type mood rename value 'ok' to 'fine'", "alter type mood rename value 'fine' to 'ok'"),
        ("alter type moods rename value 'x' to 'y'", "alter type moods rename value 'y' to 'x'"),
        ("alter type pair add attribute c int", "alter type pair drop attribute c"),
        ("alter table other add column c int", "alter table other drop column c"),
    ],
)
def test_trap_078_a_type_altered_and_restored_while_its_table_is_copied(
    world: World, monkeypatch: pytest.MonkeyPatch, change: str, back: str
) -> None:
    """The type was the same after the copy as at its LSN, but values were printed in between."""
    log = world.start(
        "create type mood as enum ('ok')", "create type moods as enum ('x')", "create type pair as (a int, b int)",
        "create table other (id int primary key, v text)",
        "create table t (id int primary key, p pair[], o other, m mood, n moods[])",
        "insert into t values (1, array['(1,2)'::pair], '(1,x)', 'ok', '{x}')",
    )  # fmt: skip
    log.drain()
    relid = world.relid("t")
    compared = copy._reprinted

    def restored(*given: Any) -> Any:
        monkeypatch.setattr(copy, "_reprinted", compared)
        world.sql(back)
        return compared(*given)

    monkeypatch.setattr(copy, "_reprinted", restored)
    with ticks.exact_cut(log.config.capture_rules, cut_seconds=log.config.check.cut_seconds) as cut:
        log.drain(cut=cut)
        shown = log.select(relid)
        world.sql(change)
        assert log.copy(cut, ["public.t"]).left_out
    assert log.rows(relid, cut.lsn) == shown


def test_trap_078_a_label_renamed_while_tables_are_read_again_without_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.start(
        "create type mood as enum ('ok')", "create type apart as enum ('x')",
        "create table t (id int primary key, m mood)", "insert into t values (1, 'ok')",
        "create table u (id int primary key, a apart)", "insert into u values (1, 'x')",
    )  # fmt: skip
    log.drain()
    compared = copy._reprinted

    def then_renamed(*given: Any) -> Any:
        found = compared(*given)
        if any("public.t" in reason for reason, _ in found.values()):
            world.sql("alter type apart rename value 'x' to 'y'")
        return found

    monkeypatch.setattr(copy, "_reprinted", then_renamed)
    with ticks.exact_cut(log.config.capture_rules, cut_seconds=log.config.check.cut_seconds) as cut:
        log.drain(cut=cut)
        world.sql("alter type mood rename value 'ok' to 'fine'")
        assert log.copy(cut, ["public.t", "public.u"]).left_out.keys() == {"public.t", "public.u"}

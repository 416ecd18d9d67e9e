"""DDL that no event reports: a drain makes the table stale, and a check does not carry its proof.

Both compare the table snapshot. Where the drain does not see the change in it, the fingerprint of the check differs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest

from tests.support_postgres import fingerprints
from tests.trap_world import PAIR, ROOT, World, world
from toolkit.capture import drift
from toolkit.decode import ddl
from toolkit.source import catalog, guard
from toolkit.values.config import TableConfig
from toolkit.values.modes import LogDrain, Triggers
from toolkit.values.table import TableVersion

__all__ = ["world"]
pytestmark = pytest.mark.postgres

_LOGGED = {"capture": "change_log", "change_log_drain": LogDrain.SLOT}
_DETACHED = "a partition was detached for a while"
_MOVED = "a part of the change log on the source was in another schema"
_PARTS = (
    "do $$ begin for n in 0..2 loop execute format('alter table {}.change_log_%s set schema {}', n); end loop; end $$"
)
_IN_ROOT = "for values from (0) to (10)"
#: A function of the change log that is another one for one row.
_SILENT = """
do $$ declare own text := pg_get_functiondef('cdc.log_row()'::regprocedure); begin
create or replace function cdc.log_row() returns trigger language plpgsql as 'begin return null; end';
insert into t values (7, 'unsent'); execute own; end $$
"""


def _exchanged(statement: str) -> list[str]:
    return [statement.format(one, new) for one, new in (("a", "other"), ("b", "a"), ("other", "b"))]


_COLUMNS = _exchanged("alter table t rename {} to {}")
_LABELS = _exchanged("alter type mood rename value '{}' to '{}'")


@dataclass(frozen=True)
class _Unseen:
    setup: tuple[str, ...]
    changes: tuple[str, ...]
    said: str | None  # words of the drain's reason; None: nothing that it compares says that rows changed
    source: dict[str, Any] = field(default_factory=dict)
    triggers: Triggers = Triggers.ROW
    compared: bool = True  # False: nothing of it is in the catalog, but the change itself shows it


_UNSEEN = {
    "a partition is detached for a while": _Unseen(
        ROOT,
        (
            "alter table r detach partition r1", "update r1 set v = 'unsent'",
            f"alter table r attach partition r1 {_IN_ROOT}",
        ),
        _DETACHED,
    ),
    "a partition of a partition is detached for a while": _Unseen(
        (
            ROOT[0], f"create table m partition of r {_IN_ROOT} partition by range (id)",
            f"create table r1 partition of m {_IN_ROOT}", *ROOT[2:],
        ),
        (
            "alter table m detach partition r1", "update r1 set v = 'unsent'",
            f"alter table m attach partition r1 {_IN_ROOT}",
        ),
        _DETACHED,
    ),
    "a table leaves the publication for a while": _Unseen(
        PAIR,
        ("alter publication cdc drop table t", "update t set v = 'unsent'", "alter publication cdc add table t"),
        "place in a publication was altered",
    ),
    "the triggers of a logged table are off for a while": _Unseen(
        PAIR,
        (
            "alter table t disable trigger all", "insert into t values (7, 'unsent')",
            'alter table t enable always trigger "!cdc_row"', 'alter table t enable always trigger "!cdc_truncate"',
        ),
        "triggers",
        _LOGGED,
    ),
    "the function of a trigger is another one for a while": _Unseen(PAIR, (_SILENT,), "DDL capture is off", _LOGGED),
    "the change log is in another schema for a while": _Unseen(
        PAIR,
        (
            "create schema far", "alter table cdc.change_log set schema far", "insert into t values (7, 'unsent')",
            "alter table far.change_log set schema cdc",
        ),
        _MOVED,
        _LOGGED,
    ),
    "the parts of the change log are in another schema for a while": _Unseen(
        PAIR,
        (
            "create schema far", _PARTS.format("cdc", "far"), "insert into t values (7, 'unsent')",
            _PARTS.format("far", "cdc"),
        ),
        _MOVED,
        _LOGGED,
    ),
    "the change log has another name for a while": _Unseen(
        PAIR,
        (
            "alter table cdc.change_log rename to far", "insert into t values (7, 'unsent')",
            "alter table cdc.far rename to change_log",
        ),
        "DDL capture was altered",
        _LOGGED,
    ),
    "a table has another replica identity for a while": _Unseen(
        (
            "create table t (id int primary key, o int not null)", "create unique index t_o on t (o)",
            "insert into t values (1, 5), (2, 6)",
        ),
        (
            "alter table t replica identity using index t_o", "update t set id = 3 where id = 1",
            "alter table t replica identity default",
        ),
        "identified by another replica identity",
        compared=False,
    ),
    "a partition has another replica identity for a while": _Unseen(
        (
            "create table r (id int primary key, o int not null) partition by range (id)",
            f"create table r1 partition of r {_IN_ROOT}", "create unique index r1_o on r1 (o)",
            "insert into r values (1, 5), (2, 6)", ROOT[-1],
        ),
        (
            "alter table r1 replica identity using index r1_o", "delete from r where id = 1",
            "alter table r1 replica identity default",
        ),
        "identified by another replica identity",
        compared=False,
    ),
    "two columns have each other's name for a while": _Unseen(
        ("create table t (id int primary key, a text, b text)", "insert into t values (1, 'a', 'b')"),
        (*_COLUMNS, "update t set a = 'of the second'", *_COLUMNS),
        "does not have these columns",
    ),
    "two labels of an enum have each other's name for a while": _Unseen(
        ("create type mood as enum ('a', 'b')", "create table t (id int primary key, m mood)"),
        (*_LABELS, "insert into t values (2, 'b')", *_LABELS),
        "a label of an enum was another one",
    ),
    "a label inside an array has another name for a while": _Unseen(
        ("create type mood as enum ('a', 'b')", "create table t (id int primary key, m mood[])"),
        (
            "alter type mood rename value 'a' to 'z'", "insert into t values (2, '{z}')",
            "alter type mood rename value 'z' to 'a'",
        ),
        "a label of an enum was another one",
    ),
    "a composite type has another attribute for a while": _Unseen(
        ("create type pair as (a int)", "create table t (id int primary key, p pair[])"),
        (
            "alter type pair add attribute b int", "insert into t values (2, array[(1, 2)::pair])",
            "alter type pair drop attribute b",
        ),
        "differs from the captured DDL in columns",
    ),
    "a partition loses the key of its root": _Unseen(
        (
            "create table r (id int primary key, o int not null) partition by range (id)",
            f"create table r1 partition of r {_IN_ROOT}", "create unique index r1_o on r1 (o)",
            "insert into r values (1, 5), (2, 6)", ROOT[-1],
        ),
        ("alter table r1 replica identity using index r1_o",),
        "strays",
    ),
    "a table with statement triggers has a parent for a while": _Unseen(
        (*PAIR, "create table p (id int not null, v text)"),
        ("alter table t inherit p", "update p set v = 'unsent'", "alter table t no inherit p"),
        None,
        _LOGGED,
        Triggers.STATEMENT,
    ),
    "a table is a partition of another one for a while": _Unseen(
        (
            *PAIR, "create table p (id int primary key, v text) partition by range (id)",
            "create publication cdc for tables in schema public with (publish_via_partition_root = true)",
        ),
        ("alter table p attach partition t default", "update p set v = 'unsent'", "alter table p detach partition t"),
        None,
    ),
    "a table without TOAST is unlogged for a while": _Unseen(
        (
            "create table t (id int primary key, v int)", "insert into t values (1, 1)",
            "create publication cdc for all tables",
        ),
        ("alter table t set unlogged", "update t set v = 0", "alter table t set logged"),
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)  # event_triggers came with PostgreSQL 17
@pytest.mark.parametrize("name", _UNSEEN)
def test_a_change_that_no_event_reports_is_found(world: World, name: str) -> None:
    """Each left a drain green, or the proof of a check, or both."""
    unseen = _UNSEEN[name]
    world.config = world.config.model_copy(update={"table": {"public.t": TableConfig(triggers=unseen.triggers)}})
    log = world.start(*unseen.setup, **unseen.source)
    log.drain()
    relid = world.relid("r" if "r1" in "".join(unseen.setup) else "t")
    before = fingerprints(log.conn)[relid]
    world.sql("set event_triggers = off", *unseen.changes, "reset event_triggers")
    assert (fingerprints(log.conn)[relid] != before) == unseen.compared
    log.drain()
    reason = {world.relid(table): why for table, why in world.stale().items()}.get(relid)
    assert (reason is None) if unseen.said is None else (unseen.said in (reason or "")), reason


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
@pytest.mark.parametrize("name", [name for name, unseen in _UNSEEN.items() if "the change log" in name])
def test_a_change_of_the_log_is_found_with_event_triggers_too(world: World, name: str) -> None:
    log = world.start(*PAIR, **_LOGGED)
    log.drain()
    relid, said = world.relid("t"), _UNSEEN[name].said
    before = fingerprints(log.conn)[relid]
    world.sql(*_UNSEEN[name].changes)
    assert fingerprints(log.conn)[relid] != before
    log.drain()
    assert said is not None and said in world.stale()["public.t"]
    log.repair("public.t")
    log.drain()
    world.exact("t")


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_a_detached_partition_is_found_in_a_log_of_an_earlier_version(world: World) -> None:
    """Its snapshots do not say when a partition was attached. The next drain adds that."""
    log = world.start(*ROOT)
    for event in (event for event in log.events if event["kind"] == "schema"):
        event["payload"] = json.dumps({k: v for k, v in json.loads(event["payload"]).items() if k != "places"})
    log.drain()
    assert world.stale() == {}
    world.sql("set event_triggers = off", *_UNSEEN["a partition is detached for a while"].changes)
    log.drain()
    assert _DETACHED in world.stale()["public.r"]


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_a_proof_is_carried_where_nothing_bypassed_the_log(world: World) -> None:
    log = world.start(*PAIR, *ROOT)
    log.drain()
    before = fingerprints(log.conn)
    world.sql(
        "insert into t values (3, 'z')", "update r set v = 'sent'", "analyze t, r", "vacuum t, r1", "reindex table t",
        "grant select on t, r, r1 to public", "alter table r1 set (fillfactor = 90)", "create index on t (v)",
        "create table other (id int primary key)",
    )  # fmt: skip
    log.drain()
    after = fingerprints(log.conn)
    assert {relid: after[relid] for relid in before} == before


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_all_that_a_drain_compares_is_in_the_fingerprint(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fact that one of two lists lacked was a drain that was green, or a proof that was carried."""
    enum = ("create type mood as enum ('a')", "create table m (id int primary key, m mood)")
    log = world.start(*PAIR, *enum, *ROOT, change_log_drain=LogDrain.SLOT, **{"capture": "change_log"})
    before, found, capture = fingerprints(log.conn), catalog.snapshot_json(log.conn), guard.capture_state(log.conn)
    monkeypatch.setattr(guard, "capture_state", lambda _: capture)
    monkeypatch.setattr(catalog, "snapshot_json", lambda _: found)
    monkeypatch.setattr(TableVersion, "from_json", lambda _: None)
    assert fingerprints(log.conn) == before
    keys = {(relid, key) for relid, text in found.items() for key in json.loads(text)}
    assert {key for _, key in keys} >= {*drift._APART, *ddl.OF_THE_LOG, "triggers"} - {"kept"}
    for relid, key in keys:
        text = found[relid]
        found[relid] = json.dumps(json.loads(text) | {key: [key]})
        after = fingerprints(log.conn)
        assert {r for r in before if after[r] != before[r]} == {relid}, key
        found[relid] = text
    own = capture
    for fact in fields(own):
        another: dict[str, Any] = {fact.name: "another"}
        capture = replace(own, **another)
        after = fingerprints(log.conn)
        assert all(after[r] != before[r] for r in before), fact.name

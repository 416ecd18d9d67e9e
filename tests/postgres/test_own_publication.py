"""What the toolkit adds to its own publication: nothing excluded, and nothing of which writes would fail."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from tests.trap_world import World
from toolkit.ops import alerts
from toolkit.source import change_log, install, preflight, selection
from toolkit.source.connection import connect
from toolkit.values.config import TableConfig
from toolkit.values.errors import PreflightFailed
from toolkit.values.modes import Capture

pytestmark = pytest.mark.postgres

_ROOT = (
    "create table r (id int primary key, v text) partition by range (id)",
    "create table r1 partition of r for values from (0) to (10)",
    "create table r2 partition of r for values from (10) to (20)",
    "insert into r values (1, 'a'), (11, 'b')",
)
_KEYLESS = (
    "create table k (id int, v text) partition by range (id)",
    "create table k1 partition of k for values from (0) to (10)",
    "create table k2 partition of k for values from (10) to (20)",
    "alter table k1 replica identity full",
    "insert into k values (1, 'a'), (11, 'b')",
)
_FAMILY = (
    "create table parent (id int primary key, v text)",
    "create table child () inherits (parent)",
    "create table other (primary key (id)) inherits (parent)",
    "insert into parent values (1, 'p')",
    "insert into child values (2, 'c')",
    "insert into other values (3, 'o')",
)


def _sent(world: World) -> set[str]:
    """Tables whose rows the publication sends."""
    with psycopg.connect(world.config.source.conninfo) as conn:
        found = conn.execute("select tablename::text from pg_publication_tables where pubname = 'cdc'").fetchall()
    return {name for (name,) in found}


def _named(world: World) -> set[str]:
    """Tables that the publication names itself."""
    with psycopg.connect(world.config.source.conninfo) as conn:
        found = conn.execute("select prrelid::regclass::text from pg_publication_rel").fetchall()
    return {name for (name,) in found}


def _left_out(world: World) -> dict[str, str]:
    return {r.name: why for r, why in selection.left_out(world.log.conn, world.config.capture_rules).items()}


def _init(world: World) -> None:
    """Install again, as `cdc init` does."""
    preflight.require(world.log.conn, world.config.capture_rules, ddl=world.config.ddl)
    install.install(world.log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=3)


def test_a_root_whose_partitions_may_all_be_sent_is_named_itself(world: World) -> None:
    world.start(*_ROOT)
    assert (_named(world), _sent(world)) == ({"r"}, {"r1", "r2"})
    world.sql("create table r3 partition of r for values from (20) to (30)", "insert into r values (21, 'c')")
    world.log.drain()
    world.exact("r1", "r2", "r3")


def test_trap_051_a_partition_without_replica_identity_is_left_out_although_its_root_is_selected(world: World) -> None:
    """`cdc init` named it as left out and published its root with it: UPDATE and DELETE of the application failed."""
    world.start(*_KEYLESS)
    assert _sent(world) == {"k1"} and _left_out(world) == {
        "k2": "has no replica identity: once published, the application's UPDATE and DELETE would fail"
    }
    world.sql("update k set v = 'z'", "delete from k where id = 11")
    world.log.drain()
    world.exact("k1")
    assert world.stale() == {"public.k": "1 of its partitions is not captured"}
    assert set(selection.not_captured(world.log.conn, world.config.capture_rules, ticks=False)) == {"public.k2"}
    world.sql("alter table k2 replica identity full")
    _init(world)
    assert (_named(world), _left_out(world)) == ({"k1", "k2"}, {})


def test_trap_051_a_root_without_primary_key_does_not_bring_the_partitions_of_the_future(world: World) -> None:
    """REPLICA IDENTITY is not inherited: a new partition would have none."""
    world.start(*_KEYLESS, "alter table k2 replica identity full", "alter table k replica identity full")
    assert (_named(world), _left_out(world)) == ({"k1", "k2"}, {})
    assert preflight.preflight(world.log.conn, world.config.capture_rules, ddl=world.config.ddl) == ()
    world.sql(
        "create table k3 partition of k for values from (20) to (30)", "insert into k values (21, 'c')",
        "update k set v = 'z'",
    )  # fmt: skip
    world.log.drain()
    world.exact("k1", "k2")
    assert world.stale() == {"public.k": "its partition public.k3 is not captured"}


def test_a_partition_that_is_excluded_is_not_published_with_its_root(world: World) -> None:
    world.start(*_ROOT, exclude=("public.r2",))
    assert (_named(world), _left_out(world)) == ({"r1"}, {})
    world.log.drain()
    assert world.stale() == {"public.r": "1 of its partitions is not captured"} and "r2" not in world.findings()


def test_a_partition_that_triggers_capture_is_not_published_with_its_root(world: World) -> None:
    world.config = world.config.model_copy(update={"table": {"public.r2": TableConfig(capture=Capture.CHANGE_LOG)}})
    world.start(*_ROOT)
    assert _named(world) == {"r1", "cdc.change_log"}
    world.sql("insert into r values (2, 'c'), (12, 'd')")
    world.log.drain()
    world.exact("r1", "r2")


def test_partitions_of_partitions_are_named_where_their_root_is_not(world: World) -> None:
    world.start(
        "create table a (id int primary key, v text) partition by range (id)",
        "create table b partition of a for values from (0) to (10) partition by range (id)",
        "create table b1 partition of b for values from (0) to (5)",
        "create table c partition of a for values from (10) to (20) partition by range (id)",
        "create table c1 partition of c for values from (10) to (15)",
        exclude=("public.c1",),
    )
    assert (_named(world), _sent(world)) == ({"b"}, {"b1"})


@pytest.mark.parametrize(
    ("setup", "chosen", "refusal"),
    [
        (_KEYLESS, {"tables": ("public.k",)}, "table public.k2: has no replica identity.*run: alter table public.k2"),
        (_KEYLESS, {"tables": ("public.*", "public.k")}, "table public.k2: has no replica identity"),
        (
            _ROOT,
            {"tables": ("public.r",), "exclude": ("public.r2",)},
            "table public.r: is named by .source. tables, and would bring its partition public.r2, which is in .source."
            " exclude, into publication 'cdc'; name its other partitions",
        ),
    ],
)
def test_a_root_that_is_named_in_full_is_refused_if_it_brings_what_it_must_not(
    world: World, setup: tuple[str, ...], chosen: dict[str, tuple[str, ...]], refusal: str
) -> None:
    world.sql(*setup)
    config = world.config.model_copy(update={"source": world.config.source.model_copy(update=chosen)})
    with (
        connect(config.source) as conn,
        pytest.raises(PreflightFailed, match=refusal),
    ):
        preflight.require(conn, config.capture_rules, ddl=config.ddl)


def test_a_root_that_is_named_in_full_is_published_with_a_warning_if_it_has_no_primary_key(world: World) -> None:
    world.start(*_KEYLESS, "alter table k2 replica identity full", tables=("public.k",))
    assert (_named(world), _sent(world)) == ({"k"}, {"k1", "k2"})
    assert (
        "table public.k: has no primary key, so its new partitions have no replica identity: UPDATE" in world.findings()
    )


@pytest.mark.parametrize(
    ("setup", "name", "exclude", "found"),
    [
        (
            _KEYLESS,
            "k",
            (),
            "has no primary key, so its new partitions have no replica identity: once published, the application's"
            " UPDATE and DELETE would fail",
        ),
        (_ROOT, "r", ("public.r2",), "its partition public.r2 is in [source] exclude"),
    ],
)
def test_a_root_that_no_partition_of_the_selection_stands_for_is_left_out_by_name(
    world: World, setup: tuple[str, ...], name: str, exclude: tuple[str, ...], found: str
) -> None:
    world.start(*setup, tables=("public.?",), exclude=exclude)
    assert _sent(world) == set()
    assert _left_out(world) == {name: found}
    assert f"table public.{name}: {found}; name its partitions in [source] tables" in world.findings()


@pytest.mark.parametrize("moved", [False, True])
def test_a_partition_that_is_excluded_later_leaves_with_its_root_at_the_next_init(world: World, moved: bool) -> None:
    """It was captured until a statement that only `cdc doctor` named was run by hand."""
    world.sql("create schema aside")
    log = world.start(*_ROOT, "create table aside.r3 partition of r for values from (20) to (30)")
    if moved:  # the patterns do not select the root any more
        world.sql("alter table r set schema aside")
    source = world.config.source.model_copy(update={"exclude": ("public.r2",)})
    log.config = world.config = world.config.model_copy(update={"source": source})
    brings = "brings its partition public.r2, which is in [source] exclude, into publication 'cdc'"
    assert moved or f"table public.r: {brings}: it is captured all the same; run `cdc init`" in world.findings()
    _init(world)
    assert _named(world) == {"r1", "aside.r3"} and "r2" not in world.findings()
    world.sql(
        "insert into r2 values (12, 'secret')", "insert into r1 values (2, 'b')", "insert into aside.r3 values (22)"
    )
    log.drain()
    world.exact("r1")
    third = world.relid("aside.r3")  # no pattern selects it, and it was in it all the time
    assert log.states()["aside.r3"].comparable and log.rows(third, log.complete_to) == log.select(third)
    assert "secret" not in str(log.events)


def test_a_root_that_a_publication_of_others_has_stays_there(world: World) -> None:
    world.start(*_ROOT, "create publication cdc for table r")
    source = world.config.source.model_copy(update={"exclude": ("public.r2",)})
    world.config = world.config.model_copy(update={"source": source})
    found = world.findings()
    assert 'run: alter publication "cdc" drop table public.r, then `cdc init`' in found
    _init(world)
    assert _named(world) == {"r"}
    world.sql('alter publication "cdc" drop table public.r')
    _init(world)
    assert _named(world) == {"r1"} and "r2" not in world.findings()


def test_a_root_that_lost_its_primary_key_is_replaced_by_its_partitions(world: World) -> None:
    """Its new partitions have no replica identity, so their UPDATE and DELETE failed."""
    world.start(*_ROOT)
    world.sql("alter table r drop constraint r_pkey", "alter table r1 replica identity full")
    found = {a.what: a.remedy for a in alerts.of_writes(world.log.conn, world.config.source)}
    assert found.keys() == {"table public.r", "table public.r2"} and "or run `cdc init`" in found["table public.r"]
    _init(world)
    assert _named(world) == {"r1", "r2"}  # r2 was in it, and is named by an alert
    world.sql(
        "create table r3 partition of r for values from (20) to (30)", "insert into r values (21, 'c')",
        "update r set v = 'z' where id = 21",
    )  # fmt: skip
    assert [a.what for a in alerts.of_writes(world.log.conn, world.config.source)] == ["table public.r2"]


def test_a_table_that_is_excluded_later_leaves_the_publication_at_the_next_init(world: World) -> None:
    """It was captured all the same until a statement that only `cdc doctor` named was run by hand."""
    log = world.start(*_FAMILY, *_ROOT, "alter table child replica identity full")
    world.sql("insert into child values (4, 'in the log')")
    source = world.config.source.model_copy(update={"exclude": ("public.child", "public.r")})
    world.config = world.config.model_copy(update={"source": source})
    log.config = world.config
    assert "'cdc', and [source] does not name it: it is captured all the same; run `cdc init`" in world.findings()
    _init(world)
    assert _named(world) == {"parent", "other", "r1", "r2"} and "captured all the same" not in world.findings()
    world.sql("insert into child values (5, 'secret')", "insert into r values (2, 'b'), (12, 'c')")
    log.drain()
    world.exact("parent", "other", "r1", "r2")  # the partitions were in it all the time
    assert "public.child" not in log.states()
    assert "secret" not in str(log.events)


def test_a_table_that_triggers_capture_loses_them_when_it_is_excluded(world: World) -> None:
    """They went on logging its rows."""
    world.config = world.config.model_copy(update={"table": {"public.?": TableConfig(capture=Capture.CHANGE_LOG)}})
    world.start("create table t (id int primary key)", "create table u (id int primary key)")
    source = world.config.source.model_copy(update={"exclude": ("public.t",)})
    world.config = world.config.model_copy(update={"source": source})
    _init(world)
    change_log.settle(world.log.conn, world.config.capture_rules, lock_seconds=3)
    assert change_log.triggered(world.log.conn) == {world.relid("u")}


def test_a_table_that_is_excluded_is_not_moved_to_triggers(world: World) -> None:
    """`cdc init` asked for a copy of it, which no published table was there for, and ended with an error."""
    world.start("create table t (id int primary key)", "create table u (id int primary key)")
    rules = world.config.capture_rules
    logged = replace(rules, table={"public.?": TableConfig(capture=Capture.CHANGE_LOG)})
    assert change_log.moving(world.log.conn, logged) == ("public.t", "public.u")
    source = rules.source.model_copy(update={"exclude": ("public.t",)})
    assert change_log.moving(world.log.conn, replace(logged, source=source)) == ("public.u",)


def test_a_publication_of_others_keeps_a_table_that_is_excluded(world: World) -> None:
    world.start(
        "create table t (id int primary key)",
        "create table u (id int primary key)",
        "create publication cdc for table t",
    )
    source = world.config.source.model_copy(update={"exclude": ("public.t",)})
    world.config = world.config.model_copy(update={"source": source})
    _init(world)
    assert _named(world) == {"t", "u"}
    assert 'run: alter publication "cdc" drop table only public.t' in world.findings()


def test_trap_051_children_by_inheritance_do_not_come_with_their_parent(world: World) -> None:
    """ADD TABLE without ONLY adds them: an excluded one, and one without the primary key, which is not inherited."""
    world.start(*_FAMILY, exclude=("public.other",))
    assert _sent(world) == {"parent"} and set(_left_out(world)) == {"child"}
    world.sql("update parent set v = 'z'", "delete from parent where id = 2")
    world.log.drain()
    world.exact("parent")


def test_a_parent_that_leaves_the_publication_leaves_its_children_there(world: World) -> None:
    world.start(*_FAMILY, exclude=("public.child",))
    assert _sent(world) == {"parent", "other"}
    world.config = world.config.model_copy(update={"table": {"public.parent": TableConfig(capture=Capture.CHANGE_LOG)}})
    _init(world)
    change_log.settle(world.log.conn, world.config.capture_rules, lock_seconds=3)
    assert _named(world) == {"other", "cdc.change_log"}


def test_a_new_child_by_inheritance_is_published_by_its_own_pattern(world: World) -> None:
    world.start("create table t (id int primary key)", tables=("*.*",), exclude=("*.tmp_*",), new_tables="publish")
    world.sql(
        "create schema s create table parent (id int primary key) create table tmp_child () inherits (s.parent)",
        "insert into s.tmp_child values (1)", "update s.tmp_child set id = 2",
    )  # fmt: skip
    assert _sent(world) == {"t", "parent"}


@pytest.mark.parametrize(
    ("setup", "tables", "then", "found"),
    [
        (_ROOT, ("public.*",), "alter table r drop constraint r_pkey", "table public.r1: has no replica identity"),
        (
            _ROOT,
            ("public.*",),
            "alter table r2 replica identity nothing",
            "table public.r2: has REPLICA IDENTITY NOTHING",
        ),
        (
            (*_KEYLESS, "alter table k2 replica identity full"),
            ("public.k",),
            "create table k3 partition of k for values from (20) to (30)",
            "table public.k3: has no replica identity",
        ),
        (
            ("create table t (id int primary key, v text)",),
            ("public.*",),
            "alter publication cdc set table t where (v <> 'x')",
            "table public.t: is in publication 'cdc' by a row filter on v",
        ),
    ],
)
def test_an_alert_names_a_table_of_which_writes_fail_since_then(
    world: World, setup: tuple[str, ...], tables: tuple[str, ...], then: str, found: str
) -> None:
    """The application meets an error at its next UPDATE. Only `cdc doctor` said why."""
    world.start(*setup, tables=tables)
    assert list(alerts.of_writes(world.log.conn, world.config.source)) == []
    world.sql(then)
    (alert,) = (a for a in map(str, alerts.of_writes(world.log.conn, world.config.source)) if a.startswith(found))
    assert "UPDATE and DELETE fail on the source" in alert


def test_publications_of_others_are_no_reason_for_an_alert(world: World) -> None:
    world.start(
        "create table t (v text)", "create publication theirs for table t", publication="theirs", scope="published"
    )
    assert list(alerts.of_writes(world.log.conn, world.config.source)) == []


@pytest.mark.parametrize("tables", [("public.*",), ("public.*", "public.r"), ("public.?",)])
def test_a_published_table_that_lost_its_key_does_not_stop_init(world: World, tables: tuple[str, ...]) -> None:
    """It refused to add any other table until it had a key again: nothing gets worse by adding them."""
    world.start(*_ROOT, tables=tables)
    world.sql("alter table r2 replica identity nothing", "create table t (id int primary key)")
    _init(world)
    assert _named(world) == {"r", "t"}
    assert "table public.r2: has REPLICA IDENTITY NOTHING: " in world.findings()

"""Several publications: the log says what the server merges, on every server; what cannot be merged is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support_log import Log
from tests.support_postgres import mostly_one_server
from tests.trap_world import PAIR, World
from toolkit.capture import drift, same_history
from toolkit.demo.server import EmbeddedServer
from toolkit.rawlog.batch import BatchRecord
from toolkit.source import catalog, install, preflight, selection, slot
from toolkit.source.connection import connect
from toolkit.values.config import TableConfig
from toolkit.values.errors import HistoryDiverged, PreflightFailed, UnreadableChange
from toolkit.values.modes import Capture

pytestmark = pytest.mark.postgres

TABLE = (
    "create table t (id int primary key, n int, v text)", "alter table t replica identity full",
    "insert into t values (1, 1, 'x'), (2, 20, 'y'), (3, 300, 'z')",
)  # fmt: skip
#: Rows that come into filters over n, and leave them, in both directions.
WRITES = (
    "insert into t values (4, 4, 'a'), (5, 50, 'b'), (6, 600, 'c')", "update t set n = 60 where id = 1",
    "update t set n = 7 where id = 5", "update t set n = n + 1", "update t set n = 800 where id = 2",
    "delete from t where id in (3, 4)", "update t set v = v || '!'",
)  # fmt: skip
WHOLE = "insert, update, delete, truncate"


def theirs(world: World, *setup: str, names: tuple[str, ...] = ("a", "b")) -> Log:
    return world.start(*setup, scope="published", publication=names)


def _refused(world: World, *setup: str, names: tuple[str, ...] = ("a", "b")) -> str:
    world.sql(*setup)
    source = world.config.source.model_copy(update={"scope": "published", "publication": names})
    config = world.config.model_copy(update={"source": source})
    with connect(config.source) as conn:
        with pytest.raises(PreflightFailed) as refusal:
            install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
        assert not catalog.installed(conn)
    return str(refusal.value)


@pytest.mark.parametrize(
    "publications",
    [
        ("for table t where (n < 10)", "for table t where (n > 100)"),
        ("for table t where (n < 10)", "for table t"),
        ("for table t where (n < 10)", "for tables in schema public"),
        ("for table t where (n < 10)", "for all tables"),
        ("for table t where (n < 10)", "for table t where (n < 10)"),
        ("for table t", "for table t with (publish = 'insert')"),
        ("for table t with (publish = 'insert, update')", "for table t with (publish = 'delete, truncate')"),
        ("for table t where (n < 10)", "for table t with (publish = 'truncate')"),
        (
            "for table t where (n < 10) with (publish = 'insert, delete')",
            "for table t where (n < 10) with (publish = 'update, truncate')",
        ),
        ("for table t (id, n)", "for table t (n, id)"),
    ],
)
def test_a_table_in_two_publications_is_what_the_server_merges(world: World, publications: tuple[str, str]) -> None:
    if "(id, n)" in publications[0]:  # updates need the identity in the list
        world.sql(*TABLE, "alter table t replica identity default")
    else:
        world.sql(*TABLE)
    log = theirs(world, "create publication a " + publications[0], "create publication b " + publications[1])
    log.drain()
    world.exact("t")
    world.sql(*WRITES)
    log.drain()
    world.exact("t")
    world.sql("alter table t add column later int default 9", "insert into t values (7, 8, 'l', 1), (8, 80, 'l', 2)")
    world.sql("alter table t rename column v to w", *(w.replace("v = v", "w = w") for w in WRITES[1:5]))
    log.drain()
    world.exact("t")
    assert log.of("gap") == []
    world.sql("truncate t", "insert into t values (1, 1, 'after', 0)")
    log.drain()
    world.exact("t")
    assert log.states()["public.t"].state == "ok"
    assert [
        f
        for f in preflight.preflight(log.conn, world.config.capture_rules, ddl=world.config.ddl)
        if "is published without" not in f.found
    ] == []


def test_a_filter_beside_the_tables_own_schema_does_not_count(world: World) -> None:
    """The server ignores it, and the snapshot once read by it: rows that were there before were missing."""
    setup = (*TABLE, "create publication a for table t where (n > 10), tables in schema public")
    log = theirs(world, *setup, names=("a",))
    assert len(log.rows(world.relid("t"), log.complete_to)[1]) == 3
    world.sql(*WRITES)
    log.drain()
    world.exact("t")


_LISTS = ("create publication a for table t (id, n)", "create publication b for table t (id, v)")


@mostly_one_server
@pytest.mark.parametrize(
    ("publications", "found"),
    [
        (_LISTS, "column lists differ between publications a, b"),
        ((_LISTS[0], "create publication b for table t"), "column lists differ between publications a, b"),
        (
            ("create publication a for table t (id, n, v)", "create publication b for all tables"),
            "column lists differ between publications a, b",  # the next ADD COLUMN would part them
        ),
        (
            (
                "create publication a for table t where (n < 10)",
                "create publication b for table t with (publish = 'insert')",
            ),
            "row filters of its inserts, updates and deletes differ between publications a, b",
        ),
        (
            (
                "create publication a for table t where (n < 10) with (publish = 'insert, truncate')",
                "create publication b for table t where (n < 20) with (publish = 'update, delete')",
            ),
            "row filters of its inserts, updates and deletes differ between publications a, b",
        ),
        (
            ("create publication a for table t with (publish = 'insert')", "create publication b for table u"),
            "no publication sends delete, truncate, update of it",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_merged_is_refused_by_name(world: World, publications: Sequence[str], found: str) -> None:
    text = _refused(world, *TABLE, "create table u (id int primary key)", *publications)
    assert text.startswith(f"table public.t: {found}; ")
    assert "alter publication" in text and text.endswith("nothing was changed on the source")


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)  # the first that can publish them
def test_generated_columns_that_only_one_publishes_are_refused_by_name(world: World) -> None:
    text = _refused(
        world, "create table t (id int primary key, g int generated always as (id + 1) virtual)",
        "create table u (id int)", "alter table u replica identity full",
        "create publication a for table t, u with (publish_generated_columns = stored)",
        "create publication b for table t, u",
    )  # fmt: skip
    assert text.startswith("table public.t: publish_generated_columns differ between publications a, b; ")


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)  # the first that can publish them
def test_generated_columns_that_both_publish_are_captured(world: World) -> None:
    log = theirs(
        world, "create table t (id int primary key, g int generated always as (id + 1) stored)",
        "insert into t values (1)",
        *(f"create publication {p} for table t with (publish_generated_columns = stored)" for p in "ab"),
    )  # fmt: skip
    world.sql("insert into t values (2)", "update t set id = 5 where id = 1")
    log.drain()
    world.exact("t")
    assert log.rows(world.relid("t"), log.complete_to)[0] == (1, 2)


@pytest.mark.parametrize(
    ("breaks", "found", "mends"),
    [
        (
            "alter publication b set table t (id, n), u", "column lists differ between publications a, b",
            "alter publication b set table t, u",
        ),
        (
            "alter publication b set (publish = 'insert')", "row filters of its inserts, updates and deletes differ",
            f"alter publication b set (publish = '{WHOLE}')",
        ),
    ],
)  # fmt: skip
def test_what_comes_to_differ_later_is_red_by_name(world: World, breaks: str, found: str, mends: str) -> None:
    one = "create publication a for table t"
    log = theirs(
        world, *TABLE, "create table u (id int primary key)",
        one if "lists" in found else f"{one} where (n < 10)", "create publication b for table t, u",
    )  # fmt: skip
    world.sql("insert into u values (1)", breaks)
    log.drain()
    state = log.states()["public.t"]
    assert state.state == "stale" and found in (state.reason or "") and "alter publication" in (state.remedy or "")
    assert any(
        f.what == "table public.t" and found in f.found
        for f in preflight.preflight(log.conn, world.config.capture_rules, ddl=world.config.ddl)
    )
    log.repair("public.t")  # the rows are right, and the next change would not be
    assert found in (log.states()["public.t"].reason or "")
    assert not log.states()["public.t"].comparable
    world.sql(mends)
    log.drain()
    assert not log.states()["public.t"].comparable
    log.repair("public.t", *(["public.u"] if "publish" in breaks else []))
    world.sql(*WRITES, "insert into u values (2)")
    log.drain()
    world.exact("t", "u")


def test_column_lists_that_part_under_a_writer_stop_the_drain_by_name(world: World) -> None:
    log = theirs(world, *TABLE, "create publication a for table t", "create publication b for table t")
    before = log.complete_to
    world.sql("alter publication b set table t (id, n)", "insert into t values (9, 9, 'unreadable')")
    with pytest.raises(UnreadableChange, match=r'different column lists for table "public.t".* at [0-9A-F]+/.*--skip'):
        log.drain()
    assert log.complete_to == before


def test_leaving_one_of_two_is_red_only_where_it_changes_what_comes(world: World) -> None:
    log = theirs(
        world, *TABLE, "create table u (id int primary key)", "create table w (id int primary key)",
        "create publication a for table t where (n < 10), u", "create publication b for table t, u, w",
    )  # fmt: skip
    world.sql(*WRITES, "insert into u values (1)", "alter publication b drop table u", "insert into u values (2)")
    world.sql("insert into w values (1)")
    log.drain()
    world.exact("t", "u", "w")
    assert world.stale() == {} and log.of("gap") == []
    world.sql("alter publication b drop table t", "insert into t values (9, 900, 'unexplained')")
    world.sql("alter publication b drop table w", "insert into w values (2)")
    log.drain()
    assert world.stale() == {
        "public.t": "row filter of the publication changed", "public.w": "it left the publication"
    }  # fmt: skip
    assert 'alter publication "a" or "b" add table public.w, then cdc repair' in (log.states()["public.w"].remedy or "")
    log.repair("public.t")
    world.sql(*(w.replace("(4, 4", "(14, 4").replace("(5, ", "(15, ").replace("(6, ", "(16, ") for w in WRITES))
    log.drain()
    world.exact("t", "u")
    world.sql("alter publication a add table w", "insert into w values (3)")
    log.drain()
    assert not log.states()["public.w"].comparable
    log.repair("public.w")
    world.sql("alter publication a drop table u", "alter publication b add table u", "insert into u values (3)")
    log.drain()
    assert set(world.stale()) == {"public.u"}  # what was written in between came through none
    log.repair("public.u")
    world.exact("t", "u", "w")


@pytest.mark.parametrize("again", [False, True])
def test_a_publication_of_several_that_is_dropped_is_another_history(world: World, again: bool) -> None:
    log = theirs(world, *PAIR, "create publication a for table t", "create publication b for table t")
    at = log.complete_to
    last = BatchRecord(1, 1, at, at, at, "slot", world.config.source.slot, log.identity, 0)
    world.sql("drop publication b", "insert into t values (3, 'through a alone')")
    if again:
        world.sql("create publication b for table t")
    with pytest.raises(HistoryDiverged, match=r"publication 'b'.*--new-generation"):
        same_history.require_same_history(
            world.config.source,
            last,
            catalog.read_identity(log.conn, world.config.capture_rules),
            at,
            slot.flush_lsn(log.conn),
        )


def test_a_publication_that_is_dropped_while_the_log_is_read_is_red(
    world: World, pg: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes between the drain's look at the publications and its reading; the next drain refuses."""
    log = theirs(
        world, *TABLE, "create table u (id int primary key)", "create publication a for table t where (n < 10)",
        "create publication b for table t, u",
    )  # fmt: skip
    observe = drift.observe

    def late(*args: Any) -> drift.Observation | None:
        world.sql("drop publication b", "insert into t values (9, 900, 'unexplained')", "insert into u values (1)")
        return observe(*args)

    monkeypatch.setattr(drift, "observe", late)
    if pg.major < 18:
        with pytest.raises(PreflightFailed, match=r'publication "b" does not exist.*--new-generation'):
            log.drain()
    else:
        log.drain()
        assert set(world.stale()) == {"public.t", "public.u"}
    with pytest.raises(HistoryDiverged, match="publication 'b' does not exist on the source"):
        log.drain()


def test_the_first_is_the_toolkits_own_and_others_add_what_they_hold(world: World) -> None:
    world.sql(
        *TABLE, "create schema s", "create table s.u (id int primary key)", "create table kept (id int primary key)",
        "create publication ops for table s.u, t where (n > 10)",
    )  # fmt: skip
    declared = "select p.xmin, (select array_agg(r.xmin) from pg_publication_rel r where r.prpubid = p.oid)"
    declared += " from pg_publication p where pubname = 'ops'"
    before = world.user.execute(declared).fetchall()
    log = world.start(publication=("cdc", "ops"), tables=("public.*",), exclude=("public.kept",))
    assert set(log.states()) == {"public.t", "s.u"}
    assert {r.identifier for r in selection.selected_relations(log.conn, world.config.capture_rules)} == {
        "public.t",
        "s.u",
    }
    assert preflight.preflight(log.conn, world.config.capture_rules, ddl=world.config.ddl) == ()
    world.sql(*WRITES, "insert into s.u values (1)", "create table later (id int primary key)")
    log.drain()
    world.exact("t")  # its own has no filter, so there is none
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    own = catalog.own_publication(log.conn, world.config.source)
    assert own is not None and own.relids == {world.relid("t"), world.relid("later")}
    world.sql("alter publication ops drop table s.u")
    log.drain()
    assert log.states()["s.u"].reason == "it left the publication"
    assert 'alter publication "ops" add table s.u' in (log.states()["s.u"].remedy or "")
    listed = "create table listed (id int primary key, v text)"
    world.sql(listed, "alter publication ops add table listed (id)")
    with pytest.raises(PreflightFailed, match=r"public.listed: column lists differ .* \[source\] exclude"):
        install.install(
            log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
        )
    without = world.config.source.model_copy(update={"exclude": ("public.kept", "public.listed")})
    world.config = world.config.model_copy(update={"source": without})
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    log.drain()
    assert not log.states()["public.listed"].comparable  # captured as `ops` has it, once it is copied
    world.sql("alter publication ops add table s.u", "alter publication cdc drop table t")
    log.drain()
    assert "row filter" in world.stale()["public.t"]
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    log.drain()
    log.repair("public.t", "s.u")
    world.exact("t")
    world.sql("alter publication ops drop table s.u, t", "alter publication ops add table t where (n > 10), s.u")
    before = world.user.execute(declared).fetchall()
    install.uninstall(log.conn, world.config.source, lock_seconds=world.config.snapshot.lock_seconds)
    assert world.user.execute("select array_agg(pubname::text) from pg_publication").fetchone() == (["ops"],)
    assert world.user.execute(declared).fetchall() == before


@mostly_one_server
def test_publications_that_are_missing_are_named_each(world: World) -> None:
    world.sql(*PAIR, "create publication b for table t")
    source = world.config.source.model_copy(update={"publication": ("a", "b", "c"), "scope": "published"})
    config = world.config.model_copy(update={"source": source})
    with connect(config.source) as conn:
        errors = [str(f) for f in preflight.preflight(conn, config.capture_rules, ddl=config.ddl) if f.level == "error"]
        assert [e.split(";")[0] for e in errors] == [
            "publication 'a': does not exist",
            "publication 'c': does not exist",
        ]
        assert 'create publication "c" with the tables' in errors[1]
        tables = config.model_copy(update={"source": source.model_copy(update={"scope": "tables"})})
        errors = [str(f) for f in preflight.preflight(conn, tables.capture_rules, ddl=tables.ddl) if f.level == "error"]
        assert [e.split(";")[0] for e in errors] == ["publication 'c': does not exist"]  # `cdc init` makes the first
        with pytest.raises(HistoryDiverged, match="publication 'a' does not exist"):
            catalog.read_identity(conn, config.capture_rules)


def test_what_is_altered_while_the_list_changes_is_red(world: World) -> None:
    """A table that leaves one publication and comes back looks as before to the event triggers of another list."""
    log = theirs(
        world, *PAIR, "create table u (id int primary key)", "create table w (id int primary key)",
        "create publication a for table t, u", "create publication b for table t, u, w", names=("a",),
    )  # fmt: skip
    source = world.config.source.model_copy(update={"publication": ("a", "b")})
    install.install(
        log.conn,
        world.config.model_copy(update={"source": source}).capture_rules,
        ddl=world.config.model_copy(update={"source": source}).ddl,
        lock_seconds=world.config.model_copy(update={"source": source}).snapshot.lock_seconds,
    )
    world.sql(
        "alter publication a drop table t", "insert into t values (3, 'unexplained')", "alter publication a add table t"
    )
    world.sql("create table later (id int primary key)", "insert into u values (1)")
    log.drain(upto=slot.flush_lsn(log.conn))  # still through the old list, as `handover.to_publications` does
    assert set(world.stale()) == {"public.t"} and "while [source] publication changed" in world.stale()["public.t"]
    world.exact("u")
    log.config = world.config = world.config.model_copy(update={"source": source})
    log.commit(identity=catalog.read_identity(log.conn, world.config.capture_rules))
    log.drain()
    assert "public.w" in world.stale()  # it has no baseline
    log.repair("public.t", "public.w")
    world.exact("t", "u", "w")


def test_ddl_of_any_of_the_publications_is_captured(world: World) -> None:
    log = theirs(
        world, *PAIR, "create schema s", "create table s.u (id int primary key)",
        "create publication a for table t", "create publication b for tables in schema s",
        "create publication not_ours for table t",
    )  # fmt: skip
    world.sql("create table s.born (id int primary key)", "insert into s.born values (1)", "insert into s.u values (1)")
    world.sql("alter publication not_ours drop table t", "drop publication not_ours")
    log.drain()
    assert {name: s.state for name, s in log.states().items()} == dict.fromkeys(("public.t", "s.u", "s.born"), "ok")
    world.sql("alter publication a add tables in schema s", "alter publication b drop tables in schema s")
    world.sql("insert into s.born values (2)")
    log.drain()
    assert world.stale() == {}
    assert log.rows(world.relid("s.born"), log.complete_to) == log.select(world.relid("s.born"))
    world.sql("alter table s.u set schema public", "insert into public.u values (2)")
    log.drain()
    assert world.stale() == {"public.u": "it left the publication"}
    world.sql("alter publication b add table u", "alter publication a drop tables in schema s")
    log.drain()
    assert world.stale()["s.born"] == "it left the publication" and "public.u" in world.stale()
    log.repair("public.u")
    world.sql("insert into u values (3)", "alter publication b rename to c")
    with pytest.raises(HistoryDiverged, match="publication 'b' does not exist"):
        log.drain()


def test_the_change_log_and_a_publication_of_others_would_both_bring_a_row(world: World) -> None:
    world.sql(*PAIR, "create publication ops for table t")
    logged = world.config.model_copy(update={"table": {"public.t": TableConfig(capture=Capture.CHANGE_LOG)}})
    config = logged.model_copy(update={"source": logged.source.model_copy(update={"publication": ("cdc", "ops")})})
    with connect(config.source) as conn:
        preflight.require(conn, logged.capture_rules, ddl=logged.ddl)
        with pytest.raises(PreflightFailed, match=r'public.t: has capture = "change_log" and is in a publication of'):
            preflight.require(conn, config.capture_rules, ddl=config.ddl)


@pytest.mark.parametrize("how", ["before", "again", "init"])
def test_uninstall_drops_no_publication_that_init_has_not_made(world: World, how: str) -> None:
    world.sql(*PAIR)
    if how == "before":
        world.sql("create publication cdc")
    log = world.start()
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    if how == "again":
        world.sql("drop publication cdc", "create publication cdc for table t")
    install.uninstall(log.conn, world.config.source, lock_seconds=world.config.snapshot.lock_seconds)
    left = world.user.execute("select array_agg(pubname::text) from pg_publication").fetchone()
    assert left == ((None,) if how == "init" else (["cdc"],))
    assert not catalog.installed(log.conn)

"""What is captured at all: publications of someone else, tables of which only the shape is kept, ignored commands."""

from __future__ import annotations

import hashlib
from pathlib import Path

import psycopg
import pytest

from tests.trap_world import PAIR, World
from toolkit.source import change_log, install, preflight
from toolkit.source.connection import connect
from toolkit.values import config as configuration
from toolkit.values.config import DdlConfig, TableConfig
from toolkit.values.errors import ConfigError, PreflightFailed
from toolkit.values.modes import Capture, CommandText

pytestmark = pytest.mark.postgres

_THEIRS = (
    *PAIR, "create table other (id int primary key)", "create schema sales",
    "create table sales.orders (id int primary key, v text)", "insert into sales.orders values (1, 'x')",
    "create publication theirs for table t, tables in schema sales with (publish_via_partition_root = true)",
)  # fmt: skip


def _declared(world: World) -> object:
    return world.user.execute(
        "select p.xmin::text, p.oid, (select count(*) from pg_publication_rel), (select count(*) from"
        " pg_publication_namespace) from pg_publication as p where pubname = 'theirs'"
    ).fetchall()


def test_only_what_others_publish_is_captured_and_their_publication_is_never_edited(world: World) -> None:
    world.sql(*_THEIRS)
    before = _declared(world)
    log = world.start(scope="published", publication="theirs", tables=("public.other",))
    assert set(log.states()) == {"public.t", "sales.orders"}
    world.sql("insert into t values (3, 'z')", "insert into other values (1)", "alter table t add column c int")
    world.sql("create table sales.later (id int primary key)", "insert into sales.later values (1)")
    log.drain()
    world.exact("t")
    assert set(log.states()) == {"public.t", "sales.orders", "sales.later"}
    assert {s.state for s in log.states().values()} == {"ok"}
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    assert _declared(world) == before
    assert preflight.preflight(log.conn, world.config.capture_rules, ddl=world.config.ddl) == ()
    # Whoever keeps the publication may take a table out: that is red until the configuration says the same.
    world.sql("alter publication theirs drop table t", "insert into t values (4, 'unexplained')")
    log.drain()
    assert world.stale() == {"public.t": "it left the publication"}
    assert 'alter publication "theirs" add table public.t, then cdc repair public.t' in (
        log.states()["public.t"].remedy or ""
    )
    chosen = world.config.source.model_copy(update={"exclude": ("public.t",)})
    log.config = world.config.model_copy(update={"source": chosen})
    assert set(log.states()) == {"sales.orders", "sales.later"}
    before = _declared(world)
    install.uninstall(log.conn, world.config.source, lock_seconds=world.config.snapshot.lock_seconds)
    assert _declared(world) == before


def test_values_that_a_publication_leaves_out_are_in_no_event(world: World) -> None:
    world.config = world.config.model_copy(update={"ddl": DdlConfig(sql=CommandText.HASH)})
    log = world.start(
        "create table t (id int primary key, v text, iban text)", "insert into t values (1, 'seen', 'planted')",
        "insert into t values (100, 'planted', 'planted')",
        "create publication theirs for table t (id, v) where (id < 100)", scope="published", publication="theirs",
    )  # fmt: skip
    world.sql(
        "insert into t values (2, 'seen too', 'planted'), (101, 'planted', 'planted')", "update t set iban = 'planted'",
        "update t set id = 99, v = 'back' where id = 101", "delete from t where id = 1",
        "alter table t add column later text", "update t set later = 'planted'",
        "alter table t alter iban type varchar using 'planted'",
    )  # fmt: skip
    log.drain()
    log.repair("public.t")
    world.exact("t")
    found = repr(log.events)
    assert "'seen too'" in found and "'back'" in found and "iban" in found
    assert "planted" not in found


def test_a_publication_of_others_must_be_there_and_whole(world: World) -> None:
    world.sql(*PAIR)
    source = world.config.source.model_copy(update={"scope": "published", "publication": "theirs"})
    config = world.config.model_copy(update={"source": source})
    with connect(config.source) as conn:
        with pytest.raises(PreflightFailed, match="'theirs': does not exist; create publication"):
            preflight.require(conn, config.capture_rules, ddl=config.ddl)
        world.sql("create table bag (v text)", "create publication theirs for table t, bag with (publish = 'insert')")
        found = [str(f) for f in preflight.preflight(conn, config.capture_rules, ddl=config.ddl)]
        assert any("does not publish delete, truncate, update" in f for f in found)
        assert any("bag: has no replica identity" in f for f in found)
        world.sql("alter publication theirs set (publish = 'insert, update, delete, truncate')", "drop table bag")
        logged = config.model_copy(update={"table": {"public.t": TableConfig(capture=Capture.CHANGE_LOG)}})
        assert any(
            'scope: is "published"' in str(f) for f in preflight.preflight(conn, logged.capture_rules, ddl=logged.ddl)
        )
        preflight.require(conn, config.capture_rules, ddl=config.ddl)


def test_partitions_come_with_their_root_in_the_publication_of_others(world: World) -> None:
    log = world.start(
        "create table r (id int primary key) partition by range (id)",
        "create table r1 partition of r for values from (0) to (10) partition by range (id)",
        "create table r11 partition of r1 for values from (0) to (5)", "create table other (id int primary key)",
        "create publication theirs for table r", scope="published", publication="theirs",
    )  # fmt: skip
    world.sql("insert into r values (1)")
    log.drain()
    world.exact("r11")
    parts = {name: state.parts for name, state in log.states().items()}
    (leaf,) = parts["public.r"]  # the two partitioned tables are views over it
    assert parts == {"public.r11": (), "public.r1": (leaf,), "public.r": (leaf,)} and not world.stale()
    assert preflight.preflight(log.conn, world.config.capture_rules, ddl=world.config.ddl) == ()


def test_schema_history_without_rows(world: World) -> None:
    table = {"public.audit*": TableConfig(capture=Capture.SCHEMA)}
    world.config = world.config.model_copy(update={"table": table})
    log = world.start(*PAIR, "create table audit (at timestamptz, what text)", "insert into audit values (now(), 'x')")
    assert (
        preflight.preflight(log.conn, world.config.capture_rules, ddl=world.config.ddl) == ()
    )  # no identity is asked of it
    log.drain()
    relid = world.relid("audit")
    world.sql(
        "insert into audit values (now(), 'y')", "alter table audit add column who text default 'me'",
        "alter table audit alter what type int using 1", "create table audit_2 (id int)",
        "insert into audit_2 values (1)",
    )  # fmt: skip
    log.drain()
    world.sql("alter table audit rename to audit_old")
    log.drain()
    shapes = [e["payload"] for e in log.of("schema", relid)]
    assert [(s["name"], len(s["columns"])) for s in shapes] == [
        ("audit", 2), ("audit", 3), ("audit", 3), ("audit_old", 3),
    ]  # fmt: skip
    assert log.of("schema", world.relid("audit_2"))
    # Neither rows nor a baseline, and nothing that a check could call proven.
    assert not [e for e in log.events if e["relid"] == relid and e["kind"] in ("row", "baseline", "gap")]
    assert set(log.states()) == {"public.t"}
    world.exact("t")


def test_rows_are_no_longer_wanted_of_a_captured_table(world: World) -> None:
    log = world.start(*PAIR, "create table other (id int primary key)")
    log.config = world.config = world.config.model_copy(
        update={"table": {"public.t": TableConfig(capture=Capture.SCHEMA)}}
    )
    assert any(
        "captured all the same" in str(f)
        for f in preflight.preflight(log.conn, world.config.capture_rules, ddl=world.config.ddl)
    )
    assert change_log.moving(log.conn, world.config.capture_rules) == ()
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    change_log.settle(log.conn, world.config.capture_rules, lock_seconds=world.config.snapshot.lock_seconds)
    world.sql("insert into t values (3, 'unexplained')", "alter table t add column c int")
    log.drain()
    assert set(log.states()) == {"public.other"}
    assert [len(e["payload"]["columns"]) for e in log.of("schema", world.relid("t"))] == [2, 2, 3]
    back = world.config.model_copy(update={"table": {}})
    log.config = world.config = back
    assert log.states()["public.t"].state == "stale"
    install.install(log.conn, back.capture_rules, ddl=back.ddl, lock_seconds=back.snapshot.lock_seconds)
    log.drain()
    log.repair("public.t")
    world.exact("t")


def test_schema_only_cannot_be_kept_in_a_schema_that_is_published_whole(world: World) -> None:
    world.sql(*PAIR)
    source = world.config.source.model_copy(update={"new_tables": "schemas"})
    table = {"public.t": TableConfig(capture=Capture.SCHEMA)}
    with (
        connect(world.config.source) as conn,
        pytest.raises(ConfigError, match='capture = "schema", which cannot be kept'),
    ):
        install.install(
            conn,
            world.config.model_copy(update={"source": source, "table": table}).capture_rules,
            ddl=world.config.model_copy(update={"source": source, "table": table}).ddl,
            lock_seconds=world.config.model_copy(update={"source": source, "table": table}).snapshot.lock_seconds,
        )


def test_ignored_commands_leave_no_event_and_change_nothing(world: World) -> None:
    world.config = world.config.model_copy(update={"ddl": DdlConfig(ignore=("CREATE INDEX", "REINDEX"))})
    log = world.start("create table t (id int primary key, v int not null)", "insert into t values (1, 5), (2, 6)")
    world.sql(
        "create unique index concurrently ix on t (v)", "reindex table t", "create index on t (v, id)",
        "update t set v = 7 where id = 1",
    )  # fmt: skip
    log.drain()
    assert log.of("ddl") == []
    world.exact("t")
    world.sql("alter table t drop constraint t_pkey, add primary key using index ix", "update t set id = 9 where v = 6")
    log.drain()
    world.exact("t")
    assert {e["payload"]["tag"] for e in log.of("ddl")} == {"ALTER TABLE"}
    world.sql("create index later on t (id)")
    world.config = world.config.model_copy(update={"ddl": DdlConfig()})
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    world.sql("create index latest on t (id)")
    log.drain()
    assert [e["payload"]["sql"] for e in log.of("ddl")][-1:] == ["create index latest on t (id)"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[ddl]\nignore = ["COMMENT"]', "ddl.ignore: Value error, 'COMMENT' can change"),
        ('[ddl]\nignore = ["ALTER TABLE"]', "only CREATE INDEX and REINDEX can be left out"),
        ('[source]\nscope = "published"\nnew_tables = "publish"', 'source.scope: .* new_tables = "publish" edits'),
        ('[source]\nscope = "published"\nnew_tables = "schemas"', 'source.scope: .* new_tables = "schemas" edits'),
        ('[source]\nexclude = ["a.b"]\nnew_tables = "schemas"', "source.new_tables: .* leaves no table out"),
    ],
)
def test_a_scope_that_could_hide_something_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "cdc.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        configuration.load(str(file))


@pytest.mark.parametrize("kept", CommandText)
def test_the_text_of_commands_is_kept_hashed_or_left_out(world: World, kept: CommandText) -> None:
    world.config = world.config.model_copy(update={"ddl": DdlConfig(sql=kept)})
    log = world.start("create table t (id int primary key, n int)", "insert into t values (1, 5)")
    secret = "alter table t add column v text /* s3cret */"
    world.sql(
        secret,
        "alter table t alter column n type bigint",
        "insert into t values (2, 5000000000, 'x')",
        "update t set v = 'y'",
    )
    with psycopg.connect(world.config.source.conninfo) as other:
        other.execute("set cdc.capture = off")
        other.execute("alter table t alter v set not null /* s3cret */")
    log.drain()
    reported = {e["payload"]["sql"] for e in log.of("ddl")}
    if kept == "keep":
        assert secret in reported
    else:
        assert "s3cret" not in str(log.of("ddl"))
        digest = f"sha256:{hashlib.sha256(secret.encode()).hexdigest()}"
        assert (digest in reported, reported == {""}) == (kept == "hash", kept == "none")
        assert "rewritten by ALTER TABLE" in world.stale()["public.t"]
    log.repair("public.t")
    log.drain()
    world.exact("t")


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_a_table_moves_between_captured_schemas_and_a_schema_is_renamed(world: World) -> None:
    log = world.start(
        "create schema here", "create schema there", "create table here.t (id int primary key, v text)",
        "insert into here.t values (1, 'x')", "create table there.u (id int primary key)",
        "insert into there.u values (1)", tables=("here.*", "there.*"),
    )  # fmt: skip
    relids = {name: world.relid(name) for name in ("here.t", "there.u")}
    at = log.drain()
    world.sql(
        "begin", "update here.t set v = 'y'", "alter table here.t set schema there", "insert into there.t values (2)"
    )
    world.sql("commit", "update there.t set v = 'z' where id = 2")
    log.drain()
    for relid in relids.values():
        assert log.rows(relid, log.complete_to) == log.select(relid)
    assert {name: s.state for name, s in log.states().items()} == {"there.t": "ok", "there.u": "ok"}
    world.sql("alter schema there rename to over", "delete from over.t where id = 1", "insert into over.u values (2)")
    log.drain()
    for relid in relids.values():
        assert log.rows(relid, log.complete_to) == log.select(relid)
    assert {name: s.state for name, s in log.states().items()} == {"over.t": "ok", "over.u": "ok"}
    names = [v.table.identifier for v in log.reading().schema_versions() if v.table.relid == relids["here.t"]]
    assert names == ["here.t", "there.t", "over.t"]
    assert log.rows(relids["here.t"], at)[1] == {("1", "x"): 1}

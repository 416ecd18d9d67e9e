"""Preflight: each thing that is wrong is named with what was found and the remedy; a good source passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import psycopg
import pytest

from tests.support_network import proxy_before
from toolkit.demo.server import EmbeddedServer
from toolkit.source import install, selection, slot
from toolkit.source.connection import Connection, connect
from toolkit.source.preflight import fills_with_null, outside, preflight, require
from toolkit.values.config import Config, SourceConfig
from toolkit.values.errors import PreflightFailed, SlotError, UnknownTable

pytestmark = pytest.mark.postgres


@pytest.fixture
def conn(source: Config) -> Iterator[Connection]:
    with connect(source.source) as connection:
        connection.execute("create table public.good (id int primary key)")
        yield connection


def _changed(config: Config, **source: object) -> Config:
    return config.model_copy(update={"source": config.source.model_copy(update=source)})


def test_a_good_source_passes(source: Config, conn: Connection) -> None:
    assert preflight(conn, source.capture_rules, ddl=source.ddl) == ()
    install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
    with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
        pass
    assert preflight(conn, source.capture_rules, ddl=source.ddl) == ()
    require(conn, source.capture_rules, ddl=source.ddl)


@pytest.mark.parametrize(
    ("ddl", "child"),
    [
        ("create table public.child () inherits (public.good)", "public.child"),
        ("create table public.child (id int not null); alter table public.child inherit public.good", "public.child"),
        (
            "create table public.a () inherits (public.good); create unlogged table public.b () inherits (public.a)",
            "public.a, public.b",
        ),
    ],
)
def test_a_parent_by_inheritance_is_noted_by_name(source: Config, conn: Connection, ddl: str, child: str) -> None:
    conn.execute("create temp table mine () inherits (public.good)")  # which no other session is shown
    conn.execute("create table public.root (id int primary key) partition by range (id)")
    conn.execute("create table public.part partition of public.root default")
    assert "by inheritance" not in str(preflight(conn, source.capture_rules, ddl=source.ddl))
    conn.execute(ddl)
    (found,) = (f for f in preflight(conn, source.capture_rules, ddl=source.ddl) if f.what == "table public.good")
    assert (found.level, found.found) == (
        "warning",
        f"SELECT also shows the rows of {child} by inheritance; the lake has those of SELECT FROM ONLY",
    )
    conn.execute("drop table public.good cascade")
    assert "by inheritance" not in str(preflight(conn, source.capture_rules, ddl=source.ddl))


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("create table public.x (a int)", "public.x: has no replica identity.*add a primary key, or run: alter table"),
        ("create table public.x (a int primary key deferrable)", "public.x: has a deferrable primary key"),
        (
            "create table public.x (a int primary key); alter table public.x replica identity nothing",
            "IDENTITY NOTHING",
        ),
        (
            "create table public.x (a int not null); create unique index i on public.x (a);"
            " alter table public.x replica identity using index i; drop index public.i",
            "public.x: has lost the index",
        ),
        ('create table public."X y" (a int)', 'public."X y": has no replica identity'),
    ],
)
def test_trap_051_052_replica_identity(source: Config, conn: Connection, ddl: str, message: str) -> None:
    conn.execute(ddl)
    name = 'public."X y"' if '"X y"' in ddl else "public.x"
    with pytest.raises(PreflightFailed, match=message) as refusal:
        require(
            conn,
            _changed(source, tables=("public.*", name.replace('"', ""))).capture_rules,
            ddl=_changed(source, tables=("public.*", name.replace('"', ""))).ddl,
        )
    assert "\n" not in str(refusal.value) and "change_log" in str(refusal.value) and "exclude" in str(refusal.value)
    with pytest.raises(PreflightFailed, match=message):
        require(
            conn, _changed(source, new_tables="schemas").capture_rules, ddl=_changed(source, new_tables="schemas").ddl
        )  # which cannot leave a table out
    for new in ("propose", "publish"):
        patterns = _changed(source, new_tables=new)
        require(conn, patterns.capture_rules, ddl=patterns.ddl)  # a pattern leaves it out
    assert name not in {r.identifier for r in selection.selected_relations(conn, source.capture_rules)}
    require(
        conn, _changed(source, tables=("public.good",)).capture_rules, ddl=_changed(source, tables=("public.good",)).ddl
    )
    conn.execute(f"alter table {name} replica identity full")
    require(conn, source.capture_rules, ddl=source.ddl)


def _as_the_server_refuses(conn: Connection, config: Config, reasons: dict[str, str | None], update: str) -> None:
    """With each replica identity of `public.x`, it is found for the reason if the server refuses the UPDATE."""
    for identity, found in reasons.items():
        conn.execute(f"alter table public.x replica identity {identity}".encode())
        said = [f for f in preflight(conn, config.capture_rules, ddl=config.ddl) if "UPDATE and DELETE fail" in f.found]
        assert [f.what for f in said] == (["table public.x"] if found else [])
        assert all(f.found.startswith(f"is in publication 'others' {found}") for f in said)
        with pytest.raises(psycopg.errors.InvalidColumnReference) if found else nullcontext():
            conn.execute(update.encode())


@pytest.mark.parametrize(
    ("ddl", "published", "by_key", "whole"),
    [
        ("a int primary key, b text", "public.x where (a > 1 and a < 9)", None, None),
        ("a int primary key, b text, c int", "public.x where (a > 1 and b <> 'x')", "by a row filter on b", None),
        ("a int primary key, b text", "public.x (a)", None, "with the columns a and replica identity full"),
        ("a int, b int, primary key (a) include (b)", "public.x where (b = 1)", "by a row filter on b", None),
        ("a int, b int, primary key (a) include (b)", "public.x (a)", None, "with the columns a and"),
        (
            "a int, b text, c int, primary key (a, c)",
            "public.x (b, c)",
            "without a",
            "with the columns b, c and",
        ),
        (
            "a int primary key, b int, c int",
            "public.x (a) where (b = c)",
            "by a row filter on b, c",
            "with the columns a and",
        ),
    ],
)
def test_a_publication_that_makes_writes_fail_is_found(
    source: Config, conn: Connection, ddl: str, published: str, by_key: str | None, whole: str | None
) -> None:
    """What the server refuses, and only that."""
    config = _changed(source, publication="others")
    conn.execute(f"create table public.x ({ddl})".encode())
    conn.execute(f"create publication others for table {published}".encode())
    _as_the_server_refuses(conn, config, {"default": by_key, "full": whole}, "update public.x set a = 1")


@pytest.mark.parametrize(
    ("published", "by_key", "whole"),
    [
        ("public.r (a, c)", None, "with the columns c, a and replica identity full"),
        ("public.r (b, c)", "without a", "with the columns c, b and"),
        ("public.r where (b <> 'x')", "by a row filter on b", None),
        ("public.r where (a > 1), public.x where (b <> 'x')", None, None),
    ],
)
def test_a_root_whose_publication_makes_writes_of_a_partition_fail_is_found(
    source: Config, conn: Connection, published: str, by_key: str | None, whole: str | None
) -> None:
    """A partition that is sent as its root has the row filter and the column list of that, by the names of columns."""
    config = _changed(source, publication="others")
    conn.execute("create table public.r (a int primary key, b text, c int) partition by range (a)")
    conn.execute("create table public.x (c int, b text, a int primary key)")
    conn.execute("alter table public.r attach partition public.x for values from (0) to (9)")
    conn.execute(f"create publication others for table {published} with (publish_via_partition_root = true)".encode())
    _as_the_server_refuses(conn, config, {"default": by_key, "full": whole}, "update public.r set b = 'y'")


def test_trap_040_what_is_not_in_the_wal(source: Config, conn: Connection) -> None:
    before = outside(conn)
    conn.execute(
        """
        create unlogged table public.u (id int primary key);
        create view public.v as select 1 as a; create materialized view public.m as select 1 as a;
        create sequence public.s; create temporary table t (id int); select lo_create(0);
        create foreign data wrapper w; create server far foreign data wrapper w;
        create foreign table public.f (id int) server far;
        """
    )
    counts = outside(conn)
    assert {kind: count - before.get(kind, 0) for kind, count in counts.items()} == {
        "foreign tables": 1, "large objects": 1, "materialized views": 1, "sequences": 1, "temporary tables": 1,
        "unlogged tables": 1, "views": 1,
    }  # fmt: skip
    findings = preflight(conn, source.capture_rules, ddl=source.ddl)
    assert {(f.level, f.what) for f in findings} == {("warning", "table public.u"), ("warning", "table public.f")}
    require(conn, source.capture_rules, ddl=source.ddl)
    for name, message in (
        ("public.u", "is unlogged"),
        ("public.v", "is a view"),
        ("public.m", "is a materialized view"),
        ("public.f", "is a foreign table"),
    ):
        with pytest.raises(PreflightFailed, match=rf"table {name}: {message}"):
            require(conn, _changed(source, tables=(name,)).capture_rules, ddl=_changed(source, tables=(name,)).ddl)


def test_unknown_table(source: Config, conn: Connection) -> None:
    with pytest.raises(
        UnknownTable,
        match=r"\[source\] tables 'public.goood': matches no table; .*: did you mean public\.good\?",
    ):
        require(
            conn,
            _changed(source, tables=("public.good", "public.goood")).capture_rules,
            ddl=_changed(source, tables=("public.good", "public.goood")).ddl,
        )


@pytest.mark.parametrize(
    ("source_settings", "found"),
    [
        ({"tables": ("public.*", "seen.*")}, "'seen.*': matches views and foreign tables only"),
        ({"tables": ("public.*",), "exclude": ("public.g*",)}, "'public.*': matches only tables that .* exclude takes"),
    ],
)
def test_a_pattern_that_selects_no_table_is_refused(
    source: Config, conn: Connection, source_settings: dict[str, object], found: str
) -> None:
    conn.execute("create schema seen; create view seen.v as select 1 as x; create view public.v as select 1 as x")
    with pytest.raises(UnknownTable, match=found.replace("*'", r"\*'")):
        require(conn, _changed(source, **source_settings).capture_rules, ddl=_changed(source, **source_settings).ddl)


def test_wal_level_and_slots() -> None:
    with EmbeddedServer(None, 16, {"wal_level": "replica"}) as server:
        config = Config(source=SourceConfig(conninfo=server.conninfo()))
        with connect(config.source) as conn:
            conn.execute("create table public.t (id int primary key)")
            with pytest.raises(PreflightFailed, match=r"wal_level: replica; run: alter system set wal_level .*restart"):
                require(conn, config.capture_rules, ddl=config.ddl)
        server.restart(wal_level="logical", max_replication_slots=1, max_wal_senders=2)
        with connect(config.source) as conn:
            require(conn, config.capture_rules, ddl=config.ddl)
            conn.execute("select pg_create_logical_replication_slot('other', 'pgoutput')")
            with pytest.raises(SlotError, match=r"max_replication_slots: 1 of 1 in use"):
                require(conn, config.capture_rules, ddl=config.ddl)


def test_rights(source: Config, conn: Connection) -> None:
    conn.execute("do $$ begin create role weak login; exception when duplicate_object then null; end $$")
    weak = _changed(source, conninfo=psycopg.conninfo.make_conninfo(source.source.conninfo, user="weak"))
    with connect(weak.source) as session:
        with pytest.raises(PreflightFailed, match=r"role 'weak': has no REPLICATION right; run: alter role"):
            require(session, weak.capture_rules, ddl=weak.ddl)
        conn.execute("alter role weak replication")
        name = session.info.dbname
        wanted = (
            rf"may not create schema cdc in database '{name}'; run: grant create on database \W*{name}\W* to \W*weak"
        )
        with pytest.raises(PreflightFailed, match=wanted):
            require(session, weak.capture_rules, ddl=weak.ddl)
        conn.execute(f"grant create on database {name} to weak")
        (found,) = [f for f in preflight(session, weak.capture_rules, ddl=weak.ddl) if f.what == "role 'weak'"]
        assert (found.level, "the catalog comparison finds DDL" in found.found) == ("warning", True)
        install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
        conn.execute(f"revoke create on database {name} from weak")
        assert not [f for f in preflight(session, weak.capture_rules, ddl=weak.ddl) if f.what == "role 'weak'"]
    conn.execute("drop role weak")


def test_the_server_says_whether_a_role_may_replicate(source: Config, conn: Connection, pg: EmbeddedServer) -> None:
    """Amazon RDS gives no role REPLICATION, and opens replication sessions for members of `rds_replication`."""
    name = conn.info.dbname
    for role, right in (("weak", "noreplication"), ("able", "replication")):
        conn.execute(f"create role {role} login {right} password 'same'")
        conn.execute(f"grant create on database {name} to {role}")
    with proxy_before(pg.port) as rds:
        rds.edit = lambda said: said.replace(b"weak", b"able") if b"replication\0database\0" in said else said
        there = f"host=127.0.0.1 port={rds.port} user=weak password=same dbname={name} sslmode=disable"
        weak = _changed(source, conninfo=f"{there} gssencmode=disable")
        with connect(weak.source) as session:
            require(session, weak.capture_rules, ddl=weak.ddl)
            conn.execute("alter role able noreplication")
            with pytest.raises(PreflightFailed, match=r"role .weak.: has no REPLICATION right; run: alter role"):
                require(session, weak.capture_rules, ddl=weak.ddl)
    for role in ("weak", "able"):
        conn.execute(f"drop owned by {role}; drop role {role}")


def test_slot_and_publication(source: Config, conn: Connection) -> None:
    conn.execute("select pg_create_physical_replication_slot(%s)", [source.source.slot])
    with pytest.raises(SlotError, match=r"is a physical slot.*give another name"):
        require(conn, source.capture_rules, ddl=source.ddl)
    slot.drop_slot(conn, source.source.slot)
    install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
    with slot.create_slot(source.source, source.source.slot, cut_seconds=source.check.cut_seconds):
        pass
    conn.execute("alter publication cdc set (publish = 'insert')")
    with pytest.raises(
        PreflightFailed, match=r"publication 'cdc': does not publish delete, truncate, update; run: alter"
    ):
        require(conn, source.capture_rules, ddl=source.ddl)
    conn.execute("drop publication cdc")
    (finding,) = preflight(conn, source.capture_rules, ddl=source.ddl)
    assert finding.level == "warning"
    assert "does not exist, but slot" in finding.found


def test_trap_059_minors_that_drop_missing_values_are_refused(source: Config) -> None:
    """No server here is that old: the release notes of 15.6 and 16.2 tell what they mended."""
    refused = [v for v in (150005, 150006, 150020, 160000, 160001, 160002, 170000) if fills_with_null(v)]
    assert refused == [150005, 160000, 160001]
    with connect(source.source) as conn:
        assert not fills_with_null(conn.info.server_version)


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)  # event_triggers came with PostgreSQL 17
def test_sessions_without_event_triggers_are_found_however_that_is_spelled(source: Config, conn: Connection) -> None:
    """Only `off` was found; the DDL of a role with `false` or `0` was not captured, and no command said so."""
    install.install(conn, source.capture_rules, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
    name = conn.info.dbname
    for value, remedies in (("off", 1), ("false", 1), ("'F'", 1), ("no", 1), ("0", 1), ("true", 0), ("1", 0)):
        conn.execute(f"alter database {name} set event_triggers = {value}")
        found = [f.remedy for f in preflight(conn, source.capture_rules, ddl=source.ddl) if "switch it off" in f.found]
        assert found == [f"run: alter database {name} reset event_triggers"] * remedies, value

"""`cdc ddl lint`: what a script would do by the rules of the drain, with nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import commands
from tests.support_lake import plain_lake
from tests.support_ledger import ledger_of
from tests.support_postgres import ddl_messages, hmac_key, mostly_one_server
from tests.trap_world import PAIR, World
from toolkit.demo.scratch_server import open_scratch
from toolkit.demo.server import EmbeddedServer
from toolkit.history import ddl_lint, effects, versions
from toolkit.history.effects import EffectClass
from toolkit.source import catalog, install, scratch, selection, slot
from toolkit.source.connection import Connection, connect
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError, SourceUnavailable

pytestmark = pytest.mark.postgres

Lint = Callable[[Config, str], tuple[ddl_lint.Effect, ...]]

SCRIPT = """
begin;
-- renamed; it stays one column
alter table item rename column name to title;
alter table item add column stock int not null default 42;
alter table item add column seen timestamptz default clock_timestamp();
alter table item alter column price type numeric(14,2);
alter table item alter column price type text using price || '!';
alter table item alter column title set not null;
comment on column item.title is 'shown; to people';
insert into item (id, title, price) values (100, 'x', 1);
truncate item;
create table born (a int, b text);
insert into born values (1, 'x');
alter table born alter column a type text;
alter table born replica identity full;
alter table item drop constraint item_pkey;
create table elsewhere.t (id int primary key);
create index on item (title);
alter table nowhere add column x int;
select 1;
alter table item rename to thing;
drop table other;
alter table thing add column twice bigint generated always as (id * 2) stored;
commit;
"""


@pytest.fixture
def conn(source: Config) -> Iterator[Connection]:
    with connect(source.source) as connection:
        connection.execute(
            """
            create schema elsewhere;
            create table public.item (id bigint primary key, name text, price numeric(12,2));
            insert into public.item select i, 'n' || i, i from generate_series(1, 3) as i;
            create table public.other (id int primary key);
            """
        )
        yield connection


@pytest.fixture
def lint(scratch: EmbeddedServer) -> Lint:
    """Lint on a scratch server of its own, as `cdc ddl lint --scratch` does."""

    def run(config: Config, script: str) -> tuple[ddl_lint.Effect, ...]:
        with open_scratch(config.capture_rules, scratch.conninfo(), ddl=config.ddl) as conninfo:
            return ddl_lint.lint(config.capture_rules, script, conninfo=conninfo)

    return run


def _install(conn: Connection, source: Config) -> Config:
    config = source.model_copy(update={"source": source.source.model_copy(update={"new_tables": "schemas"})})
    install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
    return config


def _short(effects: tuple[ddl_lint.Effect, ...]) -> list[tuple[int, str | None, str]]:
    return [(e.line, e.table, e.effect) for e in effects]


@pytest.mark.parametrize("installed", [True, False])
def test_a_new_table_is_captured_if_the_source_publishes_it_at_its_create(
    source: Config, conn: Connection, lint: Lint, installed: bool
) -> None:
    """Each new table was called `history only` where the publication names tables."""
    chosen = {"new_tables": "publish", "exclude": ("public.tmp_*",)}
    config = source.model_copy(update={"source": source.source.model_copy(update=chosen)})
    if installed:
        install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
    script = "create table born (id int primary key);create table tmp_x (id int primary key);create table bag (v int)"
    assert [(e.table, e.effect) for e in lint(config, script)] == [
        ("public.born", "exact"),
        ("public.tmp_x", "history only"),
        ("public.bag", "history only"),
    ]


@pytest.mark.parametrize("installed", [True, False])
def test_each_statement_says_what_it_does(source: Config, conn: Connection, lint: Lint, installed: bool) -> None:
    config = source.model_copy(update={"source": source.source.model_copy(update={"new_tables": "schemas"})})
    if installed:
        install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
    before = selection.selected_tables(conn, config.capture_rules)
    effects = lint(config, SCRIPT)
    assert _short(effects) == [
        (2, None, "skipped"),
        (4, "public.item", "exact"),
        (5, "public.item", "applied by rule"),
        (6, "public.item", "silent"),
        (7, "public.item", "applied by rule"),
        (8, "public.item", "silent"),
        (9, "public.item", "history only"),
        (10, "public.item", "history only"),
        (11, None, "exact"),
        (12, "public.item", "exact"),
        (13, "public.born", "exact"),
        (14, None, "exact"),
        (15, "public.born", "silent"),
        (16, "public.born", "exact"),
        (17, "public.item", "exact"),
        (18, "elsewhere.t", "history only"),
        (19, None, "no effect"),
        (20, None, "fails"),
        (21, None, "refused"),
        (22, "public.thing", "exact"),
        (23, "public.other", "exact"),
        (24, "public.thing", "exact"),
        (25, None, "skipped"),
    ]
    predicted = {e.line: e for e in effects}
    assert predicted[4].detail == "renamed title: name -> title (current: one schema change)"
    assert "replaced once" in predicted[16].detail
    assert predicted[8].remedy == "cdc repair public.item"
    assert {line for line, e in predicted.items() if e.breaks} == {13, 17}
    assert predicted[17].breaks is not None
    assert predicted[17].breaks.startswith("UPDATE and DELETE on public.item will fail")
    assert "nowhere" in predicted[20].detail
    assert {line for line, e in predicted.items() if e.needs_review} == {6, 8, 13, 15, 17, 20, 21}
    # Nothing of it stayed, and nothing of it will ever be captured.
    assert catalog.installed(conn) == installed
    assert [(t.name, t.columns) for t in selection.selected_tables(conn, config.capture_rules)] == [
        (t.name, t.columns) for t in before
    ]
    assert conn.execute("select count(*) from public.item").fetchone() == (3,)


def test_nothing_of_a_trial_is_captured(source: Config, conn: Connection, lint: Lint) -> None:
    config = _install(conn, source)
    with slot.create_slot(config.source, config.source.slot, cut_seconds=config.check.cut_seconds):
        pass
    key = hmac_key(conn)
    lint(config, SCRIPT)
    assert ddl_messages(conn, config, key) == []
    conn.execute("alter table public.item add column real int")  # planted: what is captured would be seen
    assert len(ddl_messages(conn, config, key)) == 1


def test_what_is_red_really_is_what_the_server_refuses(source: Config, conn: Connection, lint: Lint) -> None:
    config = _install(conn, source)
    script = "alter table public.item drop constraint item_pkey"
    (effect,) = lint(config, script)
    assert effect.breaks
    conn.execute("update public.item set name = 'y' where id = 1")  # still works: it was only tried
    conn.execute(script)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not have a replica identity"):
        conn.execute("update public.item set name = 'z' where id = 1")


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_a_generated_column_in_a_full_replica_identity_is_red(source: Config, conn: Connection, lint: Lint) -> None:
    """PostgreSQL 18 refused the UPDATE after a script that was green."""
    config = _install(conn, source)
    conn.execute("alter table public.item replica identity full")
    script = "alter table public.item add column twice int generated always as (id * 2) stored"
    (effect,) = lint(config, script)
    assert effect.breaks is not None and "with a generated column, which the publication does not send" in effect.breaks
    conn.execute(script)
    with pytest.raises(psycopg.DatabaseError, match="generated column"):
        conn.execute("update public.item set name = 'z' where id = 1")


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_the_command_line_exits_with_3_where_a_person_should_look(
    source: Config, conn: Connection, tmp_path: Path
) -> None:
    _install(conn, source)
    named = {"conninfo": source.source.conninfo, "slot": source.source.slot}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in named.items())
    (tmp_path / "cdc.toml").write_text(f"[source]\n{text}")
    for script, code in (("alter table item add column x int;", 0), ("alter table item alter price type text;", 3)):
        (tmp_path / "change.sql").write_text(script)
        done = subprocess.run(
            [sys.executable, "-m", "toolkit.cli", "ddl", "lint", "change.sql", "--output", "json"],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        (predicted,) = json.loads(done.stdout)
        assert (predicted["table"], predicted["line"]) == ("public.item", 1)


def _everything(conninfo: str) -> list[Any]:
    """All that a script could change: catalog rows with their writers and files, and the rows; not what is counted."""
    counted = "{relpages,reltuples,relallvisible,relallfrozen,relfrozenxid,relminmxid}"
    with psycopg.connect(conninfo) as conn:
        classes = f"select xmin::text, to_jsonb(c) - '{counted}'::text[] from pg_class as c order by c.oid"
        found = conn.execute(classes.encode()).fetchall()
        found += conn.execute("select xmin::text, a.* from pg_attribute as a order by a.attrelid, a.attnum").fetchall()
        return found + conn.execute("select * from public.item order by id").fetchall()


def test_a_scratch_database_has_the_schema_of_the_source(
    pg: EmbeddedServer, scratch: EmbeddedServer, source: Config, conn: Connection, lint: Lint
) -> None:
    """Dropped columns, partitions, types, roles and functions: nothing is reported as different, nothing stays."""
    conn.execute(
        """
        create table public.torn (id int primary key, gone int, kept int);
        alter table public.torn drop column gone;
        create table public.p (id int primary key) partition by range (id);
        create table public.p1 partition of public.p for values from (0) to (9);
        create type public.mood as enum ('a', 'b');
        alter table public.other add m public.mood default 'b';
        create function public.twice(int) returns int language sql immutable return $1 * 2;
        create table public.calculated (id int primary key, b int generated always as (public.twice(id)) stored)
        """
    )
    config = _install(conn, source)
    conn.close()
    before = _everything(source.source.conninfo)
    script = "alter table torn alter kept type text; alter type mood add value 'c'; truncate p1; select 1"
    assert [(e.line, e.table, e.effect) for e in lint(config, script)] == [
        (1, "public.torn", "silent"),
        (1, "public.other", "history only"),
        (1, "public.p1", "exact"),
        (1, None, "refused"),
    ]
    assert _everything(source.source.conninfo) == before
    with psycopg.connect(scratch.conninfo()) as admin:
        assert admin.execute("select from pg_database where datname ~ 'lint'").fetchall() == []
        assert admin.execute("select from pg_roles where rolname ~ 'lint'").fetchall() == []


def test_a_killed_lint_leaves_nothing_that_the_next_one_does_not_drop(
    scratch: EmbeddedServer, source: Config, conn: Connection, lint: Lint
) -> None:
    """What another one still uses stays."""
    killed, works = "cdc_lint_0123456789ab", "cdc_lint_ba9876543210"
    with (
        psycopg.connect(scratch.conninfo(), autocommit=True) as admin,
        psycopg.connect(scratch.conninfo(), application_name=works),
    ):
        for name in (killed, works):
            admin.execute(f"create role {name}".encode())
            admin.execute(f"create database {name} owner {name}".encode())
        lint(source, "select 1")
        for found in ("select datname from pg_database where datname", "select rolname from pg_roles where rolname"):
            assert admin.execute(f"{found} ~ 'lint'".encode()).fetchall() == [(works,)]
        admin.execute(f"drop database {works}".encode())
        admin.execute(f"drop role {works}".encode())


def test_a_script_reaches_neither_the_source_nor_a_program(
    pg: EmbeddedServer, scratch: EmbeddedServer, source: Config, conn: Connection, lint: Lint, tmp_path: Path
) -> None:
    """Commands outside DDL are not run at all, and what DDL itself evaluates runs elsewhere, without rights."""
    conn.execute("create sequence public.counted")
    config = _install(conn, source)
    planted = Path(tempfile.gettempdir()) / f"planted-{tmp_path.name}-{os.getpid()}"
    script = f"""
copy (select 1) to program 'touch {planted}';
select setval('counted', 77);
do $$begin perform setval('counted', 78); end$$;
call nothing();
with x as (select setval('counted', 79)) select * from x;
set role postgres;
set session authorization postgres;
alter system set work_mem = '1GB';
alter role postgres password 'x';
create extension plpgsql;
vacuum;
/* c */ copy item from program 'touch {planted}';
create table taken as select setval('counted', 80);
create function run() returns int language plpgsql as $f$begin
  copy (select 1) to program 'touch {planted}'; return 1;
end$f$;
create table ran as select run();
create function up() returns text language sql as $$select set_config('role', 'postgres', false)$$;
create table up as select up();
alter table item add column counts bigint default nextval('counted');
"""
    effects = {e.line: e for e in lint(config, script)}
    assert {line for line, e in effects.items() if e.effect == "refused"} == set(range(2, 14))
    assert all(e.needs_review for line, e in effects.items() if line <= 13)
    assert effects[18].effect == "fails" and "permission denied to COPY" in effects[18].detail
    assert effects[20].effect == "fails" and "permission denied to set role" in effects[20].detail
    assert effects[21].table == "public.item"
    assert not planted.exists()
    assert conn.execute("select last_value, is_called from public.counted").fetchone() == (1, False)


def test_a_script_is_never_run_with_rights_or_on_the_source(
    pg: EmbeddedServer, scratch: EmbeddedServer, source: Config, conn: Connection
) -> None:
    config = _install(conn, source)
    with pytest.raises(ConfigError, match="server of the source"):
        ddl_lint.lint(config.capture_rules, "select 1", conninfo=source.source.conninfo)
    with (
        pytest.raises(ConfigError, match="server of the source"),
        open_scratch(config.capture_rules, pg.conninfo(), ddl=config.ddl),
    ):
        pass
    with pytest.raises(ConfigError, match="rights beyond its own database"):
        ddl_lint.lint(config.capture_rules, "select 1", conninfo=scratch.conninfo())


@mostly_one_server
def test_where_a_scratch_database_differs_is_said_by_name(
    scratch: EmbeddedServer, source: Config, conn: Connection
) -> None:
    config = _install(conn, source)
    conn.execute("create table elsewhere.t (id int primary key)")
    differs = """
    drop table public.other;
    create table public.more (id int primary key);
    alter table public.item drop column name;
    alter table public.item alter price type text;
    alter table public.item add extra int;
    alter table elsewhere.t add far int
    """
    with open_scratch(config.capture_rules, scratch.conninfo(), ddl=config.ddl) as conninfo:
        with psycopg.connect(conninfo, autocommit=True) as there:
            there.execute(differs)
        found = ddl_lint.lint(config.capture_rules, "alter table item rename column name to title", conninfo=conninfo)
        assert [(e.line, e.table, e.effect, e.needs_review) for e in found] == [
            (0, "public.item", "differs", True),
            (0, "public.other", "differs", True),
            (0, "public.more", "differs", True),
            (1, None, "fails", True),
        ]
        item, other, more, _ = (e.detail for e in found)
        assert "dropped name: text -> none" in item
        assert "type price: numeric(12,2) -> text" in item
        assert "added extra: integer" in item
        assert other == "the scratch database has no such table"
        assert more == "the source has no such table, or does not capture it"


@mostly_one_server
@pytest.mark.parametrize("kind", ["table public.item", "all tables", "tables in schema public"])
def test_publications_of_others_are_in_the_scratch_database(
    source: Config, conn: Connection, lint: Lint, kind: str
) -> None:
    conn.execute(f"create publication theirs for {kind}".encode())
    chosen = source.source.model_copy(update={"publication": "theirs", "scope": "published"})
    config = source.model_copy(update={"source": chosen})
    install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
    found = lint(config, "alter table item alter name type int using 1")
    assert [(e.table, e.effect) for e in found] == [("public.item", "silent")]


def test_statements_that_cannot_be_tried(source: Config, conn: Connection, lint: Lint) -> None:
    config = _install(conn, source)
    script = (
        "create index concurrently on item (name); vacuum item; do $$begin commit; end$$; grant select on item to x"
    )
    effects = lint(config, script)
    assert [e.effect for e in effects] == ["fails", "refused", "refused", "fails"]
    assert "transaction" in effects[0].detail
    assert 'role "x" does not exist' in effects[3].detail
    gone = source.model_copy(update={"source": source.source.model_copy(update={"conninfo": "host=127.0.0.1 port=1"})})
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1"):
        lint(gone, "select 1")


def test_a_table_that_a_script_may_have_filled_is_not_called_empty(
    source: Config, conn: Connection, lint: Lint
) -> None:
    config = _install(conn, source)
    for fills in ("insert into born values (1, 'x')", "do $$begin insert into born values (1, 'x'); end$$"):
        script = f"create table born (a int primary key, b text); {fills}; alter table born alter b type int using 1"
        assert lint(config, script)[-1].effect == "silent"


def test_a_script_may_revoke_its_own_right_to_read_what_it_created(
    source: Config, conn: Connection, lint: Lint
) -> None:
    """It ended in an error that no command foresees: the role of the script was not allowed to count rows."""
    script = "create table born (a int primary key, b text); revoke all on born from current_user;"
    found = lint(_install(conn, source), f"{script} alter table born alter b type int using 1")
    assert [effect.effect for effect in found if effect.table == "public.born"] == ["exact", "applied by rule"]


@pytest.mark.parametrize("name", ["sslpassword", "scram_client_key", "oauth_client_secret"])
def test_no_secret_of_the_conninfo_comes_onto_the_command_line_of_a_program(name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"has {name}, which the program could only take from a command line"
    ) as refused:
        scratch._run("/none/pg_dump", f"host=h password=known {name}=known")
    assert "known" not in str(refused.value)


def test_a_table_that_a_script_has_emptied_is_rewritten_exactly(source: Config, conn: Connection, lint: Lint) -> None:
    config = _install(conn, source)
    conn.execute("create table public.kept (a int primary key, b text)")
    rewrite = "alter table public.kept alter b type text using b || '!'"
    for between, effect in (
        ("", "no effect"),
        ("commit;", "silent"),
        ("insert into public.kept values (1, 'x');", "silent"),
    ):
        found = lint(config, f"truncate public.kept; {between} {rewrite}")
        assert found[-1].effect == effect, between
    assert lint(config, rewrite)[-1].effect == "silent"


def test_what_a_statement_does_to_one_of_several_publications(source: Config, conn: Connection, lint: Lint) -> None:
    conn.execute(
        "create publication a for table public.item, public.other; create publication b for table public.item;"
        "create table public.mine (id int primary key); alter publication b add table public.mine"
    )
    chosen = source.source.model_copy(update={"scope": "published", "publication": ("a", "b")})
    config = source.model_copy(update={"source": chosen})
    install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
    script = """alter publication b drop table item;
alter publication b drop table mine;
alter publication b add table item (id, name);
alter table item rename to item_old;
create table item (id int primary key);
create table unasked (id int primary key);
"""
    effects = lint(config, script)
    assert [(e.line, e.table, e.effect) for e in effects] == [
        (1, None, "no effect"),
        (2, "public.mine", "silent"),
        (3, "public.item", "silent"),
        (4, "public.item_old", "exact"),
        (5, "public.item", "silent"),
        (6, "public.unasked", "history only"),
    ]
    assert "left the publication" in effects[1].detail
    assert "column lists differ between publications a, b" in effects[2].detail
    assert "new table under the name of a captured one" in effects[4].detail
    assert effects[4].remedy is not None
    assert "alter publication" in effects[4].remedy


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_each_ddl_has_its_class(world: World, plain_lake: Config) -> None:
    world.sql(*PAIR)
    config = plain_lake.model_copy(update={"source": world.config.source})
    commands.init(config)
    commands.drain(config)
    classes = {
        "comment on table t is 'c'": "history only",
        "create index on t (v)": "no effect",
        "alter table t add column c int default 5": "applied by rule",
        "alter table t rename c to d": "exact",
        "alter table t alter d type text using d || '!'": "silent",
        "create table beside (id int primary key)": "history only",
        "alter publication cdc add table beside": "silent",
        "drop table beside": "exact",
        "create table beside (id bigint primary key)": "silent",
        "create table shadow (id int primary key, v text)": "history only",
        "alter table t rename to t_old": "exact",
        "alter table shadow rename to t": "silent",
        "alter table t add column e int": "history only",
    }
    world.sql(*classes)
    commands.drain(config)
    predicted: dict[str | None, EffectClass] = {}
    for event in versions.events(ledger_of(config)):
        predicted[event.sql] = effects.worst([event.effect, predicted.get(event.sql, EffectClass.NONE)])
    assert {sql: kind for sql, kind in predicted.items() if sql in classes} == classes


__all__ = ["plain_lake"]

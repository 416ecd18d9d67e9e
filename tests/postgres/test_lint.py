"""`cdc ddl lint`: what a script would do, told by the rules of the drain, with nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support_postgres import ddl_messages
from toolkit import lint
from toolkit.config import Config
from toolkit.errors import SourceUnavailable
from toolkit.source import catalog, install, slot
from toolkit.source.connection import Connection, connect

pytestmark = pytest.mark.postgres

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
commit;
"""


@pytest.fixture
def conn(source: Config) -> Iterator[Connection]:
    with connect(source) as connection:
        connection.execute(
            """
            create schema elsewhere;
            create table public.item (id bigint primary key, name text, price numeric(12,2));
            insert into public.item select i, 'n' || i, i from generate_series(1, 3) as i;
            create table public.other (id int primary key);
            """
        )
        yield connection


def _install(conn: Connection, source: Config) -> Config:
    config = source.model_copy(update={"source": source.source.model_copy(update={"new_tables": "publish"})})
    install.install(conn, config)
    return config


def _short(effects: tuple[lint.Effect, ...]) -> list[tuple[int, str | None, str]]:
    return [(e.line, e.table, e.effect) for e in effects]


@pytest.mark.parametrize("installed", [True, False])
def test_each_statement_says_what_it_does(source: Config, conn: Connection, installed: bool) -> None:
    config = source.model_copy(update={"source": source.source.model_copy(update={"new_tables": "publish"})})
    if installed:
        install.install(conn, config)
    before = catalog.selected_tables(conn, config)
    effects = lint.lint(config, SCRIPT)
    assert _short(effects) == [
        (2, None, "skipped"),
        (4, "public.item", "exact"),
        (5, "public.item", "exact"),
        (6, "public.item", "silent"),
        (7, "public.item", "exact"),
        (8, "public.item", "silent"),
        (9, "public.item", "exact"),
        (10, "public.item", "exact"),
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
        (21, None, "no effect"),
        (22, "public.thing", "exact"),
        (23, "public.other", "exact"),
        (24, None, "skipped"),
    ]
    told = {e.line: e for e in effects}
    assert told[4].detail == "renamed title: name -> title (current: one schema change)"
    assert "replaced once" in told[16].detail
    assert told[8].remedy == "cdc repair public.item"
    assert {line for line, e in told.items() if e.breaks} == {13, 17}
    assert told[17].breaks is not None
    assert told[17].breaks.startswith("UPDATE and DELETE on public.item will fail")
    assert "nowhere" in told[20].detail
    assert {line for line, e in told.items() if e.red} == {6, 8, 13, 15, 17, 20}
    # Nothing of it stayed, and nothing of it will ever be captured.
    assert catalog.installed(conn) == installed
    assert [(t.name, t.columns) for t in catalog.selected_tables(conn, config)] == [(t.name, t.columns) for t in before]
    assert conn.execute("select count(*) from public.item").fetchone() == (3,)


def test_nothing_of_a_trial_is_captured(source: Config, conn: Connection) -> None:
    config = _install(conn, source)
    with slot.create_slot(config, config.source.slot, temporary=False):
        pass
    key = catalog.hmac_key(conn)
    lint.lint(config, SCRIPT)
    assert ddl_messages(conn, config, key) == []
    conn.execute("alter table public.item add column real int")  # planted: what is captured would be seen
    assert len(ddl_messages(conn, config, key)) == 1


def test_what_is_red_really_is_what_the_server_refuses(source: Config, conn: Connection) -> None:
    config = _install(conn, source)
    script = "alter table public.item drop constraint item_pkey"
    (effect,) = lint.lint(config, script)
    assert effect.breaks
    conn.execute("update public.item set name = 'y' where id = 1")  # still works: it was only tried
    conn.execute(script)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not have a replica identity"):
        conn.execute("update public.item set name = 'z' where id = 1")


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_the_command_line_exits_with_3_where_somebody_should_look(
    source: Config, conn: Connection, tmp_path: Path
) -> None:
    _install(conn, source)
    (tmp_path / "cdc.toml").write_text(f"[source]\nconninfo = {json.dumps(source.source.conninfo)}\n")
    for script, code in (("alter table item add column x int;", 0), ("alter table item alter price type text;", 3)):
        (tmp_path / "change.sql").write_text(script)
        done = subprocess.run(
            [sys.executable, "-m", "toolkit.cli", "ddl", "lint", "change.sql", "--output", "json"],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        (told,) = json.loads(done.stdout)
        assert (told["table"], told["line"]) == ("public.item", 1)


def test_statements_that_cannot_be_tried(source: Config, conn: Connection) -> None:
    config = _install(conn, source)
    effects = lint.lint(config, "create index concurrently on item (name); vacuum item; do $$begin commit; end$$")
    assert [e.effect for e in effects] == ["fails", "fails", "fails"]
    assert "transaction" in effects[0].detail
    gone = source.model_copy(update={"source": source.source.model_copy(update={"conninfo": "host=127.0.0.1 port=1"})})
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1"):
        lint.lint(gone, "select 1")


def test_what_a_statement_does_to_one_of_several_publications(source: Config, conn: Connection) -> None:
    conn.execute(
        "create publication a for table public.item, public.other; create publication b for table public.item;"
        "create table public.mine (id int primary key); alter publication b add table public.mine"
    )
    chosen = source.source.model_copy(update={"scope": "published", "publication": ("a", "b")})
    config = source.model_copy(update={"source": chosen})
    install.install(conn, config)
    script = """alter publication b drop table item;
alter publication b drop table mine;
alter publication b add table item (id, name);
"""
    effects = lint.lint(config, script)
    assert [(e.line, e.table, e.effect) for e in effects] == [
        (1, None, "no effect"),
        (2, "public.mine", "silent"),
        (3, "public.item", "silent"),
    ]
    assert "left the publication" in effects[1].detail
    assert "column lists differ between publications a, b" in effects[2].detail

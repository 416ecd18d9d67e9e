"""Histories of tables that are replaced, restored, and changed by other programs."""

from __future__ import annotations

from tests.histories.base import TABLE, History

HISTORIES: tuple[History, ...] = (
    History(
        "three tables rotate their names",
        (
            (
                "begin; alter table t rename to x; alter table u rename to t; alter table w rename to "
                "u; alter table x rename to w; insert into t values (5); insert into u values (6); "
                "insert into w values (7); commit"
            ),
        ),
        setup=(
            *TABLE,
            "create table u (id int primary key)",
            "create table w (id int primary key)",
            "insert into u values (1)",
            "insert into w values (2)",
        ),
    ),
    History(
        "dropped and made again under the same name, with rows",
        (
            (
                "begin; insert into t values (5,'a'); drop table t; create table t (id int primary "
                "key, v text); insert into t values (6,'b'); drop table t; create table t (v text, id "
                "int primary key); insert into t values ('c',7); commit"
            ),
        ),
    ),
    History(
        "a schema is dropped and made again with a table",
        (
            (
                "begin; insert into sx_{n}.t values (5); drop schema sx_{n} cascade; create schema "
                "sx_{n}; create table sx_{n}.t (id int primary key, v text); insert into sx_{n}.t "
                "values (6); commit"
            ),
            "insert into sx_{n}.t values (7)",
        ),
        setup=(
            *TABLE,
            "create schema sx_{n}",
            "create table sx_{n}.t (id int primary key)",
            "insert into sx_{n}.t values (1)",
        ),
    ),
    History(
        "two schemas exchange their names",
        (
            (
                "begin; insert into sx_{n}.t values (5); alter schema sx_{n} rename to sz_{n}; alter "
                "schema sy_{n} rename to sx_{n}; alter schema sz_{n} rename to sy_{n}; insert into "
                "sx_{n}.t values (6); commit"
            ),
            "insert into sx_{n}.t values (7)",
        ),
        setup=(
            *TABLE,
            "create schema sx_{n}",
            "create schema sy_{n}",
            "create table sx_{n}.t (id int primary key)",
            "create table sy_{n}.t (id int primary key, v text)",
            "insert into sx_{n}.t values (1)",
        ),
    ),
    History(
        "a table moves where another of its name was",
        (
            (
                "begin; alter table sx_{n}.t rename to old; alter table t set schema sx_{n}; insert "
                "into sx_{n}.t values (9,'m'); create table t (id int constraint third primary key, v "
                "text); insert into t values (1,'new'); commit"
            ),
        ),
        setup=(
            *TABLE,
            "create schema sx_{n}",
            "create table sx_{n}.t (id int constraint other primary key)",
        ),
    ),
    History(
        "create as, rename, drop: a table is replaced",
        (
            (
                "begin; create table t_new (like t including all); insert into t_new select id, v||'!' "
                "from t; drop table t; alter table t_new rename to t; insert into t values (3,'z'); "
                "commit"
            ),
        ),
    ),
    History(
        "pg_dump --clean in one transaction",
        (
            (
                "begin; set local statement_timeout=0; select "
                "pg_catalog.set_config('search_path','',true); set local check_function_bodies=false; "
                "alter table only {s}.t drop constraint t_pkey; drop table {s}.t; create table {s}.t "
                "(id int not null, v text); copy {s}.t (id, v) from program 'printf "
                '"1\\tq\\n2\\tr\\n"\'; alter table only {s}.t add constraint t_pkey primary key (id); '
                "commit"
            ),
        ),
    ),
    History(
        "a restore with triggers off",
        (
            (
                "set session_replication_role = replica; alter table t disable trigger all; copy t "
                "from program 'printf \"8\\tq\\n9\\tr\\n\"'; alter table t enable trigger all; reset "
                "session_replication_role"
            ),
        ),
    ),
    History(
        "UNLOGGED made, filled, logged, all in one",
        (
            (
                "begin; create unlogged table u (id int primary key, v text); insert into u values "
                "(1,'a'); alter table u set logged; insert into u values (2,'b'); commit"
            ),
            "begin; alter table u set unlogged; alter table u set logged; commit",
            "insert into u values (3,'c')",
        ),
        refused="part of a publication|is aborted",
    ),
    History(
        "cluster, reindex and vacuum between changes",
        (
            "cluster t using t_pkey",
            "insert into t values (5,'a')",
            "vacuum full t",
            "reindex table t",
            "reindex table concurrently t",
            "update t set v='z'",
            "vacuum (freeze) t",
            "alter table t set (fillfactor=50)",
            "analyze t",
        ),
        refused="inside a transaction",
    ),
    History(
        "messages of others",
        (
            (
                "select pg_logical_emit_message(true, 'cdc.ddl', 'x'), "
                "pg_logical_emit_message(false,'cdc.beacon','y'), "
                "pg_logical_emit_message(true,'cdc.apart','z'), pg_logical_emit_message(true,'','')"
            ),
            (
                "begin; insert into t values (8,'a'); select "
                "pg_logical_emit_message(true,'app',repeat('x',100000)); insert into t values (9,'b'); "
                "commit"
            ),
        ),
    ),
    History(
        "a big transaction",
        (
            (
                "begin; insert into t select i, repeat('x', 100) from generate_series(1000,1400) i; "
                "alter table t add w int default 9; update t set w=i.id from t i where i.id=t.id and "
                "t.id > 1200; savepoint a; delete from t where id > 1100; rollback to a; delete from t "
                "where id > 1300; commit"
            ),
        ),
    ),
    History(
        "row security",
        (
            "alter table t enable row level security",
            "alter table t force row level security",
            "create policy p on t using (id > 1)",
            "insert into t values (5,'a')",
            "update t set v='z'",
        ),
    ),
    History(
        "event triggers of the user",
        (
            (
                "create function ev() returns event_trigger language plpgsql as 'begin insert into o "
                "values ((random()*1000000000)::int); end'"
            ),
            "create event trigger ev_{n} on ddl_command_end execute function ev()",
            "alter table t add w int default 4",
            "alter table t alter v type text using v||'x'",
            "drop event trigger ev_{n}",
        ),
        setup=(
            *TABLE,
            "create table o (id int primary key)",
        ),
    ),
    History(
        "an event trigger of the user that alters",
        (
            (
                "create function ev() returns event_trigger language plpgsql as 'begin if "
                "coalesce(current_setting(''h.altered'', true), '''') = '''' then perform "
                "set_config(''h.altered'', ''1'', true); alter table o add w int default 9; update o "
                "set w=10; end if; end'"
            ),
            ("create event trigger aa_{n} on ddl_command_start when tag in ('ALTER TABLE') execute function ev()"),
            "alter table t add w int default 4",
            "drop event trigger aa_{n}",
        ),
        setup=(
            *TABLE,
            "create table o (id int primary key)",
            "insert into o values (1)",
        ),
    ),
)

__all__ = ["HISTORIES"]

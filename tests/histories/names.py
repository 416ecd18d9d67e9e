"""Histories of names: another relation takes the name of a table, or its schema changes."""

from __future__ import annotations

from tests.histories.base import TABLE, History

HISTORIES: tuple[History, ...] = (
    History(
        "two tables exchange their name in a subtransaction",
        (
            (
                "do $$ begin alter table t rename to w; begin alter table u rename to t; insert into t "
                "values (8); raise exception 'x'; exception when others then null; end; alter table w "
                "rename to t; insert into t values (4, 'c'); insert into u values (4, 'c'); end $$"
            ),
        ),
        setup=(*TABLE, "create table u (id int primary key, v text, z int)", "insert into u values (9, 'u', 1)"),
    ),
    History(
        "a view takes the name of a table", ("alter table t rename to t_old", "create view t as select * from t_old")
    ),
    History(
        "a materialized view has the name for a while",
        (
            "alter table t rename to t_old",
            "create materialized view t as select * from t_old",
            "refresh materialized view t",
            "drop materialized view t",
            "alter table t_old rename to t",
        ),
    ),
    History(
        "a temporary table hides a table",
        (
            "create temp table t (id int primary key, v text, z int default 3)",
            "insert into t values (5, 'temp')",
            "alter table t add zz int",
            "drop table pg_temp.t",
        ),
    ),
    History(
        "a table travels through renamed schemas",
        (
            "create schema sx_{n}",
            "create table sx_{n}.q (id int primary key, v text)",
            "insert into sx_{n}.q values (1)",
            "alter table t set schema sx_{n}",
            "alter schema sx_{n} rename to sy_{n}",
            "insert into sy_{n}.t values (6)",
            "alter table sy_{n}.t set schema {s}",
            "drop schema sy_{n} cascade",
        ),
    ),
    # The rows of capture's own tables are not read.
    History(
        "a table is in the schema of capture for a while",
        (
            "alter table t rename to t_{n}",
            "alter table t_{n} set schema cdc",
            "insert into cdc.t_{n} values (8)",
            "alter table cdc.t_{n} set schema {s}",
            "alter table t_{n} rename to t",
        ),
    ),
    History(
        "tables are made in the schema of capture and leave it",
        (
            "create table cdc.x_{n} as select * from t",
            "alter table cdc.x_{n} add primary key (id), add w int default 4",
            "alter table cdc.x_{n} set schema {s}",
            "insert into x_{n} values (3, 'z')",
            (
                "begin; create table cdc.y_{n} as select * from t; alter table cdc.y_{n} add primary key (id); "
                "alter table cdc.y_{n} set schema {s}; insert into y_{n} values (3, 'z'); commit"
            ),
            "create table cdc.z_{n} (id int primary key); insert into cdc.z_{n} values (1); drop table cdc.z_{n}",
        ),
    ),
    History(
        "a table is in information_schema for a while",
        (
            "alter table t rename to t_{n}",
            "alter table t_{n} set schema information_schema",
            "insert into information_schema.t_{n} values (8)",
            "alter table information_schema.t_{n} alter v type text using v || '!'",
            "alter table information_schema.t_{n} set schema {s}",
            "alter table t_{n} rename to t",
        ),
    ),
    History(
        "an enum is in the schema of capture while a label has another name",
        (
            "alter type mood_{n} set schema cdc",
            "alter type cdc.mood_{n} rename value 'a' to 'z'",
            "insert into t values (2, 'z')",
            "alter type cdc.mood_{n} rename value 'z' to 'a'",
            "alter type cdc.mood_{n} set schema {s}",
        ),
        setup=(
            "create type mood_{n} as enum ('a', 'b')",
            "create table t (id int primary key, v mood_{n})",
            "insert into t values (1, 'a')",
        ),
        probe=("update t set v = v",),
        first="insert into t values (66, 'b')",
    ),
    History(
        "a child joins and leaves its parent",
        (
            "create table c (primary key (id), z int default 4) inherits (t)",
            "insert into c values (9, 'c')",
            "alter table t add w int default 5",
            "alter table c no inherit t",
            "insert into c values (10, 'd')",
        ),
    ),
    History(
        "the parent updates rows of its child",
        (
            "update t set v = v || 'u'",
            "delete from t where id = 2",
            "insert into c values (5)",
            "update t set id = id + 10",
        ),
        setup=(
            "create table t (id int primary key, v text)",
            "create table c (z int, primary key (id)) inherits (t)",
            "insert into t values (1, 'a')",
            "insert into c values (2, 'b', 3)",
        ),
        probe=(),
    ),
    # Servers from 16 on refuse it, and older ones do where triggers capture the table.
    History(
        "a rule turns a table into a view",
        ('create rule "_RETURN" as on select to t do instead select * from o',),
        setup=(
            "create table t (id int, v text)",
            "alter table t replica identity full",
            "create table o (id int primary key, v text)",
            "insert into o values (1, 'o')",
        ),
        probe=(),
        refused="cannot have ON SELECT rules|because it has triggers",
    ),
)

__all__ = ["HISTORIES"]

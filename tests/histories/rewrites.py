"""Histories of storage: TRUNCATE, rewrites, unlogged tables, tables made by queries or of extensions."""

from __future__ import annotations

from tests.histories.base import TABLE, History

#: Where the files that `_script` makes are found.
_EXTENSIONS = "select set_config('extension_control_path', current_setting('data_directory') || ':$system', false)"


def _script(name: str, line: str) -> str:
    """Return the statement that makes a file of an extension."""
    program = f"mkdir -p extension && cat > extension/scripted{name}"
    return f"copy (select $${line}$$) to program '{program}'"


HISTORIES: tuple[History, ...] = (
    History(
        "TRUNCATE ONLY leaves the child",
        ("truncate only t",),
        setup=(
            "create table t (id int primary key, v text)",
            "create table c (primary key (id)) inherits (t)",
            "insert into t values (1, 'a')",
            "insert into c values (2, 'b')",
        ),
    ),
    History(
        "TRUNCATE empties a family",
        ("truncate t restart identity",),
        setup=(
            "create table t (id int primary key, v text)",
            "create table c (primary key (id)) inherits (t)",
            "insert into t values (1, 'a')",
            "insert into c values (2, 'b')",
        ),
    ),
    History(
        "a subtransaction with a TRUNCATE rolls back",
        (
            (
                "do $$ begin begin truncate t; insert into t values (5, 'z'); raise exception 'x'; "
                "exception when others then insert into t values (6, 's'); end; end $$"
            ),
        ),
    ),
    # Its rows are visible to all as soon as the transaction commits.
    History(
        "COPY FREEZE after TRUNCATE", ("truncate t; copy t from program 'printf \"8\\tq\\n9\\tr\\n\"' with (freeze)",)
    ),
    History(
        "a table is made and rewritten at once",
        (
            (
                "begin; create table t9 (id int primary key, v text); insert into t9 values (1, 'a'); "
                "alter table t9 alter v type text using v || '?'; insert into t9 values (2, 'b'); commit"
            ),
        ),
    ),
    History(
        "a table is truncated and rewritten at once",
        (
            (
                "begin; truncate t; insert into t values (5, 'a'); alter table t alter v type text using "
                "v || '?'; insert into t values (6, 'b'); commit"
            ),
        ),
    ),
    History(
        "a table is emptied and rewritten at once",
        (
            (
                "begin; delete from t; alter table t alter v type text using v || '?'; insert into t "
                "values (6, 'b'); commit"
            ),
        ),
    ),
    History(
        "a rewrite rolls back and happens again",
        (
            "delete from t",
            (
                "begin; insert into t values (9, 'n'); savepoint a; delete from t; alter table t alter v "
                "type text using v || '?'; rollback to a; alter table t alter v type text using v || "
                "'?'; insert into t values (6, 'b'); commit"
            ),
        ),
    ),
    History(
        "a table made by a query is altered at once",
        (
            (
                "begin; create table t9 as select * from t; alter table t9 add w int default 3; insert "
                "into t9 values (3); alter table t9 alter v type varchar(20); commit"
            ),
        ),
    ),
    History(
        "tables made by queries",
        (
            "select * into t2 from t",
            "alter table t2 replica identity full",
            "prepare x as select 5 as a",
            "create table t3 as execute x",
            "create table t4 (like t including all)",
            "insert into t4 values (1)",
        ),
    ),
    History(
        "a table is unlogged for a while",
        ("alter table t set unlogged", "insert into t values (50, 'u')", "alter table t set logged"),
        refused="it is part of a publication",
    ),
    History(
        "a table is unlogged within one transaction",
        ("alter table t set unlogged; insert into t values (50, 'u'); alter table t set logged",),
        refused="it is part of a publication",
    ),
    History(
        "an unlogged table becomes logged",
        (
            "create unlogged table u (id int primary key, v text)",
            "insert into u values (1)",
            "alter table u set logged",
            "insert into u values (2)",
        ),
    ),
    History(
        "a table is of an extension for a while",
        (
            "alter extension plpgsql add table t",
            "alter table t add w int default 4",
            "alter extension plpgsql drop table t",
        ),
    ),
    History(
        "a table of an extension is rewritten",
        (
            "alter extension plpgsql add table t",
            "alter table t alter v type text using v || '!'",
            "alter extension plpgsql drop table t",
        ),
    ),
    History(
        "an extension takes its table to another schema",
        (
            "alter extension vector set schema far_{n}",
            "insert into far_{n}.t values (99, 'lost')",
            "alter extension vector set schema {s}",
        ),
        setup=(
            *TABLE,
            "create extension vector schema {s}",
            "alter extension vector add table t",
            "create schema far_{n}",
        ),
        refused='extension "vector"|relation "far_',
    ),
    # Before 18, a server finds its extensions where it is installed only.
    History(
        "scripts of an extension make a table, and rename a label for a while",
        (
            _EXTENSIONS,
            "create extension scripted schema {s}",
            "alter extension scripted update to '2'",
            "insert into t values (3, 'z')",
            "alter extension scripted update to '3'",
            "insert into t values (4, 'a')",
        ),
        setup=(
            "create type mood as enum ('a', 'b')",
            "create table t (id int primary key, v mood)",
            "insert into t values (1, 'a')",
            _script(".control", "default_version = 1"),
            _script(
                "--1.sql",
                "create table e (id int primary key, v text); insert into e values (1, 'x');"
                " alter table e add w int default 5; insert into e values (2, 'y', 6)",
            ),
            _script("--1--2.sql", "alter type mood rename value 'a' to 'z'"),
            _script("--2--3.sql", "alter type mood rename value 'z' to 'a'"),
        ),
        probe=("update t set v = v",),
        first="insert into t values (66, 'b')",
        refused='parameter "extension_control_path"|extension "scripted"|enum mood: "z"',
    ),
)

__all__ = ["HISTORIES"]

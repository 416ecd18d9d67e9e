"""Histories of identity: keys, indexes, foreign keys, and statements that move keys."""

from __future__ import annotations

from tests.histories.base import PROBE, TABLE, History

#: A table whose rows are identified by another index than that of its key.
_BY_INDEX = (
    *TABLE,
    "alter table t alter v set not null",
    "create unique index ui on t (v)",
    "alter table t replica identity using index ui",
)

HISTORIES: tuple[History, ...] = (
    History(
        "the identity index is dropped",
        ("drop index ui",),
        setup=_BY_INDEX,
        probe=("insert into t values (77, 'q')",),
        first="insert into t values (66, 'first')",
    ),
    # REINDEX CONCURRENTLY gives the index another oid.
    History(
        "the identity index is built again beside",
        ("reindex index concurrently ui",),
        setup=_BY_INDEX,
        probe=("insert into t values (77, 'q')", *PROBE[1:]),
        first="insert into t values (66, 'first')",
    ),
    History(
        "the identity index is renamed",
        ("alter index ui rename to uj",),
        setup=_BY_INDEX,
        probe=("insert into t values (77, 'q')", *PROBE[1:]),
        first="insert into t values (66, 'first')",
    ),
    History(
        "rows have no identity", ("alter table t replica identity nothing",), probe=("insert into t values (77, 'q')",)
    ),
    History(
        "rows have no identity for a while",
        (
            "alter table t replica identity nothing",
            "insert into t values (70, 'q')",
            "alter table t replica identity default",
        ),
    ),
    History(
        "whole rows identify until the key does",
        (
            "update t set v = 'f'",
            "alter table t replica identity default",
            "update t set v = 'g'",
            "update t set id = id + 10",
        ),
        setup=(*TABLE, "alter table t replica identity full"),
    ),
    History(
        "an index becomes the key",
        (
            "create unique index ui on t (id)",
            "alter table t add primary key using index ui",
            "alter table t replica identity default",
        ),
        setup=(
            "create table t (id int not null, v text)",
            "insert into t values (1, 'x')",
            "alter table t replica identity full",
        ),
    ),
    History(
        "the key becomes deferrable",
        (
            "alter table t drop constraint t_pkey, add primary key (id) deferrable initially deferred",
            "alter table t replica identity full",
        ),
        probe=("update t set id = 3 - id where id < 3",),
    ),
    History(
        "the key includes another column", ("alter table t drop constraint t_pkey, add primary key (id) include (v)",)
    ),
    History(
        "foreign keys cascade",
        ("delete from t where id = 1", "update t set id = 5 where id = 2", "truncate t cascade"),
        setup=(
            *TABLE,
            ("create table f (id int primary key, t int references t on delete cascade on update cascade)"),
            "insert into f values (1, 1), (2, 2)",
        ),
    ),
    History(
        "foreign keys set their columns",
        ("delete from t where id = 1", "update t set id = 5 where id = 2"),
        setup=(
            *TABLE,
            ("create table f (id int primary key, t int references t on delete set null on update set default)"),
            "insert into f values (1, 1), (2, 2)",
        ),
        probe=PROBE[:1],
    ),
    # No replica identity may use it, and one key has two rows for a moment.
    History(
        "a deferrable key exchanges values",
        ("update t set id = 3 - id where id < 3",),
        setup=(
            "create table t (id int primary key deferrable initially deferred, v text)",
            "insert into t values (1, 'x'), (2, 'y'), (3, 'z')",
        ),
        probe=(
            "begin; insert into t values (3, 'dup'); delete from t where v = 'z'; commit",
            "begin; update t set id = 3 where id = 2; update t set id = 2 where v = 'dup'; commit",
        ),
        refused="does not have a replica identity",
    ),
    History(
        "a deferrable unique constraint exchanges values",
        ("update t set id = 3 - id where id < 3",),
        setup=(
            "create table t (id int not null unique deferrable initially deferred, v text)",
            "alter table t add k int primary key default 1",
            "insert into t values (1, 'x', 5), (2, 'y', 6)",
        ),
        probe=(),
    ),
    History(
        "TRUNCATE cascades to a foreign key",
        ("truncate t cascade", "insert into f values (3)"),
        setup=(*TABLE, "create table f (id int primary key, t int references t)", "insert into f values (1, 1)"),
        probe=(),
    ),
    History(
        "ON CONFLICT moves a key",
        (("insert into t values (1, 'c'), (9, 'd') on conflict (id) do update set id = t.id + 30, v = excluded.v"),),
    ),
    History(
        "MERGE deletes, updates keys and inserts",
        (
            (
                "merge into t using (values (1, 'm'), (2, 'n'), (3, 'o')) as s (id, v) on t.id = s.id "
                "when matched and s.id = 1 then delete when matched then update set id = t.id + 50, v = "
                "s.v when not matched then insert values (s.id, s.v)"
            ),
        ),
    ),
    History(
        "a cursor updates and deletes its row",
        (
            (
                "begin; declare c cursor for select * from t order by id for update; fetch c; update t "
                "set v = 'cur' where current of c; delete from t where current of c; commit"
            ),
        ),
        probe=(),
    ),
)

__all__ = ["HISTORIES"]

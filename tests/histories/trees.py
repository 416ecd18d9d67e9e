"""Histories of tables with heirs: inheritance, and partitions with partitions of their own."""

from __future__ import annotations

from tests.histories.base import ROOT, ROOT_PROBE, TABLE, History

#: A table whose partitions have partitions, and what moves rows through them.
_TREE = (
    "create table r (id int, d int, v text, primary key (id, d)) partition by range (d)",
    "create table r1 partition of r for values from (0) to (10) partition by list (d)",
    "create table r11 partition of r1 for values in (1)",
    "create table r1d partition of r1 default",
    "create table rd partition of r default",
    "insert into r values (1,1,'a'),(2,5,'b'),(3,50,'c')",
)
_TREE_PROBE = (
    "insert into r (id, d) values (77, 7), (78, 1)",
    "update r set d = 1 where id = 77",
    "update r set d = 80 where id = 78",
    "delete from r where id = 77",
)

HISTORIES: tuple[History, ...] = (
    History(
        "an extension takes a table with it",
        (
            "drop extension vector cascade",
            "create table t (id int primary key, v text)",
            "insert into t values (1,'n')",
        ),
        setup=(
            *TABLE,
            "create extension vector schema {s}",
            "alter extension vector add table t",
            "create table u (id int primary key, e vector(2))",
            "insert into u values (1,'[1,2]')",
        ),
        probe=("insert into u values (5)",),
        refused='extension "vector"|relation "|type "vector"|already exists',
    ),
    History(
        "a child with rows inherits and leaves",
        (
            "create table c (id int primary key, v text)",
            "insert into c values (9,'c')",
            "alter table c inherit t",
            "update t set v='all'",
            "alter table t add w int default 5",
            "alter table t rename v to vv",
            "alter table c no inherit t",
            "alter table t drop w",
            "insert into c values (10,'d',6)",
        ),
    ),
    History(
        "two parents merge their columns",
        (
            "alter table t add w int default 5",
            "alter table t2 add w int default 6",
            "update t2 set k = 4",
            "alter table t drop v",
            "alter table c no inherit t2",
        ),
        setup=(
            *TABLE,
            "create table t2 (id int, k int default 3)",
            "create table c (primary key (id)) inherits (t, t2)",
            "insert into c values (9,'c')",
            "alter table t2 replica identity full",
        ),
    ),
    History(
        "a local column stays when the parent's goes",
        (
            "alter table t drop v",
            "insert into c values (10,'d')",
            "alter table t add v int default 7",
        ),
        setup=(
            *TABLE,
            "create table c (v text, primary key (id)) inherits (t)",
            "insert into c values (9,'c')",
        ),
        refused="different type",
    ),
    History(
        "rows move through sub-partitions",
        (
            "update r set d = 1 where d=5",
            "update r set d = 99 where d=1",
            ("begin; update r set d = 2; savepoint a; update r set d = 60; rollback to a; update r set v='m'; commit"),
        ),
        setup=_TREE,
        probe=_TREE_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "a default partition gives rows to a new one",
        (
            (
                "begin; create table r5 (like r including all); insert into r5 select * from rd where "
                "d=50; delete from rd where d=50; alter table r attach partition r5 for values from "
                "(50) to (60); commit"
            ),
            "update r set v='z'",
        ),
        setup=_TREE,
        probe=_TREE_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "a sub-root leaves and comes back",
        (
            "alter table r detach partition r1",
            "insert into r1 values (9,9,'alone')",
            "update r1 set d=1 where d=9",
            "alter table r attach partition r1 for values from (0) to (10)",
            "insert into r values (10,9,'back')",
        ),
        setup=_TREE,
        probe=_TREE_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "a sub-root leaves in one transaction and comes back",
        (
            (
                "begin; alter table r detach partition r1; insert into r1 values (9,9,'alone'); "
                "truncate r11; alter table r attach partition r1 for values from (0) to (10); insert "
                "into r values (10,9,'back'); commit"
            ),
        ),
        setup=_TREE,
        probe=_TREE_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "a sub-root is dropped and made again plain",
        (
            "drop table r1",
            "create table r1 partition of r for values from (0) to (10)",
            "insert into r values (10,9,'back')",
        ),
        setup=_TREE,
        probe=_TREE_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "a tree is attached",
        (
            "create table a (id int, d int, v text, primary key (id,d)) partition by list (d)",
            "create table a1 partition of a for values in (20)",
            "create table a2 (v text, d int not null, id int not null, primary key (id,d))",
            "insert into a2 values ('two',21,5)",
            "alter table a attach partition a2 for values in (21)",
            "insert into a values (6,20,'six')",
            "alter table r attach partition a for values from (20) to (30)",
            "insert into r values (7,21,'seven')",
            "update r set d=1 where d=21",
        ),
        setup=_TREE,
        probe=_TREE_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "DETACH CONCURRENTLY",
        (
            "alter table r detach partition r1 concurrently",
            "insert into r1 values (9,9,'alone')",
        ),
        setup=(
            "create table r (id int, d int, v text, primary key (id, d)) partition by range (d)",
            "create table r1 partition of r for values from (0) to (10) partition by list (d)",
            "create table r11 partition of r1 for values in (1)",
            "create table r1d partition of r1 default",
            "insert into r values (1,1,'a'),(2,5,'b')",
        ),
        probe=("insert into r1 (id, d) values (77, 7)",),
        first="insert into r (id, d) values (66, 6)",
        refused="run inside a transaction|no partition|does not exist",
    ),
    History(
        "a partition of a partition is detached, renamed and dropped",
        (
            (
                "alter table r1 detach partition r11; alter table r11 rename to x11; insert into x11 "
                "values (9,1,'x'); drop table x11"
            ),
            "create table r11 partition of r1 for values in (1)",
        ),
        setup=_TREE,
        probe=_TREE_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "the names of partitions rotate",
        (
            (
                "begin; alter table r11 rename to tmp; alter table r1d rename to r11; alter table rd "
                "rename to r1d; alter table tmp rename to rd; insert into r values "
                "(8,1,'o'),(9,2,'p'),(10,70,'q'); commit"
            ),
        ),
        setup=_TREE,
        probe=_TREE_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "columns of a tree come and go",
        (
            "alter table r add w int default 4, add x text",
            "alter table r drop v",
            "alter table r rename w to v",
            "alter table r alter v type bigint",
            "insert into r values (5,5,9,'x')",
            "alter table r alter x type varchar(5)",
            "alter table only r alter v set default 8",
            "alter table r11 alter v set default 7",
            "insert into r (id,d) values (6,1)",
            "insert into r11 (id,d) values (7,1)",
        ),
        setup=_TREE,
        probe=_TREE_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "a row trigger on one partition changes rows",
        (
            ("create function g() returns trigger language plpgsql as 'begin new.v := ''trg''; return new; end'"),
            "create trigger b before insert or update on r11 for each row execute function g()",
            "insert into r values (5,1,'x')",
            "update r set d=1 where d=5",
        ),
        setup=_TREE,
        probe=_TREE_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "partitions have other identities",
        (
            "alter table r11 replica identity full",
            "alter table r1d replica identity nothing",
            "insert into r values (5,1,'x'),(6,6,'y')",
            "update r set v='u' where d=1",
            "alter table r1d replica identity default",
            "update r set v='u' where d=6",
        ),
        setup=_TREE,
        probe=_TREE_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "a partition set to another schema",
        (
            "create schema px_{n}",
            "alter table r1 set schema px_{n}",
            "insert into r values (5,5,'x')",
            "update r set d=15 where d=5",
            "alter table px_{n}.r1 set schema {s}",
            "drop schema px_{n}",
        ),
        setup=ROOT,
        probe=ROOT_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "the root is renamed and moved",
        (
            "alter table r rename to rr",
            "insert into rr values (5,5,'x')",
            "create schema px_{n}",
            "alter table rr set schema px_{n}",
            "insert into px_{n}.rr values (6,6,'y')",
            "alter table px_{n}.rr rename to r",
            "alter table px_{n}.r set schema {s}",
            "drop schema px_{n}",
        ),
        setup=ROOT,
        probe=ROOT_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "hash partitions",
        (
            "create table hh (id int primary key, v text) partition by hash (id)",
            "create table h0 partition of hh for values with (modulus 2, remainder 0)",
            "create table h1 partition of hh for values with (modulus 2, remainder 1)",
            "insert into hh select i, 'h' from generate_series(1,9) i",
            "update hh set id = id + 101",
            "begin; alter table hh detach partition h0; update h0 set v='alone'; commit",
            "alter table hh attach partition h0 for values with (modulus 2, remainder 0)",
        ),
        setup=ROOT,
        probe=ROOT_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "ONLY of a root",
        (
            "alter table only r add constraint c check (id > 0) no inherit",
            "update only r set v='x'",
            "delete from only r",
            "truncate only r",
        ),
        setup=ROOT,
        probe=ROOT_PROBE,
        first="insert into r (id, d) values (66, 6)",
        refused="cannot add NO INHERIT|cannot truncate only",
    ),
    History(
        "a key by index of each partition",
        (
            "alter table r drop constraint r_pkey",
            "alter table only r add primary key (id,d)",
            "alter table r1 add primary key (id,d)",
            "alter table r2 add primary key (id,d)",
            "alter index r_pkey attach partition r1_pkey",
            "alter index r_pkey attach partition r2_pkey",
        ),
        setup=ROOT,
        probe=ROOT_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "an attached partition has a missing value",
        (
            "create table ra (id int not null, d int not null)",
            "insert into ra values (5,25)",
            "alter table ra add v text default 'missing'",
            "alter table r attach partition ra for values from (20) to (30)",
            "alter table r add w int default 6",
            "vacuum full ra",
            "insert into r values (6,26,'z')",
        ),
        setup=ROOT,
        probe=ROOT_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "a root's column with a default, partitions altered apart",
        (
            "alter table r add w int default 4",
            "create table r3 partition of r for values from (20) to (30)",
            "insert into r values (5,25,'q')",
            "alter table r alter w set default 5",
            "create table r4 partition of r for values from (30) to (40)",
            "insert into r values (6,35,'q')",
            "alter table r alter w drop default",
        ),
        setup=ROOT,
        probe=ROOT_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "an identity column of a root",
        (
            "alter table r add w int generated always as identity",
            "insert into r (id,d) values (5,5)",
        ),
        setup=ROOT,
        probe=ROOT_PROBE,
        first="insert into r (id, d) values (66, 6)",
        refused="cannot|not supported",
    ),
    History(
        "generated columns of a root",
        (
            "alter table r add g int generated always as (id*2) stored",
            "insert into r (id,d) values (5,5)",
            "create table r3 (like r including all)",
            "insert into r3 (id,d) values (6,26)",
            "alter table r attach partition r3 for values from (20) to (30)",
        ),
        setup=ROOT,
        probe=ROOT_PROBE,
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "a unique index of the root identifies",
        (
            "create unique index u on r (d, id)",
            "alter table r1 replica identity using index r1_d_id_idx",
            "alter table r2 replica identity using index r2_d_id_idx",
            "update r set v='q'",
            "drop index u",
        ),
        setup=ROOT,
        probe=("insert into r (id,d) values (77,7)",),
        first="insert into r (id, d) values (66, 6)",
    ),
    History(
        "a trigger moves rows of the root by INSERT elsewhere",
        (
            "create table l (id int primary key, d int)",
            (
                "create function g() returns trigger language plpgsql as 'begin insert into l values "
                "(new.id, new.d) on conflict do nothing; return null; end'"
            ),
            "create trigger a after insert on r for each row execute function g()",
            "insert into r values (5,5,'x')",
            "update r set d=15 where d=5",
        ),
        setup=ROOT,
        probe=("delete from l",),
        first="insert into r (id, d) values (66, 6)",
    ),
)

__all__ = ["HISTORIES"]

"""Histories of partitioned tables."""

from __future__ import annotations

from tests.histories.base import ROOT, History, of_root

HISTORIES: tuple[History, ...] = (
    of_root("TRUNCATE of the root", ("truncate r",)),
    of_root("TRUNCATE of a partition", ("truncate r1",)),
    of_root("TRUNCATE of a partition and its root", ("truncate r1, r",)),
    of_root(
        "a default partition is made", ("create table rd partition of r default", "insert into r values (3, 99, 'def')")
    ),
    of_root(
        "a partition has partitions",
        (
            "create table r3 partition of r for values from (20) to (30) partition by list (d)",
            "create table r31 partition of r3 for values in (20)",
            "insert into r values (3, 20, 'sub')",
            "update r set d = 1 where d = 20",
        ),
    ),
    of_root(
        "a partition with other column numbers is attached",
        (
            "create table ra (v text, junk int, d int not null, id int not null)",
            "alter table ra drop junk",
            "insert into ra values ('at', 25, 9)",
            "alter table r attach partition ra for values from (20) to (30)",
            "insert into r values (3, 21, 'sub')",
            "update r set d = 1 where d = 25",
        ),
    ),
    of_root(
        "a partition is detached and attached",
        (
            "alter table r detach partition r2",
            "insert into r2 values (5, 15, 'alone')",
            "alter table r attach partition r2 for values from (10) to (20)",
        ),
    ),
    of_root(
        "a partition is dropped and made again",
        ("drop table r2", "create table r2 partition of r for values from (10) to (20)"),
    ),
    of_root(
        "a partition is detached, dropped and made again",
        (
            "alter table r detach partition r2; drop table r2",
            "create table r2 partition of r for values from (10) to (20)",
        ),
    ),
    of_root(
        "columns of the root come and go",
        (
            "alter table r add w int default 4",
            "alter table r drop v",
            "alter table r rename w to v",
            "alter table only r alter v set default 9",
        ),
    ),
    of_root(
        "the root loses its key",
        (
            "alter table r drop constraint r_pkey",
            "alter table r replica identity full",
            "alter table r1 replica identity full",
            "alter table r2 replica identity full",
        ),
    ),
    of_root("partitions exchange names", ("alter table r1 rename to rx", "alter table r2 rename to r1")),
    of_root(
        "a partition is unlogged for a while",
        ("alter table r1 set unlogged", "insert into r values (4, 4)", "alter table r1 set logged"),
    ),
    of_root(
        "attached rows are updated at once",
        (
            "create table ra (like r including all)",
            "insert into ra values (5, 25, 'ra')",
            (
                "begin; alter table r attach partition ra for values from (20) to (30); update r set v = "
                "'now' where d = 25; commit"
            ),
            "insert into r values (6, 26)",
        ),
    ),
    of_root(
        "a partition is alone within one transaction",
        (
            (
                "begin; alter table r detach partition r2; update r2 set v = 'alone'; alter table r "
                "attach partition r2 for values from (10) to (20); update r set v = v || '2'; commit"
            ),
        ),
    ),
    of_root(
        "a partition is split",
        (
            (
                "begin; create table rn (like r including all); alter table r detach partition r2; "
                "insert into rn select * from r2 where d < 15; delete from r2 where d < 15; alter table "
                "r attach partition rn for values from (10) to (15); alter table r attach partition r2 "
                "for values from (15) to (20); commit"
            ),
        ),
    ),
    of_root(
        "TRUNCATE of a partition rolls back",
        ("begin; savepoint a; truncate r1; rollback to a; update r set v = 'q'; commit",),
    ),
    of_root(
        "DROP of a partition rolls back",
        ("begin; savepoint a; drop table r1; rollback to a; update r set v = 'q'; commit",),
    ),
    of_root(
        "a partition comes and goes in the schema of capture",
        (
            "create table cdc.p_{n} partition of r for values from (20) to (30)",
            "insert into r values (5, 25, 'gone')",
            "drop table cdc.p_{n}",
            (
                "begin; create table cdc.p_{n} partition of r for values from (20) to (30); insert into r "
                "values (6, 26, 'gone'); alter table r detach partition cdc.p_{n}; drop table cdc.p_{n}; commit"
            ),
        ),
    ),
    of_root(
        "a trigger fills rows before they are stored",
        (
            (
                "create function h() returns trigger language plpgsql as 'begin new.v := coalesce(new.v, "
                "''dflt''); return new; end'"
            ),
            "create trigger bb before insert or update on r for each row execute function h()",
        ),
    ),
    of_root(
        "a trigger fills what TRUNCATE has emptied",
        ("truncate r",),
        setup=(
            *ROOT,
            (
                "create function g() returns trigger language plpgsql as 'begin insert into r values "
                "(100, 5, ''seed''), (101, 15, ''seed''); return null; end'"
            ),
            "create trigger g after truncate on r for each statement execute function g()",
        ),
        probe=(),
    ),
)

__all__ = ["HISTORIES"]

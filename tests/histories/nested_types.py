"""Histories of types inside other types: labels, attributes and row types below arrays, domains and ranges."""

from __future__ import annotations

from tests.histories.base import History


def _of(
    name: str,
    types: tuple[str, ...],
    column: str,
    value: str,
    changes: tuple[str, ...],
    *,
    probe: tuple[str, ...] = ("insert into t (id) values (77)", "update t set v = v where id = 1"),
    refused: str | None = None,
) -> History:
    """Return a history of a table with a column of a type; among the types is an enum."""
    setup = (
        "create type mood as enum ('a', 'b', 'c')",
        *types,
        f"create table t (id int primary key, v {column})",
        f"insert into t values (1, {value}), (2, null)",
    )
    return History(name, changes, setup, probe, refused=refused)


HISTORIES: tuple[History, ...] = (
    _of(
        "labels exchange their names",
        (),
        "mood",
        "'a'",
        (
            "alter type mood rename value 'a' to 'tmp'",
            "insert into t values (3,'b')",
            "alter type mood rename value 'b' to 'a'",
            "insert into t values (4,'a')",
            "alter type mood rename value 'tmp' to 'b'",
            "insert into t values (5,'a')",
        ),
    ),
    _of(
        "labels exchange in one transaction",
        (),
        "mood",
        "'a'",
        (
            (
                "begin; insert into t values (3,'b'); alter type mood rename value 'a' to 'tmp'; alter type mood "
                "rename value 'b' to 'a'; alter type mood rename value 'tmp' to 'b'; insert into t values (5,'a'); "
                "commit"
            ),
        ),
    ),
    _of(
        "a label is added before others",
        (),
        "mood",
        "'a'",
        (
            "alter type mood add value 'aa' before 'b'",
            "insert into t values (3,'aa')",
            "alter type mood rename value 'aa' to 'ab'",
        ),
    ),
    _of(
        "a label below two domains",
        ("create domain d1 as mood default 'b'", "create domain d2 as d1 check (value::mood <> 'c')"),
        "d2",
        "'a'",
        (
            "alter type mood rename value 'a' to 'z'",
            "alter table t add w d2",
            "alter domain d1 set default 'z'",
            "alter table t add w2 d2",
            "alter domain d2 drop constraint d2_check",
            "insert into t values (5,'c')",
        ),
    ),
    _of(
        "a label in an array of a domain",
        ("create domain d1 as mood",),
        "d1[]",
        "'{a,b}'",
        ("alter type mood rename value 'a' to 'z'", "insert into t values (3,'{z}')"),
    ),
    _of(
        "a label in a range",
        ("create type mr as range (subtype = mood)",),
        "mr",
        "'[a,b]'",
        ("alter type mood rename value 'a' to 'z'", "insert into t values (3,'[z,b]')"),
    ),
    _of(
        "a label in a multirange",
        ("create type mr as range (subtype = mood, multirange_type_name = mmr)",),
        "mmr",
        "'{[a,b]}'",
        ("alter type mood rename value 'a' to 'z'", "insert into t values (3,'{[z,b]}')"),
    ),
    _of(
        "a label in an array of multiranges",
        ("create type mr as range (subtype = mood, multirange_type_name = mmr)",),
        "mmr[]",
        "'{\"{[a,b]}\"}'",
        ("alter type mood rename value 'a' to 'z'",),
    ),
    _of(
        "a label in a composite of a domain of a range",
        ("create type mr as range (subtype = mood)", "create domain dr as mr", "create type pp as (a dr, b int)"),
        "pp[]",
        "array[row('[a,b]',1)::pp]",
        ("alter type mood rename value 'a' to 'z'",),
    ),
    _of(
        "a label in a range over a domain",
        ("create domain dm as mood", "create type mr as range (subtype = dm)"),
        "mr",
        "'[a,b]'",
        ("alter type mood rename value 'a' to 'z'",),
    ),
    _of(
        "an attribute in an array of composites is renamed and dropped",
        ("create type pp as (a int, b text)",),
        "pp[]",
        "array[row(1,'x')::pp]",
        (
            "alter type pp rename attribute b to bb",
            "alter type pp add attribute c int",
            "insert into t values (3, array[row(1,'x',2)::pp])",
            "alter type pp drop attribute a",
        ),
    ),
    _of(
        "a composite inside a composite gets an attribute",
        ("create type pp as (a int, b text)", "create type qq as (p pp, q pp[])"),
        "qq",
        "row(row(1,'x'), array[row(2,'y')::pp])",
        ("alter type pp add attribute c int", "insert into t values (3, row(row(1,'x',5), null))"),
    ),
    _of(
        "a composite in a range",
        ("create type pp as (a int)", "create type pr as range (subtype = pp)"),
        "pr",
        "pr(row(1)::pp, row(5)::pp)",
        ("alter type pp add attribute c int",),
    ),
    _of(
        "a view gives the row type of a column",
        ("create view vv as select 1 as a, 'x'::text as b",),
        "vv",
        "row(1,'q')",
        (
            "create or replace view vv as select 1 as a, 'x'::text as b, 2 as c",
            "insert into t values (3, row(1,'q',7))",
            "alter view vv rename column a to aa",
        ),
    ),
    _of(
        "a materialized view gives the row type",
        ("create materialized view vv as select 1 as a, 'x'::text as b, 'a'::mood as m",),
        "vv",
        "row(1,'q','a')",
        ("alter type mood rename value 'a' to 'z'", "insert into t values (3, row(1,'q','z'))"),
    ),
    _of(
        "a partitioned table gives the row type",
        ("create table pt (a int, b text) partition by list (a)", "create table pt1 partition of pt default"),
        "pt",
        "row(1,'q')",
        ("alter table pt add c int default 5", "insert into t values (3, row(1,'q',7))", "alter table pt drop b"),
        refused="cannot alter table",
    ),
    _of(
        "a partition gives the row type",
        ("create table pt (a int, b text) partition by list (a)", "create table pt1 partition of pt default"),
        "pt1",
        "row(1,'q')",
        ("alter table pt add c int", "insert into t values (3, row(1,'q',7))", "alter table pt drop b"),
    ),
    _of(
        "a child by inheritance gives the row type",
        ("create table pt (a int, b text)", "create table pt1 (z int) inherits (pt)"),
        "pt1",
        "row(1,'q',3)",
        ("alter table pt add c int", "insert into t values (3, row(1,'q',3,7))", "alter table pt drop b"),
    ),
    _of(
        "a foreign table gives the row type",
        (
            "create foreign data wrapper fdw_{n}",
            "create server srv_{n} foreign data wrapper fdw_{n}",
            "create foreign table ft (a int, b text) server srv_{n}",
        ),
        "ft",
        "row(1,'q')",
        ("alter foreign table ft add c int", "insert into t values (3, row(1,'q',7))", "alter foreign table ft drop b"),
    ),
    _of(
        "a typed table's composite is a column too",
        ("create type pp as (a int, b text)", "create table tt of pp"),
        "pp",
        "row(1,'x')",
        ("alter type pp add attribute c int cascade", "insert into t values (3, row(1,'x',2))"),
    ),
    _of(
        "types are renamed and move",
        ("create type pp as (a int, b mood)", "create domain dd as pp", "create schema tys_{n}"),
        "dd",
        "row(1,'a')",
        (
            "alter type pp rename to pp2",
            "alter type pp2 set schema tys_{n}",
            "alter type mood set schema tys_{n}",
            "insert into t values (3, row(1,'b'))",
            "alter type tys_{n}.mood rename value 'a' to 'z'",
            "drop schema tys_{n} cascade",
        ),
        probe=(),
    ),
    _of(
        "an enum is owned by another schema that is dropped",
        ("create schema tys_{n}", "create type tys_{n}.m2 as enum ('a')"),
        "tys_{n}.m2",
        "'a'",
        ("alter table t add k int default 3", "drop schema tys_{n} cascade", "alter table t add v int default 9"),
    ),
    _of(
        "an enum column becomes text and another enum",
        ("create type m2 as enum ('a','b','c','z')",),
        "mood",
        "'a'",
        (
            "alter table t alter v type text",
            "insert into t values (3,'b')",
            "alter table t alter v type m2 using v::m2",
            "alter type m2 rename value 'a' to 'q'",
            "insert into t values (4,'q')",
        ),
    ),
    _of(
        "a range becomes another",
        (),
        "int4range",
        "'[1,5]'",
        (
            "alter table t alter v type int8range using int8range(lower(v), upper(v))",
            "insert into t values (3, '[1,2]')",
            "alter table t add m int8multirange default '{[1,2]}'",
            "alter table t add a int8multirange[] default '{}'",
        ),
    ),
    _of(
        "text becomes an array and json",
        (),
        "text",
        "'x'",
        (
            "alter table t alter v type text[] using array[v]",
            "insert into t values (3,'{a}')",
            "alter table t alter v type jsonb using to_jsonb(v)",
            "insert into t values (4,'{\"a\": 1}')",
            "alter table t alter v type json using v::text::json",
        ),
    ),
    _of(
        "varchar narrows, widens and is text",
        (),
        "varchar(10)",
        "'x'",
        (
            "alter table t alter v type varchar(20)",
            "alter table t alter v type text",
            "alter table t alter v type varchar(3)",
            "alter table t alter v type varchar",
            'alter table t alter v type text collate "C"',
            "insert into t values (3,'abcdef')",
        ),
    ),
    _of(
        "numeric widens and changes its scale",
        (),
        "numeric(10,2)",
        "1.50",
        (
            "alter table t alter v type numeric(12,2)",
            "insert into t values (3, 1.1)",
            "alter table t alter v type numeric(12,4)",
            "insert into t values (4, 1.1)",
            "alter table t alter v type numeric",
            "alter table t alter v type float8",
        ),
    ),
    _of(
        "timestamps change their precision",
        (),
        "timestamp(3)",
        "'2026-01-01 10:00:00.123'",
        (
            "alter table t alter v type timestamp(6)",
            "insert into t values (3,'2026-01-01 10:00:00.123456')",
            "alter table t alter v type timestamp(0)",
            "alter table t alter v type date",
        ),
    ),
    _of(
        "interval fields change",
        (),
        "interval",
        "'1 day 02:03:04'",
        (
            "alter table t alter v type interval day",
            "alter table t alter v type interval(6)",
            "insert into t values (3,'1 mon 1 sec')",
        ),
    ),
    _of(
        "a domain with a check becomes another",
        ("create domain p1 as int check (value > 0)", "create domain p2 as int"),
        "p1",
        "5",
        (
            "alter table t alter v type p2",
            "insert into t values (3,-1)",
            "alter table t alter v type bigint",
            "alter domain p1 rename to p3",
        ),
    ),
    _of(
        "a domain over an array over a domain",
        ("create domain d1 as mood", "create domain d2 as d1[]", "create domain d3 as d2"),
        "d3",
        "'{a,b}'",
        ("alter type mood rename value 'a' to 'z'",),
    ),
    _of(
        "a missing value of an enum",
        (),
        "mood",
        "'a'",
        (
            "alter table t add w mood default 'a'",
            "alter table t add w2 mood[] default '{a,b}'",
            "alter type mood rename value 'a' to 'z'",
            "vacuum full t",
            "alter table t add w3 mood default 'z'",
            "alter type mood rename value 'z' to 'y'",
        ),
    ),
    _of("oid types by name", (), "regtype", "'mood'", ("alter type mood rename to mood3",)),
    _of(
        "a label is renamed and the table rewritten in one transaction",
        (),
        "mood",
        "'a'",
        (
            (
                "begin; insert into t values (3,'a'); alter type mood rename value 'a' to 'z'; alter table t add k int "
                "default 4; update t set v='z' where id=3; commit"
            ),
        ),
    ),
    _of(
        "a label is renamed and back in savepoints",
        (),
        "mood",
        "'a'",
        (
            (
                "begin; savepoint a; alter type mood rename value 'a' to 'z'; insert into t values (3,'z'); rollback "
                "to a; insert into t values (4,'a'); alter type mood rename value 'a' to 'y'; insert into t values "
                "(5,'y'); commit"
            ),
        ),
    ),
    _of(
        "text search and xml",
        (),
        "tsvector",
        "'a b'",
        ("alter table t add q tsquery default 'a & b'", "alter table t alter v type text"),
    ),
)

__all__ = ["HISTORIES"]

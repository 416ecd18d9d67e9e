"""Histories of types: what a column prints changes, with or without a rewrite."""

from __future__ import annotations

from tests.histories.base import TABLE, History

HISTORIES: tuple[History, ...] = (
    # The cast rewrites nothing, and prints another text: inet omits /32.
    History(
        "cidr becomes inet",
        ("alter table t alter v type inet",),
        setup=(
            "create table t (id int primary key, v cidr, w cidr[])",
            "insert into t values (1, '10.0.0.1/32', '{10.0.0.1/32}')",
        ),
    ),
    # In UTC, the server does not rewrite the table.
    History(
        "timestamp becomes timestamptz in UTC",
        ("alter table t alter v type timestamptz",),
        setup=(
            "set timezone = 'UTC'",
            "create table t (id int primary key, v timestamp)",
            "insert into t values (1, '2026-01-01')",
        ),
    ),
    History(
        "regclass prints a renamed table",
        ("alter table o rename to o2",),
        setup=(
            "create table o (id int primary key)",
            "create table t (id int primary key, v regclass)",
            "insert into t values (1, 'o')",
        ),
    ),
    History(
        "an array of regclass prints a renamed table",
        ("alter table o rename to o2",),
        setup=(
            "create table o (id int primary key)",
            "create table t (id int primary key, v regclass[])",
            "insert into t values (1, '{o}')",
        ),
    ),
    History(
        "a domain of regclass prints a renamed table",
        ("alter table o rename to o2",),
        setup=(
            "create table o (id int primary key)",
            "create domain dd as regclass",
            "create table t (id int primary key, v dd)",
            "insert into t values (1, 'o')",
        ),
    ),
    History(
        "a composite of regclass prints a renamed table",
        ("alter table o rename to o2",),
        setup=(
            "create table o (id int primary key)",
            "create type cc as (a regclass)",
            "create table t (id int primary key, v cc)",
            "insert into t values (1, row('o'))",
        ),
    ),
    History(
        "a range of regclass prints a renamed table",
        ("alter table o rename to o2",),
        setup=(
            "create table o (id int primary key)",
            "create type cc as range (subtype = regclass, subtype_opclass = oid_ops)",
            "create table t (id int primary key, v cc)",
            "insert into t values (1, '[o,o]')",
        ),
    ),
    History(
        "regclass becomes oid",
        ("alter table t alter v type oid",),
        setup=(
            "create table o (id int primary key)",
            "create table t (id int primary key, v regclass)",
            "insert into t values (1, 'o')",
        ),
    ),
    History(
        "oid becomes regclass",
        ("alter table t alter v type regclass",),
        setup=(
            "create table o (id int primary key)",
            "create table t (id int primary key, v oid)",
            "insert into t values (1, 'o'::regclass)",
        ),
    ),
    History(
        "text becomes bpchar",
        ("alter table t alter v type bpchar",),
        setup=("create table t (id int primary key, v text)", "insert into t values (1, 'x  ')"),
    ),
    History(
        "bpchar becomes text",
        ("alter table t alter v type text",),
        setup=("create table t (id int primary key, v bpchar)", "insert into t values (1, 'x  ')"),
    ),
    History(
        "char and varchar change places",
        ("alter table t alter v type varchar(5), alter w type char(5)",),
        setup=(
            "create table t (id int primary key, v char(5), w varchar(5))",
            "insert into t values (1, 'x  ', 'y  ')",
        ),
    ),
    History(
        "bit becomes varbit",
        ("alter table t alter v type varbit",),
        setup=("create table t (id int primary key, v bit(4), w varbit)", "insert into t values (1, b'1010', b'1')"),
    ),
    History(
        "xml becomes text",
        ("alter table t alter v type text",),
        setup=("create table t (id int primary key, v xml)", "insert into t values (1, '<a/>')"),
        refused="unsupported XML feature",
    ),
    History(
        "a domain becomes its base type",
        ("alter table t alter v type varchar(5)",),
        setup=(
            "create domain dd as varchar(5)",
            "create table t (id int primary key, v dd)",
            "insert into t values (1, 'abc')",
        ),
    ),
    # A column without a default of its own has that of its domain.
    History(
        "columns of a domain with a default",
        ("alter table t add w dd", "alter table t add w2 dd default 'own'", "alter table t add w3 dd not null"),
        setup=(
            "create domain dd as text default 'dd'",
            "create table t (id int primary key, v text)",
            "insert into t values (1, 'x'), (2, 'y')",
        ),
    ),
    # The column added before keeps the value of its time.
    History(
        "the default of a domain changes",
        ("alter domain dd set default 'ee'", "alter table t add w2 dd"),
        setup=(
            "create domain dd as text default 'dd'",
            "create table t (id int primary key, v text)",
            "insert into t values (1, 'x'), (2, 'y')",
            "alter table t add w dd",
        ),
    ),
    History(
        "a table whose row type is used gets a column",
        ("alter table t add w int default 5",),
        setup=(
            *TABLE,
            "create table u (id int primary key, r t, a t[])",
            "insert into u values (1, (1, 'x'), '{\"(1,x)\"}')",
        ),
        probe=("insert into u (id) values (4)",),
        refused='cannot alter table "t" because column',
    ),
    History(
        "a table whose row type is used loses a column",
        ("alter table t drop v",),
        setup=(
            *TABLE,
            "create table u (id int primary key, r t, a t[])",
            "insert into u values (1, (1, 'x'), '{\"(1,x)\"}')",
        ),
        probe=("insert into u (id) values (4)",),
    ),
    History(
        "a parent has a column for a while, and the row type of its child is used",
        ("alter table p add c int", "insert into u values (2, (2, 'y', 7))", "alter table p drop c"),
        setup=(
            "create table p (id int primary key, v text)",
            "create table t (primary key (id)) inherits (p)",
            "create table u (id int primary key, r t)",
            "insert into u values (1, (1, 'x'))",
        ),
        probe=("insert into u (id) values (4)",),
    ),
    History(
        "a label inside a row type is renamed",
        ("alter type mood rename value 'a' to 'z'",),
        setup=(
            "create type mood as enum ('a', 'b')",
            "create table t (id int primary key, v mood)",
            "create table u (id int primary key, r t)",
            "insert into u values (1, (1, 'a'))",
        ),
        probe=("insert into u (id) values (4)",),
    ),
    History(
        "an attribute joins the composite below a domain",
        ("alter type pr add attribute c int",),
        setup=(
            "create type pr as (a int, b text)",
            "create domain dp as pr",
            "create table t (id int primary key, v dp)",
            "insert into t values (1, (1, 'x'))",
        ),
    ),
    # The server refuses it while a column has the type.
    History(
        "an attribute of a missing value changes its type",
        ("alter type pr alter attribute a type bigint cascade",),
        setup=(
            "create type pr as (a int, b text)",
            "create table u (id int primary key, z int)",
            "create table t (id int primary key, v text)",
            "insert into t values (1)",
            "alter table t add w pr default '(1,x)'",
        ),
        refused='cannot alter type "pr" because column',
    ),
    History(
        "a type goes with its columns, and comes again",
        ("drop type mood cascade", "create type mood as enum ('a', 'q')", "alter table t add v mood default 'q'"),
        setup=(
            "create type mood as enum ('a')",
            "create table t (id int primary key, v mood, w mood[])",
            "insert into t values (1, 'a', '{a}')",
        ),
    ),
    History(
        "another type takes the name of one in use",
        ("alter type mood rename to mood2", "create type mood as enum ('z')", "alter table t add w mood default 'z'"),
        setup=(
            "create type mood as enum ('a')",
            "create table t (id int primary key, v mood)",
            "insert into t values (1, 'a')",
        ),
    ),
    History(
        "a label of a key is renamed",
        ("alter type mood rename value 'a' to 'z'",),
        setup=("create type mood as enum ('a', 'b')", "create table t (id mood primary key, v text)"),
        probe=("insert into t values ('z')", "delete from t where id = 'z'"),
        first="insert into t values ('b')",
    ),
    History(
        "a typed table follows its type",
        ("alter type pr add attribute w int cascade", "alter type pr drop attribute v cascade"),
        setup=(
            "create type pr as (id int, v text)",
            "create table t of pr (primary key (id))",
            "insert into t values (1, 'x')",
        ),
    ),
    History(
        "a typed table leaves its type",
        ("alter table t not of", "alter table t add w int default 4"),
        setup=(
            "create type pr as (id int, v text)",
            "create table t of pr (primary key (id))",
            "insert into t values (1, 'x')",
        ),
    ),
    History(
        "missing values change their type",
        ("alter table t alter w type text", "alter table t alter q type inet"),
        setup=(*TABLE, "alter table t add w varchar(9) default '5', add q cidr default '10.0.0.1/32'"),
    ),
    # They are made and read under settings that print differently.
    History(
        "missing values under foreign settings",
        (
            (
                "alter table t add a timestamptz default '2020-01-01', add b bytea default '\\x00ff', add "
                "c interval default '1 day -1 hour', add d float8 default 0.1, add e date default "
                "'2020-02-01', add f money default 5"
            ),
            (
                "set datestyle = 'german'; set timezone = 'Asia/Kolkata'; set bytea_output = escape; set "
                "intervalstyle = iso_8601; set extra_float_digits = -3"
            ),
            (
                "alter table t add a2 timestamptz default '2020-01-01', add b2 bytea default '\\x00ff', "
                "add c2 interval default '1 day -1 hour', add d2 float8 default 1/3.0, add e2 date "
                "default '01.02.2020'"
            ),
            "insert into t (id) values (5)",
            "update t set a = a + interval '1 hour' where id = 1",
            "reset all",
            "set search_path = {s}",
        ),
    ),
    History(
        "a default with old escapes",
        (
            (
                "set standard_conforming_strings = off; alter table t add w text default 'a''b'; set "
                "standard_conforming_strings = on"
            ),
        ),
    ),
)

__all__ = ["HISTORIES"]

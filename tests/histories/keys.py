"""Histories of keys and columns that change while rows do."""

from __future__ import annotations

from tests.histories.base import TABLE, History

HISTORIES: tuple[History, ...] = (
    History(
        "identity goes through all its forms",
        (
            "alter table t replica identity full",
            "update t set v='f'",
            "alter table t replica identity nothing",
            "insert into t values (8,'n')",
            "alter table t alter v set not null",
            "create unique index ui on t (v,id)",
            "alter table t replica identity using index ui",
            "update t set id = id + 20",
            "alter table t replica identity default",
            "update t set id = id + 20",
            "drop index ui",
        ),
        probe=(
            "insert into t values (77, 'n')",
            "update t set id = id + 100 where id < 77",
            "delete from t where id = 77",
        ),
    ),
    History(
        "identity changes between rows of one transaction",
        (
            (
                "begin; update t set v='a' where id=1; alter table t replica identity full; update t "
                "set v='b' where id=1; delete from t where id=2; insert into t values (2,'again'); "
                "alter table t replica identity default; update t set id=20 where id=2; commit"
            ),
        ),
    ),
    History(
        "the identity index goes with its column",
        (
            "alter table t add w int not null default 4",
            "create unique index ui on t (w, id)",
            "alter table t replica identity using index ui",
            "update t set w = id + 30",
            "alter table t drop w",
            "alter table t replica identity default",
            "update t set v='z'",
        ),
    ),
    History(
        "the identity index is dropped and made again with other columns",
        (
            (
                "begin; drop index ui; create unique index ui on t (id); alter table t replica "
                "identity using index ui; update t set v='z' where id=1; commit"
            ),
        ),
        setup=(
            *TABLE,
            "alter table t alter v set not null",
            "create unique index ui on t (v)",
            "alter table t replica identity using index ui",
        ),
        probe=("insert into t values (77,'q')",),
        first="insert into t values (66,'f')",
    ),
    History(
        "the key moves to another column in one transaction",
        (
            (
                "begin; insert into t values (3,'z'); alter table t drop constraint t_pkey; alter "
                "table t add primary key (v); update t set id=30 where v='z'; update t set v='zz' "
                "where id=30; commit"
            ),
        ),
        probe=(
            "insert into t values (77,'q')",
            "update t set v = v||'x', id=id+1",
            "delete from t where id=78",
        ),
        first="insert into t values (66,'f')",
    ),
    History(
        "the key is rebuilt with columns in other order",
        (
            "alter table t drop constraint t_pkey, add primary key (w,id)",
            "update t set w = w+1 where id=1",
            "alter table t drop constraint t_pkey, add primary key (id,w)",
            "update t set id = id+50",
        ),
        setup=(
            "create table t (id int, v text, w int default 2, primary key (id,w))",
            "insert into t values (1,'x',1),(2,'y',1)",
        ),
    ),
    History(
        "the key column is renamed and another takes its name",
        (
            (
                "begin; alter table t rename id to old; alter table t add id int; update t set id = "
                "old*7; insert into t values (40,'n',41); alter table t alter id set not null; alter "
                "table t drop constraint t_pkey; alter table t add primary key (id); update t set "
                "v='k' where id=41; commit"
            ),
        ),
        probe=(
            "insert into t (id, old) values (77, 5)",
            "update t set id = id + 100 where id < 77",
            "delete from t where id = 77",
        ),
        first="insert into t values (66)",
    ),
    History(
        "the key column is retyped",
        (
            "alter table t alter id type bigint",
            "insert into t values (5000000000,'big')",
            "alter table t alter id type numeric",
            "insert into t values (1.5,'frac')",
            "alter table t alter id type text using 'k'||id",
        ),
        probe=(
            "insert into t values ('77')",
            "update t set id = id || 'x' where id <> '77'",
            "delete from t where id='77'",
        ),
    ),
    History(
        "the key is numeric with a scale",
        (
            "alter table t alter id type numeric(10,2)",
            "insert into t values (1.50,'a')",
            "update t set id = 1.500 where id=1.5",
            "update t set id=2.50 where id=1.5",
            "alter table t alter id type numeric(12,2)",
            "update t set id = id+10",
        ),
    ),
    History(
        "the key has a case-insensitive collation",
        (
            "insert into t values ('a',1),('B',2)",
            "update t set id = upper(id)",
            "delete from t where id='b'",
        ),
        setup=(
            "create collation ci_{n} (provider=icu, locale='und-u-ks-level2', deterministic=false)",
            "create table t (id text collate ci_{n} primary key, v int)",
        ),
        probe=("insert into t (id) values ('q')",),
        first="insert into t values ('zz',1)",
        refused='ICU is not supported|relation "t"|collation',
    ),
    History(
        "key of a float",
        (
            "insert into t values ('-0','z')",
            "update t set id = '0' where id='-0'",
            "insert into t values ('NaN','n')",
            "update t set v='q'",
        ),
        setup=(
            "create table t (id float8 primary key, v text)",
            "insert into t values (1,'a')",
        ),
    ),
    History(
        "key of char and citext-like",
        (
            "insert into t values ('a ','x')",
            "update t set id='a' where id='a  '",
            "update t set v='y'",
            "alter table t alter id type char(8)",
            "update t set v='z'",
        ),
        setup=(
            "create table t (id char(5) primary key, v text)",
            "insert into t values ('b','y')",
        ),
        probe=(),
        first="insert into t values ('ff')",
    ),
    History(
        "a column is dropped and added within one transaction",
        (
            (
                "begin; update t set v='q' where id=1; alter table t drop v; alter table t add v text "
                "default 'd'; update t set v='r' where id=2; insert into t values (3); alter table t "
                "drop v; alter table t add v int default 5; commit"
            ),
        ),
    ),
    History(
        "volatile defaults",
        (
            "alter table t add w uuid default gen_random_uuid()",
            "insert into t values (3,'a')",
            "alter table t add x serial",
            "alter table t add y timestamptz default clock_timestamp(), add z int default 5",
            "create sequence sq",
            "alter table t add q int default nextval('sq')",
        ),
    ),
    History(
        "a USING that changes nothing and one that does",
        (
            "alter table t alter v type varchar using v",
            "alter table t alter v type text using 'const'",
            "insert into t values (3,'n')",
            (
                "begin; insert into t values (4,'m'); alter table t alter v type text using v||'!'; "
                "insert into t values (5,'k'); commit"
            ),
        ),
    ),
    History(
        "rows between two rewrites of one transaction",
        (
            (
                "begin; alter table t alter v type varchar(40) using v||'1'; insert into t values "
                "(5,'k'); alter table t alter v type text using v||'2'; insert into t values (6,'m'); "
                "commit"
            ),
        ),
    ),
    History(
        "a stored generated column changes its expression",
        (
            "alter table t alter g set expression as (id*3)",
            "insert into t values (3,'z')",
            "alter table t alter g drop expression",
            "update t set g = 0",
        ),
        setup=(
            "create table t (id int primary key, v text, g int generated always as (id*2) stored)",
            "insert into t values (1,'x')",
        ),
        refused="syntax error",
    ),
    History(
        "virtual generated columns",
        (
            "alter table t add g int generated always as (id*2) virtual",
            "insert into t values (3,'z')",
            "alter table t alter g set expression as (id*3)",
            "alter table t drop g",
            "alter table t add g int default 4",
        ),
        refused='syntax error|column "g"|already exists',
    ),
    History(
        "a generated column goes with its base",
        (
            "alter table t drop v cascade",
            "alter table t add v text default 'n'",
            "alter table t add g int generated always as (length(v)) stored",
        ),
        setup=(
            ("create table t (id int primary key, v text, g int generated always as (length(v)) stored)"),
            "insert into t values (1,'x')",
        ),
    ),
    History(
        "a generated column's base is renamed and updated",
        (
            "alter table t rename v to vv",
            "update t set vv='long'",
            "alter table t alter vv type varchar(30)",
        ),
        setup=(
            ("create table t (id int primary key, v text, g int generated always as (length(v)) stored)"),
            "insert into t values (1,'x')",
        ),
        probe=(),
        refused="used by a generated column|generated",
    ),
    History(
        "columns rotate their names",
        (
            (
                "begin; alter table t rename v to a; alter table t rename w to v; alter table t rename "
                "x to w; alter table t rename a to x; insert into t values (3,'1','2','3'); update t "
                "set v='rot' where id=1; commit"
            ),
        ),
        setup=(
            "create table t (id int primary key, v text, w text, x text)",
            "insert into t values (1,'v','w','x')",
        ),
    ),
    History(
        "a column with the key's name after a drop",
        (
            (
                "begin; alter table t drop id; alter table t add id int primary key generated always "
                "as identity; update t set v='q'; commit"
            ),
        ),
        probe=("insert into t (v) values ('n')",),
        first="insert into t values (66)",
    ),
    History(
        "many columns at once",
        (
            ("alter table t add a int default 1, add b text, drop v, add c text default 'c', alter id type bigint"),
            "insert into t (id) values (8)",
        ),
    ),
    History(
        "a wide TOASTed value is unchanged through DDL",
        (
            (
                "begin; update t set k=2; alter table t add w int default 3; update t set k=3; alter "
                "table t rename v to vv; update t set k=4 where id=1; commit"
            ),
            "update t set k=5",
            "alter table t alter vv set storage external",
            "update t set k=6",
        ),
        setup=(
            "create table t (id int primary key, v text, k int)",
            "alter table t alter v set storage external",
            "insert into t select i, repeat(i::text, 9000), 1 from generate_series(1,3) i",
        ),
        probe=("update t set id = id + 10",),
    ),
)

__all__ = ["HISTORIES"]

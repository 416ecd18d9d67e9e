"""Values of every built-in type, with the extremes of each: what the typed tables must carry and what stays text.

`carried` are SQL literals whose text the Spark type holds exactly; the text of the `kept` ones stands in `_cdc_text`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg


@dataclass(frozen=True)
class Kind:
    """One type. `trap` is the row of the trap list that its values are about."""

    trap: int
    type: str
    spark: str
    carried: tuple[str, ...]
    kept: tuple[str, ...] = ()
    since: int = 15
    needs: str = ""  # an extension, or `xml`, that not every server is built with

    @property
    def values(self) -> tuple[str, ...]:
        return self.carried + self.kept


SETUP = """
create type public.mood as enum ('a b', 'it''s', 'NULL', 'sad');
create type public.pair as (a int, b text);
create type public.nest as (p public.pair, xs int[]);
create type public.textrange as range (subtype = text, collation = "C");
create domain public.posint as int check (value > 0);
create domain public.wide as public.posint;
create domain public.moods as public.mood[];
create domain public.cents as numeric(12,2);
create domain public.square as box;
create domain public.squares as public.square[];
create table public.corpus_target (id int primary key);
"""

S, N = "string", "'NaN'"
CORPUS: tuple[Kind, ...] = (
    Kind(
        100, "numeric", S, (N, "'Infinity'", "'-Infinity'", "repeat('9', 131072)::numeric", "1.000", "1e-200", "-0.0")
    ),
    Kind(100, "numeric(3,-2)", S, ("12345", N)),
    Kind(100, "numeric(2,4)", S, ("0.0012",)),
    Kind(100, "numeric(12,2)", "decimal(12,2)", ("1234.5", "-9999999999.99", "0"), (N,)),
    Kind(100, "numeric(38,18)", "decimal(38,18)", ("1e-18", "-99999999999999999999.999999999999999999"), (N,)),
    Kind(100, "numeric(39,0)", S, ("repeat('9', 39)::numeric",)),
    Kind(100, "money", S, ("'-92233720368547758.08'", "1234.56")),
    Kind(
        101,
        "date",
        "date",
        ("'2024-02-29'", "'0001-01-01'", "'9999-12-31'"),
        ("'4713-01-01 BC'", "'5874897-12-31'", "'infinity'", "'-infinity'", "'10000-01-01'"),
    ),
    Kind(
        101,
        "timestamp",
        "timestamp_ntz",
        ("'2024-02-29 12:00:00.000001'", "'9999-12-31 23:59:59.999999'", "'2024-01-01'"),
        ("'4713-01-01 BC'", "'294276-12-31 23:59:59.999999'", "'infinity'", "'-infinity'"),
    ),
    Kind(101, "timestamp(3)", "timestamp_ntz", ("'2024-02-29 12:00:00.1236'",)),
    Kind(
        101,
        "timestamptz",
        "timestamp",
        ("'2024-07-01 12:00:00.5+02'", "'0001-01-01 00:00:00+00'"),
        ("'4713-01-01 00:00:00+00 BC'", "'294276-12-31 23:59:59.999999+00'", "'infinity'", "'-infinity'"),
    ),
    Kind(102, "time", S, ("'24:00:00'", "'00:00:00.000001'", "'23:59:59.999999'")),
    Kind(102, "timetz", S, ("'24:00:00-15:59:59'", "'00:00:00+05:53:28'", "'12:00:00+15:59:59'")),
    Kind(
        103,
        "interval",
        S,
        (
            "'1 year -2 mons +3 days -04:05:06.789'",
            "'-178000000 years'",
            "'0'",
            "'1 mon -1 day +00:00:00.000001'",
            "'-1 day'",
            "'2562047788:00:54.775807'",
        ),
    ),
    Kind(103, "interval day to second (2)", S, ("'3 days 04:05:06.789'",)),
    Kind(103, "interval", S, ("'infinity'", "'-infinity'"), since=17),
    Kind(105, "regclass", S, ("'public.corpus_target'::regclass", "'pg_class'::regclass", "0")),
    Kind(105, "regtype", S, ("'public.mood'::regtype", "'int'::regtype")),
    Kind(105, "regproc", S, ("'pg_catalog.now'::regproc",)),
    Kind(105, "regprocedure", S, ("'pg_catalog.abs(int)'::regprocedure",)),
    Kind(105, "regoper", S, ("'pg_catalog.||/'::regoper",)),
    Kind(105, "regoperator", S, ("'pg_catalog.+(int,int)'::regoperator",)),
    Kind(105, "regnamespace", S, ("'public'::regnamespace",)),
    Kind(105, "regrole", S, ("'pg_read_all_data'::regrole",)),
    Kind(105, "regcollation", S, ("'pg_catalog.\"C\"'::regcollation",)),
    Kind(105, "regconfig", S, ("'pg_catalog.simple'::regconfig",)),
    Kind(105, "regdictionary", S, ("'pg_catalog.simple'::regdictionary",)),
    Kind(
        106,
        "real",
        "float",
        ("'-0'", N, "'Infinity'", "'3.4028235e38'", "0.1", "1e6", "16777216", "1e-5"),
        ("'1e-45'",),
    ),
    Kind(
        106,
        "double precision",
        "double",
        (
            "'-0'",
            N,
            "'-Infinity'",
            "'1.7976931348623157e308'",
            "0.1",
            "0.30000000000000004",
            "1e15",
            "123456789012345",
            "1e-5",
            "1e22",
        ),
        ("'5e-324'",),  # Java prints 4.9E-324
    ),
    Kind(107, "json", S, ('\'{ "a" : 1, "a":2, "z": "\\u0000" }\'', "'null'", "'1e400'", "E'[1,\\n 2]'")),
    Kind(107, "jsonb", S, ('\'{ "b" : 1.00, "a": "x\\\\ny" }\'', "'1e400'", "'null'", "'[]'")),
    Kind(107, "jsonpath", S, ("'$.a[*] ? (@ > 1)'",)),
    Kind(
        108,
        "int[]",
        "array<int>",
        ("'{}'", "'{1,NULL,-3}'", "'{2147483647}'"),
        ("'[0:2]={1,NULL,3}'", "'{{1,2},{3,4}}'"),
    ),
    Kind(108, "bigint[]", "array<bigint>", ("'{-9223372036854775808}'",)),
    Kind(108, "boolean[]", "array<boolean>", ("'{t,f,NULL}'",)),
    Kind(108, "numeric[]", "array<string>", ("'{NaN,1.50,1e300}'",)),
    Kind(108, "numeric(5,2)[]", "array<decimal(5,2)>", ("'{1.5,NULL}'",), ("'{NaN}'",)),
    Kind(108, "real[]", "array<float>", ("'{1e-38,-0,NaN}'",)),
    Kind(108, "double precision[]", "array<double>", ("'{0.1,1e15,Infinity}'",)),
    Kind(108, "date[]", "array<date>", ("'{2024-02-29}'",), ("'{0044-03-15 BC}'", "'{infinity}'")),
    Kind(108, "timestamp[]", "array<timestamp_ntz>", ("'{2024-02-29 12:00:00.5}'",), ("'{infinity}'",)),
    Kind(108, "timestamptz[]", "array<timestamp>", ("'{2024-02-29 12:00:00+02}'",)),
    Kind(108, "bytea[]", "array<binary>", ("array['\\x00ff5c'::bytea, '\\x']",)),
    Kind(
        108,
        "text[]",
        "array<string>",
        (
            "array['a,b', E'c\"d', E'e\\\\f', null, 'NULL', 'null', '', ' ', '{}', E'x\\ty\\n', 'é😀']",
            "array[repeat('x y', 9000)]",
        ),
        ("array[['a','b'],['c','d']]", "'[2:2]={a}'"),
    ),
    Kind(108, "varchar(3)[]", "array<string>", ("array['a ']",)),
    Kind(108, "json[]", "array<string>", ("array['{\"a\": 1}'::json]",)),
    Kind(108, "uuid[]", "array<string>", ("array['a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid]",)),
    Kind(108, "box[]", S, ("array['((0,0),(1,1))'::box, '((2,2),(3,3))'::box]",)),
    *(
        Kind(108, f"public.{name}", S, (f"array['((0,0),(1,1))', '((2,2),(3,3))']::public.{name}",))
        for name in ("square[]", "squares")
    ),
    Kind(108, "public.mood[]", "array<string>", ("array['a b', 'it''s', 'NULL', 'sad']::public.mood[]",)),
    Kind(108, "public.moods", "array<string>", ("array['a b']::public.mood[]",)),
    Kind(108, "public.pair[]", "array<string>", ("array[row(1, 'x y')::public.pair, row(null, '')::public.pair]",)),
    Kind(108, "int4range[]", "array<string>", ("array['[1,5]'::int4range, 'empty']",)),
    Kind(108, "int2vector", S, ("'1 2 3'", "''")),
    Kind(108, "oidvector", S, ("'1 4294967295'",)),
    Kind(109, "public.pair", S, ("row(1, 'a \"b\",c')", "row(null, null)", "row(null, '')", "row(1, E'\\\\ ()')")),
    Kind(109, "public.nest", S, ("row(row(1, 'x')::public.pair, '{1,2}')",)),
    Kind(109, "int4range", S, ("'empty'", "'[1,5]'", "'(,)'", "'(1,2)'")),
    Kind(109, "int8range", S, ("'[1,9223372036854775806]'",)),
    Kind(109, "numrange", S, ("'[1.0,1.00]'", "'(,NaN)'")),
    Kind(109, "daterange", S, ("'[-infinity,infinity]'", "'[2024-01-01,2024-01-02]'")),
    Kind(109, "tsrange", S, ("'[\"2024-01-01 00:00:00\",)'",)),
    Kind(109, "tstzrange", S, ("'[\"2024-01-01 00:00:00+02\",)'",)),
    Kind(109, "public.textrange", S, ("public.textrange('a,b', E'c\"d')",)),
    Kind(109, "int4multirange", S, ("'{}'", "'{[1,2),[5,9)}'")),
    Kind(109, "int8multirange", S, ("'{[1,2)}'",)),
    Kind(109, "nummultirange", S, ("'{[1.0,2.0)}'",)),
    Kind(109, "datemultirange", S, ("'{[2024-01-01,2024-01-03)}'",)),
    Kind(109, "tsmultirange", S, ("'{[2024-01-01,2024-01-03)}'",)),
    Kind(109, "tstzmultirange", S, ("'{[2024-01-01,2024-01-03)}'",)),
    Kind(109, "public.posint", "int", ("2147483647",)),
    Kind(109, "public.wide", "int", ("7",)),
    Kind(109, "public.cents", "decimal(12,2)", ("7",), (N,)),
    Kind(109, "public.mood", S, ("'a b'", "'it''s'", "'NULL'")),
    Kind(110, "char(5)", S, ("'a'", "''", "'abcde'", "' é'")),
    Kind(110, '"char"', S, ("'a'", "''", "'\\'", "'\\200'")),
    Kind(110, "varchar(3)", S, ("'a '",)),
    Kind(110, "name", S, ("'n'",)),
    Kind(111, "bytea", "binary", ("'\\x'", "'\\x00ff5c'", "decode(repeat('00', 5000), 'hex')")),
    Kind(111, "bit(5)", S, ("B'10101'",)),
    Kind(111, "bit varying", S, ("B''", "B'1'")),
    Kind(111, "tsvector", S, ("'a:1A fat:2 ''it''''s'''",)),
    Kind(111, "tsquery", S, ("'a & !b'",)),
    Kind(111, "inet", S, ("'10.0.0.1'", "'10.0.0.1/8'", "'::1'", "'::ffff:1.2.3.4'")),
    Kind(111, "cidr", S, ("'10.0.0.0/8'", "'10.0.0.1/32'")),
    Kind(111, "macaddr", S, ("'08:00:2b:01:02:03'",)),
    Kind(111, "macaddr8", S, ("'08:00:2b:01:02:03:04:05'",)),
    Kind(111, "xml", S, ("'<a>&lt;</a>'",), needs="xml"),
    Kind(111, "public.hstore", S, ('\'a=>NULL, b=>"NULL", "c d"=>""\'',), needs="hstore"),
    Kind(111, "uuid", S, ("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",)),
    Kind(111, "point", S, ("'(1.5,-2)'", "'(NaN,-0)'")),
    Kind(111, "line", S, ("'{1,-1,0}'",)),
    Kind(111, "lseg", S, ("'[(0,0),(1,1)]'",)),
    Kind(111, "box", S, ("'((0,0),(1,1))'",)),
    Kind(111, "path", S, ("'[(0,0),(1,1)]'", "'((0,0),(1,1))'")),
    Kind(111, "polygon", S, ("'((0,0),(1,1),(1,0))'",)),
    Kind(111, "circle", S, ("'<(0,0),1>'",)),
    Kind(
        112,
        "text",
        S,
        (
            "''",
            "' '",
            "E'\\\\N'",
            "E'\\\\'",
            "E'\\\\\\\\n'",
            "E'a\\tb\\nc\\rd\\r\\ne\\be\\ff\\vg'",
            "E'\\x01\\x7f'",
            "'é😀'",
            "E'\\u2028\\u2029\\ufeff\\ufffe'",
            "'NULL'",
            "E'\\\\.'",
            "repeat('é', 100000)",
            "E'e\\u0301'",
            "'null'",
            "'$1 ${x} {{ y }}'",
        ),
    ),
    Kind(112, "refcursor", S, ("'c'",)),
    Kind(115, "smallint", "int", ("-32768", "32767")),
    Kind(115, "int", "int", ("-2147483648", "2147483647")),
    Kind(115, "bigint", "bigint", ("-9223372036854775808", "9223372036854775807")),
    Kind(115, "oid", "bigint", ("4294967295", "0")),
    Kind(115, "xid", "bigint", ("'4294967295'",)),
    Kind(115, "cid", "bigint", ("'4294967295'",)),
    Kind(115, "xid8", "decimal(20,0)", ("'18446744073709551615'", "'0'")),
    Kind(115, "tid", S, ("'(4294967295,65535)'",)),
    Kind(115, "pg_lsn", S, ("'FFFFFFFF/FFFFFFFF'",)),
    Kind(115, "pg_snapshot", S, ("'10:20:10,14,15'",)),
    Kind(115, "txid_snapshot", S, ("'10:20:10,14,15'",)),
    Kind(115, "boolean", "boolean", ("true", "false")),
    Kind(115, "aclitem", S, ("'=r/postgres'",)),
)

#: Built-in types that no column of a user can hold, or whose input function always refuses.
NEVER_COLUMNS = frozenset(
    {
        "pg_node_tree",
        "pg_ndistinct",
        "pg_dependencies",
        "pg_mcv_list",
        "pg_brin_bloom_summary",
        "gtsvector",
        "pg_brin_minmax_multi_summary",
    }
)


#: Settings that a DBA may give a role or a database, each of which changes the text of some value.
HOSTILE = {
    "datestyle": "German, DMY",
    "intervalstyle": "iso_8601",
    "timezone": "America/New_York",
    "bytea_output": "escape",
    "extra_float_digits": "-3",
    "search_path": "public",
    "xmlbinary": "hex",
}


@dataclass(frozen=True)
class Cell:
    """One value of the corpus: the row and the column of `table_sql` that it stands in."""

    row: int  # from 1
    column: str
    kind: Kind
    value: str
    carried: bool


def available(conn: psycopg.Connection[tuple[object, ...]]) -> tuple[Kind, ...]:
    """The kinds that this server has; makes the extensions that they need."""
    major = conn.info.server_version // 10000
    missing = set()
    found = conn.execute("select 1 from pg_catalog.pg_available_extensions where name = 'hstore'").fetchone()
    if found is None:
        missing.add("hstore")
    else:
        conn.execute("create extension if not exists hstore schema public")
    try:
        conn.execute("select '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        missing.add("xml")
    return tuple(k for k in CORPUS if k.since <= major and k.needs not in missing)


def columns(kinds: Sequence[Kind]) -> list[tuple[str, str]]:
    """Name and type of each column of a table that holds them all."""
    return [(f"c{number}", kind.type) for number, kind in enumerate(kinds)]


def cells(kinds: Sequence[Kind]) -> Iterator[Cell]:
    """One row a value; its other columns are NULL."""
    row = 0
    for number, kind in enumerate(kinds):
        for value in kind.values:
            row += 1
            yield Cell(row, f"c{number}", kind, value, value in kind.carried)

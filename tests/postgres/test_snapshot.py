"""Snapshot rows: the same text as the stream, cell by cell, for every kind of type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.support_postgres import consume, inserted, stream
from toolkit.config import Config
from toolkit.errors import SourceUnavailable
from toolkit.events import EVENT_SCHEMA
from toolkit.lsn import Lsn
from toolkit.source import catalog, install, slot, snapshot
from toolkit.source.connection import Connection, connect

pytestmark = pytest.mark.postgres

#: Type and values whose text is easily got wrong.
CORPUS: dict[str, tuple[str, ...]] = {
    "boolean": ("true", "false"),
    "smallint": ("-32768",),
    "bigint": ("-9223372036854775808", "9223372036854775807"),
    "numeric": ("'NaN'", "'-Infinity'", "1.000", "-0.0", "1e100", "1e-200"),
    "numeric(12,2)": ("1234.5",),
    "real": ("'1e-45'", "'-0'", "'NaN'", "0.1"),
    "double precision": ("0.1", "'-Infinity'", "1e308", "'-0'", "0.30000000000000004"),
    "money": ("-1234.56",),
    "char(5)": ("'a'", "''", "'abcde'"),
    '"char"': ("'a'", "''", "'\\'"),
    "varchar(3)": ("'a '",),
    "text": (
        "''",
        "' '",
        "E'\\\\N'",
        "E'\\\\'",
        "E'\\\\\\\\n'",
        "E'a\\tb\\nc\\rd\\be\\ff\\vg'",
        "E'\\x01\\x7f'",
        "'é😀'",
        "E'\\u2028'",
        "'NULL'",
        "E'\\\\\\n'",
        "E'\\\\t\\t\\\\'",
        "repeat('x', 100000)",
        "E'\\\\.'",
    ),
    "name": ("'n'",),
    "bytea": ("'\\x'", "'\\x00ff5c'"),
    "date": ("'4713-01-01 BC'", "'infinity'", "'5874897-12-31'", "'2024-02-29'"),
    "time": ("'24:00:00'", "'00:00:00.000001'"),
    "timetz": ("'12:00:00-15:59:59'", "'00:00:00+05:53:28'"),
    "timestamp": ("'-infinity'", "'294276-12-31 23:59:59.999999'", "'0044-03-15 12:00:00 BC'"),
    "timestamptz": ("'2024-07-01 12:00:00.5+02'", "'0001-01-01 00:00:00+00 BC'", "'infinity'"),
    "interval": ("'1 year -2 mons +3 days -04:05:06.789'", "'0'", "'-1 day'"),
    "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",),
    "json": ('\'{ "a" : 1, "a":2, "z": "\\u0000" }\'', "'null'"),
    "jsonb": ('\'{ "b" : 1.00, "a": "x\\\\ny" }\'', "'1e400'"),
    "int[]": ("'{}'", "'[0:2]={1,NULL,3}'", "'{{1,2},{3,4}}'"),
    "text[]": ("array['a,b', 'c\"d', 'e\\f', null, 'NULL', '', ' ']",),
    "box[]": ("array['((0,0),(1,1))'::box]",),
    "point": ("'(1.5,-2)'",),
    "inet": ("'10.0.0.1'", "'10.0.0.1/8'", "'::1'"),
    "cidr": ("'10.0.0.0/8'",),
    "macaddr": ("'08:00:2b:01:02:03'",),
    "bit(5)": ("B'10101'",),
    "bit varying": ("B''", "B'1'"),
    "tsvector": ("'a:1A fat:2'",),
    "int4range": ("'empty'", "'[1,5]'", "'(,)'"),
    "int4multirange": ("'{}'", "'{[1,2),[5,9)}'"),
    "oid": ("4294967295",),
    "xid8": ("'18446744073709551615'",),
    "pg_lsn": ("'16/B374D848'",),
    "regclass": ("'public.corpus_target'::regclass",),
    "public.mood": ("'a b'", "'it''s'"),
    "public.pair": ("row(1, 'a \"b\",c')", "row(null, null)", "row(null, '')"),
    "public.posint": ("7",),
    "public.moods": ("array['a b']::public.mood[]",),
}


@pytest.fixture
def conn(source: Config) -> Iterator[Connection]:
    with connect(source) as connection:
        connection.execute(
            """
            create type public.mood as enum ('a b', 'it''s');
            create type public.pair as (a int, b text);
            create domain public.posint as int check (value > 0);
            create domain public.moods as public.mood[];
            create table public.corpus_target (id int primary key);
            """
        )
        yield connection


def _start(conn: Connection, config: Config) -> None:
    install.install(conn, config)
    with slot.create_slot(config, config.source.slot, temporary=False):
        pass
    consume(conn, config)


def _rows(config: Config, name: str, **options: Any) -> list[dict[str, Any]]:
    """All R rows of a table at a new cut."""
    with (
        slot.create_slot(config, slot.temporary_name(config), temporary=True) as cut,
        snapshot.reader(config, cut) as reader,
    ):
        (table,) = (t for t in catalog.published_tables(reader, config) if t.name == name)
        batches = list(snapshot.snapshot_batches(reader, table, cut.lsn, generation=3, **options))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == EVENT_SCHEMA
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, EVENT_SCHEMA).to_pylist()
    return rows


def _columns() -> list[tuple[str, str]]:
    return [(f"c{number}", kind) for number, kind in enumerate(CORPUS)]


def test_text_equals_the_stream(source: Config, conn: Connection) -> None:
    columns = _columns()
    listed = ", ".join(f"{name} {kind}" for name, kind in columns)
    conn.execute(f"create table public.corpus (id int primary key, {listed})")
    _start(conn, source)
    number = 0
    for name, kind in columns:
        for value in CORPUS[kind]:
            number += 1
            conn.execute(f"insert into public.corpus (id, {name}) values ({number}, {value})")
    conn.execute("insert into public.corpus (id) values (0)")
    for setting, value in (("datestyle", "German"), ("bytea_output", "escape"), ("extra_float_digits", "-3")):
        conn.execute(f"alter role postgres in database {conn.info.dbname} set {setting} = '{value}'")
    with connect(source) as cold:
        sent = {row[0]: row for row in inserted(stream(cold, source))}
    copied = {row["new"][0]: row["new"] for row in _rows(source, "corpus")}
    assert len(sent) == number + 1
    for key, image in sent.items():
        assert copied[key] == image, key
    assert copied == sent
    sent["1"][1] = "true"  # planted fault: what a cast to text would have given
    assert copied != sent


def test_row_shape(source: Config, conn: Connection) -> None:
    conn.execute("create table public.t (a int, gone int, b text, g int generated always as (a + 1) stored, c text)")
    conn.execute("alter table public.t drop column gone; alter table public.t replica identity full")
    conn.execute("insert into public.t values (1, 'x', default, null), (2, '', default, 'y')")
    _start(conn, source)
    rows = _rows(source, "t", batch_id=7, schema_id=9)
    assert [row["new"] for row in rows] == [["1", None, "x", None, None], ["2", None, "", None, "y"]]
    first = rows[0]
    assert [row["ordinal"] for row in rows] == [0, 1]
    assert (first["commit_lsn"], first["op"], first["kind"], first["origin"]) == (
        first["end_lsn"] - 1,
        "R",
        "row",
        "snapshot",
    )
    assert (first["batch_id"], first["generation"], first["schema_id"]) == (7, 3, 9)
    assert (first["unchanged"], first["absent"], first["old"], first["xid"]) == ([], [4], None, None)


def test_odd_shapes(source: Config, conn: Connection) -> None:
    """Tables of one text column (an empty line is a row), without columns, with monstrous names."""
    conn.execute(
        """
        create table public.single (a text); insert into public.single values (''), (null), (E'\\\\N'), ('');
        alter table public.single replica identity full;
        create table public.none ();
        insert into public.none default values; insert into public.none default values;
        alter table public.none replica identity full;
        create table public."a.b ""c"" %s" ("x ""y"" %(z)s" int primary key);
        insert into public."a.b ""c"" %s" values (1);
        """
    )
    _start(conn, source)
    assert sorted(str(row["new"][0]) for row in _rows(source, "single")) == ["", "", "None", "\\N"]
    assert [row["new"] for row in _rows(source, "none")] == [[], []]
    assert [row["new"] for row in _rows(source, 'a.b "c" %s')] == [["1"]]


def test_39_filter_and_column_list(source: Config, conn: Connection) -> None:
    conn.execute("create table public.t (id int primary key, secret text, m public.mood)")
    conn.execute("insert into public.t select i, 's', 'a b' from generate_series(1, 10) as i")
    conn.execute("create publication cdc for table public.t (id, m) where (id > 8)")
    _start(conn, source)
    rows = _rows(source, "t")
    assert [(row["new"], row["absent"]) for row in rows] == [(["9", None, "a b"], [2]), (["10", None, "a b"], [2])]


def test_inheritance_and_partitions_give_own_rows(source: Config, conn: Connection) -> None:
    conn.execute(
        """
        create table public.base (id int primary key); insert into public.base values (1);
        create table public.child (primary key (id)) inherits (public.base); insert into public.child values (2);
        create table public.r (id int primary key) partition by range (id);
        create table public.r1 partition of public.r for values from (0) to (10);
        insert into public.r values (5);
        """
    )
    _start(conn, source)
    assert [row["new"] for row in _rows(source, "base")] == [["1"]]
    assert [row["new"] for row in _rows(source, "child")] == [["2"]]
    assert [row["new"] for row in _rows(source, "r1")] == [["5"]]
    conn.execute("alter publication cdc set (publish_via_partition_root)")
    assert [row["new"] for row in _rows(source, "r")] == [["5"]]


def test_many_blocks_keep_order_and_count(source: Config, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    conn.execute("create table public.t (id int primary key, a text)")
    conn.execute("insert into public.t select i, repeat(E'\\\\\\n', i % 50) from generate_series(1, 5000) as i")
    _start(conn, source)
    monkeypatch.setattr(snapshot, "_BLOCK_BYTES", 1000)
    rows = _rows(source, "t")
    assert [row["ordinal"] for row in rows] == list(range(5000))
    images = sorted((row["new"] for row in rows), key=lambda image: int(image[0]))
    assert images == [[str(i), "\\\n" * (i % 50)] for i in range(1, 5001)]


def test_37_policy_is_an_error_not_fewer_rows(source: Config, conn: Connection) -> None:
    conn.execute("create table public.t (id int primary key); insert into public.t values (1), (2)")
    conn.execute("alter table public.t enable row level security; create policy p on public.t using (id = 1)")
    _start(conn, source)
    with (
        slot.create_slot(source, slot.temporary_name(source), temporary=True) as cut,
        snapshot.reader(source, cut) as reader,
    ):
        (table,) = (t for t in catalog.published_tables(reader, source) if t.name == "t")
        reader.execute("set local role pg_read_all_data")
        with pytest.raises(snapshot.TableRefused, match=r"copying public.t: .*row-level security"):
            list(snapshot.snapshot_batches(reader, table, cut.lsn, generation=1))


def test_snapshot_that_is_gone(source: Config, conn: Connection) -> None:
    _start(conn, source)
    cut = slot.Cut(Lsn(1), "00000003-0000001B-1", "x")
    with pytest.raises(SourceUnavailable, match=r"importing the snapshot at 0/1"), snapshot.reader(source, cut):
        pass


def test_reader_sees_only_the_cut(source: Config, conn: Connection) -> None:
    conn.execute("create table public.t (id int primary key)")
    _start(conn, source)
    with (
        slot.create_slot(source, slot.temporary_name(source), temporary=True) as cut,
        snapshot.reader(source, cut) as reader,
    ):
        conn.execute("insert into public.t values (1)")
        assert reader.execute("select count(*) from public.t").fetchone() == (0,)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            reader.execute("insert into public.t values (2)")

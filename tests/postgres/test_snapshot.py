"""Snapshot rows: the same text as the stream, cell by cell, for every kind of type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.support_corpus import HOSTILE, NEVER_COLUMNS, SETUP, available, cells, columns
from tests.support_postgres import consume, inserted, stream
from toolkit.rawlog import order
from toolkit.rawlog.arrow import EVENT_SCHEMA
from toolkit.source import catalog, install, slot, snapshot_rows
from toolkit.source.connection import Connection, connect
from toolkit.values.config import Config
from toolkit.values.errors import SourceUnavailable
from toolkit.values.lsn import Lsn

pytestmark = pytest.mark.postgres


@pytest.fixture
def conn(source: Config) -> Iterator[Connection]:
    with connect(source.source) as connection:
        connection.execute(SETUP)
        yield connection


def _start(conn: Connection, config: Config) -> None:
    install.install(conn, config.capture_rules, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
    with slot.create_slot(config.source, config.source.slot, cut_seconds=config.check.cut_seconds):
        pass
    consume(conn, config)


def _rows(config: Config, name: str, **options: Any) -> list[dict[str, Any]]:
    """All R rows of a table at a new cut."""
    with (
        slot.create_slot(config.source, cut_seconds=config.check.cut_seconds) as cut,
        snapshot_rows.reader(config.source, cut) as reader,
    ):
        (table,) = (t for t in catalog.published_tables(reader) if t.name == name)
        batches = list(snapshot_rows.snapshot_batches(reader, table, cut.lsn, generation=3, **options))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == EVENT_SCHEMA
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, EVENT_SCHEMA).to_pylist()
    return rows


def test_trap_100_to_112_and_115_text_equals_the_stream(source: Config, conn: Connection) -> None:
    """Every built-in type, byte for byte, by snapshot and by stream, whatever the role and the database are set to."""
    kinds = available(conn)
    listed = ", ".join(f"{name} {kind}" for name, kind in columns(kinds))
    conn.execute(f"create table public.corpus (id int primary key, {listed})")
    _start(conn, source)
    corpus = list(cells(kinds))
    for cell in corpus:
        conn.execute(f"insert into public.corpus (id, {cell.column}) values ({cell.row}, {cell.value})")
    conn.execute("insert into public.corpus (id) values (0)")
    for setting, value in HOSTILE.items():
        conn.execute(f"alter role postgres in database {conn.info.dbname} set {setting} = '{value}'")
    with connect(source.source) as cold:
        sent = {row[0]: row for row in inserted(stream(cold, source))}
    copied = {row["new"][0]: row["new"] for row in _rows(source, "corpus")}
    assert len(sent) == len(corpus) + 1
    for key, image in sent.items():
        assert copied[key] == image, key
    assert copied == sent
    with connect(source.source) as own:
        for cell in corpus:
            shown = own.execute(f"select concat({cell.column}) from public.corpus where id = {cell.row}").fetchone()
            assert shown is not None
            assert sent[str(cell.row)][1 + int(cell.column[1:])] == shown[0], cell
    flag = next(cell for cell in corpus if cell.kind.type == "boolean")
    sent[str(flag.row)][1 + int(flag.column[1:])] = "true"  # planted fault: what a cast to text would have given
    assert copied != sent


def test_trap_104_and_105_without_the_pins_the_same_server_prints_other_text(source: Config, conn: Connection) -> None:
    """The settings of role and database would reach every value: each pin is needed."""
    probes = {
        "datestyle": "'2024-02-01'::date",
        "intervalstyle": "'1 day'::interval",
        "timezone": "'2024-02-01 00:00:00+00'::timestamptz",
        "bytea_output": "'\\x00ff'::bytea",
        "extra_float_digits": "0.1::float4::float8",
        "search_path": "'public.corpus_target'::regclass",
    }
    for setting, value in HOSTILE.items():
        conn.execute(f"alter role postgres in database {conn.info.dbname} set {setting} = '{value}'")
    with connect(source.source) as pinned, psycopg.connect(source.source.conninfo) as loose:
        for setting, probe in probes.items():
            one, other = (c.execute(f"select concat({probe})").fetchone() for c in (pinned, loose))
            assert one != other, setting
        for setting in HOSTILE:
            one, other = (c.execute(f"show {setting}").fetchone() for c in (pinned, loose))
            assert one != other, setting


def test_the_corpus_holds_every_built_in_type(conn: Connection) -> None:
    kinds = available(conn)
    conn.execute(f"create table public.corpus ({', '.join(f'{name} {kind}' for name, kind in columns(kinds))})")
    rows = conn.execute(
        """
        select t.typname::text
        from pg_catalog.pg_type as t
        where t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace and t.typtype in ('b', 'r', 'm')
          and t.typcategory <> 'A' and not t.typname = any(%s)
          and not exists (
            select from pg_catalog.pg_attribute as a
            where a.attrelid = 'public.corpus'::pg_catalog.regclass and a.atttypid = t.oid
          )
        """,
        [[*NEVER_COLUMNS, "xml"]],
    ).fetchall()
    assert [name for (name,) in rows] == []


def test_row_shape(source: Config, conn: Connection) -> None:
    conn.execute("create table public.t (a int, gone int, b text, g int generated always as (a + 1) stored, c text)")
    conn.execute("alter table public.t drop column gone; alter table public.t add primary key (a)")
    conn.execute("insert into public.t values (1, 'x', default, null), (2, '', default, 'y')")
    _start(conn, source)
    rows = _rows(source, "t", batch_id=7, schema_id=9)
    assert [row["new"] for row in rows] == [["1", None, "x", None, None], ["2", None, "", None, "y"]]
    first = rows[0]
    assert [row["ordinal"] for row in rows] == [order.copied_rows(0, 0), order.copied_rows(0, 1)]
    assert (first["commit_lsn"], first["op"], first["kind"], first["origin"]) == (
        first["end_lsn"] - 1,
        "R",
        "row",
        "snapshot",
    )
    assert (first["batch_id"], first["generation"], first["schema_id"]) == (7, 3, 9)
    assert (first["unchanged"], first["absent"], first["old"], first["xid"]) == ([], [4], None, None)


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_trap_114_stored_columns_that_are_published_arrive_both_ways(source: Config, conn: Connection) -> None:
    conn.execute(
        "create table public.t (a int primary key, s int generated always as (a * 2) stored, b text,"
        " v int generated always as (a * 3) virtual)"
    )
    conn.execute("create publication cdc for table public.t with (publish_generated_columns = stored)")
    _start(conn, source)
    conn.execute("insert into public.t values (1, default, 'x')")
    assert inserted(stream(conn, source)) == [["1", "2", "x"]]
    (row,) = _rows(source, "t")
    assert (row["new"], row["absent"]) == (["1", "2", "x", None], [4])


def test_trap_119_the_widest_table(source: Config, conn: Connection) -> None:
    """1600 columns, of which some are gone: no more can be added, and each value keeps its place."""
    conn.execute(f"create table public.widest ({', '.join(f'c{i} int' for i in range(1, 1601))})")
    conn.execute(
        "alter table public.widest drop column c1, drop column c800; alter table public.widest replica identity full"
    )
    _start(conn, source)
    conn.execute(f"insert into public.widest values ({', '.join(map(str, range(1, 1599)))})")
    with pytest.raises(psycopg.errors.TooManyColumns):
        conn.execute("alter table public.widest add column more int")
    (sent,) = inserted(stream(conn, source))
    (row,) = _rows(source, "widest")
    assert len(row["new"]) == 1600
    assert (row["new"][0], row["new"][799]) == (None, None)
    assert [cell for cell in row["new"] if cell is not None] == sent == [str(i) for i in range(1, 1599)]


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


def test_trap_039_filter_and_column_list(source: Config, conn: Connection) -> None:
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
    monkeypatch.setattr(snapshot_rows, "_BLOCK_BYTES", 1000)
    rows = _rows(source, "t")
    assert [row["ordinal"] - rows[0]["ordinal"] for row in rows] == list(range(5000))
    images = sorted((row["new"] for row in rows), key=lambda image: int(image[0]))
    assert images == [[str(i), "\\\n" * (i % 50)] for i in range(1, 5001)]


def test_trap_037_policy_is_an_error_not_fewer_rows(source: Config, conn: Connection) -> None:
    conn.execute("create table public.t (id int primary key); insert into public.t values (1), (2)")
    conn.execute("alter table public.t enable row level security; create policy p on public.t using (id = 1)")
    _start(conn, source)
    with (
        slot.create_slot(source.source, cut_seconds=source.check.cut_seconds) as cut,
        snapshot_rows.reader(source.source, cut) as reader,
    ):
        (table,) = (t for t in catalog.published_tables(reader) if t.name == "t")
        reader.execute("set local role pg_read_all_data")
        with pytest.raises(snapshot_rows.TableRefused, match=r"copying public.t: .*row-level security"):
            list(snapshot_rows.snapshot_batches(reader, table, cut.lsn, generation=1))


def test_snapshot_that_is_gone(source: Config, conn: Connection) -> None:
    _start(conn, source)
    cut = slot.Cut(Lsn(1), "00000003-0000001B-1", "x")
    with (
        pytest.raises(SourceUnavailable, match=r"importing the snapshot at 0/1"),
        snapshot_rows.reader(source.source, cut),
    ):
        pass


def test_reader_sees_only_the_cut(source: Config, conn: Connection) -> None:
    conn.execute("create table public.t (id int primary key)")
    _start(conn, source)
    with (
        slot.create_slot(source.source, cut_seconds=source.check.cut_seconds) as cut,
        snapshot_rows.reader(source.source, cut) as reader,
    ):
        conn.execute("insert into public.t values (1)")
        assert reader.execute("select count(*) from public.t").fetchone() == (0,)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            reader.execute("insert into public.t values (2)")

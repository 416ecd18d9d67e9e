"""Both engines give the same figures for the same cells, and other figures for any planted fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from tests.support_postgres import mostly_one_server
from toolkit.lake import row_lines as lake_side
from toolkit.quality.row_classes import classify
from toolkit.source import connection, row_lines
from toolkit.values.config import Config, SourceConfig
from toolkit.values.lake_types import typed_sql
from toolkit.values.names import quote_spark
from toolkit.values.namespaces import Namespaces
from toolkit.values.row_line import Comparison, Sums, chosen, comparison, differing, fields
from toolkit.values.table import TableVersion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark]

#: Around where PostgreSQL counts from, and around what the lake's types hold.
EDGES = (
    "2000-01-01 00:00:00", "1999-12-31 23:59:59.999999", "0001-01-01 00:00:00", "0001-12-31 23:59:59.999999 BC",
    "9999-12-31 23:59:59.999999", "10000-01-01 00:00:00",
)  # fmt: skip
#: Type and the texts of its column, one a row; shorter lists are filled up with NULL.
CORPUS: dict[str, list[str | None]] = {
    "boolean": ["t", "f", None],
    "smallint": ["-32768", "32767", "0"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "numeric": ["1.10", "1.1", "NaN", "-0.000", "123456789012345678901234567890.5", "Infinity"],
    "numeric(12,2)": ["1.10", "-0.01", "NaN", "9999999999.99"],
    "numeric(30,12)": ["0.000000000001", "0", "-1.5"],
    "real": ["1e-05", "1e+06", "3.4028235e+38", "NaN", "-Infinity", "0.1", "1e+15", "123456.7"],
    "double precision": ["1e-05", "1e+15", "123456789012345680", "-0", "5e-324", "0.1", "NaN"],
    "text": ["", None, "~", "1:a", "naïve 😀", "tab\tnew\nline", "$x ${y} {z} %s 'quoted' \\", " "],
    "varchar(20)": ["\b", "\f", "\v", "\r", "\\", "", " padded ", "NULL"],
    "char(5)": ["ab", "", "abcde"],
    "date": ["2024-02-29", "0044-03-15 BC", "infinity", "99999-01-01"],
    "time": ["23:59:59.999999", "24:00:00"],
    "timestamp": ["2024-02-29 12:00:00.123456", *EDGES, "infinity", "1582-10-10 00:00:00", "0099-02-28 01:02:03.1"],
    "timestamp(0)": ["2024-02-29 12:00:00.5"],
    "timestamptz": ["2024-03-31 02:30:00+01", *(f"{text}+00" for text in EDGES), "-infinity"],
    "timestamptz(3)": ["1900-01-01 00:00:00.0125+00"],
    "interval": ["1 year 2 mons -3 days", "-00:00:01.5"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "jsonb": ['{"b": [1, null], "a": "é"}', "null"],
    "bytea": ["\\x", "\\x00ff", None],
    "integer[]": ["{1,NULL,3}", "{}", "{{1,2},{3,4}}"],
    "money": ["-1234.5"],
    "inet": ["10.0.0.1/8", "::1"],
}
ROWS = max(len(v) for v in CORPUS.values())


@pytest.fixture
def config(database: str, lake: Config) -> Config:
    return lake.model_copy(update={"source": SourceConfig(conninfo=database)})


@pytest.fixture
def conn(config: Config) -> Iterator[psycopg.Connection[Any]]:
    with connection.connect(config.source) as opened:
        names = [f"c{i}" for i in range(len(CORPUS))]
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(t)) for n, t in zip(names, CORPUS, strict=True)
        )
        opened.execute(sql.SQL("create table public.corpus (id integer primary key, {})").format(columns))
        for i in range(ROWS):
            values = [texts[i] if i < len(texts) else None for texts in CORPUS.values()]
            literals = sql.SQL(", ").join(
                sql.SQL("{}::{}").format(sql.Literal(v), sql.SQL(t)) for v, t in zip(values, CORPUS, strict=True)
            )
            opened.execute(sql.SQL("insert into public.corpus values ({}, {})").format(sql.Literal(i), literals))
        yield opened


def _version(conn: psycopg.Connection[Any], *, keyed: bool) -> TableVersion:
    columns = conn.execute(
        "select json_build_object('attnum', attnum, 'name', attname, 'type_oid', atttypid,"
        " 'type', format_type(atttypid, atttypmod), 'typmod', atttypmod, 'not_null', attnotnull, 'type_kind', typtype,"
        " 'type_category', typcategory) from pg_attribute join pg_type t on t.oid = atttypid"
        " where attrelid = 'public.corpus'::regclass and attnum > 0 and not attisdropped order by attnum"
    ).fetchall()
    relid = conn.execute("select 'public.corpus'::regclass::oid").fetchone()
    assert relid is not None
    data = {"relid": relid[0], "schema": "public", "name": "corpus", "kind": "r", "persistence": "p"}
    data |= {"replica_identity": "d" if keyed else "f", "key_attnums": [1] if keyed else []}
    return TableVersion.from_json(data | {"columns": [c[0] for c in columns]})


def _texts(conn: psycopg.Connection[Any], plan: Comparison) -> list[tuple[str | None, ...]]:
    """What the server itself makes of every cell."""
    texts = sql.SQL(", ").join(
        sql.SQL("case num_nulls({0}) when 0 then concat({0}) end").format(sql.Identifier(c.name)) for c in plan.columns
    )
    return conn.execute(sql.SQL("select {} from public.corpus").format(texts)).fetchall()


def _current(spark: SparkSession, conn: psycopg.Connection[Any], plan: Comparison) -> DataFrame:
    """What the build makes of the source's texts: typed columns, and `_cdc_text` where the type cannot carry them."""
    raw = spark.createDataFrame(_texts(conn, plan), ", ".join(f"{c.name} string" for c in plan.columns))
    typed = [f"{typed_sql(quote_spark(c.name), c)} as {c.name}" for c in plan.columns]
    kept = ", ".join(
        f"if({c.name} is not null and {typed_sql(quote_spark(c.name), c)} is null,"
        f" struct('{c.name}' as key, {c.name} as value), null)"
        for c in plan.columns
    )
    return raw.selectExpr(*typed, f"map_from_entries(filter(array({kept}), e -> e is not null)) as _cdc_text")


@mostly_one_server
@pytest.mark.parametrize(
    "keyed", [pytest.param(True, id="keyed"), pytest.param(False, id="bag", marks=pytest.mark.wide)]
)
def test_the_engines_agree_and_every_fault_shows(
    conn: psycopg.Connection[Any], spark: SparkSession, keyed: bool
) -> None:
    plan = comparison(_version(conn, keyed=keyed), 16)
    _current(spark, conn, plan).writeTo("current.public__corpus").createOrReplace()
    side = lake_side.Side(plan, None, Namespaces())
    source = _source(conn, plan)
    assert Counter(fields(line, plan.natives) for line in source) == Counter(_texts(conn, plan))
    assert sorted(lake_side.lines(spark, side, range(16))) == sorted(source)
    sums = Sums(16)
    sums.add(source)
    figures = sums.figures()
    assert lake_side.figures(spark, [side]) == {plan.table.relid: figures}
    assert sorted(chosen([source], 16, [3, 7])) == sorted(lake_side.lines(spark, side, [3, 7]))

    text = f"c{list(CORPUS).index('text')}"
    faults = {
        "dropped row": "DELETE FROM current.public__corpus WHERE id = 3",
        "altered character": f"UPDATE current.public__corpus SET {text} = 'Naïve 😀' WHERE id = 4",
        "NULL for ''": f"UPDATE current.public__corpus SET {text} = NULL WHERE {text} = ''",
        "swapped values": f"UPDATE current.public__corpus SET {text} = CASE id WHEN 4 THEN 'tab\\tnew\\nline'"
        " ELSE 'naïve 😀' END WHERE id IN (4, 5)",
    }
    for name, fault in faults.items():
        spark.sql(fault)
        broken = lake_side.figures(spark, [side])[plan.table.relid]
        assert differing(figures, broken), name
        found = classify(
            source, lake_side.lines(spark, side, range(16)), columns=[c.name for c in plan.columns], key=plan.key,
            samples=5, natives=plan.natives,
        )  # fmt: skip
        assert found.samples, name
        _current(spark, conn, plan).writeTo("current.public__corpus").createOrReplace()

    # Where no row keeps a text, none is read; where one does, it counts.
    assert list(lake_side._typed(spark, [side])) == []
    spark.sql("UPDATE current.public__corpus SET _cdc_text = NULL")
    assert list(lake_side._typed(spark, [side])) == [side]
    bare = Sums(16)
    bare.add(list(lake_side.lines(spark, side, range(16))))
    assert lake_side.figures(spark, [side]) == {plan.table.relid: bare.figures()} != {plan.table.relid: figures}
    spark.sql("UPDATE current.public__corpus SET _cdc_text = map('id', 'x') WHERE id = 5")
    assert differing(bare.figures(), lake_side.figures(spark, [side])[plan.table.relid])


def _source(conn: psycopg.Connection[Any], plan: Comparison) -> list[bytes]:
    with row_lines.lines(conn, plan) as blocks:
        return [line for block in blocks for line in block]


def test_a_truncate_after_the_snapshot_is_not_taken(config: Config, conn: psycopg.Connection[Any]) -> None:
    plan = comparison(_version(conn, keyed=True), 16)
    with (
        connection.connect(config.source) as holder,
        holder.transaction(),
        connection.connect(config.source) as session,
    ):
        holder.execute("set transaction isolation level repeatable read")
        name = holder.execute("select pg_export_snapshot()").fetchone()
        assert name is not None
        with row_lines.inside_snapshot(session, name[0], seconds=5):
            before = _source(session, plan)
            # The read gave its lock back: the user's DDL does not wait for the check.
            conn.execute("set lock_timeout = '5s'")
            conn.execute("insert into public.corpus (id) values (1000)")
            assert _source(session, plan) == before
            conn.execute("truncate public.corpus")
            with pytest.raises(row_lines.TableMoved, match="truncated, rewritten or replaced"):
                _source(session, plan)
            conn.execute("drop table public.corpus")
            with pytest.raises(row_lines.TableMoved, match="dropped or renamed"):
                _source(session, plan)

"""Very wide tables through the whole path: as many columns as PostgreSQL allows."""

from __future__ import annotations

import psycopg
import pytest

from tests import commands
from toolkit.lake import session
from toolkit.quality.report import CheckReport, Difference
from toolkit.values.config import Config

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.dbt, pytest.mark.long]

#: Types in turn, and the value of row `g`: a row of 1,600 of them still fits into a page.
TYPES = {
    "integer": "g",
    "text": "'t' || g",
    "smallint": "g % 999",
    "date": "date '2024-01-01' + g % 999",
    "boolean": "g % 2 = 0",
}
ROWS = 1000


def wide(database: str, lake: Config, columns: int) -> tuple[Config, psycopg.Connection[tuple[object, ...]]]:
    """A table `wide` of so many columns, `c1` its key, captured."""
    config = lake.model_copy(update={"source": lake.source.model_copy(update={"conninfo": database})})
    conn = psycopg.connect(database, autocommit=True)
    kinds = list(TYPES)
    listed = ", ".join(f"c{i} {kinds[i % len(kinds)]}" for i in range(2, columns + 1))
    conn.execute(f"create table public.wide (c1 integer primary key, {listed})".encode())
    fill(conn, columns, 1, ROWS)
    commands.init(config)
    return config, conn


def fill(conn: psycopg.Connection[tuple[object, ...]], columns: int, first: int, last: int) -> None:
    values = list(TYPES.values())
    listed = ", ".join(values[i % len(values)] for i in range(2, columns + 1))
    conn.execute(f"insert into public.wide select g, {listed} from generate_series({first}, {last}) as g".encode())


def reported(report: CheckReport) -> tuple[str, list[tuple[object, tuple[Difference, ...]]]]:
    """The table's verdict, and the key and cells of its rows that differ."""
    (table,) = report.tables
    return table.status, [(s.key, s.differences) for s in table.samples]


def alter(config: Config, column: str, row: int) -> None:
    """One cell of the lake, past every build."""
    session.own_session(config.lake_access).sql(
        f"update current.public__wide set {column} = 'altered' where c1 = {row}"
    )


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_trap_119_1000_columns_in_parity(database: str, lake: Config) -> None:
    config, conn = wide(database, lake, 1000)
    with conn:
        conn.execute("update public.wide set c1000 = null, c6 = 'more' where c1 <= 5")
        conn.execute("delete from public.wide where c1 = 6")
        green = commands.compare(config)
        assert reported(green) == ("identical", [])
        assert green.tables[0].rows == ROWS - 1
        alter(config, "c771", 500)
        red = commands.compare(config)
    assert reported(red) == ("different", [((("c1", "500"),), (Difference("c771", "t500", "altered"),))])


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_trap_119_1600_columns(database: str, lake: Config) -> None:
    """It never ended: Spark inferred filters from each column's expression, in time by the square of their number."""
    config, conn = wide(database, lake, 1599)
    with conn:
        commands.build(config)
        fill(conn, 1599, ROWS + 1, ROWS + 5)
        conn.execute("update public.wide set c1599 = null, c6 = 'more' where c1 <= 5")
        conn.execute("delete from public.wide where c1 = 6")
        conn.execute("update public.wide set c1 = -7 where c1 = 7")
        commands.drain(config)
        (merged,) = (m for m in commands.build(config).models if m.name == "current.public__wide")
        assert merged.action == "merge"
        conn.execute("alter table public.wide add column c1600 text")
        conn.execute("update public.wide set c1600 = 'new' where c1 = 8")
        conn.execute("alter table public.wide drop column c2")
        conn.execute("update public.wide set c1600 = 'newer' where c1 = 9")
        with pytest.raises(psycopg.errors.TooManyColumns):
            conn.execute("alter table public.wide add column c1601 text")
        report = commands.check(config)
        assert reported(report) == ("identical", [])
        assert report.green
        assert (
            len(session.own_session(config.lake_access).table("published.public__wide").columns) == 1600
        )  # and _cdc_text
        alter(config, "c1600", 500)
        red = commands.check(config)
    assert reported(red) == ("different", [((("c1", "500"),), (Difference("c1600", None, "altered"),))])
    (sample,) = red.tables[0].samples
    assert sample.cause is not None and sample.cause.kind == "tampered"

"""Values and names through the whole path: every type and every odd name, by snapshot, by stream and by default."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from tests import commands
from tests.support_corpus import SETUP, Cell, available, cells, columns
from tests.support_ledger import lake_of, ledger_of
from tests.support_postgres import fresh_database, run_sql
from toolkit.demo.server import EmbeddedServer
from toolkit.history import column_life, rows_at_lsn, versions
from toolkit.lake import schema_update, session
from toolkit.ops import diagnosis
from toolkit.quality.report import CheckReport
from toolkit.source import connection
from toolkit.values.config import Config
from toolkit.values.lake_types import spark_type, text_sql
from toolkit.values.names import lake_columns, lake_table, quote_postgres
from toolkit.values.table import TableVersion

pytestmark = [pytest.mark.e2e, pytest.mark.wide]

#: Row ids: `n` copied by the snapshot, `STREAM + n` inserted after it, `UPDATE + n` filled by an update after it.
STREAM, UPDATE = 1000, 2000

#: Names that some layer between PostgreSQL and the lake gives a meaning to.
ODD = (
    "a.b",
    'say "hi"',
    "back`tick",
    "two words",
    "per%cent %s",
    "{{ jinja }} {% x %} {# y #}",
    "${spark} $1",
    "it's",
    "back\\slash",
    "--dash; drop",
    "/*+ hint */",
    "é😀",
    "x" * 63,
    "select",
    "from",
    "table",
    "Ünïcode",
    "new\nline",
    "tab\there",
    "?",
    ":name",
    "@at",
    "#",
    "_deleted",
    "_pos",
    "_file",
    "_spec_id",
    "_partition",
    "_FILE",
    "_change_type",
    "_row_id",
    "_last_updated_sequence_number",
    "_cdc_text",
    "_cdc_from_lsn",
    "_cdc_to_lsn",
    "_cdc_doubtful",
    "_cdc_put",
    "_cdc_k1",
    "_CDC_text",
    "u_cdc_text_a33",
    "s1",
    "t1",
    "k1",
    "c1",
    "new",
    "old",
    "op",
    "end_lsn",
    "from_lsn",
    "to_lsn",
    "put",
    "next_commit",
    "commit_lsn",
    "ordinal",
    "f1",
    "row_hash",
    "Case",
    "case",
    "CASE",
    "key_hash",
    "bucket",
    "unchanged",
    "_op",
    "_lsn",
    "relid",
    "x_a2",
)
#: Odd names of typed columns: they are keys of `_cdc_text` too.
BAG = (
    "it's",
    "back\\slash",
    "${spark} $1",
    "{{ jinja }} {% x %} {# y #}",
    "new\nline",
    "_pos",
    "_cdc_text",
    "s1",
    "Case",
    "case",
)
SCHEMA = "S.x 'y\" {{ z }}"
TABLES = ('a.b "c" `d` %s {{ e }} it\'s $1 \\', "é" * 31, "T", "t", "x__y")


@dataclass(frozen=True)
class World:
    """One source with the corpus and the odd names, drained, built and checked."""

    config: Config
    corpus: tuple[Cell, ...]
    report: CheckReport
    kept: dict[str, Any] = field(default_factory=dict)  # what many tests ask of the corpus

    def version(self, name: str) -> TableVersion:
        return next(v.table for v in ledger_of(self.config).latest_versions().values() if v.table.name == name)

    def texts(self, name: str, layer: str = "current") -> dict[str, dict[str, str | None]]:
        """Rows of a built table as source text: by the text of the first column, by column name."""
        version = self.version(name)
        names = lake_columns([(c.attnum, c.name) for c in version.columns])
        shown = [c for c in version.columns if c.published]
        fields = ", ".join(f"{text_sql(names[c.attnum], c)} as f{c.attnum}" for c in shown)
        relation = f"{layer}.{lake_table(version.schema, version.name)}"
        open_rows = "where _cdc_to_lsn is null" if layer == "history" else ""
        spark = session.own_session(self.config.lake_access)
        found = spark.sql(f"select {fields} from {relation} {open_rows}").collect()
        return {row[0]: {c.name: row[i] for i, c in enumerate(shown)} for row in found}

    def source(self, name: str, key: str = "id") -> dict[str, dict[str, str | None]]:
        """Rows of a source table as its types print them."""
        version = self.version(name)
        shown = [c for c in version.columns if c.published]
        listed = ", ".join(
            f"case num_nulls({quote_postgres(c.name)}) when 0 then concat({quote_postgres(c.name)}) end" for c in shown
        )
        with connection.connect(self.config.source) as conn:
            found = conn.execute(
                f"select {listed} from public.{quote_postgres(name)}".replace("%", "%%"), ()
            ).fetchall()
        return {row[0]: {c.name: row[i] for i, c in enumerate(shown)} for row in found}


def _values(corpus: tuple[Cell, ...], offset: int) -> Iterator[str]:
    for cell in corpus:
        yield f"insert into public.corpus (id, {cell.column}) values ({offset + cell.row}, {cell.value})"


@pytest.fixture(
    scope="module",
    params=["pg16", pytest.param("pg15", marks=pytest.mark.long), pytest.param("pg18", marks=pytest.mark.long)],
)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _jvm: None) -> Iterator[World]:
    server: EmbeddedServer = request.getfixturevalue(request.param)
    with fresh_database(server) as database:
        config = Config(root=tmp_path_factory.mktemp("values"))
        scope = {"conninfo": database, "tables": ("public.*", f"{SCHEMA}.*")}
        config = config.model_copy(update={"source": config.source.model_copy(update=scope)})
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute(SETUP)
            kinds = available(conn)
        corpus = tuple(cells(kinds))
        listed = ", ".join(f"{name} {kind}" for name, kind in columns(kinds))
        computed = "g text generated always as (a || '!') stored"
        computed += ", v text generated always as (a || '?') virtual" if request.param == "pg18" else ""
        odd = ", ".join(f"{quote_postgres(name)}" for name in ODD)
        run_sql(
            config,
            f"create table public.corpus (id int primary key, {listed})",
            *_values(corpus, 0),
            *(f"insert into public.corpus (id) values ({UPDATE + cell.row})" for cell in corpus),
            "create table public.late (id int primary key); insert into public.late select generate_series(1, 3)",
            f"create table public.odd ({', '.join(f'{quote_postgres(name)} text' for name in ODD)})",
            f"alter table public.odd add primary key ({quote_postgres(ODD[0])}, {quote_postgres('Case')})",
            f"insert into public.odd ({odd}) values ({', '.join('$$s$$' for _ in ODD)})",
            f"create table public.bag ({', '.join(f'{quote_postgres(c)} numeric(4,2)' for c in BAG)})",
            "alter table public.bag replica identity full",
            f"insert into public.bag values ({', '.join(map(str, range(len(BAG))))})",
            *(
                f'create table public.{quote_postgres(t)} (id int primary key, "a" text, "A" date, {computed})'
                for t in TABLES
            ),
            *(f"insert into public.{quote_postgres(t)} (id, a, \"A\") values (1, 'é%s', 'infinity')" for t in TABLES),
            f"create schema {quote_postgres(SCHEMA)}",
            f"create table {quote_postgres(SCHEMA)}.elsewhere (id int primary key, a text)",
            f"insert into {quote_postgres(SCHEMA)}.elsewhere values (1, 'in another schema')",
            "create table public.none ()",
            "alter table public.none replica identity full",
            "insert into public.none default values",
        )
        commands.init(config)
        commands.build(config)
        # One a kind; not those that rewrite the table (domains with a constraint) or are refused as a default.
        firsts = {c.column: c for c in reversed(corpus)}.values()
        defaults = [c for c in firsts if not c.kind.type.startswith(("public.posint", "public.wide", "regrole"))]
        run_sql(
            config,
            *_values(corpus, STREAM),
            *(f"update public.corpus set {c.column} = {c.value} where id = {UPDATE + c.row}" for c in corpus),
            "alter table public.late "
            + ", ".join(f"add column d{c.row} {c.kind.type} default {c.value}" for c in defaults),
            "update public.late set d1 = null where id = 2",
            f"insert into public.odd ({odd}) values ({', '.join(f'$${n}$$' for n in range(len(ODD)))})",
            f"update public.odd set {quote_postgres(ODD[1])} = 'moved', {quote_postgres(ODD[0])} = 'k2'"
            f" where {quote_postgres(ODD[0])} = 's'",
            f"insert into public.bag values ({', '.join(chr(39) + 'NaN' + chr(39) for _ in BAG)})",
            f"update public.bag set {quote_postgres(BAG[0])} = 7 where {quote_postgres(BAG[3])} = 3",
            *(f"insert into public.{quote_postgres(t)} (id, a, \"A\") values (2, 'x', '2024-01-01')" for t in TABLES),
            *(f"update public.{quote_postgres(t)} set \"A\" = '2024-01-02' where id = 1" for t in TABLES),
            f"update {quote_postgres(SCHEMA)}.elsewhere set a = 'said there' where id = 1",
            "insert into public.none default values",
            "insert into public.none default values",
        )
        report = commands.check(config)
        yield World(config, corpus, report)


def test_parity_is_green_for_every_table(world: World) -> None:
    assert {t.table: (t.status, t.reason) for t in world.report.tables if t.status != "identical"} == {}
    assert len(world.report.tables) == 7 + len(TABLES)


def _corpus(world: World) -> dict[str, Any]:
    """Of table corpus: its texts in both layers and at the source, its types, and the keys of `_cdc_text` by row."""
    if not world.kept:
        frame = session.own_session(world.config.lake_access).table("current.public__corpus")
        world.kept.update(
            current=world.texts("corpus"),
            history=world.texts("corpus", "history"),
            source=world.source("corpus"),
            types=dict(frame.dtypes),
            kept={r["id"]: set(r["_cdc_text"] or {}) for r in frame.select("id", "_cdc_text").collect()},
        )
    return world.kept


def _typed(world: World, *traps: int) -> None:
    """The source's own text by snapshot, by insert and by update, in both layers.

    Typed where Spark holds the value, the text in `_cdc_text` where it does not.
    """
    reported, version = _corpus(world), world.version("corpus")
    found = [c for c in world.corpus if c.kind.trap in traps]
    assert {c.kind.trap for c in found} == set(traps)
    for cell in found:
        text = reported["source"][str(cell.row)][cell.column]
        column = version.column(cell.column)
        assert column is not None and text is not None
        assert reported["types"][cell.column] == spark_type(column) == cell.kind.spark, cell
        for offset in (0, STREAM, UPDATE):
            for layer in ("current", "history"):
                assert reported[layer][str(offset + cell.row)][cell.column] == text, (cell, offset, layer)
            assert (cell.column in reported["kept"][offset + cell.row]) == (not cell.carried), (cell, offset)


def test_a_planted_fault_is_seen(world: World) -> None:
    reported = _corpus(world)
    row = next(c for c in world.corpus if c.kind.type == "numeric" and c.value == "1.000")
    shown = reported["current"][str(STREAM + row.row)]
    right, shown[row.column] = shown[row.column], "1"
    try:
        with pytest.raises(AssertionError):
            _typed(world, 100)
    finally:
        shown[row.column] = right


def test_trap_100_numeric(world: World) -> None:
    _typed(world, 100)


def test_trap_101_dates(world: World) -> None:
    _typed(world, 101)


def test_trap_102_103_times_and_intervals(world: World) -> None:
    _typed(world, 102, 103)


def test_trap_105_reg_types(world: World) -> None:
    _typed(world, 105)
    reported = " ".join(
        d.found for d in diagnosis.doctor(world.config) if "changes with the objects it names" in d.found
    )
    kinds = {c.column: c.kind.type for c in world.corpus if c.kind.type.startswith("reg") or c.kind.type == "aclitem"}
    assert kinds
    assert all(f"{column} ({kind})" in reported for column, kind in kinds.items())
    assert "c0 " not in reported


def test_trap_106_floats(world: World) -> None:
    _typed(world, 106)


def test_trap_107_json(world: World) -> None:
    _typed(world, 107)


def test_trap_108_arrays(world: World) -> None:
    _typed(world, 108)
    spark = session.own_session(world.config.lake_access)
    cell = next(c for c in world.corpus if c.kind.type == "int[]" and "NULL,-3" in c.value)
    row = spark.table("current.public__corpus").where(f"id = {STREAM + cell.row}").select(cell.column).first()
    assert row is not None
    assert row[0] == [1, None, -3]


def test_trap_109_composites_ranges_domains(world: World) -> None:
    _typed(world, 109)


def test_trap_110_111_112_texts_and_bytes(world: World) -> None:
    _typed(world, 110, 111, 112)


def test_trap_115_unsigned_and_integers(world: World) -> None:
    _typed(world, 115)


def test_missing_values_of_every_type(world: World) -> None:
    """Rows older than a column show its default: the one text that no row event carries."""
    shown, source = world.texts("late"), world.source("late")
    assert len(source["1"]) > 80
    assert shown == source


def test_trap_116_odd_names(world: World) -> None:
    for name in (*TABLES, "odd"):
        assert world.texts(name) == world.source(name), name
        assert world.texts(name, "history") == world.source(name), name
    shape = versions.show(ledger_of(world.config), f"public.{TABLES[0]}").table
    assert shape.name == TABLES[0]
    (row,) = rows_at_lsn.rows(lake_of(world.config), f"public.{TABLES[0]}", key={"id": "2"})
    assert (row["a"], row["A"]) == ("x", "2024-01-01")
    assert rows_at_lsn.rows(lake_of(world.config), f"{quote_postgres(SCHEMA)}.elsewhere") == [
        {"id": "1", "a": "said there"}
    ]
    (row,) = rows_at_lsn.rows(lake_of(world.config), "odd", key={ODD[0]: "s", ODD[1]: "s"})
    assert row[ODD[2]] == "s"


def test_a_column_name_is_never_read_as_sql(world: World) -> None:
    """Placeholders stood in comments of the parity statements: a name with a newline ended the comment."""
    from toolkit.source import row_lines
    from toolkit.values.row_line import comparison

    plan = comparison(world.version("odd"), 16)
    with connection.connect(world.config.source) as conn, conn.transaction(), row_lines.lines(conn, plan) as blocks:
        assert sum(map(len, blocks))


def test_trap_117_118_lake_names(world: World) -> None:
    spark = session.own_session(world.config.lake_access)
    columns = spark.table("current.public__odd").columns
    assert len({c.lower() for c in columns}) == len(columns) == len(ODD) + 2
    assert {c for c in columns if c.lower().startswith("_cdc_")} == {"_cdc_from_lsn", "_cdc_text"}
    assert not {"_deleted", "_pos", "_file", "_spec_id", "_partition", "_row_id"} & {c.lower() for c in columns}
    assert {"case", "_op", "_lsn", "u_cdc_text_a33", "x_a2"} <= set(columns)
    published = spark.table("published.public__odd")
    assert [c for c in published.columns if c != "_cdc_text"] == [c for c in columns if c[:5] != "_cdc_"]
    assert published.count() == 2
    kept = {frozenset(r["_cdc_text"] or {}) for r in spark.table("current.public__bag").collect()}
    bag = lake_columns([(c.attnum, c.name) for c in world.version("bag").columns])
    assert kept == {frozenset(), frozenset(bag.values())}


def test_trap_114_generated_columns_are_left_out(world: World) -> None:
    """Their values are not published: they are in neither layer, and parity does not miss them."""
    spark = session.own_session(world.config.lake_access)
    for layer in ("current", "history"):
        names = {c for c in spark.table(f"{layer}.public__t").columns if c[:5] != "_cdc_"}
        assert names == {"id", "a", "A_a3"}
    shape = versions.show(ledger_of(world.config), "public.t").table
    assert {c.name: (c.generated, c.published) for c in shape.columns if c.generated} == {
        name: (kind, False) for name, kind in (("g", "s"), ("v", "v")) if shape.column(name)
    }


def test_trap_120_no_columns(world: World) -> None:
    spark = session.own_session(world.config.lake_access)
    assert spark.table("current.public__none").count() == 3
    assert spark.table("history.public__none").count() == 3


def test_trap_116_the_command_line_takes_odd_names(world: World) -> None:
    (world.config.root / "cdc.toml").write_text("", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "toolkit.cli", "schema", "explain", f"public.{TABLES[0]}", "A", "--output", "json"],
        cwd=world.config.root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (life,) = json.loads(done.stdout)
    assert (life["column"], life["type"], life["rows"]) == ("A", "date", 3)


def test_ddl_reaches_current_and_published_waits_for_its_proof(world: World) -> None:
    """Runs last: it goes on with table t. Swapped names, drop and re-adding and a comment, in one build."""
    config, spark = world.config, session.own_session(world.config.lake_access)
    catalog = f"{config.lake.catalog}.current.public__t__7139ee35"
    version = world.version("T")
    assert lake_table(version.schema, version.name) == "public__t__7139ee35"
    before = {name: field for name, (field, _) in schema_update.columns(spark, catalog).items()}
    shown = spark.table("published.public__t__7139ee35").columns
    run_sql(
        config,
        "insert into public.\"T\" (id, a) values (10, 'before')",
        'alter table public."T" rename column a to tmp; alter table public."T" rename column "A" to a;'
        ' alter table public."T" rename column tmp to "A"',
        'alter table public."T" drop column g; alter table public."T" add column g int',
        "comment on column public.\"T\".g is 'not generated any more'",
        "insert into public.\"T\" (id, a, \"A\", g) values (11, '2024-02-02', 'after', 6)",
    )
    commands.drain(config)
    built = commands.build(config)
    assert {m.action for m in built.models if m.name == "current.public__t__7139ee35"} == {"merge"}
    assert spark.table("published.public__t__7139ee35").columns == shown
    assert world.texts("T") == world.source("T")
    after = schema_update.columns(spark, catalog)
    assert after["g"][1] == "not generated any more"
    # The lake's names of a and A have changed sides with them; each column is still the one it was.
    assert (after["a"][0], after["A_a2"][0]) == (before["A_a3"], before["a"])
    assert after["g"][0] not in before.values()
    lives = column_life.explain(ledger_of(config), "public.T", "g")
    # Its expression names the column that was renamed twice: three stretches before it was dropped.
    assert [(s.dropped, s.type) for s in lives] == [
        *[(False, "text")] * 3,
        (True, "text"),
        (False, "integer"),
        (False, "integer"),  # the comment came
    ]
    assert [s.seen.rows if s.seen else 0 for s in lives] == [4, 0, 0, 0, 0, 1]
    assert lives[3].ddl is not None
    assert lives[3].ddl.role == "postgres"
    report = commands.check(config, ["public.T"])
    assert report.green
    assert "g" in spark.table("published.public__t__7139ee35").columns

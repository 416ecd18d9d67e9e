"""What commands without Spark show on a terminal: what is done, of how much, how fast, and nothing when they end."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests import commands
from tests.support_lake import plain_lake
from tests.support_postgres import fresh_database
from tests.support_terminal import on_a_terminal, screen
from toolkit.demo.server import EmbeddedServer
from toolkit.source import connection, row_lines
from toolkit.values import progress
from toolkit.values.config import Config
from toolkit.values.modes import Capture

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]

_TABLES = "create table public.a (id int primary key); create table public.b (id int primary key)"

#: One table is done and the other waits: done, of how many, how fast, for how long, and the time left.
_HALF = r"1 of 2 tables, [\d,]+/s \S*0:00:\d\d\S* \S*0:00:\d\d left"


def _run(conninfo: str, statements: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as conn:
        conn.execute(statements.encode())


@contextmanager
def _locked(conninfo: str, table: str) -> Iterator[Callable[[], object]]:
    """Another session holds a table, until what is given is called."""
    with psycopg.connect(conninfo) as conn:
        conn.execute(f"lock table {table}".encode())
        yield conn.rollback


def _shown(config: Config, *words: str, when: tuple[str, Callable[[], object]] | None = None) -> tuple[int, str]:
    """Run a command on a terminal; whatever its bars show is gone at the end."""
    source = config.source.model_dump(mode="json", exclude_unset=True)
    text = "[source]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in source.items())
    (config.root / "cdc.toml").write_text(text, encoding="utf-8")
    code, shown = on_a_terminal([sys.executable, "-m", "toolkit.cli", *words], folder=config.root, when=when)
    assert not any("\u2501" in line for line in screen(shown)), shown
    return code, shown


def test_uninstall_shows_the_tables_whose_triggers_it_takes_off(source: Config, plain_lake: Config) -> None:
    chosen = source.source.model_copy(update={"capture": Capture.CHANGE_LOG})
    config = source.model_copy(update={"root": plain_lake.root, "source": chosen})
    _run(config.source.conninfo, _TABLES)
    commands.init(config)
    with _locked(config.source.conninfo, "public.b") as release:
        code, shown = _shown(config, "uninstall", "--yes", when=(_HALF, release))
    assert code == 0, shown
    assert "taking the triggers off" in shown and screen(shown)[-1].startswith("all objects of cdc were removed"), shown


def test_a_check_against_another_server_shows_tables_and_rows(
    source: Config, tmp_path: Path, pg: EmbeddedServer
) -> None:
    config = source.model_copy(update={"root": tmp_path})
    with fresh_database(pg) as copy:
        for conninfo in (config.source.conninfo, copy):
            _run(conninfo, f"{_TABLES}; insert into a select generate_series(1, 3000); analyze a")
        with _locked(config.source.conninfo, "public.b") as release:
            words = ("check", "--against", copy)
            code, shown = _shown(config, *words, when=(_HALF, release))
        assert code == 0, shown
        assert "public.b" in shown, shown
        assert screen(shown)[0].endswith("all identical") and not re.search("ago|None", "".join(screen(shown))), shown
        # A table is read too fast here to be seen; what it would show is its rows, and how many they are about.
        stages = _Stages()
        progress.show_on(stages)
        try:
            assert commands.against(config, copy).green
        finally:
            progress.show_on(None)
    rows = {(s.what, s.done, s.total) for s in stages.begun if s.unit == "rows"}
    assert rows == {("public.a", 3000, 3000), ("public.b", 0, None)}


class _Stages:
    def __init__(self) -> None:
        self.begun: list[progress.Stage] = []

    def begin(self, stage: progress.Stage) -> None:
        self.begun.append(stage)

    def update(self, stage: progress.Stage) -> None:
        """Nothing: the figures are read at the end."""

    end = update

    def result(self) -> None:
        """Nothing either."""


def test_the_rows_of_partitions_are_estimated_too(source: Config) -> None:
    _run(
        source.source.conninfo,
        "create table public.p (id int) partition by range (id);"
        " create table public.p1 partition of public.p for values from (0) to (100);"
        " create table public.p2 partition of public.p for values from (100) to (1000) partition by range (id);"
        " create table public.p3 partition of public.p2 for values from (100) to (1000);"
        " insert into public.p select generate_series(1, 500); analyze public.p1; analyze public.p3;"
        " create table public.new (id int)",
    )
    with connection.connect(source.source) as conn, _locked(source.source.conninfo, "public.p3"):
        relids = [
            conn.execute(f"select 'public.{name}'::regclass::oid".encode()).fetchone() for name in ("p", "p2", "new")
        ]
        assert [row_lines.estimated_rows(conn, row[0]) for row in relids if row] == [500, 401, None]


def test_lint_shows_the_statements_that_it_has_tried(source: Config, tmp_path: Path) -> None:
    config = source.model_copy(update={"root": tmp_path})
    _run(config.source.conninfo, _TABLES)
    script = tmp_path / "change.sql"
    slow = "create table public.slow as select pg_sleep(1)::text as x"
    script.write_text(f"alter table public.a add column n int;\n{slow};\nalter table public.b add column n int;\n")
    code, shown = _shown(config, "ddl", "lint", str(script))
    assert code == 0, shown
    for words in ("copying the schema of the source", "trying the script", "1 of 3 statements", " left"):
        assert words in shown, shown

"""Scripts are split into statements where psql would split them."""

from __future__ import annotations

import pytest

from toolkit.values.sql_script import Kind, statements

pytestmark = pytest.mark.unit


def test_semicolons_that_do_not_end_a_statement() -> None:
    parts = [
        "select ';', E'\\';', \"a;\"\"b\" /* ; */",
        "do $do$ begin perform $$;$$; end $do$",
        "/* ; /* ; */ ; */ create rule r as on insert to t do (select 1; select 2)",
        "create or replace function f() returns int language sql begin atomic select case when true then 1 end; end",
        "commit",
    ]
    found = list(statements(";\n" + ";\n".join(parts) + " ; -- done;"))
    assert [s.text for s in found] == [parts[0], parts[1], parts[2].partition("*/ ; */ ")[2], parts[3], parts[4]]
    assert [s.line for s in found] == [2, 3, 4, 5, 6]
    assert found[2].words[:3] == ("create", "rule", "r")
    assert found[4].words == ("commit",)


@pytest.mark.parametrize("script", ["", " ; ;\n", "-- nothing", "/* open", "  /* a */ ; -- b"])
def test_nothing(script: str) -> None:
    assert list(statements(script)) == []


@pytest.mark.parametrize("script", ["select 'open", 'select "open', "do $$ open", "select E'a\\"])
def test_what_is_left_open_is_one_statement(script: str) -> None:
    assert [s.text for s in statements(script)] == [script]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("create or replace recursive view v as select 1", Kind.DDL),
        ("/* drop */ ALTER materialized view v rename to w", Kind.DDL),
        ("create foreign table t (a int) server s", Kind.DDL),
        ("set local search_path = x", Kind.DDL),
        ("-- select\ninsert into t values (1)", Kind.ROWS),
        ("prepare transaction 'x'", Kind.CONTROL),
        *((text, Kind.OTHER) for text in ("copy t to program 'x'", "do 'x'", "call p()", "select 1", "(select 1)")),
        *((text, Kind.OTHER) for text in ("set role x", 'set "role" to create', "set session authorization x")),
        *((text, Kind.OTHER) for text in ("with x as (insert into t select 1) select 1", "alter system set a = 1")),
        *((text, Kind.OTHER) for text in ("create extension x", "create role x", "alter user x", "drop owned by x")),
        *((text, Kind.OTHER) for text in ("create subscription s", "create foreign data wrapper w", "load 'x'")),
        *((text, Kind.OTHER) for text in ("create event trigger e", "explain analyze delete from t", "values (1)")),
    ],
)
def test_the_kind_of_a_statement(text: str, kind: Kind) -> None:
    (statement,) = statements(text)
    assert statement.kind is kind


def test_a_command_of_psql_takes_its_line_and_not_the_statement_behind_it() -> None:
    """`cdc ddl lint` neither listed nor tried the DDL after `\\set` or `\\i`."""
    script = "\\set ON_ERROR_STOP on\n\\timing\nalter table a add b int;\n\\i other.sql; x\n"
    script += "create table c (d text default '\\');"
    found = [(one.line, one.words[0], one.kind) for one in statements(script)]
    assert found == [
        (1, "\\set", Kind.OTHER), (2, "\\timing", Kind.OTHER), (3, "alter", Kind.DDL), (4, "\\i", Kind.OTHER),
        (5, "create", Kind.DDL),
    ]  # fmt: skip

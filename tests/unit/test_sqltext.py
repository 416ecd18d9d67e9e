"""Scripts are cut where psql would cut them."""

from __future__ import annotations

import pytest

from toolkit.values.sql_script import statements

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

"""Functions on the source that print values pin each setting that decides the text of a value."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toolkit.source.connection import OF_TEXT

_FUNCTION = re.compile(r"create or replace function (\S+?)\(.*?\$function\$;", re.DOTALL)
_SQL = Path(__file__).parents[2] / "sql"
_PRINTING = {
    function[1]: function[0]
    for path in sorted(_SQL.rglob("*.sql"))
    for function in _FUNCTION.finditer(path.read_text(encoding="utf-8"))
    if "datestyle" in function[0]
}


@pytest.mark.parametrize("name", _PRINTING)
def test_a_function_that_prints_values_pins_what_a_drain_pins(name: str) -> None:
    """Functions of the change log did not pin `quote_all_identifiers`: the session of the user decided it."""
    pinned = dict(re.findall(r"(?:set |set_config\(')(\w+)(?: = |', )'?(\w+)", _PRINTING[name]))
    assert {setting.lower(): value for setting, value in OF_TEXT}.items() <= pinned.items()


def test_the_functions_are_found() -> None:
    assert _PRINTING.keys() >= {"cdc.log_row", "cdc.log_rows", "cdc.log_truncate", "cdc.pin", "cdc.table_snapshots"}

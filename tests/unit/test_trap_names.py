"""Every known trap has a test with its number: `test_trap_NNN_...`, or several numbers, in Python or in traps.sql."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.trap_cases import TRAPS

pytestmark = pytest.mark.unit
_TESTS = Path(__file__).parents[1]
#: 1 to 32: positions and the source's life. 33 to 40: snapshots. 41 to 131: rows, DDL, publications, values and the
#: change log. 132 to 146: the lake. 147 to 152: capture inside the user's database.
KNOWN = range(1, 153)


def _numbers(names: Iterable[str]) -> set[int]:
    found = (re.match(r"test_trap_((?:\d{3}_)+)", name) for name in names)
    return {int(number) for match in found if match for number in match[1].strip("_").split("_")}


def test_every_trap_has_a_test() -> None:
    defined = re.compile(r"(?m)^def (\w+)\(")
    names = [name for file in _TESTS.rglob("test_*.py") for name in defined.findall(file.read_text(encoding="utf-8"))]
    assert set(KNOWN) - _numbers([*names, *TRAPS]) == set()


def test_a_trap_without_a_test_is_missed() -> None:
    assert _numbers(["test_trap_001_004_rows", "test_trap_12_none", "test_007_none", "test_trap_152_x"]) == {1, 4, 152}

"""The list of guards fits this tree: each guard is once in its file, and its test exists."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.guards import GUARDS
from tests.mutants.guards_of_source import Guard

pytestmark = pytest.mark.unit

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_guard_stands_once_and_its_test_exists(guard: Guard) -> None:
    assert (_ROOT / guard.file).read_text(encoding="utf-8").count(guard.text) == 1
    assert guard.text != guard.without
    file, _, name = guard.test.partition("::")
    names = {n.name for n in ast.walk(ast.parse((_ROOT / file).read_text())) if isinstance(n, ast.FunctionDef)}
    assert not name or name in names


def test_the_names_of_guards_differ() -> None:
    assert len({guard.name for guard in GUARDS}) == len(GUARDS)

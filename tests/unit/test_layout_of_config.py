"""Functions take what they read: only the rooms that begin a command take the whole configuration."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.unit.test_layout import MODULES, _name, _room

pytestmark = pytest.mark.unit

#: Modules outside `api` and `cli` that may take the whole configuration, each with the reason.
TAKE_CONFIG = {
    "toolkit.demo.notebooks": "the notebooks take the configuration by its file",
    "toolkit.ops.alerts": "the alerts at the end of a scheduled run are about every section",
    "toolkit.ops.diagnosis": "it examines every section",
    "toolkit.ops.status_report": "it reports on every section",
}


def _takes_config(module: str, text: str) -> list[str]:
    """List the functions that take the whole configuration instead of what they read."""
    if _room(module) in {"api", "cli"} or module in TAKE_CONFIG:
        return []
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            named = (ast.unparse(a.annotation) for a in given if a.annotation is not None)
            found += [node.name for one in named if re.search(r"\bConfig\b", one)]
    return found


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_functions_take_what_they_read_and_not_the_configuration(path: Path) -> None:
    assert _takes_config(_name(path), path.read_text(encoding="utf-8")) == []


def test_a_function_that_takes_the_configuration_is_found() -> None:
    text = "class Copier:\n    def __init__(self, *, config: Config | None) -> None: ..."
    assert _takes_config("toolkit.capture.copy", text) == ["__init__"]
    assert not _takes_config("toolkit.api", text)
    assert not _takes_config("toolkit.capture.copy", "def copy(source: SourceConfig) -> None: ...")

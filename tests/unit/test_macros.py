"""Each macro of the dbt project has a file of its own, and is documented in the yml of its folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from toolkit.values.resources import ROOT

pytestmark = pytest.mark.unit

MACROS = ROOT / "dbt_project" / "macros"
_MADE = re.compile(r"\{%-?\s*(macro|test|materialization)\s+(\w+)\s*(?:\(([^)]*)\))?")
_NAMES = {"macro": "{}", "test": "test_{}", "materialization": "materialization_{}_spark"}


def _made(text: str) -> list[tuple[str, list[str]]]:
    """List the macros of a file, each with its arguments."""
    return [
        (_NAMES[kind].format(name), [a.split("=")[0].strip() for a in arguments.split(",") if a.strip()])
        for kind, name, arguments in _MADE.findall(text)
    ]


def _described(folder: Path) -> dict[str, dict[str, Any]]:
    entries = yaml.safe_load((folder / "macros.yml").read_text(encoding="utf-8"))["macros"]
    assert len({entry["name"] for entry in entries}) == len(entries)
    return {entry["name"]: entry for entry in entries}


@pytest.mark.parametrize("folder", sorted(path for path in MACROS.iterdir() if path.is_dir()), ids=lambda p: p.name)
def test_each_macro_has_a_file_and_a_description(folder: Path) -> None:
    described = _described(folder)
    for path in sorted(folder.glob("*.sql")):
        ((name, arguments),) = _made(path.read_text(encoding="utf-8"))
        file = name if not name.startswith("materialization_") else f"{name[16:-6]}_materialization"
        assert path.stem == file
        entry = described.pop(name)
        assert entry["description"].strip()
        assert [argument["name"] for argument in entry.get("arguments", [])] == arguments, name
        assert all(argument["description"] for argument in entry.get("arguments", []))
    assert described == {}


def test_macros_are_found_only_in_folders() -> None:
    assert [path.name for path in MACROS.iterdir() if path.is_file()] == []
    assert _made("{%- macro a(b, c=none) -%}{% endmacro %}{% test d(model) %}{% endtest %}") == [
        ("a", ["b", "c"]),
        ("test_d", ["model"]),
    ]


def _unused(macros: dict[str, str], readers: str) -> list[str]:
    """List macros that no other file names. A test of dbt is named without the beginning of its macro."""
    named = {name: name.removeprefix("test_") for name in macros}
    others = {name: "".join(text for other, text in macros.items() if other != name) for name in macros}
    return [name for name, called in named.items() if not re.search(rf"\b{called}\b", others[name] + readers)]


def test_every_macro_is_used() -> None:
    """vulture looks at Python only. A dead macro stayed in the project of every user."""
    macros = {path.stem: path.read_text(encoding="utf-8") for path in MACROS.rglob("*.sql")}
    read = [
        *(MACROS.parent / "models").rglob("*"),
        MACROS.parent / "dbt_project.yml",
        *(ROOT / "toolkit").rglob("*.py"),
    ]
    readers = "".join(path.read_text(encoding="utf-8") for path in read if path.is_file())
    models_name = {"cdc_current", "cdc_history"}  # `toolkit/build/models.py` writes `cdc_{layer}`
    dbt_calls = {"generate_schema_name", "spark__list_relations_without_caching", "cdc_table_materialization"}
    assert set(_unused(macros, readers)) == models_name | dbt_calls


def test_every_statement_is_used() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "toolkit").rglob("*.py"))
    statements = [path.relative_to(ROOT / "sql").with_suffix("").as_posix() for path in (ROOT / "sql").rglob("*.sql")]
    assert [name for name in statements if name not in code] == []


def _columns(sql: str) -> list[str]:
    """List the columns of the last SELECT of a model, whose items have no comma inside parentheses left."""
    selected = re.sub(r"\{[{%].*?[}%]\}|--.*", "", sql).rpartition("select ")[2]
    while re.search(r"\([^()]*\)", selected):
        selected = re.sub(r"\([^()]*\)", "", selected)
    items = re.split(r"\bfrom\b", selected)[0].split(",")
    return [re.split(r"[\s.]", item.strip())[-1] for item in items]


@pytest.mark.parametrize("path", [*(MACROS.parent / "models").rglob("*.sql")], ids=lambda path: path.stem)
def test_each_column_of_a_shared_model_is_described(path: Path) -> None:
    (described,) = (
        model["columns"]
        for file in path.parent.glob("*.yml")
        for model in yaml.safe_load(file.read_text(encoding="utf-8"))["models"]
        if model["name"] == path.stem
    )
    assert [column["name"] for column in described] == _columns(path.read_text(encoding="utf-8"))
    assert all(column["description"] and set(column) <= {"name", "description", "data_tests"} for column in described)


def test_an_unused_macro_is_found() -> None:
    assert _unused({"a": "{% macro a() %}", "b": "{% macro b() %}{{ a() }}"}, "") == ["b"]


#: A table or view of the lake by its name, where `ref()` or `source()` would tell dbt of it.
_LITERAL = re.compile(r"(?<![\w.'$])(raw|ops|staging|current|history|published)\.[a-z_{\"']")


def _literal_relations(text: str) -> list[str]:
    """List lines of code, not of comments, that name a relation of the lake."""
    code = re.sub(r"\{#.*?#\}|^\s*--.*?$|raise_compiler_error\(.*?%\}", "", text, flags=re.DOTALL | re.MULTILINE)
    return [line.strip() for line in code.splitlines() if _LITERAL.search(line)]


def test_macros_and_models_name_no_relation_of_the_lake() -> None:
    """Lineage, `dbt ls --select +model` and `state:modified` know only what `ref()` and `source()` name."""
    found = {path.name: _literal_relations(path.read_text("utf-8")) for path in (ROOT / "dbt_project").rglob("*.sql")}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_relation_by_its_name_is_found() -> None:
    assert _literal_relations("select * from ops.published") and _literal_relations("from current.{{ name }} x")
    assert _literal_relations('"current." ~ name')
    assert _literal_relations("-- of ops.tables\n{# raw.events #}select * from {{ source('raw', 'events') }}") == []

"""The namespaces of a source are named in one place, under its prefix."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.values import config as configuration
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError
from toolkit.values.namespaces import Namespaces
from toolkit.values.resources import ROOT

PLACE = ROOT / "toolkit" / "values" / "namespaces.py"
#: A namespace before a table, or where one begins. Whole words are the namespaces that mean nothing else.
_NAMED = re.compile(r"(?<![\w.`])(raw|staging|current|history|ops|published)\.(?=[\w`*]|$)|\basof_|^(raw|staging|ops)$")
#: Words that Jinja has as parts of a schema: the arguments of `source` and `ref` are names inside dbt.
_IN_DBT = re.compile(r"\b(from|join|table|view|into) +(raw|staging|current|history|ops|published)\.")


def _texts(source: str) -> Iterator[tuple[int, str]]:
    """The texts of a module that are not docstrings."""
    tree = ast.parse(source)
    alone = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.lineno, node.value


def _named(source: str) -> list[tuple[int, str]]:
    return [(line, text) for line, text in _texts(source) if _NAMED.search(text)]


@pytest.mark.parametrize("path", sorted((ROOT / "toolkit").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_other_module_writes_the_name_of_a_namespace(path: Path) -> None:
    found = _named(path.read_text(encoding="utf-8"))
    assert bool(found) == (path == PLACE), found


@pytest.mark.parametrize("path", sorted((ROOT / "dbt_project").rglob("*.sql")), ids=lambda p: p.name)
def test_no_model_or_macro_writes_the_name_of_a_namespace(path: Path) -> None:
    assert not _IN_DBT.search(path.read_text(encoding="utf-8").lower())


@pytest.mark.parametrize(
    "source", ['x = f"current.{name}"', 'x = "select * from raw.events"', 'x = "raw"', 'x = f"asof_{tag}"']
)
def test_a_name_that_is_written_elsewhere_is_found(source: str) -> None:
    assert _named(source)


@pytest.mark.parametrize(
    "source", ['"""See `current.*`."""', 'x = f"{names.current}.{name}"', 'x = "history"', 'x = "p.published.x"']
)
def test_other_texts_are_not(source: str) -> None:
    assert not _named(source)


def test_without_a_prefix_the_names_are_those_of_earlier_versions() -> None:
    names = Namespaces()
    assert names.all == ("raw", "staging", "current", "history", "ops", "published")
    assert (names.events, names.as_of("00")) == ("raw.events", "asof_00")


def test_two_prefixes_share_no_name() -> None:
    names = [Namespaces(prefix) for prefix in ("", "shop", "shop_eu", "s", "eu")]
    every = [name for n in names for name in (*n.all, n.as_of("0000000000000010"))]
    assert len(set(every)) == len(every) == 7 * len(names)
    assert Namespaces("shop").events == "shop_raw.events"


@pytest.mark.parametrize(
    "prefix",
    [
        "Shop",
        "1shop",
        "shop_",
        "_shop",
        "sh-op",
        "sh op",
        "a__b",
        "ä",
        "a.b",
        "x" * 41,
        "raw",
        "published",
        "asof",
        "asof_1",
    ],
)
def test_a_prefix_that_is_none_is_refused_by_its_key(prefix: str, tmp_path: Path) -> None:
    file = tmp_path / "cdc.toml"
    file.write_text(f'[lake]\nprefix = "{prefix}"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"lake\.prefix"):
        configuration.load(str(file))


def test_each_prefix_has_its_own_lease_logs_and_spool(tmp_path: Path) -> None:
    plain = Config(root=tmp_path)
    shop = plain.model_copy(update={"lake": plain.lake.model_copy(update={"prefix": "shop"})})
    assert (plain.lake_access.work_dir, shop.lake_access.work_dir) == (
        tmp_path / "lake",
        tmp_path / "lake" / "sources" / "shop",
    )
    assert plain.lake_access.warehouse == shop.lake_access.warehouse
    assert plain.lake_access.catalog_db == shop.lake_access.catalog_db
    elsewhere = shop.model_copy(update={"lake": shop.lake.model_copy(update={"work_dir": "work"})})
    assert elsewhere.lake_access.work_dir == tmp_path / "work" / "sources" / "shop"

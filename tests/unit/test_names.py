"""Names: how they are written, found and quoted, and what the lake calls tables and columns."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolkit.values.names import (
    command,
    lake_columns,
    lake_table,
    meant,
    qualified,
    quote_postgres,
    quote_spark,
    renamed,
    section_of,
    selects,
    table_section,
)

pytestmark = pytest.mark.unit


@given(st.text(min_size=1), st.text(min_size=1))
def test_a_lake_table_name_is_always_usable(schema: str, table: str) -> None:
    assert re.fullmatch(r"[a-z0-9_]{1,200}", lake_table(schema, table))


def test_lake_tables_never_collide() -> None:
    tricky = [
        ("a", "b__c"), ("a__b", "c"), ("a", "B__c"), ("public", "Orders"), ("public", "orders"), ("public", "ORDERS"),
        ("public", "größe"), ("public", "grosse"), ("public", "o rders"), ("public", "o_rders"), ("p", "x" * 250),
        ("p", "x" * 251), ("a_", "b"), ("a", "_b"), ("a", "B"), ("a", lake_table("a", "B").removeprefix("a__")),
    ]  # fmt: skip
    assert len({lake_table(*name) for name in tricky}) == len(tricky)
    assert lake_table("public", "orders") == "public__orders"


def test_reserved_and_clashing_columns_get_a_stable_other_name() -> None:
    columns = [(1, "id"), (2, "Name"), (3, "name"), (4, "_cdc_text"), (5, "_file"), (6, "Umsatz")]
    lake = lake_columns(columns)
    assert lake[1] == "id"
    assert lake[3] == "name"
    assert lake[6] == "Umsatz"
    assert len({name.lower() for name in lake.values()}) == len(columns)
    assert not any(name.lower().startswith("_") for name in lake.values())
    assert set(renamed(columns)) == {2, 4, 5}


def test_names_are_quoted_for_each_engine() -> None:
    assert quote_postgres('a"b') == '"a""b"'
    assert quote_spark("a`b") == "`a``b`"
    assert qualified("public", "orders") == "public.orders"
    assert qualified("public", "Order items") == 'public."Order items"'


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("public.order", "public.order"), ("order", "public.order"), ('public."order"', "public.order"),
        ('"public"."order"', "public.order"), ('"order"', "public.order"),
        ("Sales.Order items", '"Sales"."Order items"'), ('"Sales"."Order items"', '"Sales"."Order items"'),
        ('Sales."Order items"', '"Sales"."Order items"'), ("Order items", None),
        ("a.b.c", '"a.b".c'), ('a."b.c"', None), ('public.a"b', 'public."a""b"'), ('public."a""b"', 'public."a""b"'),
        ('a"b', 'public."a""b"'), ('"a""b"', 'public."a""b"'), ('""', None), ("", None), (".", None),
        ('public."', None),
    ],
)  # fmt: skip
def test_a_table_is_found_by_its_name_plain_or_quoted(name: str, found: str | None) -> None:
    """A name with more quotes than needed, as `quote_ident` gives a keyword, was not found."""
    names = [("public", "order"), ("Sales", "Order items"), ("a.b", "c"), ("public", 'a"b')]
    assert meant(name, {qualified(schema, table) for schema, table in names}) == found


@pytest.mark.parametrize("name", ["a$b", "a`id`", 'a"b', "a b", "a'b", "$(id)", "a;b", "a\\b", "Ä*", "-x"])
def test_a_printed_command_is_read_by_a_shell_as_it_is_meant(name: str) -> None:
    printed = command("repair", qualified("public", name), "--differing")
    read = subprocess.run(["sh", "-c", f"printf '%s\\n' {printed}"], capture_output=True, text=True, check=True)
    assert read.stdout.splitlines() == ["cdc", "repair", qualified("public", name), "--differing"]
    assert shlex.split(printed) == read.stdout.splitlines()
    assert command("repair", "public.orders") == "cdc repair public.orders"


def test_selection_by_globs() -> None:
    assert selects(["public.*"], [], "public", "orders")
    assert not selects(["public.*"], ["public.tmp_*"], "public", "tmp_1")
    assert not selects(["public.*"], [], "Public", "orders")


_of_a_table = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@given(_of_a_table, _of_a_table, _of_a_table)
@example("Od d", 'no "key".é', "no key")
@example("public", "a[1]", "a1")
@example("public", "back\\slash\x7f", "x")
def test_the_section_that_a_remedy_names_is_toml_and_means_that_table_only(schema: str, name: str, other: str) -> None:
    """A name with a quote gave no TOML, and one with a bracket a pattern that does not match it."""
    (pattern,) = tomllib.loads(table_section(schema, name))["table"]
    assert selects((pattern,), (), schema, name)
    assert selects((pattern,), (), schema, other) == (other == name)
    assert section_of(pattern) == table_section(schema, name)

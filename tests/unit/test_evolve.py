"""Which schema changes are metadata alone: decided from two versions of a table."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dbt.scenario import column
from toolkit.build.schema_changes import step
from toolkit.lake.schema_update import Step
from toolkit.values.table import TableVersion

pytestmark = pytest.mark.unit

BASE = (
    column(1, "id", "bigint"),
    column(2, "a", "integer"),
    column(3, "b", "numeric(6,2)"),
    column(4, "m", "public.mood", type_kind="e", enum_labels=[{"oid": 9, "label": "sad"}]),
)


def _version(columns: tuple[dict[str, Any], ...], **more: Any) -> TableVersion:
    whole = {"relid": 7, "schema": "public", "name": "t", "kind": "r", "persistence": "p", "replica_identity": "d"}
    whole |= {"key_attnums": [1], "columns": list(columns)}
    return TableVersion.from_json(whole | more)


def _changed(attnum: int, **more: Any) -> tuple[dict[str, Any], ...]:
    return tuple(c | more if c["attnum"] == attnum else c for c in BASE)


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        (BASE, Step(renames={}, widened={})),
        (_changed(2, not_null=True, default="1", comment="x"), Step(renames={}, widened={})),
        (_changed(2, name="z"), Step(renames={"a": "z"}, widened={})),
        (_changed(2, name="_pos"), Step(renames={"a": "u_pos_a2"}, widened={})),
        (BASE[:3], Step(drops=("m",), renames={}, widened={})),
        (_changed(2, type="bigint"), Step(renames={}, widened={"a": "bigint"})),
        (_changed(3, type="numeric(9,2)"), Step(renames={}, widened={"b": "decimal(9,2)"})),
        (
            _changed(4, enum_labels=[{"oid": 9, "label": "sad"}, {"oid": 10, "label": "glad"}]),
            Step(renames={}, widened={}),
        ),
        ((*BASE, column(5, "n")), Step(renames={}, widened={}, added=(("n", "string"),))),
        ((*BASE, column(5, "n", has_missing=True)), Step(renames={}, widened={}, added=(("n", "string"),))),
        ((*BASE, column(5, "n", published=False)), Step(renames={}, widened={})),
    ],
)
def test_metadata_alone(after: tuple[dict[str, Any], ...], wanted: Step) -> None:
    assert step(_version(BASE), _version(after)) == wanted


@pytest.mark.parametrize(
    "after",
    [
        _changed(2, type="text"),
        _changed(2, type="smallint", type_kind="e"),
        _changed(3, type="numeric(9,3)"),
        _changed(3, type="numeric(5,2)"),
        _changed(2, published=False),
        _changed(2, generated="s"),
        _changed(4, enum_labels=[{"oid": 9, "label": "blue"}]),
        _changed(4, former_labels=[{"oid": 9, "label": "blue"}]),
        _changed(4, inner_labels=[{"oid": 11, "label": "x"}]),
        _changed(2, has_missing=True, missing="1"),
        (*BASE, column(5, "n", has_missing=True, missing="")),
    ],
)
def test_not_metadata_alone(after: tuple[dict[str, Any], ...]) -> None:
    assert step(_version(BASE), _version(after)) is None


@pytest.mark.parametrize(
    "more",
    [
        {"key_attnums": [2]},
        {"replica_identity": "f"},
        {"persistence": "u"},
        {"row_filter": "a > 1"},
        {"published": False},
        {"dropped": True},
    ],
)
def test_rows_that_mean_something_else(more: dict[str, Any]) -> None:
    assert step(_version(BASE), _version(BASE, **more)) is None

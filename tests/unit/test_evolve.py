"""Which schema changes are metadata alone: decided from two versions of a table."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.dbt.scenario import column
from toolkit.build import schema_changes
from toolkit.build.schema_changes import step
from toolkit.lake import schema_update, session
from toolkit.lake.schema_update import Step
from toolkit.values.config import Config
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


@pytest.mark.parametrize(("prefix", "table"), [("", "`lake`.current.public__t"), ("eu", "`lake`.eu_current.public__t")])
def test_comments_are_those_of_the_own_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, table: str
) -> None:
    """With a prefix, a build failed, or it wrote its comments to the table of the source without one."""
    config = Config(root=tmp_path)
    access = config.model_copy(update={"lake": config.lake.model_copy(update={"prefix": prefix})}).lake_access
    described: list[str] = []
    monkeypatch.setattr(session, "own_session", lambda _: None)
    monkeypatch.setattr(schema_update, "describe", lambda _, name, comments: described.append(name))
    version = SimpleNamespace(table=_version(_changed(2, comment="x")))
    ledger: Any = SimpleNamespace(latest_versions=lambda: {7: version})
    schema_changes.describe(access, ledger, ["public__t"])
    assert described == [table]

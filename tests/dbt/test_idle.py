"""A build starts dbt only if dbt has something to do."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.dbt.harness import Lake, rebuilt
from tests.dbt.scenario import Source, Table, column
from toolkit.build import dbt_run, project

pytestmark = [pytest.mark.dbt, pytest.mark.spark]


def test_a_build_with_nothing_new_does_not_start_dbt(built: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no new event, dbt runs only if a view is gone, the toolkit is another, or the project has an own file."""
    source, table = Source(), Table(16384, "one", [column(1, "id", "bigint", not_null=True)], [1])
    table.rows = [{1: "1"}]
    source.baseline(table, first=True)
    built.append(source)
    folder = built.config.dbt_project.folder

    imported: list[str] = []
    monkeypatch.setattr(dbt_run, "preload", imported.append)

    def starts_dbt() -> bool:
        before, ran = run_of_dbt(built), project.ran_dbt(built.config.lake_access)
        imported.clear()
        result = built.build()
        assert bool(imported) == ran, "dbt is imported ahead of its use if the last build needed it"
        assert {m.name for m in result.models if m.action == "skip"} == quiet and not rebuilt(result)
        return run_of_dbt(built) != before

    quiet = {"current.public__one", "history.public__one"}
    assert set(rebuilt(built.build())) == quiet
    assert not starts_dbt()

    def drop_view() -> None:
        built.spark.sql("drop view staging.changes")

    def forget_version() -> None:
        (built.config.lake_access.work_dir / "dbt" / "shared-views").write_bytes(b"\xff of another")

    def add_own_model() -> None:
        (folder / "models" / "own.sql").write_text("select 1 as n")

    changes: list[Callable[[], None]] = [drop_view, forget_version, add_own_model]
    for change in changes:
        change()
        assert starts_dbt(), change.__name__
    assert built.spark.sql("show views in staging").filter("viewName = 'changes'").count() == 1
    assert starts_dbt() and project.ran_dbt(built.config.lake_access), "the user's model runs with each build"
    (folder / "models" / "own.sql").unlink()
    assert not starts_dbt()
    assert not project.ran_dbt(built.config.lake_access)


def run_of_dbt(lake: Lake) -> str:
    """Name the last run of dbt in the lake's project."""
    results = lake.config.dbt_project.folder / "target" / "run_results.json"
    found: str = json.loads(results.read_text())["metadata"]["invocation_id"] if results.is_file() else "none"
    return found

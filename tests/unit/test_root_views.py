"""When the view of a partitioned table moves to newer proofs of its partitions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tests import support_history as made
from toolkit.build import models, retired
from toolkit.lake import published_views, reads, removal, root_views
from toolkit.rawlog.roots import Root
from toolkit.values.errors import TableDamaged
from toolkit.values.lsn import Lsn
from toolkit.values.namespaces import Namespaces
from toolkit.values.table import SchemaVersion, TableVersion

pytestmark = pytest.mark.unit


def test_a_proof_of_an_earlier_generation_does_not_hold_a_root_view_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restored source has lower LSNs. One table without a new proof kept the views of all roots."""
    rows = [
        {"relid": 1, "lsn": 100, "tag": "g2_lsn_0000000000000064"},
        {"relid": 2, "lsn": 100, "tag": "g2_lsn_0000000000000064"},
        {"relid": 3, "lsn": 900, "tag": "g1_lsn_0000000000000384"},
    ]
    root: Any = SimpleNamespace(name="r", parts=[SimpleNamespace(relid=1), SimpleNamespace(relid=2)])
    asked: list[Lsn | None] = []
    shown: list[tuple[int, list[int]]] = []

    def roots(_: object, at: Lsn | None = None) -> tuple[Any, ...]:
        asked.append(at)
        return (root,)

    monkeypatch.setattr(root_views, "proofs_by_name", lambda _: {str(row["relid"]): row for row in rows})
    monkeypatch.setattr(root_views, "shown_roots", roots)
    monkeypatch.setattr(root_views, "find_roots", lambda *_: ())
    monkeypatch.setattr(root_views, "copied", lambda _: set())
    monkeypatch.setattr(reads, "tables", lambda *_: ())
    monkeypatch.setattr(
        root_views, "_publish", lambda _a, _s, _r, proven, lsn: shown.append((lsn, [row["relid"] for row in proven]))
    )
    ledger: Any = SimpleNamespace(last=lambda: SimpleNamespace(generation=2), rules=None, latest_versions=lambda *_: {})
    access: Any = SimpleNamespace(names=SimpleNamespace(published="published"))
    root_views.follow_published(access, SimpleNamespace(), ledger, datetime.now(UTC), deprecated_days=1)  # type: ignore[arg-type]
    assert (asked, shown) == ([Lsn(100)], [(100, [1, 2])])


def test_a_damaged_root_view_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One torn metadata file ended each build and each check of the lake."""
    done: list[str] = []

    def read(_: object, name: str) -> dict[str, Any]:
        if name.endswith(".torn"):
            raise TableDamaged(f"view {name} is torn; run `cdc doctor`")
        return {"properties": {root_views.ROOT: "5"}}

    roots: Any = [
        SimpleNamespace(name=name, parts=(), columns={}, version=SimpleNamespace(table=SimpleNamespace(relid=5)))
        for name in ("torn", "whole")
    ]
    monkeypatch.setattr(reads, "metadata", read)
    monkeypatch.setattr(reads, "tables", lambda *kind: ("torn", "old") if "VIEW" in kind else ())
    monkeypatch.setattr(root_views, "shown_roots", lambda *_: roots)
    monkeypatch.setattr(published_views, "create", lambda _spark, view, *_: done.append(view))
    spark: Any = SimpleNamespace(sql=done.append)
    ledger: Any = SimpleNamespace()
    access: Any = SimpleNamespace(names=SimpleNamespace(current="current", published="published"))
    assert root_views.drop_outdated(access, spark, ledger).keys() == {"current.torn"}
    assert root_views.follow(access, spark, ledger).keys() == {"current.torn"}
    assert done == ["DROP VIEW current.`old`", "current.`whole`"]


def test_nothing_is_dropped_while_a_view_that_could_show_it_is_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: object, name: str) -> dict[str, Any]:
        if name == "published.torn":
            raise TableDamaged(f"view {name} is torn; run `cdc doctor`")
        return {"properties": {"cdc.relid": "5", "cdc.generation": "1"}}

    dropped: list[str] = []
    monkeypatch.setattr(reads, "metadata", read)
    monkeypatch.setattr(reads, "tables", lambda *kind: ("torn",) if "VIEW" in kind else ("renamed",))
    monkeypatch.setattr(removal, "drop", lambda _spark, _access, name: dropped.append(name))
    ledger: Any = SimpleNamespace(last=lambda: None, latest_versions=dict)
    monkeypatch.setattr(root_views, "shown_roots", lambda *_: ())
    access: Any = SimpleNamespace(names=SimpleNamespace(current="current", history="history", published="published"))
    found = retired.retire(access, ledger)
    assert (found.dropped, set(found.failed)) == ((), {"published.torn"}) and dropped == []


def test_a_column_of_a_partitioned_table_is_not_run_by_dbt() -> None:
    """Its name was written into a model as it is. With `run_query` in it, it had the runner's rights in the lake."""
    from dbt.clients.jinja import get_rendered

    names = ("{{ run('drop table current.x') }}", "{% do run('x') %}", "{# lost #}", "a`{{ 'b' }}", "plain")
    columns = [made.column(n, name, "text") for n, name in enumerate(names, 1)]
    table = TableVersion.from_json(made.snapshot("r", columns, kind="p"))
    part = replace(table, relid=9, name="r_1", kind="r")
    root = Root(SchemaVersion(1, 1, Lsn(1), Lsn(2), 0, table, ""), (part,), dict(zip(names, names, strict=True)), None)
    files = models._view(Namespaces(), root)
    (text,) = (text for path, text in files.items() if path.suffix == ".sql")
    run: list[str] = []
    context = {"ref": str, "config": lambda **_: "", "run": run.append, "cdc_require_root": lambda **_: ""}
    rendered = get_rendered(text, context)
    assert rendered.strip() == root_views.query((*names, "_cdc_from_lsn", "_cdc_text"), ["current__public__r_1"])
    assert run == []

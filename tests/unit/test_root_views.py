"""When the view of a partitioned table moves to newer proofs of its partitions."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.lake import reads, root_views
from toolkit.values.lsn import Lsn

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

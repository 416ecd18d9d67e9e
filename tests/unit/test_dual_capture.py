"""Which stretches of the log `cdc audit` compares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.quality.dual_capture import windows
from toolkit.values.modes import Capture

pytestmark = pytest.mark.unit

SLOT, LOG, BOTH = Capture.SLOT, Capture.CHANGE_LOG, Capture.BOTH


def _windows(
    versions: list[tuple[int, int, Capture]], baselines: list[tuple[int, int]], generation: int | None = None
) -> list[tuple[int, Any]]:
    """Return the windows of table 7; versions and baselines begin with generation and commit LSN."""
    last = SimpleNamespace(generation=generation or max(of for of, *_ in versions))

    def at(generation: int, lsn: int) -> dict[str, int]:
        return {"generation": generation, "commit_lsn": lsn}

    shapes = [
        SimpleNamespace(**at(g, lsn), table=SimpleNamespace(relid=7, capture=capture, dropped=False))
        for g, lsn, capture in versions
    ]
    copies = [SimpleNamespace(**at(g, lsn), relid=7) for g, lsn in baselines]
    ledger: Any = SimpleNamespace(last=lambda: last, schema_versions=lambda: shapes, baselines=lambda: copies)
    return [(low, high) for _, low, high in windows(ledger)]


@pytest.mark.parametrize(
    ("versions", "baselines", "wanted"),
    [
        ([(1, 10, BOTH), (1, 20, BOTH)], [], [(10, 20), (20, None)]),
        ([(1, 10, SLOT), (1, 20, BOTH), (1, 30, SLOT)], [], [(20, 30)]),
        ([(1, 10, LOG), (1, 20, BOTH)], [(1, 15)], []),
        ([(1, 10, LOG), (1, 20, BOTH)], [(1, 15), (1, 25), (1, 30)], [(25, None)]),
    ],
)
def test_both_captures_have_every_change(versions: Any, baselines: Any, wanted: Any) -> None:
    assert _windows(versions, baselines) == wanted


def test_ddl_before_the_baseline_opens_no_window() -> None:
    """A comment set meanwhile opened one, and changes of transactions that were open before it were differences."""
    versions = [(1, 10, LOG), (1, 20, BOTH), (1, 30, BOTH), (1, 60, BOTH)]
    assert _windows(versions, []) == []
    assert _windows(versions, [(1, 40)]) == [(40, 60), (60, None)]


def test_an_earlier_generation_opens_no_window() -> None:
    """Its last window has no end, and changes of a restored source were differences of it."""
    assert _windows([(1, 10, BOTH), (2, 50, SLOT)], []) == []
    assert _windows([(1, 10, BOTH), (2, 50, BOTH)], []) == [(50, None)]
    assert _windows([(1, 10, BOTH)], [], generation=2) == [], "audit failed until the new log had a table"
    assert _windows([(1, 10, LOG), (1, 20, BOTH), (2, 5, LOG), (2, 15, BOTH)], [(1, 25), (2, 18)]) == [(18, None)]

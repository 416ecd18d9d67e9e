"""The faults among the moves of a random life: each one happens, and a life that has them is printed line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres.test_life import Round, _waits_are_short
from tests.support_struck import POINTS
from toolkit.demo.server import EmbeddedServer

__all__ = ["_waits_are_short"]
pytestmark = pytest.mark.postgres
_ALL = 10**9


def _live(round_: Round) -> None:
    life = round_.life
    for point in POINTS:
        for _ in range(4):
            life.step()
        round_.faults.strike(point, 1)
    round_.faults.crash()
    round_.look(_ALL)
    round_.faults.take_copy()
    for _ in range(10):
        life.step()
    life.settle()
    round_.look(_ALL)
    round_.faults.drain_copy()
    life.settle()
    round_.look(_ALL)


def test_each_fault_happens_and_is_lived_again(pg16: EmbeddedServer, tmp_path: Path) -> None:
    with Round.ready(pg16, tmp_path, "faults") as round_:
        _live(round_)
        round_.again()
        said, counts = "\n".join(round_.life.said), round_.counts
    # A drain through a slot goes through four steps, of which the beacon is only written if none is outstanding.
    assert counts["faults"] >= 5 and counts["crashes"] == counts["restored"] == 1 and counts["exact"]
    with Round.ready(pg16, tmp_path, "faults again") as round_:
        round_.follow(said)
        assert round_.counts["crashes"] == round_.counts["restored"] == 1 and round_.counts["exact"]

"""Ordinals of large truncates and of transactions with billions of changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit import wire
from toolkit.decode import stream
from toolkit.decode.planner import plan

pytestmark = pytest.mark.unit

_TABLE = wire.table(50, [wire.column(1, "id"), wire.column(2, "a")])
_RELATION = wire.relation(50, [("id", 25), ("a", 25)])


@pytest.mark.parametrize("count", [2, 300, 70_000])
def test_a_truncate_of_many_tables_takes_an_ordinal_for_each(count: int, tmp_path: Path) -> None:
    changes = (_RELATION, wire.truncate(*[50] * count), wire.insert(50, ("1", "x")))
    made = plan(wire.spool(tmp_path / "s", wire.transaction(1, *changes)), context=wire.context(_TABLE))
    (row,) = [event for event in wire.decoded(made) if event["kind"] == "row"]
    assert (row["ordinal"], made.batches[0].changes) == (count, count + 1)


def test_ordinals_are_as_wide_as_they_must_be() -> None:
    weights = np.array([0, 2**31, 2**32 - 1, 1, 0, 0, 1], np.uint32)
    ordinals = stream.ordinals_of(weights, np.array([0, 5]), 0)
    assert ordinals.tolist() == [0, 0, 2**31, 2**31 + 2**32 - 1, 2**31 + 2**32, 0, 0]
    assert stream.ordinals_of(np.array([1, 1], np.uint8), np.array([0]), 2**31).tolist() == [2**31, 2**31 + 1]
    assert stream.ordinals_of(np.array([0, 1, 1], np.uint8), np.array([1]), 0).tolist() == [0, 0, 1]
    assert stream.ordinals_of(np.array([1, 1], np.uint8), np.array([], np.int64), 0).tolist() == [0, 1]

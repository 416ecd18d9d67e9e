"""An array whose enum is relabelled is exact, or stale where its text cannot show which label is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit import wire
from tests.unit.test_decode_plan import reasons

pytestmark = pytest.mark.unit


def _array(labels: list[dict[str, Any]]) -> dict[str, Any]:
    return wire.table(50, [wire.column(1, "id"), wire.column(2, "a", 9, "mood[]", inner_labels=labels)])


@pytest.mark.parametrize(
    ("steps", "stale"),
    [
        ((("a", "b"), ("x", "b"), ("x", "b", "c")), None),
        ((("a", "b"), ("a", "b", "on hold")), None),  # nothing was renamed
        ((("a", "on hold"), ("x", "on hold")), "'on hold' may be quoted"),
        ((("on hold",), ("held",)), "'on hold' may be quoted"),
        ((("a", "b"), ("a", "null")), "'null' may be quoted"),
        ((("a", "b"), ("x", "b"), ("x", "b", "empty")), "'empty' may be quoted"),  # later, and rows may have the former
        ((("a", "b"), ("c", "b"), ("c", "a")), "'a' was taken over"),
    ],
)
def test_an_enum_inside_an_array_is_relabelled_if_its_labels_are_plain(
    steps: tuple[tuple[str, ...], ...], stale: str | None, tmp_path: Path
) -> None:
    versions = [_array([{"oid": n, "label": name} for n, name in enumerate(names, 1)]) for names in steps]
    body = [wire.signed(701, tables=[version], sql="ALTER TYPE mood RENAME VALUE") for version in versions[1:]]
    events = wire.events(tmp_path / "s", wire.transaction(1, *body), wire.context(versions[0]))
    found = "; ".join(reasons(events).values())
    assert (stale or "nothing") in (found or "nothing")

"""Dataclasses become JSON, and values made of JSON have the types that their dataclass states, or are refused."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from toolkit.values.json_types import fits, to_json
from toolkit.values.lsn import Lsn

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class _One:
    name: str
    number: int = 0
    maybe: str | None = None
    pairs: tuple[tuple[int, str], ...] = ()
    names: frozenset[str] = frozenset()
    inside: dict[int, _One] = field(default_factory=dict)
    any: Any = None


@pytest.mark.parametrize(
    "more",
    [
        {}, {"number": Lsn(7)}, {"maybe": "x", "pairs": ((1, "a"),)}, {"names": frozenset("ab")}, {"any": object()},
        {"inside": {1: _One("b", inside={2: _One("c")})}},
    ],
)  # fmt: skip
def test_the_right_types_fit(more: dict[str, Any]) -> None:
    assert fits(_One("a", **more), _One)


@pytest.mark.parametrize(
    "more",
    [
        {"number": "7"}, {"number": True}, {"number": 1 << 63}, {"number": 1.0}, {"maybe": 7}, {"pairs": ((1, 2),)},
        {"pairs": ((1, "a", 2),)}, {"pairs": [(1, "a")]}, {"names": frozenset([1])}, {"inside": {"1": _One("b")}},
        {"inside": {1: _One("b", number=None)}}, {"inside": []},  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_another_type_at_any_depth_does_not(more: dict[str, Any]) -> None:
    assert not fits(_One("a", **more), _One)


@dataclass(frozen=True, slots=True)
class _Part:
    value: Any


@dataclass(frozen=True, slots=True)
class _Whole(_Part):
    lsn: Lsn
    parts: tuple[_Part, ...]
    named: dict[str, _Part]


def test_the_text_of_a_dataclass_is_that_of_its_copy_as_dicts() -> None:
    one = _Whole(None, Lsn(7), (_Part('ä"'), _Whole(1.5, Lsn(0), (), {})), {"x": _Part((True, _Part(-1)))})
    assert to_json(one) == json.dumps(asdict(one))

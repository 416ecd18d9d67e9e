"""Hundreds of seeded faults, each alone in its table: the figures differ, and the classes are exactly what was done."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.conftest import SEED
from tests.unit.lines import line_of
from toolkit.quality.row_classes import classify
from toolkit.values.row_line import Sums, chosen, differing, fields

pytestmark = pytest.mark.unit

Row = tuple[str | None, ...]
Counts = tuple[int, int, int]  # modified, added, removed of a keyed table

COLUMNS = ("id", "name", "note", "body")
_TEXTS: tuple[str | None, ...] = (
    None,
    "",
    " ",
    "\\N",
    "N",
    "a",
    "a ",
    "A",
    "\t",
    "\\",
    "\\t",
    "\n",
    "é",
    "😀",
    "0",
    "-0",
    "1.10",
)


def _rows(rng: random.Random, count: int) -> list[Row]:
    return [
        (str(i), f"name {i}", rng.choice(_TEXTS), "".join(rng.choices("abcdef", k=40)) if i % 3 else None)
        for i in range(count)
    ]


def _with(row: Row, column: int, value: str | None) -> Row:
    return (*row[:column], value, *row[column + 1 :])


def _drop(rng: random.Random, lake: list[Row]) -> Counts:
    lake.pop(rng.randrange(len(lake)))
    return 0, 0, 1


def _duplicate(rng: random.Random, lake: list[Row]) -> Counts:
    lake.append(rng.choice(lake))
    return 0, 1, 0


def _one_character(rng: random.Random, lake: list[Row]) -> Counts:
    at = rng.randrange(len(lake))
    text = lake[at][1] or ""
    place = rng.randrange(len(text))
    lake[at] = _with(lake[at], 1, text[:place] + "#" + text[place + 1 :])
    return 1, 0, 0


def _swapped_values(rng: random.Random, lake: list[Row]) -> Counts:
    one, two = rng.sample(range(len(lake)), 2)
    lake[one], lake[two] = _with(lake[one], 1, lake[two][1]), _with(lake[two], 1, lake[one][1])
    return 2, 0, 0


def _swapped_keys(rng: random.Random, lake: list[Row]) -> Counts:
    one, two = rng.sample(range(len(lake)), 2)
    lake[one], lake[two] = _with(lake[one], 0, lake[two][0]), _with(lake[two], 0, lake[one][0])
    return 2, 0, 0


def _other_text(rng: random.Random, lake: list[Row]) -> Counts:
    """NULL for '', '' for NULL, a blank more, an escape for what it stands for ..."""
    at = rng.randrange(len(lake))
    lake[at] = _with(lake[at], 2, rng.choice([text for text in _TEXTS if text != lake[at][2]]))
    return 1, 0, 0


def _trailing_blank(rng: random.Random, lake: list[Row]) -> Counts:
    at = rng.randrange(len(lake))
    lake[at] = _with(lake[at], 1, f"{lake[at][1]} ")
    return 1, 0, 0


def _stale_toast(rng: random.Random, lake: list[Row]) -> Counts:
    at = rng.choice([i for i, row in enumerate(lake) if row[3] is not None])
    lake[at] = _with(lake[at], 3, (lake[at][3] or "")[::-1] + "x")
    return 1, 0, 0


def _lost_batch(rng: random.Random, lake: list[Row]) -> Counts:
    size = rng.randrange(1, len(lake))
    del lake[:size]
    return 0, 0, size


def _doubled_batch(rng: random.Random, lake: list[Row]) -> Counts:
    size = rng.randrange(1, len(lake))
    lake.extend(lake[:size])
    return 0, size, 0


def _resurrected(rng: random.Random, lake: list[Row]) -> Counts:
    lake.append(("-1", *rng.choice(lake)[1:]))
    return 0, 1, 0


def _truncated(rng: random.Random, lake: list[Row]) -> Counts:
    count = len(lake)
    lake.clear()
    return 0, 0, count


FAULTS: tuple[Callable[[random.Random, list[Row]], Counts], ...] = (
    _drop, _duplicate, _one_character, _swapped_values, _swapped_keys, _other_text, _trailing_blank, _stale_toast,
    _lost_batch, _doubled_batch, _resurrected, _truncated,
)  # fmt: skip


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "bag"])
@pytest.mark.parametrize("plant", FAULTS, ids=lambda f: f.__name__.strip("_"))
def test_each_of_many_faults_is_found_and_classed(
    plant: Callable[[random.Random, list[Row]], Counts], keyed: bool
) -> None:
    for n in range(20):
        rng = random.Random(f"{SEED}/{plant.__name__}/{n}")
        source = _rows(rng, rng.choice((10, 50, 300)))
        lake = list(source)
        modified, added, removed = plant(rng, lake)
        rng.shuffle(lake)
        buckets = rng.choice((1, 7, 64))
        sides = [[line_of(row) for row in rows] for rows in (source, lake)]
        assert [fields(line, {}) for line in sides[0]] == source
        figures = []
        for lines in sides:
            sums = Sums(buckets)
            sums.add(lines)
            figures.append(sums.figures())
        wanted = differing(*figures)
        assert wanted
        found = classify(
            *(chosen([lines], buckets, wanted) for lines in sides),
            columns=COLUMNS,
            key=(0,) if keyed else (),
            samples=5,
            natives={},
        )
        if not keyed:
            modified, added, removed = 0, added + modified, removed + modified
        assert (found.modified, found.added, found.removed) == (modified, added, removed)
        unread = sum(f.rows for bucket, f in figures[0].items() if bucket not in wanted)
        assert unread + found.identical == len(source) - modified - removed

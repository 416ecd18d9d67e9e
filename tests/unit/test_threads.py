"""Few items are in memory at once, however many there are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from toolkit.values.threads import in_threads


def test_items_are_taken_when_a_thread_is_free_for_them() -> None:
    """A build held the folded rows of every table before it wrote the second one, 2 GB of them."""
    taken, most = 0, 0

    def items() -> Iterator[int]:
        nonlocal taken
        for n in range(100):
            taken += 1
            yield n

    done = 0
    for result in in_threads(lambda n: n * n, items(), 2):
        assert result == done * done
        done += 1
        most = max(most, taken - done)
    assert done == 100
    assert most <= 5


def test_after_an_error_the_rest_is_left_out() -> None:
    """The error of the item is raised, in the order of the items."""
    begun: list[int] = []

    def one(n: int) -> int:
        begun.append(n)
        if n == 3:
            raise ValueError(n)
        return n

    results = in_threads(one, range(100), 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="3"):
        next(results)
    assert len(begun) < 15

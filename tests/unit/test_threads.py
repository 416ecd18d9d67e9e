"""Items in threads: results in order, and nothing begun after an error."""

from __future__ import annotations

import threading

import pytest

from toolkit.values.threads import in_threads


def test_results_come_in_the_order_of_the_items_and_items_run_at_once() -> None:
    both = threading.Barrier(2, timeout=30)

    def work(item: int) -> int:
        both.wait()  # fails unless two run at once
        return item * 2

    assert list(in_threads(work, range(6), 2)) == [0, 2, 4, 6, 8, 10]


def test_after_an_error_no_further_item_is_begun() -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        raise ValueError(item)

    with pytest.raises(ValueError, match="0"):
        list(in_threads(work, range(1000), 1))
    assert len(begun) < 1000

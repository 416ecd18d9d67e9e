"""Do one thing with many items in a few threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def in_threads(function: Callable[[_T], _R], items: Iterable[_T], threads: int) -> Iterator[_R]:
    """Give the results in the order of the items. After an error, items that were not begun are left out."""
    with ThreadPoolExecutor(threads) as pool:
        waiting = [pool.submit(function, item) for item in items]
        try:
            for future in waiting:
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


__all__ = ["in_threads"]

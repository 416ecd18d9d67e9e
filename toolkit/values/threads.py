"""Do one thing with many items in a few threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def in_threads(function: Callable[[_T], _R], items: Iterable[_T], threads: int) -> Iterator[_R]:
    """Return the results in the order of the items. After an error, items that were not begun are left out.

    An item is taken when a thread will soon be free for it, so that few of them are in memory.
    """
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[_R]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

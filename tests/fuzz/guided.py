"""Random choices that are recorded, changed and replayed, and a corpus of those that reached new lines of the toolkit.

A target of `tests.fuzz.parsers` asks a `random.Random` for its choices. Here these come from bytes, and from a seed
where the bytes end. Choices are kept that take a new step from one line to another, or take one twice as often as any
before. Most inputs are such choices with a few bytes changed: what needs several conditions at once is found one
condition after the other.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_CODE = str(Path(__file__).parents[2] / "toolkit")
_FRESH = 0.2  # of all inputs: choices from the seed alone
Step = tuple[CodeType, int, int]
Reached = tuple[Step, int]  # a step, and the number of bits of how often it was taken


class Choices(random.Random):
    """Choices from bytes, then from a seed. `used` repeats them."""

    def __init__(self, data: bytes, seed: str = "") -> None:
        super().__init__(0)
        self.used = bytearray()
        self._data, self._at, self._more = data, 0, random.Random(seed)

    def getrandbits(self, k: int, /) -> int:
        size = -(-k // 8)
        taken = self._data[self._at : self._at + size]
        self._at += size
        taken += self._more.randbytes(size - len(taken))
        self.used += taken
        return int.from_bytes(taken, "little") >> (8 * size - k)

    def random(self) -> float:
        return self.getrandbits(16) / 65536


def changed(rng: random.Random, data: bytes) -> bytes:
    """Change a few bytes: flip, remove, repeat, insert, or set a number to one of its bounds."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(found) + 1)
        size = rng.choice((1, 1, 2, 4, 8))
        match rng.randrange(6):
            case 0 if at < len(found):
                found[at] ^= 1 << rng.randrange(8)
            case 1:
                del found[at : at + size]
            case 2:
                found[at:at] = found[at : at + size]
            case 3:
                found[at:at] = rng.randbytes(size)
            case 4:
                found[at : at + size] = rng.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * size
            case _:
                found[at:] = found[at : rng.randrange(at, len(found) + 1)]
    return bytes(found)


@contextmanager
def counted(steps: Counter[Step], below: str = _CODE) -> Iterator[None]:
    """Count each step from one line to another that code of the toolkit takes."""

    def enter(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(below):
            return None
        last = 0

        def line(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
            nonlocal last
            if event == "line":
                steps[code, last, frame.f_lineno] += 1
                last = frame.f_lineno
            return line

        return line

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


@dataclass
class Corpus:
    """The choices of one target that were worth keeping, and all steps that they reached."""

    seed: str
    kept: list[bytes] = field(default_factory=list)
    seen: set[Reached] = field(default_factory=set)
    tried: int = 0

    def next(self) -> Choices:
        """Give the choices of the next input."""
        self.tried += 1
        seed = f"{self.seed}:{self.tried}"
        rng = random.Random(seed)
        if not self.kept or rng.random() < _FRESH:
            return Choices(b"", seed)
        # The newest ones are where the search is.
        chosen = self.kept[-1 - int(rng.random() ** 2 * len(self.kept))]
        return Choices(changed(rng, chosen), seed)

    @contextmanager
    def watched(self, choices: Choices, below: str = _CODE) -> Iterator[None]:
        """Keep the choices if what is done with them reaches a new step."""
        steps: Counter[Step] = Counter()
        with counted(steps, below):
            yield
        reached = {(step, count.bit_length()) for step, count in steps.items()}
        if reached - self.seen:
            self.seen |= reached
            self.kept.append(bytes(choices.used))


__all__ = ["Choices", "Corpus", "changed"]

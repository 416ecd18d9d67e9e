"""Each parser of foreign bytes on a few random inputs; `make soak` tries for ten minutes, guided by coverage."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import parsers
from tests.fuzz.guided import Choices, Corpus

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", parsers.TARGETS)
def test_random_input_is_read_right_or_refused_by_name(name: str, seed: int) -> None:
    corpus = Corpus(f"{seed}:{name}")
    accepted = [parsers.try_once(name, corpus.next()) for _ in range(40)]
    # The rarest parser accepts 7 of 100 inputs, so 40 without one happen in one run of twenty: try on before it fails.
    assert any(accepted) or any(parsers.try_once(name, corpus.next()) for _ in range(1000))


def test_an_error_without_a_name_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a parser that ends with an error of Python's own."""
    monkeypatch.setitem(parsers.TARGETS, "planted", lambda rng: [][rng.randrange(9)])
    with pytest.raises(IndexError):
        parsers.try_once("planted", random.Random(1))


def _planted(rng: random.Random) -> None:
    """A fault behind four conditions, each a byte of 256."""
    for wanted in (17, 42, 200, 7):
        if rng.randrange(256) != wanted:
            return
    raise IndexError


@pytest.mark.parametrize("guided", [True, False])
def test_coverage_leads_to_a_fault_that_chance_does_not_find(guided: bool) -> None:
    corpus = Corpus("planted")
    for _ in range(30_000):
        choices = corpus.next() if guided else Choices(b"", f"planted:{_}")
        try:
            with corpus.watched(choices, below=__file__):
                _planted(choices)
        except IndexError:
            with pytest.raises(IndexError):
                _planted(Choices(bytes(choices.used)))
            assert guided
            return
    assert not guided


def test_choices_are_repeated() -> None:
    def made(rng: random.Random) -> list[object]:
        return [rng.randrange(1000), rng.choice("abc"), rng.random(), rng.sample(range(20), 3), rng.randbytes(5)]

    first = Choices(b"\1\2\3", "seed")
    assert made(first) == made(Choices(bytes(first.used))) != made(Choices(b"\1\2\4", "other"))

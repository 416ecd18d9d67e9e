"""Each parser of foreign bytes on a few random inputs; `make soak` tries for ten minutes."""

from __future__ import annotations

import pytest

from tests.fuzz import parsers

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", parsers.TARGETS)
def test_random_input_is_read_right_or_refused_by_name(name: str, seed: int) -> None:
    accepted = [parsers.try_once(name, f"{seed}:{name}:{number}") for number in range(40)]
    # The rarest parser accepts 7 of 100 inputs, so 40 without one happen in one run of twenty: try on before it fails.
    assert any(accepted) or any(parsers.try_once(name, f"{seed}:{name}:{number}") for number in range(40, 1000))


def test_an_error_without_a_name_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a parser that ends with an error of Python's own."""
    monkeypatch.setitem(parsers.TARGETS, "planted", lambda rng: [][rng.randrange(9)])
    with pytest.raises(IndexError):
        parsers.try_once("planted", "1")

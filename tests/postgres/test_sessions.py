"""A command opens the source once and reads the log once, and hands both down: no report mixes two states."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from tests.postgres.test_status import config
from tests.support_lake import plain_lake
from tests.support_ledger import lake_of
from toolkit.cli import frame, main
from toolkit.lake.ledger import Ledger
from toolkit.ops import diagnosis
from toolkit.source import locks
from toolkit.values import config as configuration
from toolkit.values.config import Config

__all__ = ["config", "plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]

#: Sessions on the source and readings of the log, by command. A drain and `init` have a session for the lease too, and
#: a drain one for what is wrong at its end. They read the log again where they have changed it: at the next commit, in
#: that commit, and for the states of the tables; `init` also to see what has no copy yet.
_OPENED = {
    ("status",): (1, 1),
    ("doctor",): (1, 1),
    ("schema", "history", "public.a"): (0, 1),
    ("drain",): (3, 4),
    ("init",): (2, 4),
}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is opened from now on."""
    found: Counter[str] = Counter()
    connects, reads = psycopg.connect, Ledger.__init__

    def connect(*words: Any, **more: Any) -> Any:
        found["sessions"] += 1
        return connects(*words, **more)

    def read(self: Ledger, *words: Any, **more: Any) -> None:
        found["readings"] += 1
        reads(self, *words, **more)

    # On a busy machine a change may last so long that a session looks for who holds it up.
    monkeypatch.setattr(locks, "_LOOK_SECONDS", 60.0)
    monkeypatch.setattr(psycopg, "connect", connect)
    monkeypatch.setattr(Ledger, "__init__", read)
    return found


def _run(config: Config, words: tuple[str, ...], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(configuration, "load", lambda _: config)
    patch.setattr(frame, "_stop_spark", lambda **_: None)
    done = CliRunner().invoke(main, [*words, "--output", "json"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("words", _OPENED, ids=" ".join)
def test_a_command_opens_source_and_lake_once(
    config: Config, words: tuple[str, ...], opened: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status` and `doctor` read the log twice, so that a drain beside them gave a report of two states."""
    _run(config, words, monkeypatch)
    assert (opened["sessions"], opened["readings"]) == _OPENED[words]


def test_a_second_opening_is_counted(config: Config, opened: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    own = diagnosis._machine
    monkeypatch.setattr(diagnosis, "_machine", lambda one: [*diagnosis._source(one, lake_of(one)), *own(one)])
    _run(config, ("doctor",), monkeypatch)
    assert (opened["sessions"], opened["readings"]) == (2, 2)

"""Random life through the whole path: what dbt built, now and as at that time, is what SELECT showed at each LSN."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import commands
from tests.support_follower import Follower
from tests.support_kinds import KINDS
from tests.support_ledger import ledger_of
from tests.support_life import Life
from tests.support_postgres import fresh_database
from tests.support_struck import POINTS, drain_struck
from toolkit.capture import drift
from toolkit.demo.server import EmbeddedServer
from toolkit.rawlog.states import table_states
from toolkit.source import change_log
from toolkit.values.config import Config
from toolkit.values.outcome import CheckStatus

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]

_STEPS, _LOOKS, _DISTURBED = 60, 3, 15
_SOURCE = {"tables": ("life.*",)}
_LIVED = {
    name: kind if "scope" in kind.source else replace(kind, moves=False, source=kind.source | _SOURCE)
    for name, kind in KINDS.items()
}


@pytest.fixture(autouse=True)
def _waits_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread drives all sessions: what waits for a lock of theirs waits in vain."""
    for module in (drift, change_log):
        monkeypatch.setattr(module, "_LOCK_SECONDS", 0.05)


class Lake(Follower):
    """A life, and the lake that follows it.

    Between the looks, drains fail, the server crashes, and maintenance merges files and removes what is not needed.
    """

    def __init__(self, life: Life, config: Config, server: EmbeddedServer) -> None:
        super().__init__(config)
        self.life, self.server = life, server

    def disturb(self) -> None:
        point = self.life.dice.choice(("crash", "maintain", self.life.dice.choice(POINTS)))
        self.life.said.append(f"disturbed: {point}")
        self.counts["disturbed"] += 1
        if point == "crash":
            self.life.close()
            self.server.restart(immediate=True)
            self.life.connect(len(self.life.sessions))
        elif point == "maintain":
            for done in commands.maintain(self.config):
                self.counts["files merged"] += done.merged
                self.counts["expired"] += done.snapshots + done.tags
        else:
            self.counts["faults"] += drain_struck(point, lambda: commands.drain(self.config))

    def followed(self) -> None:
        """Look with nothing open, and find no difference."""
        self.life.settle()
        assert not self.look()

    def repair(self) -> None:
        """Repair what is stale and still published."""
        ledger = ledger_of(self.config)
        published = {v.table.relid for v in ledger.latest_versions().values() if v.table.published}
        stale = [s.table for s in table_states(ledger) if not s.comparable and s.relid in published]
        if stale:
            self.life.said.append(f"repair: {', '.join(stale)}")
            commands.repair(self.config, stale)


@pytest.mark.parametrize("kind", _LIVED)
def test_what_dbt_built_is_what_select_showed(
    pg16: EmbeddedServer, lake: Config, seed: int, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fresh_database(pg16) as conninfo, Life.lived(conninfo, random.Random(seed), _LIVED[kind]) as life:
        lived = life.kind.config(conninfo)
        keeping = lake.lake.model_copy(update={"keep_days": 0.0})  # maintenance removes all that it may
        config = lake.model_copy(
            update={name: getattr(lived, name) for name in ("source", "check", "table", "snapshot")} | {"lake": keeping}
        )
        follower = Lake(life, config, pg16)
        commands.init(config)
        try:
            for _ in range(_LOOKS):
                for step in range(1, _STEPS + 1):
                    life.step()
                    if step % _DISTURBED == 0:
                        follower.disturb()
                follower.followed()
                follower.repair()
            follower.followed()
            assert not follower.again(sorted(follower.points)[1])
            found = follower.remembered()
            checked = commands.check(config).tables
            found += [f"{t.table} differs: {t.reason}" for t in checked if t.status == CheckStatus.DIFFERENT]
            assert not found, found
            follower.plant()
        except Exception as error:
            said = "\n".join(life.said)
            raise AssertionError(f"life {seed}: {str(error)[:2000]}\n{said}") from error
    counts: dict[str, Any] = dict(follower.counts) | {"statements": life.done}
    with capsys.disabled():
        print(f"\nlife in the lake, {kind}: {json.dumps(counts)}")
    assert counts["exact"] > 10 and counts["remembered"]

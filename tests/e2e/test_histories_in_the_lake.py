"""Short histories through the whole path: what dbt built, now and as of each look, is what SELECT showed.

What is not so is stale by name, as in `tests/postgres/test_histories.py`, whose histories these are.
"""

from __future__ import annotations

import json

import pytest

from tests import commands
from tests.histories.all import ALL, MORE
from tests.support_follower import Follower
from tests.support_histories import run, set_up
from tests.support_postgres import fresh_database
from toolkit.demo.server import EmbeddedServer
from toolkit.source import preflight
from toolkit.values.config import Config, SourceConfig
from toolkit.values.outcome import CheckStatus

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt, pytest.mark.long]

_PLAYED = {"all": ALL, "more": MORE}


@pytest.mark.parametrize("played", _PLAYED)
@pytest.mark.parametrize("way", ["all", "roots", "log"])
def test_what_dbt_built_of_a_history_is_what_select_showed(
    pg16: EmbeddedServer,
    lake: Config,
    way: str,
    played: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    histories = _PLAYED[played]
    # Some begin with a table that `cdc init` refuses, so that a later statement gives it a replica identity.
    monkeypatch.setattr(preflight, "require", lambda *_, **__: None)
    with fresh_database(pg16) as conninfo:
        source = lake.model_copy(update={"source": SourceConfig(conninfo=conninfo, slot="cdc_histories")})
        with set_up(histories, source, way) as (config, refused):
            findings = list(refused)
            follower = Follower(config)
            commands.init(config)
            findings += follower.look()
            for part in ("changes", "probe"):
                for number, history in enumerate(histories):
                    findings += run(config, number, history, getattr(history, part), part)
                findings += follower.look()
            for at in sorted(follower.points)[:-1]:
                findings += follower.again(at)
            findings += follower.remembered()
            seen = follower.points[max(follower.points)]
            checked = [t for t in commands.check(config).tables if t.relid in seen]
            findings += [f"{t.table} differs: {t.reason}" for t in checked if t.status == CheckStatus.DIFFERENT]
            follower.plant()
    with capsys.disabled():
        print(f"\nhistories in the lake by {way}, {played}: {json.dumps(follower.counts)}")
    assert not findings, "\n".join(findings)
    assert follower.counts["exact"] > 2 * follower.counts["stale"] > 0
    assert follower.counts["remembered"] and follower.counts["planted"]

"""Random life through the whole path: what dbt built, now and as at that time, is what SELECT showed at each LSN."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import commands
from tests.support_kinds import KINDS
from tests.support_ledger import ledger_of
from tests.support_life import Life
from tests.support_log import Shown, shown
from tests.support_postgres import fresh_database
from tests.support_struck import POINTS, drain_struck
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import session
from toolkit.lake.row_lines import current_fields
from toolkit.rawlog.states import states_at, table_states
from toolkit.source import connection
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn
from toolkit.values.names import lake_table
from toolkit.values.resources import ROOT
from toolkit.values.row_line import comparison
from toolkit.values.table import TableVersion

pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt, pytest.mark.wide]

_STEPS, _LOOKS, _DISTURBED = 60, 3, 15
_KIND = replace(KINDS["plain"], moves=False, source={"new_tables": "publish", "tables": ("life.*",)})


def _built(config: Config, schema: str, table: TableVersion) -> Shown:
    """The rows of a built table, as PostgreSQL's texts."""
    plan = comparison(table, 1)
    relation = f"{schema}.{lake_table(table.schema, table.name)}"
    fields = ", ".join(f"{field} AS f{n}" for n, field in enumerate(current_fields(plan))) or "1 AS f0"
    rows = session.own_session(config.lake_access).sql(f"SELECT {fields} FROM {relation}").collect()
    width = len(plan.columns)
    return tuple(c.attnum for c in plan.columns), Counter(tuple(row)[:width] for row in rows)


class Lake:
    """A life, and the lake that follows it. `points` are what SELECT showed at each look.

    Between the looks, drains fail, the server crashes, and maintenance merges files and removes what is not needed.
    """

    def __init__(self, life: Life, config: Config, server: EmbeddedServer) -> None:
        self.life, self.config, self.server = life, config, server
        self.points: dict[Lsn, dict[int, Shown]] = {}
        self.counts: Counter[str] = Counter()

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

    def look(self) -> None:
        """Drain and build with nothing open, and compare all that can be known."""
        self.life.settle()
        commands.drain(self.config)
        ledger = ledger_of(self.config)
        last = ledger.last()
        assert last is not None
        at = Lsn(last.complete_to)
        with connection.connect(self.config.source) as conn:
            versions = [v.table for v in ledger.latest_versions().values()]
            live = [t for t in versions if t.published and not t.dropped]
            self.points[at] = {table.relid: shown(conn, table) for table in live}
        commands.build(self.config)
        known = {s.relid for s in table_states(ledger) if s.comparable}
        self.compare("current", at, {t.relid: t for t in live if t.relid in known})

    def compare(self, schema: str, at: Lsn, known: dict[int, TableVersion]) -> None:
        for relid, truth in self.points[at].items():
            if relid not in known:
                self.counts["stale"] += 1
                continue
            table = known[relid]
            attnums, rows = _built(self.config, schema, table)
            assert attnums == truth[0], f"{schema}, {table.identifier} at {at}: columns"
            assert rows == truth[1], (
                f"{schema}, {table.identifier} at {at}: {rows - truth[1]} too many, {truth[1] - rows} missing"
            )
            self.counts["exact"] += 1

    def repair(self) -> None:
        """Repair what is stale and still published."""
        ledger = ledger_of(self.config)
        published = {v.table.relid for v in ledger.latest_versions().values() if v.table.published}
        stale = [s.table for s in table_states(ledger) if not s.comparable and s.relid in published]
        if stale:
            self.life.said.append(f"repair: {', '.join(stale)}")
            commands.repair(self.config, stale)

    def again(self) -> None:
        """As of an LSN that is long past."""
        at = sorted(self.points)[1]
        result = commands.build(self.config, as_of=at)
        known = states_at(ledger_of(self.config), at, {})
        then = {v.table.relid: v.table for v, state in known if state.state == "ok"}
        self.compare(result.schema, at, then)

    def plant(self) -> None:
        """Planted fault: the comparison must see that a table lacks its rows."""
        at = max(self.points)
        known = {s.relid for s in table_states(ledger_of(self.config)) if s.comparable}
        live = {v.table.relid: v.table for v in ledger_of(self.config).latest_versions().values()}
        emptied = next(relid for relid in known if relid in self.points[at] and self.points[at][relid][1])
        table = live[emptied]
        session.own_session(self.config.lake_access).sql(
            f"DELETE FROM current.{lake_table(table.schema, table.name)} WHERE true"
        )
        with pytest.raises(AssertionError, match=f"current, {re.escape(table.identifier)} at .* missing"):
            self.compare("current", at, {emptied: table})


def test_what_dbt_built_is_what_select_showed(
    pg16: EmbeddedServer, lake: Config, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "dbt_project", lake.dbt_project.folder, ignore=shutil.ignore_patterns("target", "logs"))
    with fresh_database(pg16) as conninfo, Life.lived(conninfo, random.Random(seed), _KIND) as life:
        lived = life.kind.config(conninfo)
        keeping = lake.lake.model_copy(update={"keep_days": 0.0})  # maintenance removes all that it may
        config = lake.model_copy(update={"source": lived.source, "check": lived.check, "lake": keeping})
        commands.init(config)
        follower = Lake(life, config, pg16)
        try:
            for _ in range(_LOOKS):
                for step in range(1, _STEPS + 1):
                    life.step()
                    if step % _DISTURBED == 0:
                        follower.disturb()
                follower.look()
                follower.repair()
            follower.look()
            follower.again()
            follower.plant()
        except Exception as error:
            said = "\n".join(life.said)
            raise AssertionError(f"life {seed}: {str(error)[:2000]}\n{said}") from error
    counts: dict[str, Any] = dict(follower.counts) | {"statements": life.done}
    with capsys.disabled():
        print(f"\nlife in the lake: {json.dumps(counts)}")
    assert counts["exact"] > 10

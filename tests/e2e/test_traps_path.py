"""The traps on the whole path: init, drain after each phase, one build, one check; then each table's verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import conformance
from tests.support_postgres import fresh_database
from tests.trap_cases import TOGETHER, Players, Trap
from toolkit import build, initialise, snapshot
from toolkit import drain as draining
from toolkit.config import Config, SourceConfig
from toolkit.embedded import EmbeddedServer
from toolkit.quality import check as checking
from toolkit.quality.report import TableCheck

# Long, four minutes a server: tests/postgres/test_traps.py holds the log of the same traps against SELECT.
pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt, pytest.mark.long]


@dataclass
class Checked:
    """Verdicts by table, before and after the stale ones were repaired."""

    major: int
    failed: dict[str, str]
    skipped: set[str]
    first: dict[str, TableCheck]
    healed: dict[str, TableCheck]


def _check(config: Config) -> dict[str, TableCheck]:
    def current_only(config: Config, *, select: Sequence[str] | None = None) -> build.BuildResult:
        return build.build(config, select=select or ["current"])

    return {t.table: t for t in checking.compare(config, drain=draining.drain, build=current_only).tables}


def play(server: EmbeddedServer, directory: Path, traps: dict[str, Trap]) -> Checked:
    """All traps in one database, checked, repaired and checked again."""
    with fresh_database(server) as conninfo, Players.ready(conninfo, traps.values()) as players:
        tables = tuple(f"{trap.schema}.*" for trap in players.traps)
        source = SourceConfig(conninfo=conninfo, slot="cdc_path", new_tables="publish", tables=tables)
        config = Config(root=directory, source=source)
        initialise.init(config)
        for number in range(players.phases):
            players.phase(number)
            draining.drain(config)
        first = _check(config)
        stale = [name for name, found in first.items() if found.status == "stale"]
        if stale:
            snapshot.repair(config, stale)
        return Checked(server.major, players.failed, players.skipped, first, _check(config) if stale else {})


@pytest.fixture(scope="session", params=["pg15", "pg16", "pg18"])
def checked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _jvm: None) -> Checked:
    """Every trap on each server."""
    return play(request.getfixturevalue(request.param), tmp_path_factory.mktemp("path"), TOGETHER)


@pytest.mark.parametrize("name", list(TOGETHER))
def test_every_trap_on_the_whole_path(name: str, checked: Checked) -> None:
    trap = TOGETHER[name]
    if trap.schema in checked.skipped:
        pytest.skip(f"not on this server: {trap.needs}")
    assert trap.schema not in checked.failed, checked.failed[trap.schema]
    mine = {t.split(".")[1]: found for t, found in checked.first.items() if t.split(".")[0] == trap.schema}
    assert mine or trap.gone
    assert not set(mine) & set(trap.gone)
    for table, found in mine.items():
        pattern = trap.stale.get(table)
        if pattern is None:
            assert found.status == "identical", found.to_dict()
        else:
            assert found.status == "stale", found.to_dict()
            assert re.search(pattern, found.reason or ""), found.reason
            after = checked.healed[f"{trap.schema}.{table}"]
            assert after.status == "identical", after.to_dict()
    assert set(trap.stale) <= set(mine)


def test_the_conformance_table_says_what_the_checks_say(checked: Checked) -> None:
    written = conformance.written()
    for name, trap in TOGETHER.items():
        found = conformance.path_found(checked, trap)
        assert found == written[name, checked.major].path, "run python -m tests.conformance"

"""The traps on the whole path: init, drain after each phase, one build, one check; then each table's verdict."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support_postgres import fresh_database
from tests.trap_cases import TRAPS, Players, Trap
from toolkit import build, initialise, snapshot
from toolkit import drain as draining
from toolkit.config import Config, SourceConfig
from toolkit.embedded import EmbeddedServer
from toolkit.quality import check as checking
from toolkit.quality.report import TableCheck

# Long: tests/postgres/test_traps.py holds the log of the same traps against SELECT on every run.
pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt, pytest.mark.long]


@dataclass
class Checked:
    """Verdicts by table, before and after the stale ones were repaired."""

    failed: dict[str, str]
    skipped: set[str]
    first: dict[str, TableCheck]
    healed: dict[str, TableCheck]


def _check(config: Config) -> dict[str, TableCheck]:
    def current_only(config: Config, *, select: Sequence[str] | None = None) -> build.BuildResult:
        return build.build(config, select=select or ["current"])

    return {t.table: t for t in checking.compare(config, drain=draining.drain, build=current_only).tables}


def _play(server: EmbeddedServer, directory: Path, traps: dict[str, Trap]) -> Checked:
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
        return Checked(players.failed, players.skipped, first, _check(config) if stale else {})


def _test(trap: Trap) -> Callable[[Checked], None]:
    def test(checked: Checked) -> None:
        if trap.schema in checked.skipped:
            pytest.skip(f"not on this server: {trap.needs}")
        assert trap.schema not in checked.failed, checked.failed[trap.schema]
        mine = {t.split(".")[1]: found for t, found in checked.first.items() if t.split(".")[0] == trap.schema}
        assert mine or trap.gone
        for name, found in mine.items():
            pattern = trap.stale.get(name)
            if pattern is None:
                assert found.status == "identical", found.to_dict()
            else:
                assert found.status == "stale", found.to_dict()
                assert re.search(pattern, found.reason or ""), found.reason
                after = checked.healed[f"{trap.schema}.{name}"]
                assert after.status == "identical", after.to_dict()
        assert set(trap.stale) <= set(mine)

    return test


SHORT = {name: trap for name, trap in TRAPS.items() if trap.path}


@pytest.fixture(scope="session")
def checked(pg16: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory, _jvm: None) -> Checked:
    """The marked traps on PostgreSQL 16."""
    return _play(pg16, tmp_path_factory.mktemp("path"), SHORT)


for _name, _trap in SHORT.items():
    globals()[_name] = _test(_trap)


@pytest.fixture(scope="session", params=["pg15", "pg16", "pg18"])
def checked_all(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _jvm: None
) -> Iterator[Checked]:
    """Every trap on each server."""
    yield _play(request.getfixturevalue(request.param), tmp_path_factory.mktemp("path"), TRAPS)


@pytest.mark.long
@pytest.mark.parametrize("name", list(TRAPS))
def test_every_trap_on_the_whole_path(name: str, checked_all: Checked) -> None:
    _test(TRAPS[name])(checked_all)

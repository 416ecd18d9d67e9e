"""The traps on the whole path: init, drain after each phase, one build, one check; then each table's verdict."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests import commands, conformance
from tests.support_postgres import fresh_database
from tests.trap_cases import GROUPS, TRAPS, Players, Trap, configured, steps
from toolkit.build import dbt_run
from toolkit.demo.server import EmbeddedServer
from toolkit.ops import status_report
from toolkit.quality.report import TableCheck
from toolkit.source import connection
from toolkit.values.config import Config

# Long, four minutes a server: tests/postgres/test_traps.py holds the log of the same traps against SELECT.
pytestmark = [pytest.mark.e2e, pytest.mark.postgres, pytest.mark.spark, pytest.mark.dbt, pytest.mark.long]


@dataclass
class Checked:
    """Verdicts by table, before and after the stale ones were repaired."""

    major: int
    failed: dict[str, str]
    skipped: set[str]
    first: dict[str, TableCheck]
    repaired: dict[str, TableCheck]


def _check(config: Config) -> dict[str, TableCheck]:
    def current_only(config: Config, *, select: Sequence[str] | None = None) -> dbt_run.BuildResult:
        return commands.build(config, select=select or ["current"])

    return {t.table: t for t in commands.compare(config, drain=commands.drain, build=current_only).tables}


def play(server: EmbeddedServer, directory: Path, traps: dict[str, Trap]) -> Checked:
    """Traps of a group in one database, checked, repaired and checked again."""
    with fresh_database(server) as conninfo, Players.ready(conninfo, traps.values()) as players:
        if not players.traps:
            return Checked(server.major, players.failed, players.skipped, {}, {})
        config = configured(conninfo, players.traps).model_copy(update={"root": directory})
        commands.init(config)
        for number in range(players.phases):
            players.phase(number)
            commands.drain(config)
        first = _check(config)
        if any(found.status == "stale" for found in first.values()):
            _repair(config)
        return Checked(server.major, players.failed, players.skipped, first, _check(config))


def _repair(config: Config) -> None:
    """Do what the states say, as they print it. One remedy may lead to the next."""
    for _ in range(2):
        repairs = []
        for state in status_report.status(config).tables:
            for step in steps(state.remedy or "") if not state.comparable else ():
                if repair := re.fullmatch("cdc repair (.*)", step):
                    repairs += shlex.split(repair[1])
                elif step == "cdc init":
                    commands.init(config)
                else:
                    with connection.connect(config.source) as conn:
                        conn.execute(b"select cdc.resume()" if step == "cdc ddl resume" else step.encode())
        if repairs:
            commands.repair(config, repairs)


Checks = Callable[[str], Checked]
NewLake = Callable[[], AbstractContextManager[None]]


@pytest.fixture(scope="session", params=["pg15", "pg16", "pg18"])
def checks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, new_lake: NewLake, _jvm: None
) -> Checks:
    """What becomes of the traps of a group, played once on each server."""
    server = request.getfixturevalue(request.param)

    @cache
    def played(group: str) -> Checked:
        with new_lake():
            return play(server, tmp_path_factory.mktemp("path"), GROUPS[group])

    return played


@pytest.mark.parametrize("name", TRAPS)
def test_every_trap_on_the_whole_path(name: str, checks: Checks) -> None:
    trap = TRAPS[name]
    checked = checks(trap.group)
    if trap.schema in checked.skipped:
        pytest.skip(f"not on this server: {trap.needs}")
    assert trap.schema not in checked.failed, checked.failed[trap.schema]
    names = {tuple(name.split(".")): name for name in checked.first}
    mine = {table: checked.first[name] for (schema, table), name in names.items() if trap.owns(schema)}
    assert mine or trap.gone
    assert not set(mine) & set(trap.gone)
    for table, found in mine.items():
        pattern = trap.stale.get(table)
        if pattern is None:
            assert found.status == "identical", found.to_dict()
        else:
            assert found.status == "stale", found.to_dict()
            assert re.search(pattern, found.reason or ""), found.reason
            after = checked.repaired[found.table]
            assert after.status == "identical", after.to_dict()
    assert set(trap.stale) <= set(mine)


def test_the_conformance_table_says_what_the_checks_say(checks: Checks) -> None:
    written = conformance.written()
    for name, trap in TRAPS.items():
        checked = checks(trap.group)
        found = conformance.path_found(checked, trap)
        assert found == written[name, checked.major].path, "run python -m tests.conformance"

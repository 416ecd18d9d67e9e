"""Every trap on each server: the log's rows equal SELECT at every drain, or the table is stale by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import conformance
from tests.support_log import Log, Shown
from tests.support_postgres import fresh_database
from tests.trap_cases import TRAPS, Players, Trap
from toolkit.config import CheckConfig, Config, SourceConfig
from toolkit.embedded import EmbeddedServer
from toolkit.lsn import Lsn

pytestmark = [pytest.mark.postgres, pytest.mark.wide]


@dataclass
class Played:
    """What the traps left: the log, and what SELECT showed at each drain."""

    major: int
    log: Log
    failed: dict[str, str]
    skipped: set[str]
    shown: list[tuple[Lsn, dict[int, Shown]]] = field(default_factory=list)
    healed: dict[str, str] = field(default_factory=dict)  # table -> what was wrong after its repair


def play(config: Config, directory: Path, traps: dict[str, Trap]) -> Iterator[Played]:
    """All traps at once: setups, init, then phase by phase with a drain after each, then the repairs."""
    with Players.ready(config.source.conninfo, traps.values()) as players, Log.started(config, directory) as log:
        played = Played(_major(log), log, players.failed, players.skipped)
        for number in range(players.phases):
            players.phase(number)
            at = log.drain()
            live = [v.table for v in log.versions.values() if log.version(v.table.relid, at) is not None]
            played.shown.append((at, {t.relid: log.select(t.relid) for t in live}))
        stale = [name for name, state in log.states().items() if not state.comparable]
        played.healed = _repaired(log, stale)
        yield played


def _major(log: Log) -> int:
    return log.conn.info.server_version // 10_000


def _repaired(log: Log, stale: list[str]) -> dict[str, str]:
    """Do what the states say, and look again: what is still wrong, by table."""
    relids = {name: state.relid for name, state in log.states().items()}
    log.repair(*stale)
    log.drain()
    wrong = {}
    for name in stale:
        state = log.states()[name]
        if not state.comparable:  # a repair waits for a proof, which the next line is
            wrong[name] = f"{state.state}: {state.reason}"
        elif log.rows(relids[name], log.complete_to) != log.select(relids[name]):
            wrong[name] = "differs from SELECT"
    return wrong


def configured(conninfo: str, major: int) -> Config:
    """Capture of every trap's schema, whole."""
    schemas = tuple(f"{trap.schema}.*" for trap in TRAPS.values())
    source = SourceConfig(conninfo=conninfo, slot=f"cdc_traps_{major}", new_tables="publish", tables=schemas)
    return Config(source=source, check=CheckConfig(cut_seconds=20.0))


@pytest.fixture(scope="session", params=["pg15", "pg16", "pg18"])
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """The traps, played once on each server."""
    server: EmbeddedServer = request.getfixturevalue(request.param)
    with fresh_database(server) as conninfo:
        yield from play(configured(conninfo, server.major), tmp_path_factory.mktemp("traps"), TRAPS)


def verdict(played: Played, trap: Trap) -> None:
    """Exact at every drain or stale by name, as the trap says, and healed by its remedy."""
    if trap.schema in played.skipped:
        pytest.skip(f"this server answers no to: {trap.needs}")
    assert trap.schema not in played.failed, played.failed[trap.schema]
    log = played.log
    prefix = f"{trap.schema}."
    for at, tables in played.shown:
        for relid, (attnums, rows) in tables.items():
            table = log.version(relid, at)
            if table is None or table.schema != trap.schema:
                continue
            doubt = log.doubtful(relid, at)
            if doubt is None:
                found = log.rows(relid, at)
                assert found[0] == attnums
                assert found[1] - rows == rows - found[1] == Counter(), f"{table.identifier} at {at}"
            else:
                assert table.name in trap.stale, f"{table.identifier} at {at}: {doubt}"
    last, shown = played.shown[-1]
    names = {}
    for relid in shown:
        table = log.version(relid, last)
        if table is not None and table.schema == trap.schema:
            names[table.name] = relid
    assert not set(names) & set(trap.gone)
    assert set(trap.stale) <= set(names)
    for name, pattern in trap.stale.items():
        doubt = log.doubtful(names[name], last)
        assert doubt is not None, f"{name} should be stale"
        assert re.search(pattern, doubt), doubt
        assert prefix + name not in played.healed, played.healed[prefix + name]


def _test(trap: Trap) -> Callable[[Played], None]:
    def test(played: Played) -> None:
        verdict(played, trap)

    return test


for _name, _trap in TRAPS.items():
    globals()[_name] = _test(_trap)


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("test_trap_043_unchanged_toast_through_key_changes", lambda e: e["op"] == "U"),
        ("test_trap_068_the_same_type_using", lambda e: e["kind"] == "gap"),
        ("test_trap_054_duplicates_without_a_key", lambda e: e["op"] == "D"),
        ("test_trap_081_drop_and_add_again", lambda e: e["kind"] == "schema" and e["xid"] is not None),
    ],
)
def test_a_planted_loss_is_found(played: Played, name: str, planted: Callable[[dict[str, Any]], bool]) -> None:
    trap, events = TRAPS[name], played.log.events
    mine = {relid for _, shown in played.shown for relid in shown if _in(played, relid, trap)}
    lost = [e for e in events if e["relid"] in mine and planted(e)][-1]
    played.log.events = [e for e in events if e is not lost]
    try:
        with pytest.raises((AssertionError, KeyError)):
            verdict(played, trap)
    finally:
        played.log.events = events


def _in(played: Played, relid: int, trap: Trap) -> bool:
    table = played.log.version(relid, played.shown[-1][0])
    return table is not None and table.schema == trap.schema


def test_the_conformance_table_says_what_is_found(played: Played) -> None:
    found = {name: conformance.outcome(played, trap) for name, trap in TRAPS.items()}
    assert conformance.written()[f"log {played.major}"] == found, "run python -m tests.conformance"

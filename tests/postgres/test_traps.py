"""Every trap on each server: the log's rows equal SELECT at every drain, or the table is stale by name."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest

from tests import conformance
from tests.support_log import Log, Shown, shown
from tests.support_postgres import fresh_database
from tests.trap_cases import GROUPS, TRAPS, Players, Trap, configured, steps
from toolkit.demo.server import EmbeddedServer
from toolkit.history import effects
from toolkit.rawlog.states import TableState
from toolkit.source import install, slot
from toolkit.values.config import Config
from toolkit.values.lsn import Lsn
from toolkit.values.table import TableVersion

pytestmark = pytest.mark.postgres


@dataclass
class Played:
    """What the traps left: the log, and what SELECT showed at each drain."""

    major: int
    log: Log
    failed: dict[str, str]
    skipped: set[str]
    shown: list[tuple[Lsn, dict[int, Shown]]] = field(default_factory=list)
    looked: list[tuple[Lsn, dict[int, Shown]]] = field(default_factory=list)  # the same, between drains
    states: dict[str, TableState] = field(default_factory=dict)  # before anything was repaired
    remedies: dict[str, list[str]] = field(default_factory=dict)  # as the states printed them, by table
    unrepaired: dict[str, str] = field(default_factory=dict)  # table -> what was wrong after its repair

    @cached_property
    def classes(self) -> Mapping[tuple[int, int, int, int], effects.EffectClass]:
        """Of every change, as `cdc ddl list` shows them."""
        return effects.by_position(self.log.reading())  # type: ignore[arg-type]

    def look(self, trap: Trap) -> None:
        """Keep what SELECT shows of the trap's tables that the log knows."""
        at = slot.wait_flush(self.log.conn)
        mine = (table for table in self._live() if trap.owns(table.schema))
        self.looked.append((at, {t.relid: shown(self.log.conn, t) for t in mine}))

    def drain(self) -> None:
        at = self.log.drain()
        self.shown.append((at, {t.relid: self.log.select(t.relid) for t in self._live()}))

    def _live(self) -> list[TableVersion]:
        at = self.log.complete_to
        found = (self.log.version(version.table.relid, at) for version in self.log.versions.values())
        return [table for table in found if table is not None]

    def repair(self) -> None:
        """Do what the states say, as they print it, and look again. One remedy may lead to the next."""
        self.states = self.log.states()
        stale = {n: state for n, state in self.states.items() if not (state.comparable or state.parts)}
        for _ in range(2):
            repairs = []
            for name, state in self.log.states().items():
                if name in stale and not state.comparable:
                    assert state.remedy is not None
                    self.remedies.setdefault(name, []).append(state.remedy)
                    repairs += self._done(state.remedy)
            self.log.drain()
            if repairs:
                self.log.repair(*repairs)
            self.log.drain()
        for name in stale:
            state = self.log.states()[name]
            if not state.comparable:  # a repair waits for a proof, which the next line is
                self.unrepaired[name] = f"{state.state}: {state.reason}"
            elif self.log.rows(state.relid, self.log.complete_to) != self.log.select(state.relid):
                self.unrepaired[name] = "differs from SELECT"

    def _done(self, remedy: str) -> list[str]:
        """Run a remedy up to its repairs, which are returned."""
        repairs = []
        for step in steps(remedy):
            if repair := re.fullmatch("cdc repair (.*)", step):
                repairs += shlex.split(repair[1])
            elif step == "cdc init":
                install.install(
                    self.log.conn,
                    self.log.config.capture_rules,
                    ddl=self.log.config.ddl,
                    lock_seconds=self.log.config.snapshot.lock_seconds,
                )
            elif step == "cdc ddl resume":
                self.log.conn.execute("select cdc.resume()")
            else:
                self.log.conn.execute(step.encode())
        return repairs


def play(config: Config, directory: Path, traps: dict[str, Trap]) -> Iterator[Played]:
    """All traps at once: setups, init, then phase by phase with a drain after each, then the remedies."""
    with Players.ready(config.source.conninfo, traps.values()) as players:
        if not players.traps:
            return
        with Log.started(config, directory) as log:
            played = Played(log.conn.info.server_version // 10_000, log, players.failed, players.skipped)
            players.look = played.look
            for number in range(players.phases):
                players.phase(number)
                played.drain()
            played.repair()
            yield played


@pytest.fixture(scope="session", params=["pg15", "pg16", "pg18"])
def server(request: pytest.FixtureRequest) -> EmbeddedServer:
    """Each server in turn."""
    found: EmbeddedServer = request.getfixturevalue(request.param)
    return found


def together(server: EmbeddedServer, directory: Path, traps: dict[str, Trap]) -> Played | None:
    """Traps of a group in a database of their own; None where the server meets none. Its connection is closed."""
    with fresh_database(server) as conninfo:
        return next(iter(list(play(configured(conninfo, list(traps.values())), directory, traps))), None)


Plays = Callable[[str], Played | None]


@pytest.fixture(scope="session")
def plays(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Plays:
    """What the traps of a group leave, played once on each server."""
    return cache(lambda group: together(server, tmp_path_factory.mktemp("traps"), GROUPS[group]))


def verdict(played: Played, trap: Trap) -> None:
    """Exact at every drain or stale by name, as the trap says, and repaired by its remedy."""
    if trap.schema in played.skipped:
        pytest.skip(f"this server answers no to: {trap.needs}")
    assert trap.schema not in played.failed, played.failed[trap.schema]
    log = played.log
    for at, tables in (*played.looked, *played.shown):
        for relid, (attnums, rows) in tables.items():
            table = log.version(relid, at)
            if table is None or not trap.owns(table.schema):
                continue
            doubt = log.unverified(relid, at)
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
        if table is not None and trap.owns(table.schema):
            names[table.name] = relid
    assert not set(names) & set(trap.gone)
    for name, pattern in trap.stale.items():
        identifier = f"{trap.schema}.{name}"
        state = played.states.get(identifier)
        assert state is not None and not state.comparable, f"{name} should be stale"
        doubt = f"{state.reason}; {log.unverified(state.relid, last)}"
        assert re.search(pattern, doubt), doubt
        assert identifier not in played.unrepaired, played.unrepaired[identifier]
    outcome = conformance.found(played, trap)
    assert not outcome.contradictions


def _test(trap: Trap) -> Callable[..., None]:
    def test(plays: Plays) -> None:
        played = plays(trap.group)
        if played is None:
            pytest.skip(f"this server answers no to: {trap.needs}")
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
def test_a_planted_loss_is_found(plays: Plays, name: str, planted: Callable[[dict[str, Any]], bool]) -> None:
    trap, played = TRAPS[name], plays(TRAPS[name].group)
    assert played is not None
    events = played.log.events
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
    return table is not None and trap.owns(table.schema)


@pytest.mark.parametrize("group", GROUPS)
def test_the_conformance_table_says_what_is_found(server: EmbeddedServer, plays: Plays, group: str) -> None:
    written = conformance.written()
    for name, trap in GROUPS[group].items():
        found = conformance.found(plays(group), trap)
        assert found.of_the_log == written[name, server.major].of_the_log, "run python -m tests.conformance"

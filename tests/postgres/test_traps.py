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
from tests.support_log import Log, Shown, shown
from tests.support_postgres import fresh_database
from tests.trap_cases import TOGETHER, TRAPS, Players, Trap
from toolkit.catalog import TableVersion
from toolkit.config import CheckConfig, Config, SourceConfig
from toolkit.embedded import EmbeddedServer
from toolkit.lsn import Lsn
from toolkit.source import ddl_switch, install, slot
from toolkit.states import TableState

pytestmark = [pytest.mark.postgres, pytest.mark.wide]


@dataclass
class Played:
    """What the traps left: the log, and what SELECT showed at each drain."""

    major: int
    log: Log
    failed: dict[str, str]
    skipped: set[str]
    shown: list[tuple[Lsn, dict[int, Shown]]] = field(default_factory=list)
    looked: list[tuple[Lsn, dict[int, Shown]]] = field(default_factory=list)  # the same, between drains
    states: dict[str, TableState] = field(default_factory=dict)  # before anything was healed
    remedies: dict[str, list[str]] = field(default_factory=dict)  # as the states printed them, by table
    healed: dict[str, str] = field(default_factory=dict)  # table -> what was wrong after its repair

    def look(self) -> None:
        """Keep what SELECT shows of the tables that the log knows."""
        at = slot.wait_flush(self.log.conn)
        self.looked.append((at, {t.relid: shown(self.log.conn, t) for t in self._live()}))

    def drain(self) -> None:
        at = self.log.drain()
        self.shown.append((at, {t.relid: self.log.select(t.relid) for t in self._live()}))

    def _live(self) -> list[TableVersion]:
        at = self.log.complete_to
        found = (self.log.version(version.table.relid, at) for version in self.log.versions.values())
        return [table for table in found if table is not None]

    def heal(self) -> None:
        """Do what the states say, as they print it, and look again. One remedy may lead to the next."""
        self.states = self.log.states()
        stale = {name: state for name, state in self.states.items() if not state.comparable}
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
                self.healed[name] = f"{state.state}: {state.reason}"
            elif self.log.rows(state.relid, self.log.complete_to) != self.log.select(state.relid):
                self.healed[name] = "differs from SELECT"

    def _done(self, remedy: str) -> list[str]:
        """Run a remedy up to its repairs, which are returned."""
        repairs = []
        for step in re.split(r"[,;] then ", remedy):
            if repair := re.fullmatch("cdc repair (.*)", step):
                repairs.append(repair[1])
            elif step == "cdc init":
                install.install(self.log.conn, self.log.config)
            elif step == "cdc ddl resume":
                ddl_switch.resume(self.log.conn)
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
            played.heal()
            yield played


def configured(conninfo: str, major: int, *traps: Trap) -> Config:
    """Capture of the traps' schemas: of many, whole; of one alone, as its publication says."""
    schemas = tuple(f"{trap.schema}{more}.*" for trap in traps for more in (("", "__*") if trap.alone else ("",)))
    alone = traps[0].alone
    source = SourceConfig(
        conninfo=conninfo, slot="cdc_trap" if alone else f"cdc_traps_{major}", tables=schemas,
        new_tables="propose" if alone else "publish",
    )  # fmt: skip
    return Config(source=source, check=CheckConfig(cut_seconds=20.0))


@pytest.fixture(scope="session", params=["pg15", "pg16", "pg18"])
def server(request: pytest.FixtureRequest) -> EmbeddedServer:
    """Each server in turn."""
    found: EmbeddedServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def played(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """The traps that go together, played once on each server."""
    with fresh_database(server) as conninfo:
        config = configured(conninfo, server.major, *TOGETHER.values())
        yield from play(config, tmp_path_factory.mktemp("traps"), TOGETHER)


def alone(server: EmbeddedServer, directory: Path, trap: Trap) -> Played | None:
    """A trap in a database of its own; None where the server does not meet it. Its connection is closed."""
    with fresh_database(server) as conninfo:
        return next(iter(list(play(configured(conninfo, server.major, trap), directory, {trap.name: trap}))), None)


def verdict(played: Played, trap: Trap) -> None:
    """Exact at every drain or stale by name, as the trap says, and healed by its remedy."""
    if trap.schema in played.skipped:
        pytest.skip(f"this server answers no to: {trap.needs}")
    assert trap.schema not in played.failed, played.failed[trap.schema]
    log = played.log
    for at, tables in (*played.looked, *played.shown):
        for relid, (attnums, rows) in tables.items():
            table = log.version(relid, at)
            if table is None or not trap.owns(table.schema):
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
        if table is not None and trap.owns(table.schema):
            names[table.name] = relid
    assert not set(names) & set(trap.gone)
    for name, pattern in trap.stale.items():
        identifier = f"{trap.schema}.{name}"
        state = played.states.get(identifier)
        assert state is not None and not state.comparable, f"{name} should be stale"
        doubt = f"{state.reason}; {log.doubtful(state.relid, last)}"
        assert re.search(pattern, doubt), doubt
        assert identifier not in played.healed, played.healed[identifier]
    found = conformance.found(played, trap)
    assert not found.contradictions


def _test(trap: Trap) -> Callable[..., None]:
    def test(played: Played) -> None:
        verdict(played, trap)

    def test_alone(server: EmbeddedServer, tmp_path: Path) -> None:
        played = alone(server, tmp_path, trap)
        if played is None:
            pytest.skip(f"this server answers no to: {trap.needs}")
        verdict(played, trap)
        written = conformance.written()[trap.name, played.major]
        assert conformance.found(played, trap).of_the_log == written.of_the_log, "run python -m tests.conformance"

    return test_alone if trap.alone else test


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
    return table is not None and trap.owns(table.schema)


def test_the_conformance_table_says_what_is_found(played: Played) -> None:
    written = conformance.written()
    for name, trap in TOGETHER.items():
        found = conformance.found(played, trap)
        assert found.of_the_log == written[name, played.major].of_the_log, "run python -m tests.conformance"

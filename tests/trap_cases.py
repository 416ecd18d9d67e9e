"""The traps of `postgres/traps.sql`, which says how they are written, and the sessions that play them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from toolkit.values.config import CheckConfig, Config, SourceConfig
from toolkit.values.modes import NewTables

FILE = Path(__file__).parent / "postgres" / "traps.sql"


@dataclass(frozen=True)
class Trap:
    """One trap. `phases` are its steps between drains; `stale` has a pattern of the reason by table.

    Those of a `group` are played together; one that is alone is its own.
    """

    name: str
    setup: tuple[str, ...]
    phases: tuple[tuple[str, ...], ...]
    stale: dict[str, str]
    gone: tuple[str, ...]
    needs: str | None
    group: str

    @property
    def schema(self) -> str:
        return self.name.removeprefix("test_")

    def owns(self, schema: str) -> bool:
        """Whether a schema is the trap's, or another one of it."""
        return schema == self.schema or schema.startswith(self.schema + "__")


def read(text: str) -> dict[str, Trap]:
    """The traps of a file, by the name of their test."""
    found = {}
    for part in re.split(r"(?m)^-- trap ", text)[1:]:
        name, body = part.split("\n", 1)
        setup, steps = body.split("-- steps\n")
        found[name] = Trap(
            name,
            _statements(setup),
            tuple(_statements(phase) for phase in steps.split("-- drain\n")),
            {m[1]: m[2] for m in re.finditer(r"(?m)^-- stale (\w+): (.*)$", body)},
            tuple(" ".join(re.findall(r"(?m)^-- gone (.*)$", body)).split()),
            next(iter(re.findall(r"(?m)^-- needs (.*)$", body)), None),
            name if "\n-- alone\n" in part else next(iter(re.findall(r"(?m)^-- group (.*)$", body)), "schemas"),
        )
    return found


def _statements(text: str) -> tuple[str, ...]:
    """Statements end with a semicolon at the end of a line."""
    lines = "".join(line + "\n" for line in text.splitlines() if not line.startswith("--"))
    return tuple(s.strip() for s in lines.split(";\n") if s.strip())


TRAPS = read(FILE.read_text(encoding="utf-8"))
#: What is played together, by the name of the group.
GROUPS = {
    group: {n: t for n, t in TRAPS.items() if t.group == group} for group in {t.group: None for t in TRAPS.values()}
}


def configured(conninfo: str, traps: Sequence[Trap]) -> Config:
    """Capture of the schemas of traps of one group, as its publication says."""
    whole = traps[0].group == "schemas"  # schemas can be published whole by name, not by a pattern
    names = [trap.schema + (".*" if whole else "*.*") for trap in traps]
    source = SourceConfig(
        conninfo=conninfo,
        slot="cdc_traps",
        tables=tuple(names),
        new_tables=NewTables.SCHEMAS if whole else NewTables.PROPOSE,
    )
    return Config(source=source, check=CheckConfig(cut_seconds=20.0))


def steps(remedy: str) -> list[str]:
    """The commands of a remedy as it is printed."""
    return re.split(r"[,;] then ", remedy)


class Players:
    """The sessions that play the traps' steps on one database."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        self.traps: list[Trap] = []
        self.skipped: set[str] = set()
        self.sessions: dict[tuple[str, str], psycopg.Connection[Any]] = {}
        self.failed: dict[str, str] = {}
        self.look: Callable[[Trap], None] = lambda trap: None  # what SELECT shows between two drains is wanted

    def play(self, trap: Trap, steps: tuple[str, ...]) -> None:
        """Run steps; the first that does not go as said ends the trap, and its test says so."""
        for step in steps:
            if trap.schema in self.failed:
                return
            if step == "look":
                self.look(trap)
                continue
            letter, text = ("b", step[2:].strip()) if step.startswith("b:") else ("a", step)
            wanted = not text.startswith("!")
            try:
                self._session(trap, letter).execute(text.removeprefix("!").strip())
                went, why = True, "it did not fail"
            except psycopg.Error as error:
                went, why = False, str(error)
            if went != wanted:
                self.failed[trap.schema] = f"{step}: {why}"

    def _session(self, trap: Trap, letter: str) -> psycopg.Connection[Any]:
        # One session plays all traps in turn; a second one belongs to its trap.
        owner = ("a", "") if letter == "a" else (letter, trap.schema)
        if owner not in self.sessions:
            self.sessions[owner] = psycopg.connect(self.conninfo, autocommit=True)
        session = self.sessions[owner]
        if session.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            session.execute(f"set search_path = {trap.schema}")
        return session

    @classmethod
    @contextmanager
    def ready(cls, conninfo: str, traps: Iterable[Trap]) -> Iterator[Players]:
        """Make each trap's schema and run its setup, but for traps that this server does not meet."""
        players = cls(conninfo)
        try:
            with psycopg.connect(conninfo, autocommit=True) as admin:
                for trap in traps:
                    admin.execute(f"create schema {trap.schema}")
                    row = admin.execute(f"select {trap.needs or 'true'}").fetchone()
                    if row and row[0]:
                        players.traps.append(trap)
                    else:
                        players.skipped.add(trap.schema)
            for trap in players.traps:
                players.play(trap, trap.setup)
            if players.traps and players.traps[0].group == "roots":
                schemas = ", ".join(trap.schema for trap in players.traps)
                made = f"create publication cdc for tables in schema {schemas} with (publish_via_partition_root = true)"
                with psycopg.connect(conninfo, autocommit=True) as admin:
                    admin.execute(made.encode())
            yield players
        finally:
            for session in players.sessions.values():
                session.close()

    @property
    def phases(self) -> int:
        return max(len(trap.phases) for trap in self.traps)

    def phase(self, number: int) -> None:
        """Each trap's steps up to its next drain."""
        for trap in self.traps:
            if number < len(trap.phases):
                self.play(trap, trap.phases[number])

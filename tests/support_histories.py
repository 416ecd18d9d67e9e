"""Play short histories in one database, and judge each table: the log has what SELECT shows, or the table is stale.

It is stale as `cdc status` says it: by name, with a reason. What is not captured is named there too. `findings` has
what is neither, a line each.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from tests.histories.base import History
from tests.support_log import Log, Shown, shown
from toolkit.rawlog import states
from toolkit.source import catalog, change_log, connection, drain_mode, selection
from toolkit.values.config import Config, TableConfig
from toolkit.values.errors import CdcError
from toolkit.values.lsn import Lsn
from toolkit.values.modes import Capture, Triggers
from toolkit.values.table import TableVersion

#: The tables there are, with the topmost one that each is a partition of.
_TABLES = """
select n.nspname, c.relname, coalesce(pg_partition_root(c.oid), c.oid)::int8
from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
where c.relkind = 'r' and c.relpersistence <> 't' and n.nspname ~ '^h_[0-9]+$'
order by c.oid
"""
#: The tables of a history: its number is in the names of its schemas.
_OF_HISTORY = """
select c.oid::int8
from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and c.relpersistence <> 't' and n.nspname ~ %s
"""


@dataclass(frozen=True)
class Way:
    """How the histories of a database are captured: the rest of its configuration, and a publication of the user."""

    source: dict[str, Any]
    tables: dict[str, TableConfig] = field(default_factory=dict)
    publication: str = ""

    def config(self, source: Config) -> Config:
        """The configuration of a toolkit that captures in this way."""
        return source.model_copy(update={"source": source.source.model_copy(update=self.source), "table": self.tables})


_THEIRS: dict[str, Any] = {"publication": "theirs", "scope": "published"}
_OURS: dict[str, Any] = {"new_tables": "schemas", "tables": ("h_*.*",)}
_LOGGED: dict[str, Any] = {"capture": "change_log", "tables": ("h_*.*",)}
WAYS = {
    "all": Way(_THEIRS, publication="create publication theirs for all tables"),
    "roots": Way(
        _THEIRS, publication="create publication theirs for all tables with (publish_via_partition_root = true)"
    ),
    "schemas": Way(_OURS),
    "named": Way(_OURS | {"new_tables": "publish", "exclude": ("h_*.left_out_*",)}),  # the publication names each table
    "log": Way(_LOGGED | {"change_log_drain": "slot"}),
    "ticks": Way(_LOGGED | {"change_log_drain": "tick"}),
    "statement": Way(_LOGGED | {"change_log_drain": "slot"}, {"*.*": TableConfig(triggers=Triggers.STATEMENT)}),
    "both": Way(_OURS | {"change_log_drain": "slot"}, {"*.*": TableConfig(capture=Capture.BOTH)}),
}
#: What is put around the changes of a history; `None` is their place. `{first}` is a statement of the history.
AROUND: dict[str, tuple[str | None, ...]] = {
    "alone": (None,),  # each statement commits
    "one transaction": ("begin", "{first}", None, "commit"),
    "rolled back": ("begin", "savepoint before", None, "rollback to before", "{first}", "commit"),
}


class Play:
    """Histories that are played in the database of `log`."""

    def __init__(self, log: Log, histories: Sequence[History], around: str) -> None:
        self.log, self.around = log, AROUND[around]
        self.histories = histories
        self.findings: list[str] = []
        self.counts: Counter[str] = Counter()
        self.points: list[tuple[str, Lsn, dict[int, Shown]]] = []
        self.between = False  # whether each LSN between two statements is a point too

    @classmethod
    @contextmanager
    def of(
        cls, histories: Sequence[History], source: Config, directory: Path, way: str, around: str = "alone"
    ) -> Iterator[Play]:
        """Run what the histories begin with, then install capture and copy every table."""
        with set_up(histories, source, way) as (config, findings), Log.started(config, directory) as log:
            play = cls(log, histories, around)
            play.findings += findings
            yield play

    def run(self) -> None:
        """Play the histories, with a look at the log after each part of them."""
        self.look("before")
        self._do("changes")
        self.look("changes")
        self._do("probe")
        self.look("probe")
        for when, at, seen in self.points:  # by all that the log knows now
            found = states.states_at(self.log.reading(), at, {})
            self._judge(f"as of {when}", at, seen, {version.table.relid: state for version, state in found})

    def look(self, when: str) -> None:
        """Drain, and judge."""
        at = self.log.drain()
        self.points.append((when, at, self.judge(when, at)))

    def judge(self, when: str, at: Lsn) -> dict[int, Shown]:
        """Compare each table that the log has now with SELECT, and give what it shows."""
        known = {relid: table for relid in self.log.versions if (table := self.log.version(relid, at)) is not None}
        listed = {state.relid: state for state in states.table_states(self.log.reading())}
        shown: dict[int, Shown] = {}
        for relid, table in known.items():
            try:
                shown[relid] = self.log.select(relid)
            except AssertionError as error:
                self._found(when, table, f"cannot be read: {error}")
        for relid in shown.keys() - listed.keys():
            self._found(when, known[relid], "has no state")
        self._judge(when, at, shown, listed)
        self._listed(when, known, listed)
        return shown

    def _judge(self, when: str, at: Lsn, shown: dict[int, Shown], listed: dict[int, states.TableState]) -> None:
        for relid, seen in shown.items():
            state, table = listed.get(relid), self.log.version(relid, at)
            if state is None or table is None:
                continue
            if state.state != states.State.OK:
                assert state.reason and state.table == table.identifier, state
                self.counts["stale"] += 1
                continue
            try:
                rows = self.log.rows(relid, at, by_key=self._of(table.schema).nested)
            except (AssertionError, CdcError) as error:
                self._found(when, table, f"cannot be folded: {error}")
                continue
            if rows != seen:
                many, few = rows[1] - seen[1], seen[1] - rows[1]
                self._found(
                    when, table, f"is ok, with {list(many)} too many, {list(few)} missing; {rows[0]}, {seen[0]}"
                )
            self.counts["exact"] += 1

    def _listed(self, when: str, known: dict[int, TableVersion], listed: dict[int, states.TableState]) -> None:
        """What is neither captured nor named where it would be looked for."""
        rules, conn = self.log.config.capture_rules, self.log.conn
        ticks = drain_mode.by_ticks(conn, rules)
        named = {state.table for state in listed.values()} | {table.identifier for table in known.values()}
        named |= selection.not_captured(conn, rules, ticks=ticks, known=listed).keys()
        for schema, name, root in conn.execute(_TABLES).fetchall():
            if f"{schema}.{name}" not in named and root not in known:
                self._say(when, schema, name, "is neither captured nor listed")

    def _do(self, part: str) -> None:
        for number, history in enumerate(self.histories):
            statements: Sequence[str] = history.probe
            if part == "changes":
                pairs = ((one,) if one is not None else history.changes for one in self.around)
                statements = [one.replace("{first}", history.first) for one in itertools.chain.from_iterable(pairs)]
            found = run(self.log.config, number, history, statements, part, partial(self._note, number))
            if self.around == AROUND["alone"]:
                self.findings += found
            self.counts["refused"] += len(found)

    def _note(self, number: int, statement: str) -> None:
        """Keep what SELECT shows of the tables of a history after one of its statements."""
        if not self.between:
            return
        conn = self.log.conn
        ((at,),) = conn.execute("select pg_current_wal_insert_lsn()::text").fetchall()
        relids = [relid for (relid,) in conn.execute(_OF_HISTORY, [f"^[a-z]+_{number}$"])]
        tables = (TableVersion.from_json(json.loads(one)) for one in catalog.snapshots_of(conn, relids).values())
        self.points.append((statement, Lsn.parse(at), {t.relid: shown(conn, t) for t in tables if t.published}))

    def _found(self, when: str, table: TableVersion, what: str) -> None:
        self._say(when, table.schema, table.name, what)

    def _say(self, when: str, schema: str, name: str, what: str) -> None:
        self.findings.append(f"{self._of(schema).name!r}, {when}: {schema}.{name} {what}")

    def _of(self, schema: str) -> History:
        """The history of a schema: its number is in the names of all its schemas."""
        return self.histories[int(re.sub(r"\D", "", schema))]


@contextmanager
def set_up(histories: Sequence[History], source: Config, way: str) -> Iterator[tuple[Config, list[str]]]:
    """Run what the histories begin with; give the configuration to capture them, and what failed."""
    chosen, findings = WAYS[way], list[str]()
    config = chosen.config(source)
    for number, history in enumerate(histories):
        findings += run(config, number, history, history.setup, "setup")
    with psycopg.connect(config.source.conninfo, autocommit=True) as conn:
        if chosen.publication:
            conn.execute(chosen.publication.encode())
    try:
        yield _accepted(config), findings
    finally:
        _forget_origin(config)


def run(
    config: Config,
    number: int,
    history: History,
    statements: Sequence[str],
    part: str,
    note: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Run statements of a history, and give those that failed although no server refuses them."""
    schema, failed = f"h_{number}", []
    with psycopg.connect(config.source.conninfo, autocommit=True) as session:
        session.execute(f"create schema if not exists {schema}; set lock_timeout = '2s'".encode())
        for statement in statements:
            if session.info.transaction_status == TransactionStatus.IDLE:
                session.execute(f"set search_path = {schema}".encode())
            try:
                session.execute(statement.replace("{s}", schema).replace("{n}", str(number)).encode())
            except psycopg.Error as error:
                expected = f"{history.refused}|is aborted" if history.refused else "$^"
                if not re.search(expected, str(error)):
                    failed.append(f"{history.name!r}, {part}: {statement} fails: {error}")
            if session.info.transaction_status == TransactionStatus.IDLE:
                note(statement)
        session.rollback()
    return failed


def _accepted(config: Config) -> Config:
    """With row triggers for tables that statement triggers do not capture: `cdc init` refuses those."""
    with connection.connect(config.source) as conn:
        refused = [name for name, _, _ in change_log.refusals(conn, config.capture_rules)]
    return config.model_copy(update={"table": {name: TableConfig() for name in refused} | config.table})


def _forget_origin(config: Config) -> None:
    """Drop what belongs to the server, not to the database."""
    with psycopg.connect(config.source.conninfo, autocommit=True) as conn:
        conn.execute(
            "select pg_replication_origin_drop(roname) from pg_replication_origin, pg_database"
            " where datname = current_database() and roname = 'o' || pg_database.oid"
        )


__all__ = ["AROUND", "WAYS", "Play", "run", "set_up"]

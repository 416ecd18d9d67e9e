"""Capture into a log in memory: real servers and the shipped drain and copy; no lake, no JVM.

`Log.rows` folds the log in plain Python, slowly and strictly: a change that names a row which is not there is an error.
The result is compared with SELECT, so that a trap's truth is seen without Spark on every server.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from tests import commands
from toolkit.capture import copy, initialise, repair_scope
from toolkit.decode.rows import decode_rows
from toolkit.decode.task import DecodeTask
from toolkit.rawlog import order, states
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.batch import BatchRecord, SourceIdentity
from toolkit.rawlog.event import Baseline, Covers
from toolkit.rawlog.memory import MemoryLog, MemoryReading
from toolkit.source import catalog, change_log, claim, connection, drain_mode, install, slot
from toolkit.source import ticks as tick
from toolkit.values.config import Config
from toolkit.values.errors import CdcError
from toolkit.values.lsn import Lsn
from toolkit.values.names import quote_postgres
from toolkit.values.table import Column, SchemaVersion, TableVersion

Image = tuple[str | None, ...]
#: What SELECT shows of a table: the attnums of its columns, and its rows as text.
Shown = tuple[tuple[int, ...], Counter[Image]]


@lru_cache(maxsize=10_000)
def _object(text: str) -> Any:
    return json.loads(text)


@lru_cache(maxsize=10_000)
def _table(text: str) -> TableVersion:
    return TableVersion.from_json(json.loads(text))


def _decoded(task: DecodeTask) -> Iterator[pa.RecordBatch]:
    for part in decode_rows(task.path, task):
        part.validate(full=True)
        yield part


class Log:
    """The shipped capture of one database, into a log in memory."""

    def __init__(self, conn: psycopg.Connection[Any], config: Config, directory: Path) -> None:
        self.conn, self.directory = conn, directory
        self._config = config.model_copy(update={"root": directory})
        self.store = MemoryLog(self._config.capture_rules, _decoded, partitions=2)

    @property
    def config(self) -> Config:
        return self._config

    @config.setter
    def config(self, config: Config) -> None:
        self._config = config.model_copy(update={"root": self.directory})
        self.store.rules = config.capture_rules

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.store.events

    @events.setter
    def events(self, events: list[dict[str, Any]]) -> None:
        self.store.events = events

    # -- init, drain, repair

    @classmethod
    @contextmanager
    def started(cls, config: Config, directory: Path) -> Iterator[Log]:
        """Install capture, create the slot, copy every published table."""
        with connection.connect(config.source) as conn:
            mine = claim.Claim(config.source.slot, str(directory), config.source.slot, claim.database_of(conn))
            install.install(conn, config.capture_rules, mine, ddl=config.ddl, lock_seconds=config.snapshot.lock_seconds)
            ticks = drain_mode.by_ticks(conn, config.capture_rules)
            log = cls(conn, config, directory)
            change_log.settle(conn, config.capture_rules, lock_seconds=config.snapshot.lock_seconds)
            change_log.begin(conn, config.capture_rules, lock_seconds=config.snapshot.lock_seconds)
            first = (
                tick.tick_cut(config.source)
                if ticks
                else slot.create_slot(config.source, config.source.slot, cut_seconds=config.check.cut_seconds)
            )
            with first as cut:
                log.begin(cut.lsn, cut.tick)
                if left_out := log.copy(cut).left_out:
                    raise CdcError("; ".join(left_out.values()))
            try:
                yield log
            finally:
                log.conn.close()  # it may be another one

    def begin(self, at: Lsn, tick: str | None = None) -> None:
        """Commit the first ledger row."""
        identity = catalog.read_identity(self.conn, self.config.capture_rules)
        initialise.start(self.store, self.config.source, self.conn, identity, 1, 1, at, tick=tick)

    def drain(self, *, upto: Lsn | None = None, cut: slot.Cut | None = None, batch_changes: int = 10**9) -> Lsn:
        """Drain as `cdc drain` does, and give the LSN that the log is complete to."""
        # A peek holds a few batches, so that a drain of small ones takes several peeks, and reads the next one ahead.
        most = min(4 * batch_changes, self.config.drain.max_changes)
        sizes = self.config.drain.model_copy(update={"batch_changes": batch_changes, "max_changes": most})
        config = self.config.model_copy(update={"drain": sizes})
        if upto is None and cut is None:
            # As on a server in use, there is WAL after the last drain; without it a drain has nothing to compare.
            self.conn.execute("select pg_catalog.pg_current_xact_id()")
        return commands.drain(config, upto, cut=cut, log=self.store).committed_lsn

    def repair(self, *tables: str) -> Lsn:
        """As `cdc repair`: copy the tables at a new cut."""
        with tick.exact_cut(self.config.capture_rules, cut_seconds=self.config.check.cut_seconds) as cut:
            self.drain(cut=cut)
            copied = self.copy(cut, tables)
        assert not copied.left_out, copied.left_out
        return cut.lsn

    def copy(
        self, cut: slot.Cut, tables: Sequence[str] | None = None, scope: repair_scope.Scope = repair_scope.WHOLE
    ) -> copy.SnapshotResult:
        """Copy tables as the cut shows them."""
        return commands.copy_tables(self.config, cut, tables, scope=scope, log=self.store)

    def reconnect(self) -> None:
        """Open the session again, after the server crashed."""
        self.conn.close()
        self.conn = connection.connect(self.config.source)

    def prove(self, relid: int, at: Lsn) -> None:
        """What a check puts into the log that has found every row right, of a table of which a part was copied."""
        payload = Baseline(at, scope=Covers.CHECK).to_json()
        schema_id = self.versions[relid].schema_id
        self.commit(
            Event(
                batch_id=self.newest.batch_id + 1, generation=1, **order.made_at(at)._asdict(), ordinal=order.BASELINE,
                origin="check", kind="baseline", relid=relid, schema_id=schema_id, payload=payload,
            )
        )  # fmt: skip

    def commit(self, *events: Event, **changes: Any) -> None:
        """Commit a batch at the same position, with a ledger row that differs in `changes`."""
        self.store.commit(self.newest.next(events, **changes), events, base=self.reading().snapshot_id())

    # -- reading

    def of(self, kind: str, relid: int | None = None) -> list[dict[str, Any]]:
        """Events of a kind, in the order of effects; their payload as an object."""
        found = [e for e in self.events if e["kind"] == kind and relid in (None, e["relid"])]
        found.sort(key=lambda e: (e["commit_lsn"], e["ordinal"]))
        return [e | {"payload": _object(e["payload"])} if e["payload"] else e for e in found]

    def reading(self) -> MemoryReading:
        """The log as it is now."""
        return self.store.reading()

    @property
    def newest(self) -> BatchRecord:
        """The newest ledger row."""
        last = self.reading().last()
        assert last is not None
        return last

    @property
    def complete_to(self) -> Lsn:
        return self.newest.complete_to

    @property
    def compared_to(self) -> Lsn:
        assert self.newest.compared_to is not None
        return self.newest.compared_to

    @property
    def identity(self) -> SourceIdentity:
        return self.newest.identity

    @property
    def changes(self) -> int:
        return sum(batch.changes for batch in self.reading().batches())

    @property
    def versions(self) -> dict[int, SchemaVersion]:
        return self.reading().latest_versions()

    def states(self) -> dict[str, states.TableState]:
        """Table states by name."""
        return {s.table: s for s in states.table_states(self.reading())}

    def unverified(self, relid: int, at: Lsn) -> str | None:
        """Why the rows of a table are not known at an LSN, as the shipped rule says; SELECT proves the others."""
        verdict = states.verdicts(self.reading(), at).get(relid)
        if verdict is None or verdict.known is None:
            return "no baseline"
        return "; ".join(gap.payload.reason for gap in verdict.unknown) or None

    def _before(self, kind: str, relid: int, at: Lsn) -> list[dict[str, Any]]:
        return [e for e in self.of(kind, relid) if e["commit_lsn"] < at]

    def version(self, relid: int, at: Lsn) -> TableVersion | None:
        """The version valid at an LSN; None if there is none, or the table is gone or not published."""
        found = self._before("schema", relid, at)
        if not found:
            return None
        last = TableVersion.from_json(found[-1]["payload"])
        return None if last.dropped or not last.published else last

    def rows(self, relid: int, at: Lsn, *, by_key: bool = False) -> Shown:
        """The table as of an LSN, by the log alone.

        With `by_key`, a change of a row that is not there is none, as in the lake, where the last image of a key
        counts: triggers that fire before those of the change log have it logged out of order.
        """
        return _Fold(self, relid, at, by_key=by_key).shown()

    def select(self, relid: int) -> Shown:
        """What SELECT shows now of the published columns and rows."""
        table = self.version(relid, Lsn(self.complete_to))
        assert table is not None
        return shown(self.conn, table)


def shown(conn: psycopg.Connection[Any], table: TableVersion) -> Shown:
    """What SELECT shows now of the published columns and rows."""
    columns = [c for c in table.columns if c.published]
    cells = ", ".join(quote_postgres(c.name) for c in columns)
    condition = f" where {table.row_filter}" if table.row_filter else ""
    only = "" if table.kind == "p" else "only "
    statement = f"select {cells} from {only}{quote_postgres(table.schema)}.{quote_postgres(table.name)}{condition}"
    result = conn.pgconn.exec_(statement.encode())  # text format: what the output functions print
    assert not result.error_message, result.error_message
    rows: Counter[Image] = Counter()
    for row in range(result.ntuples):
        values = [result.get_value(row, column) for column in range(result.nfields)]
        rows[tuple(None if v is None else v.decode() for v in values)] += 1
    return tuple(c.attnum for c in columns), rows


class _Fold:
    """One table of a log up to an LSN."""

    def __init__(self, log: Log, relid: int, at: Lsn, *, by_key: bool = False) -> None:
        self.by_key = by_key
        mine = [e for e in log.events if e["relid"] == relid and e["commit_lsn"] < at]
        self.versions = {e["schema_id"]: _table(e["payload"]) for e in mine if e["kind"] == "schema"}
        table = log.version(relid, at)
        assert table is not None
        self.table = table
        copied = (e for e in mine if e["kind"] == "baseline" and _object(e["payload"])["scope"] == "all")
        baseline = max(copied, key=lambda e: (e["commit_lsn"], e["ordinal"]))
        low = (baseline["commit_lsn"], baseline["ordinal"])
        self.since = [
            _table(e["payload"])
            for e in sorted((e for e in mine if e["kind"] == "schema"), key=lambda e: (e["commit_lsn"], e["ordinal"]))
            if e["schema_id"] >= baseline["schema_id"]
        ]
        self.live: list[dict[int, str | None]] = []
        for event in mine:
            if event["op"] == "R" and (event["commit_lsn"], event["batch_id"]) == (
                baseline["commit_lsn"],
                baseline["batch_id"],
            ):
                self.live.append(self._image(event, event["new"]))
        for event in sorted(mine, key=lambda e: (e["commit_lsn"], e["ordinal"])):
            if (
                event["kind"] in ("row", "truncate")
                and event["op"] != "R"
                and (event["commit_lsn"], event["ordinal"]) > low
            ):
                self._apply(event)

    def _image(self, event: dict[str, Any], cells: list[str | None]) -> dict[int, str | None]:
        version = self.versions[event["schema_id"]]
        assert len(cells) == version.width
        return {c.attnum: cells[c.attnum - 1] for c in version.columns if c.published}

    def _filled(self, row: dict[int, str | None], version: TableVersion) -> dict[int, str | None]:
        """A stored row as `version` shows it: columns added since have their missing value."""
        return {
            c.attnum: row.get(c.attnum, c.missing if c.has_missing else None) for c in version.columns if c.published
        }

    def _apply(self, event: dict[str, Any]) -> None:
        if event["op"] == "T":
            self.live.clear()
            return
        assert event["schema_id"] is not None, "a row that no schema version fits: nothing is known of it"
        version = self.versions[event["schema_id"]]
        if event["op"] == "I":
            if event["origin"] == "change_log" and version.keyed:  # one more of a key is the same row
                key = {a: event["new"][a - 1] for a in version.key_attnums}
                self.live = [
                    row for row in self.live if any(self._filled(row, version)[a] != v for a, v in key.items())
                ]
            self.live.append(self._image(event, event["new"]))
            return
        unchanged = event["unchanged"] or []
        if event["old"] is not None and not version.keyed:
            old = self._image(event, event["old"])
            matches = [row for row in self.live if self._filled(row, version) == old]
        else:
            key = {
                a: event["old"][a - 1] if event["old"] is not None else event["new"][a - 1] for a in version.key_attnums
            }
            matches = [row for row in self.live if all(self._filled(row, version)[a] == v for a, v in key.items())]
            if not matches and event["origin"] == "change_log" and self.by_key:
                if event["op"] == "U":
                    self._apply(event | {"op": "I"})
                return
            if not matches and event["origin"] == "snapshot":  # a part of a row that the log had lost
                self.live.append(self._image(event, event["new"]))
                return
            assert len(matches) == 1, f"{event['op']} of key {key} of {version.identifier}: {len(matches)} rows"
        assert matches, f"{event['op']} of {version.identifier}: no row {event['old']}"
        before = matches[0]
        self.live = [row for row in self.live if row is not before]
        if event["op"] == "U":
            after = self._image(event, event["new"])
            filled = self._filled(before, version)
            self.live.append(after | {a: filled[a] for a in unchanged})

    def shown(self) -> Shown:
        columns = [c for c in self.table.columns if c.published]
        relabel: dict[int, dict[str, str]] = {}
        for column in columns:
            now = dict(column.labels)
            for version in self.since:
                for other in version.columns:
                    if other.attnum == column.attnum and other.type_oid == column.type_oid:
                        labels = relabel.setdefault(column.attnum, {})
                        labels |= {label: now[oid] for oid, label in other.labels if oid in now}
        rows: Counter[Image] = Counter()
        for row in self.live:
            filled = self._filled(row, self.table)
            rows[tuple(_named(c, filled[c.attnum], relabel.get(c.attnum, {})) for c in columns)] += 1
        return tuple(c.attnum for c in columns), rows


def _named(column: Column, cell: str | None, names: dict[str, str]) -> str | None:
    """Show a cell by the present labels; inside arrays and ranges they are words of its text."""
    if cell is None or not column.nested:
        return cell if cell is None else names.get(cell, cell)
    return re.sub(r"[^{}()\[\],\"]+", lambda word: names.get(word[0], word[0]), cell)


__all__ = ["Log", "Shown", "shown"]

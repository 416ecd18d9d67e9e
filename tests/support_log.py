"""The toolkit's log kept in memory: real servers, real peek, plan, decode and catalog comparison; no lake, no JVM.

`Log.rows` folds the log in plain Python, slowly and strictly: a change that names a row which is not there is an error.
What it says is held against SELECT, so that a trap's truth is seen without Spark on every server.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from toolkit.capture import copy, drift, tick_drain
from toolkit.decode import planner
from toolkit.decode.rows import decode_rows
from toolkit.rawlog import order, states
from toolkit.rawlog.arrow import EVENT_SCHEMA, Event
from toolkit.rawlog.batch import BatchRecord
from toolkit.source import catalog, change_log, connection, guard, install, peek, slot
from toolkit.source import ticks as tick
from toolkit.values.config import Config
from toolkit.values.errors import CdcError
from toolkit.values.lsn import Lsn
from toolkit.values.names import quote_postgres
from toolkit.values.table import SchemaVersion, TableVersion

Image = tuple[str | None, ...]
#: What SELECT shows of a table: the attnums of its columns, and its rows as text.
Shown = tuple[tuple[int, ...], Counter[Image]]


@lru_cache(maxsize=10_000)
def _object(text: str) -> Any:
    return json.loads(text)


@lru_cache(maxsize=10_000)
def _table(text: str) -> TableVersion:
    return TableVersion.from_json(json.loads(text))


@dataclass(frozen=True)
class Noted:
    """A gap or baseline as `toolkit.rawlog.states` reads it from the ledger."""

    relid: int | None
    kind: str
    commit_lsn: Lsn
    ordinal: int
    end_lsn: Lsn
    payload: dict[str, Any]
    generation: int = 1

    @property
    def scope(self) -> str:
        return str(self.payload["scope"])


class Log:
    """Capture of one database into a list of events. Also stands for the ledger that `table_states` asks."""

    def __init__(self, conn: psycopg.Connection[Any], config: Config, directory: Path) -> None:
        self.conn, self.directory = conn, directory
        self.config = config.model_copy(update={"root": directory})
        self.events: list[dict[str, Any]] = []
        self.versions: dict[int, SchemaVersion] = {}
        self.next_schema_id = 1
        self.batch_id = 1
        self.complete_to = self.compared_to = Lsn(0)
        self.capture: str | None = None
        self.tick: str | None = None
        self.key = catalog.hmac_key(conn)
        self.identity = catalog.read_identity(conn, config)
        self.beacons: list[str] = []
        self.changes = 0

    # -- init, drain, repair

    @classmethod
    @contextmanager
    def started(cls, config: Config, directory: Path) -> Iterator[Log]:
        """Install capture, create the slot, copy every published table."""
        with connection.connect(config) as conn:
            install.install(conn, config)
            ticks = change_log.by_ticks(conn, config)
            log = (TickLog if ticks else cls)(conn, config, directory)
            change_log.settle(conn, config)
            change_log.begin(conn, config)
            first = tick.tick_cut(config) if ticks else slot.create_slot(config, config.source.slot, temporary=False)
            with first as cut:
                log.complete_to = log.compared_to = cut.lsn
                log.tick = cut.tick
                log.capture = guard.capture_state(conn).state
                if left_out := log.copy(cut).left_out:
                    raise CdcError("; ".join(left_out.values()))
            yield log

    def drain(self, *, upto: Lsn | None = None, cut: slot.Cut | None = None, batch_changes: int = 10**9) -> Lsn:
        """As `toolkit.capture.slot_drain`: returns the LSN that the log is complete to."""
        seen = None
        if cut is not None:
            seen, upto = drift.observe_at(self.config, cut, self._live()), cut.lsn
        elif upto is None:
            seen = drift.observe(self.conn, self.config, self._live())
        target = upto or slot.flush_lsn(self.conn)
        if upto is not None and target <= self.complete_to:
            return self.complete_to
        spool = peek.peek(self.conn, self.config, upto=target, max_changes=None, directory=self.directory)
        last = self.last()
        context = planner.PlanContext(
            generation=1, batch_id=self.batch_id, next_schema_id=self.next_schema_id, versions=self.versions,
            key=self.key, system_id=self.identity.system_id, batch_changes=batch_changes, now=datetime.now(UTC),
            publications=frozenset(self.config.source.publications),
            known_good=lambda relid: drift.known_good(self, last, relid),  # type: ignore[arg-type]
        )  # fmt: skip
        ddl_xids: dict[int, int] = {}
        for batch in planner.plan(spool, context=context).batches:
            self._add(batch.events)
            for task in batch.tasks(2):
                for part in decode_rows(task.path, task):
                    part.validate(full=True)
                    self.events += part.to_pylist()
            for event in batch.events:
                if event.kind == "schema" and event.relid is not None and event.xid is not None:
                    ddl_xids[event.relid] = event.xid
            self.versions, self.next_schema_id = dict(batch.versions), batch.next_schema_id
            self.batch_id = batch.batch_id + 1
            self.complete_to = Lsn(batch.complete_to)
            self.beacons += batch.beacons
            self.changes += batch.changes
        spool.path.unlink()
        slot.advance(self.conn, self.config.source.slot, self.complete_to)
        self._compare(last, seen, ddl_xids)
        if self.config.uses_change_log and seen is not None:
            if seen.log_is_read:
                change_log.purge(self.conn, seen.snapshot)
            change_log.recheck(self.conn, self.config)
        return self.complete_to

    def _compare(self, last: BatchRecord, seen: drift.Observation | None, ddl_xids: dict[int, int]) -> None:
        if seen is None:
            return
        found = drift.against(
            self, last, seen, versions=self.versions, ddl_xids=ddl_xids, batch_id=self.batch_id,  # type: ignore[arg-type]
            next_schema_id=self.next_schema_id, at=self.complete_to,
        )  # fmt: skip
        self._add(found)
        self._learn(found)
        self.compared_to, self.capture = seen.lsn, seen.capture.state

    def last(self) -> BatchRecord:
        """As the ledger's newest row."""
        return BatchRecord(
            self.batch_id, 1, self.complete_to, self.complete_to, self.complete_to, "slot", "", self.identity, 0,
            compared_to=self.compared_to, capture=self.capture, tick=self.tick,
        )  # fmt: skip

    def repair(self, *tables: str) -> Lsn:
        """As `cdc repair`: copy the tables at a new cut."""
        with tick.exact_cut(self.config) as cut:
            self.drain(cut=cut)
            copied = self.copy(cut, tables)
        assert not copied.left_out, copied.left_out
        return cut.lsn

    def copy(
        self, cut: slot.Cut, tables: Sequence[str] | None = None, scope: copy.Scope = copy.WHOLE
    ) -> copy.SnapshotResult:
        """The toolkit's own copying, with this log for its ledger."""
        with patch.object(copy, "require_ledger", lambda config: self):
            return copy.copy_tables(self.config, cut, tables, scope=scope)

    def file_ids(self) -> dict[str, int]:
        """As the ledger's: any numbers."""
        names = [name for field in EVENT_SCHEMA for name in (field.name, f"{field.name}.element")]
        return {name: number for number, name in enumerate(names, 1)}

    def append(self, record: BatchRecord, events: Sequence[Event], files: Sequence[Path]) -> int:
        """As the ledger's."""
        self._add(events)
        self._learn(events)
        for file in files:
            self.events += pq.read_table(file).to_pylist()
        self.batch_id = record.batch_id + 1
        return self.batch_id

    def prove(self, relid: int, at: Lsn) -> None:
        """What a check puts into the log that has found every row right, of a table of which a part was copied."""
        payload = json.dumps({"scope": "check", "lsn": str(at)})
        self._add(
            [
                Event(
                    batch_id=self.batch_id, generation=1, **order.made_at(at)._asdict(), ordinal=order.BASELINE,
                    origin="check", kind="baseline", relid=relid,
                    schema_id=self.versions[relid].schema_id, payload=payload,
                )
            ]
        )  # fmt: skip
        self.batch_id += 1

    def _live(self) -> list[int]:
        return [relid for relid, version in self.versions.items() if not version.table.dropped]

    def _add(self, events: Sequence[Event]) -> None:
        self.events += [{name: getattr(e, name) for name in e.__slots__} for e in events]

    def _learn(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind == "schema":
                assert event.relid is not None and event.schema_id is not None and event.payload is not None
                self.versions[event.relid] = SchemaVersion(
                    event.schema_id, 1, Lsn(event.commit_lsn), Lsn(event.end_lsn), event.ordinal,
                    TableVersion.from_json(json.loads(event.payload)), event.payload, event.xid,
                )  # fmt: skip
                self.next_schema_id = max(self.next_schema_id, event.schema_id + 1)

    # -- reading

    def of(self, kind: str, relid: int | None = None) -> list[dict[str, Any]]:
        """Events of a kind, in the order of effects; their payload as an object."""
        found = [e for e in self.events if e["kind"] == kind and relid in (None, e["relid"])]
        found.sort(key=lambda e: (e["commit_lsn"], e["ordinal"]))
        return [e | {"payload": _object(e["payload"])} if e["payload"] else e for e in found]

    def _noted(self, kind: str) -> list[Noted]:
        return [
            Noted(e["relid"], kind, Lsn(e["commit_lsn"]), e["ordinal"], Lsn(e["end_lsn"]), e["payload"])
            for e in self.of(kind)
        ]

    def baselines(self) -> list[Noted]:
        return self._noted("baseline")

    def gaps(self) -> list[Noted]:
        return self._noted("gap")

    def ddl_events(self) -> list[Noted]:
        return self._noted("ddl")

    def latest_versions(self, at: Lsn | None = None) -> dict[int, SchemaVersion]:
        if at is None:
            return dict(self.versions)
        return {v.table.relid: v for v in self.schema_versions() if v.commit_lsn < at}

    def schema_versions(self) -> list[SchemaVersion]:
        return [
            SchemaVersion(
                e["schema_id"], 1, Lsn(e["commit_lsn"]), Lsn(e["end_lsn"]), e["ordinal"],
                TableVersion.from_json(e["payload"]), json.dumps(e["payload"]),
            )
            for e in self.of("schema")
        ]  # fmt: skip

    def states(self) -> dict[str, states.TableState]:
        """Table states by name."""
        return {s.table: s for s in states.table_states(self)}  # type: ignore[arg-type]

    def doubtful(self, relid: int, at: Lsn) -> str | None:
        """Why a table cannot be known at an LSN: a gap that no baseline had healed, or no baseline at all."""
        whole = (e for e in self._before("baseline", relid, at) if e["payload"]["scope"] in states.WHOLE)
        baseline = max(((e["commit_lsn"], e["ordinal"]) for e in whole), default=None)
        if baseline is None:
            return "no baseline"
        gaps = [e for e in self._before("gap", relid, at) if (e["commit_lsn"], e["ordinal"]) > baseline]
        return "; ".join(e["payload"]["reason"] for e in gaps) or None

    def _before(self, kind: str, relid: int, at: Lsn) -> list[dict[str, Any]]:
        return [e for e in self.of(kind, relid) if e["commit_lsn"] < at]

    def version(self, relid: int, at: Lsn) -> TableVersion | None:
        """The version valid at an LSN; None if there is none, or the table is gone or not published."""
        found = self._before("schema", relid, at)
        if not found:
            return None
        last = TableVersion.from_json(found[-1]["payload"])
        return None if last.dropped or not last.published else last

    def rows(self, relid: int, at: Lsn) -> Shown:
        """The table as of an LSN, by the log alone."""
        return _Fold(self, relid, at).shown()

    def select(self, relid: int) -> Shown:
        """What SELECT shows now of the published columns and rows."""
        table = self.version(relid, Lsn(self.complete_to))
        assert table is not None
        return shown(self.conn, table)


class TickLog(Log):
    """The log of a source whose change log is drained by ticks."""

    def drain(self, *, upto: Lsn | None = None, cut: slot.Cut | None = None, batch_changes: int = 10**9) -> Lsn:
        """As `toolkit.capture.tick_drain`: a tick is one batch."""
        last = self.last()
        since, seen = tick_drain.last_tick(self.config, self.conn, last), None
        if cut is not None:
            upto = cut.lsn
        if upto is not None and upto <= self.complete_to:
            return self.complete_to
        if upto is None:
            seen = drift.observe(self.conn, self.config, self._live())
            if seen is None:
                raise CdcError("draining a tick: DDL that has not committed locks a table")
            target = tick.record(self.conn, seen.snapshot)
        else:
            known = tick.known(self.conn, upto)
            assert known is not None
            target = known
            if cut is not None:
                seen = drift.observe_at(self.config, cut, self._live())
        run = tick_drain._Run(self.config, self.conn, self, last, since, target, self.directory)  # type: ignore[arg-type]
        ddl = run.ddl()
        spooled = run.rows(ddl)
        self._add([*ddl.events, *run.overtaken()])
        for file in spooled.files:
            with pa.ipc.open_stream(str(file)) as rows:
                self.events += rows.read_all().to_pylist()
            file.unlink()
        self.versions, self.next_schema_id = dict(ddl.versions), ddl.next_schema_id
        self.complete_to, self.tick, self.batch_id = target.lsn, target.snapshot, self.batch_id + 1
        self.changes += spooled.counts["row"] + spooled.counts["truncate"]
        self._compare(last, seen, {})
        change_log.purge(self.conn, target.snapshot)
        tick.forget_before(self.conn, target.lsn)
        change_log.recheck(self.conn, self.config)
        return self.complete_to


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

    def __init__(self, log: Log, relid: int, at: Lsn) -> None:
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
            now = dict(column.enum_labels)
            for version in self.since:
                for other in version.columns:
                    if other.attnum == column.attnum and other.type_oid == column.type_oid:
                        labels = relabel.setdefault(column.attnum, {})
                        labels |= {label: now[oid] for oid, label in other.enum_labels if oid in now}
        rows: Counter[Image] = Counter()
        for row in self.live:
            filled = self._filled(row, self.table)
            cells = [(filled[c.attnum], relabel.get(c.attnum, {})) for c in columns]
            rows[tuple(names.get(cell, cell) if cell is not None else None for cell, names in cells)] += 1
        return tuple(c.attnum for c in columns), rows


__all__ = ["Log", "Noted", "Shown", "shown"]

"""Compare the source's catalog with the captured DDL events.

There is no race: the catalog is read in one snapshot before `upto` is read, and tables whose newest DDL is not visible
in that snapshot are left to a later drain. A drain to an exact cut compares the snapshot of the cut; a drain to any
other earlier LSN compares nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from toolkit.decode import ddl
from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Gap, Kind
from toolkit.rawlog.states import table_states
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn
from toolkit.values.names import command
from toolkit.values.table import SchemaVersion, TableVersion
from toolkit.values.visibility import Visibility

if TYPE_CHECKING:
    from toolkit.rawlog.batch import BatchRecord
    from toolkit.rawlog.store import LogReader
    from toolkit.source.connection import Connection
    from toolkit.source.guard import CaptureState
    from toolkit.source.slot import Cut
    from toolkit.values.capture_rules import CaptureRules
    from toolkit.values.source_access import SourceAccess

_log = logger(__name__)
#: Keys of a snapshot that `ddl.changes_without_event` compares.
_APART = (*ddl.EXPLAINED, "stamps", "storage")
_LOCK_SECONDS = 2  # longest wait for DDL that has not committed


@dataclass(frozen=True, slots=True)
class Observation:
    """The catalog in one snapshot: `tables` are snapshot JSON texts of all published and all known tables by relid."""

    tables: Mapping[int, str]
    asked: frozenset[int]  # tables that were looked up, published or not
    snapshot: str  # text of a pg_snapshot: xmin:xmax:xip_list (`slot.shown`)
    lsn: Lsn  # WAL end before the snapshot: what it does not show yet ends after that
    upto: Lsn  # WAL end after the snapshot: all that it shows ends before that
    capture: CaptureState
    truncated: Mapping[int, str]  # roots with a partition that may have been truncated without an event
    log_is_read: bool = True  # all visible rows of the change log are sent, or drained by ticks

    def sees(self, xid: int) -> bool:
        """Return whether a transaction had ended for this snapshot."""
        return Visibility.parse(self.snapshot).sees(xid)


def observe(conn: Connection, rules: CaptureRules, known: Collection[int]) -> Observation | None:
    """Read the catalog of all published tables, and of those `known` to the log, in one REPEATABLE READ snapshot.

    The result is None while DDL that has not committed locks a table: the server opens the table to print a default,
    and the end of that DDL is unknown. The next drain compares instead. This waits until the WAL of everything that the
    snapshot shows is flushed. Partitions that were added since the last drain get their truncate trigger first.
    """
    from toolkit.source import guard, locks, slot

    if guard.of_another_version(conn):
        _log.warning("capture was installed by another version of the toolkit; run `cdc init`")
    fresh = guard.guard(conn)
    lsn = slot.flush_lsn(conn)
    try:
        with locks.brief_reading(conn, seconds=_LOCK_SECONDS):
            seen = _read(conn, rules, known, lsn, fresh)
    except locks.LockTimeout:
        _log.warning("the catalog is not compared", extra={"reason": "DDL that has not committed locks a table"})
        return None
    return replace(seen, upto=slot.wait_flush(conn))


def observe_at(source: SourceAccess, cut: Cut, known: Collection[int]) -> Observation:
    """Read the catalog as `observe` does, in the snapshot of an exact cut: it shows what ends at the cut or before.

    Raises:
        LockTimeout: DDL that has not committed locks a table; the message names the session.
        SourceUnavailable: the cut is gone.
    """
    from toolkit.source import locks, snapshot_rows

    what, seconds = f"reading the catalog at {cut.lsn}", source.snapshot.lock_seconds
    with snapshot_rows.reader(source.config, cut) as conn, locks.waiting(conn, what, seconds=seconds):
        return _read(conn, source.rules, known, cut.lsn)


def _read(
    conn: Connection, rules: CaptureRules, known: Collection[int], lsn: Lsn, fresh: Collection[int] = ()
) -> Observation:
    """Read the catalog in the snapshot of `conn`, which shows nothing that ends after `lsn`.

    `fresh` are the partitions that got their trigger just before.
    """
    from toolkit.source import catalog, change_log, guard, selection, slot
    from toolkit.values.names import qualified

    shown = slot.shown(conn)
    moved = [p for p in guard.unguarded(conn, fresh) if p.moved]
    tables = catalog.snapshot_json(conn)
    also = {*known, *selection.versions_only(conn, rules)}
    tables |= catalog.snapshots_of(conn, [relid for relid in also if relid not in tables])
    asked = frozenset(known) | tables.keys()
    truncated = {root: qualified(p.schema, p.name) for p in moved for root in p.roots}
    capture, log_is_read = guard.capture_state(conn), change_log.is_read(conn)
    return Observation(tables, asked, shown, lsn, lsn, capture, truncated, log_is_read)


@dataclass(frozen=True, slots=True)
class Known:
    """The state of the log when the catalog is compared with it, complete to `at`."""

    versions: Mapping[int, SchemaVersion]
    batch_id: int  # of the batch that is being written
    generation: int
    next_schema_id: int
    at: Lsn
    since: Lsn  # LSN of the last catalog comparison
    capture: str | None  # state of the event triggers at `since`
    baselines: Mapping[int, Lsn]  # end LSN of each table's latest baseline
    stale: frozenset[int]  # tables that are stale already


def known_good(ledger: LogReader, last: BatchRecord, relid: int) -> Lsn:
    """Return the LSN of the last catalog comparison or copy of the table: at that LSN the log was right."""
    compared = last.compared_to or last.complete_to
    return max(compared, _copied_to(ledger, last).get(relid, compared))


def _copied_to(ledger: LogReader, last: BatchRecord) -> dict[int, Lsn]:
    """Return the end LSN of each table's latest baseline. LSNs of an earlier generation do not compare."""
    baselines = (e for e in ledger.current().baselines() if e.generation == last.generation)
    return {e.relid: e.end_lsn for e in baselines if e.relid is not None}


def against(
    ledger: LogReader,
    last: BatchRecord,
    seen: Observation,
    *,
    versions: Mapping[int, SchemaVersion],
    batch_id: int,
    next_schema_id: int,
    at: Lsn,
) -> list[Event]:
    """Return events for what the catalog shows beyond the DDL events, for the batch that completes a drain to `at`.

    Args:
        ledger: the ledger before the batch.
        last: its newest row.
        versions: the versions after the batch; further schema ids start at `next_schema_id`.
    """
    known = Known(
        versions=versions,
        batch_id=batch_id,
        generation=last.generation,
        next_schema_id=next_schema_id,
        at=at,
        since=last.compared_to or last.complete_to,
        capture=last.capture,
        baselines={},
        stale=frozenset(),
    )
    if not unexplained(seen, known):
        return []  # baselines and gaps are read only if they matter
    baselines = _copied_to(ledger, last)
    stale = frozenset(s.relid for s in table_states(ledger) if not s.comparable)
    return unexplained(seen, replace(known, baselines=baselines, stale=stale))


def unexplained(seen: Observation, known: Known) -> list[Event]:
    """Return events for every difference that no DDL event explains: a gap, and the schema version that was found.

    Versions are at `known.at`. It is not known when the change happened, only that it was after the last comparison, or
    after the table was last read. The table is unverified from that LSN, and the gap is at that LSN.
    """
    return _Comparison(seen, known).events()


class _Comparison:
    def __init__(self, seen: Observation, known: Known) -> None:
        self.seen, self.known = seen, known
        self.made: list[Event] = []
        self.next_schema_id = known.next_schema_id
        there = seen.capture.standing or seen.capture.absent  # the role may create none: only the comparison finds DDL
        self.standing = there and seen.capture.intact and not seen.capture.paused

    def events(self) -> list[Event]:
        seen, known = self.seen, self.known
        for root, partition in sorted(seen.truncated.items()):
            if root in seen.tables and self._table(root).published:
                self._gap(
                    root, f"partition {partition} may have been truncated before its trigger stood", seen.tables[root]
                )
        xids = ((relid, version.xid) for relid, version in known.versions.items())
        hidden = {relid for relid, xid in xids if xid is not None and not seen.sees(xid)}
        for relid, text in sorted(seen.tables.items()):
            if relid in hidden:
                continue
            version = known.versions.get(relid)
            if version is None or version.table.dropped:
                unexplained = "the table is published and no DDL event introduced it"
                self._differs(relid, unexplained if self._table(relid).published else None, text)
                continue
            was, now = json.loads(version.payload), json.loads(text)
            differ = _differences(was, now)
            # The log has a rule of its own. Earlier versions did not list triggers.
            ruled = ddl.OF_THE_LOG.keys() | (set() if "triggers" in was and "triggers" in now else {"triggers"})
            changed = [key for key in differ if key not in ruled]
            if changed:
                reason = f"the catalog differs from the captured DDL in {', '.join(changed)}: it was changed without"
                reason += " a captured event"
                self._differs(relid, reason, text)
            elif unexplained := "; ".join(ddl.changes_without_event(was, now)):
                self._differs(relid, unexplained, text)
            elif differ or _moved(was, now):
                self._differs(relid, None, text)
        for relid, version in sorted(known.versions.items()):
            last = version.table
            if relid in seen.tables or relid in hidden or last.dropped:
                continue
            if relid not in seen.asked and not last.published:
                continue  # it was added in this drain
            gone = json.dumps(json.loads(version.payload) | {"dropped": True})
            self._differs(relid, "the table left the catalog without a DDL event", gone)
        self._capture()
        return self.made

    def _capture(self) -> None:
        """Add gaps for the time in which an event trigger was off: some DDL leaves no trace in the catalog."""
        seen, known = self.seen, self.known
        altered = known.capture is not None and known.capture != seen.capture.state
        if self.standing and not altered:
            return
        reason = "DDL capture was altered" if altered else "DDL capture is off"
        reason = "DDL capture is paused" if seen.capture.paused else reason
        done = {event.relid for event in self.made if event.kind == Kind.GAP}
        for relid, text in sorted(seen.tables.items()):
            if relid not in done and (altered or relid not in known.stale) and self._table(relid).published:
                self._gap(relid, reason, text)

    def _table(self, relid: int) -> TableVersion:
        return TableVersion.from_json(json.loads(self.seen.tables[relid]))

    def _differs(self, relid: int, reason: str | None, found: str) -> None:
        ordinal, last = order.found_version(len(self.made)), self.known.versions.get(relid)
        if last is not None and not last.table.dropped:
            found = json.dumps(ddl.carry(json.loads(last.payload), json.loads(found)), sort_keys=True)
        self._event(relid, Kind.SCHEMA, found, self.known.at, ordinal, schema_id=self.next_schema_id)
        self.next_schema_id += 1
        if reason is not None:
            self._gap(relid, reason, found)

    def _gap(self, relid: int, reason: str, table: str) -> None:
        since = max(self.known.since, self.known.baselines.get(relid, self.known.since))
        name = TableVersion.from_json(json.loads(table)).identifier
        # No repair lasts until capture works again.
        first = "cdc init" if not self.standing and not self.seen.capture.paused else None
        gap = Gap(reason, command("repair", name), self.known.at, first)
        self._event(relid, Kind.GAP, gap.to_json(), since, order.found_gap(len(self.made)))

    def _event(self, relid: int, kind: Kind, payload: str, at: Lsn, ordinal: int, **more: Any) -> None:
        base: dict[str, Any] = {"batch_id": self.known.batch_id, "generation": self.known.generation}
        base |= order.made_at(at)._asdict()
        self.made.append(Event(**base, ordinal=ordinal, kind=kind, relid=relid, payload=payload, **more))


def _moved(was: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether the log needs the new state of what differs, although nothing is unexplained."""
    if any(was.get(key) != now.get(key) for key in ddl.EXPLAINED):
        return True
    return ddl.toast_tables(was) != ddl.toast_tables(now)


def _differences(was: dict[str, object], now: dict[str, object]) -> list[str]:
    """Return the names of the properties that differ, except those that only the log remembers."""
    names = []
    for key in sorted(was.keys() | now.keys()):
        a, b = was.get(key), now.get(key)
        if key == "columns":
            a, b = _plain_columns(a), _plain_columns(b)
        if key not in ("dropped", *_APART) and a != b:
            names.append(key)
    return names


def _plain_columns(columns: object) -> object:
    if not isinstance(columns, list):
        return columns
    return [ddl.plain_column(column) for column in columns]

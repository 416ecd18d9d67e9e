"""Drain the slot, or ticks if there is no slot, into the raw log."""

from __future__ import annotations

import time
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING, Any

from toolkit.capture.drain_loop import DrainResult, LogEnd, ReadBatch, run
from toolkit.capture.same_history import (
    ADVICE,
    followed,
    prove,
    require_continued,
    require_same_history,
    without_beacon,
)
from toolkit.decode.ddl_message import BEACON_PREFIX
from toolkit.rawlog.event import Kind, Origin, StreamMessage, read_message
from toolkit.values.errors import CdcError, ConfigError, HistoryDiverged, LakeError, ServerFull, SlotError
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn
from toolkit.values.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import psycopg

    from toolkit.capture.drift import Observation
    from toolkit.decode.planned import Plan, PlannedBatch
    from toolkit.lake.opened import Lake
    from toolkit.rawlog.arrow import Event
    from toolkit.rawlog.batch import BatchRecord, SourceIdentity
    from toolkit.rawlog.store import RawLog
    from toolkit.source.opened import Source
    from toolkit.source.read_ahead import ReadAhead
    from toolkit.source.slot import Cut, SlotState
    from toolkit.values.capture_rules import CaptureRules
    from toolkit.values.source_access import SourceAccess
    from toolkit.values.spool import Spool

_log = logger(__name__)


def drain(
    source: SourceAccess,
    lake: Lake,
    upto: Lsn | None = None,
    max_changes: int | None = None,
    *,
    cut: Cut | None = None,
    log: RawLog | None = None,
    unreadable: Lsn | None = None,
) -> DrainResult:
    """Drain to `upto` or to an exact cut, else to the WAL flush position at the start.

    A drain to a cut or to the flush position compares the catalog. The current catalog does not describe an earlier
    LSN, so a drain to `upto` does not. `max_changes` limits the number of messages, in whole transactions. The drain
    then stops early, as its `committed_lsn` shows. `log` is the lake's unless another one is given. `unreadable` is a
    change that the operator skips: a beacon after it cannot be read yet, and the next drain requires it.

    Nothing is written, on the source or in the lake, before the beacon of the ledger was found in the stream.

    Raises:
        ConfigError: the source has not reached `upto`.
        SlotError, HistoryDiverged, SourceUnavailable, LakeError, CommitConflict: nothing was lost; see the message.
    """
    from toolkit.capture import drift
    from toolkit.lake.stored_log import StoredLog
    from toolkit.source import change_log, connection, drain_mode, signatures, slot

    log = StoredLog(lake.access, rules=source.rules) if log is None else log
    with connection.connect(source.config) as conn:
        ledger = log.reading()  # one reading: the last row, and the state that the commit is based on
        last = ledger.last()
        if last is None:
            raise LakeError(f"draining slot {source.config.slot!r}: the lake has no ledger yet; run `cdc init` first")
        last.require_format()
        slot.require_primary(conn)
        if drain_mode.by_ticks(conn, source.rules):
            from toolkit.capture import tick_drain

            signatures.require_key(conn)
            return tick_drain.drain(source, conn, log, upto, cut=cut)
        # A database that was made again has neither slot nor key. The error about the slot has the right remedy.
        state, identity = _require_slot_history(source.rules, conn, last)
        signatures.require_key(conn)
        proven = unreadable is not None
        if state.confirmed_flush_lsn < last.complete_to:
            # Either the last drain was killed between commit and advance, or the server returned to its last saved
            # position. Both are normal. A restored copy shows the same state, and its slot still has what was written
            # after the copy was made.
            proven = prove(conn, source.config, last, unreadable)
            log.force(ledger.snapshot_id())  # the kill may have come before its files were on the disk
            slot.advance(conn, source.config.slot, last.complete_to)
        versions = ledger.latest_versions()
        live = [relid for relid, version in versions.items() if not version.table.dropped]
        seen = None  # read before upto, so it shows nothing after it
        if cut is not None:
            seen = drift.observe_at(source, cut, live)
            upto = cut.lsn
        elif upto is None:
            seen = drift.observe(conn, source.rules, live)
        target = upto if upto is not None else slot.flush_lsn(conn)
        if upto is not None and upto > slot.flush_lsn(conn):
            raise ConfigError(
                f"draining to {upto}: the source has flushed its WAL only to {slot.flush_lsn(conn)}; give that or less"
            )
        if target <= last.complete_to:
            return DrainResult(0, 0, last.complete_to, last.complete_to)
        with closing(_SlotReader(source, conn, log, identity, seen, target, max_changes, proven=proven)) as reader:
            result = run(source, log, ledger, LogEnd.of(last, versions), reader, seen)
        if source.rules.uses_change_log and seen is not None and result.committed_lsn >= seen.upto:
            if seen.log_is_read:
                change_log.purge(conn, seen.snapshot)
            change_log.recheck(conn, source.rules)
        return result


def refusal(source: Source, last: BatchRecord) -> CdcError | None:
    """Return the error with which a drain would refuse the source now; None if it would not. Changes nothing."""
    from toolkit.capture import tick_drain
    from toolkit.source import catalog, connection, signatures, slot

    conn, rules = source.conn, source.access.rules
    try:
        last.require_format()
        slot.require_primary(conn)
        if catalog.installed(conn):
            signatures.require_key(conn)
        if source.by_ticks:
            tick_drain.last_tick(rules, conn, last)
        elif source.slot is None or not source.slot.active:  # otherwise a drain is reading it
            state, _ = _require_slot_history(rules, conn, last)
            if state.confirmed_flush_lsn < last.complete_to:
                prove(conn, rules.source, last)
    except CdcError as error:
        return error
    except connection.DriverError as error:
        gone = connection.dropped_object(error)
        if gone is None:
            raise
        return HistoryDiverged(f"{gone}; run `cdc init`")
    return None


def _require_slot_history(
    rules: CaptureRules, conn: psycopg.Connection[Any], last: BatchRecord
) -> tuple[SlotState, SourceIdentity]:
    from toolkit.source import catalog, slot

    state = slot.require_slot(conn, rules.source)
    if last.tick is not None:
        raise HistoryDiverged(
            f"the ledger was drained by ticks to {last.complete_to}, not through slot {state.name!r}; run"
            " `cdc init` to hand over"
        )
    identity = catalog.read_identity(conn, rules)
    last = followed(conn, rules.source, last, identity)
    require_same_history(rules.source, last, identity, state.confirmed_flush_lsn, slot.flush_lsn(conn))
    return state, identity


class _SlotReader:
    """A reader that peeks at the slot until `target`, or until `max_changes` messages are read."""

    logged = "drained"

    def __init__(
        self,
        source: SourceAccess,
        conn: psycopg.Connection[Any],
        log: RawLog,
        identity: SourceIdentity,
        seen: Observation | None,
        target: Lsn,
        max_changes: int | None,
        *,
        proven: bool,
    ) -> None:
        from toolkit.source import signatures

        self.source, self.conn, self.log, self.identity = source, conn, log, identity
        self.seen, self.target = seen, target
        self.signed = signatures.verifier(conn)
        self.left, self.most, self.more = max_changes, source.drain.max_changes, 1
        self.streams = False  # a peek found no room: stream until the end of the drain
        self.ahead: ReadAhead | None = None  # reads what follows the batches that are being committed
        self.proven = proven
        self.found_in: Lsn | None = None  # end of the batch with the beacon
        self.facts: dict[str, Any] = {}

    @property
    def upto(self) -> Lsn:
        return self.target

    def has_more(self, last: BatchRecord) -> bool:
        return last.complete_to < self.target and (self.left is None or self.left > 0)

    def read(self, end: LogEnd, directory: Path) -> Sequence[ReadBatch]:
        """Peek or stream once, and plan the batches that were read."""
        from toolkit.source import read_ahead

        started = time.monotonic()
        size = self.more * self._most()
        try:
            spool = self._spool(size, directory)
        except ServerFull:
            if self.streams:
                raise
            if size > 1:
                self.most, self.more = max(1, size // 8), 1
                _log.warning("the server has no room for a peek: smaller steps", extra={"messages": self.most})
            else:  # one transaction is too large, and others may be; smaller steps would decode it again for each
                self.most, self.streams = self.source.drain.max_changes, True
                _log.warning("the server has no room for one transaction: streaming it")
            return self.read(end, directory)
        self._require_unmoved(end.last)
        self.facts = {"messages": len(spool), "peek_seconds": round(time.monotonic() - started, 3)}
        plan = self._plan(spool, end)
        # Messages outside of transactions count too, and may be all that was read.
        self.more = 1 if plan.batches else self.more * 2
        if plan.batches:
            self._require_new(plan, end.last)
            self._find_beacon(plan, end.last)
            if self.left is not None:
                self.left -= len(spool)
            if not (spool.complete or self.streams or self._most() <= 0):
                self.ahead = read_ahead.ReadAhead(
                    self.source.config, after=Lsn(plan.batches[-1].complete_to), upto=self.target,
                    max_changes=self._most(), spool_dir=self.source.spool_dir,
                )  # fmt: skip
        return [_read(batch) for batch in plan.batches]

    def _require_unmoved(self, last: BatchRecord) -> None:
        """Refuse what was read if another client has moved the slot: what that client consumed may be missing."""
        from toolkit.source import slot

        state = slot.read_slot(self.conn, self.source.config.slot)
        if state is not None:  # otherwise the advance names it
            require_continued(self.source.config, last, state.confirmed_flush_lsn, slot.flush_lsn(self.conn))

    def _most(self) -> int:
        return self.most if self.left is None else min(self.left, self.most)

    def _spool(self, size: int, directory: Path) -> Spool:
        """Take what was read ahead, or else read the slot itself."""
        from toolkit.source import peek

        ahead, self.ahead = self.ahead, None
        found = None if ahead is None else ahead.take(directory)
        if found is not None:
            return found
        read = peek.stream if self.streams else peek.peek
        return read(self.conn, self.source.config, upto=self.target, max_changes=size, directory=directory)

    def close(self) -> None:
        """End what is being read ahead."""
        if self.ahead is not None:
            self.ahead.close()

    def compares(self, batch: ReadBatch) -> bool:
        return self.seen is not None and batch.complete_to >= max(self.target, self.seen.upto)

    def row(self, last: BatchRecord, batch: ReadBatch, changes: int) -> dict[str, Any]:
        beacon, beacon_lsn = self._beacon(last, batch.complete_to)
        return {
            "upto_lsn": self.target, "origin": Origin.SLOT, "slot": self.source.config.slot, "identity": self.identity,
            "beacon": beacon, "beacon_lsn": beacon_lsn,
        }  # fmt: skip

    def forget(self, last: BatchRecord) -> dict[str, Any]:
        from toolkit.source import slot

        slot.advance(self.conn, self.source.config.slot, last.complete_to)
        return self.facts

    def _plan(self, spool: Spool, end: LogEnd) -> Plan:
        from toolkit.capture import drift
        from toolkit.decode import planner
        from toolkit.source import slot

        reading = cache(self.log.reading)  # an earlier step of this drain may have the baseline of a new table
        context = end.context(
            self.source, self.signed, self.identity.system_id,
            publications=frozenset(self.source.config.publications),
            near_xid=Visibility.parse(slot.shown(self.conn)).xmax,
            known_good=lambda relid: drift.known_good(reading(), end.last, relid),
        )  # fmt: skip
        return planner.plan(spool, context=context)

    def _require_new(self, plan: Plan, last: BatchRecord) -> None:
        """Refuse a transaction that the log has: the slot, or its copy, is not where it was moved to."""
        ends = plan.batches[0].stream.end_lsns
        if len(ends) and int(ends[0]) <= last.complete_to:
            raise SlotError(
                f"reading slot {self.source.config.slot!r}: it sent the transaction again that ends at {Lsn(ends[0])},"
                f" and the log is complete to {last.complete_to}; run it again"
            )

    def _find_beacon(self, plan: Plan, last: BatchRecord) -> None:
        """Require the beacon of the ledger in what was read, or after it; without it the history is another one."""
        from toolkit.source import peek

        expected, at = last.beacon, last.beacon_lsn
        if expected is None or at is None or at <= last.complete_to:
            return
        self.found_in = next((Lsn(b.complete_to) for b in plan.batches if expected in b.beacons), None)
        if self.found_in is not None:
            self.proven = True
            return
        read_to = plan.batches[-1].complete_to
        refused = any(_refused_beacon(event) for batch in plan.batches for event in batch.events)
        if refused and peek.has_message(self.conn, self.source.config, expected, upto=Lsn(read_to)):
            raise HistoryDiverged(
                f"beacon {expected} written at {at} by batch {last.batch_id} is not signed by the key in"
                " cdc.signing_key: schema cdc, or its key, were dropped on the source and re-created, and earlier DDL"
                f" messages cannot be verified; {ADVICE}"
            )
        if at <= read_to:
            raise without_beacon(last)
        self.proven = self.proven or prove(self.conn, self.source.config, last)

    def _beacon(self, last: BatchRecord, complete_to: int) -> tuple[str | None, Lsn | None]:
        """Return the beacon of a ledger row: the one not found yet, or else a new one. One is always expected."""
        from toolkit.source import slot

        if last.beacon_lsn is not None and last.beacon_lsn > last.complete_to:
            if self.found_in is None or self.found_in > complete_to:
                return last.beacon, last.beacon_lsn
            self.found_in = None
        return slot.emit_beacon(self.conn)


def _refused_beacon(event: Event) -> bool:
    if event.kind != Kind.MESSAGE:
        return False
    message = read_message(event.payload)
    return isinstance(message, StreamMessage) and message.refused is not None and message.prefix == BEACON_PREFIX


def _read(batch: PlannedBatch) -> ReadBatch:
    rows = {str(Kind.ROW): batch.counts[Kind.ROW]} if batch.counts.get(Kind.ROW) else {}
    return ReadBatch(
        complete_to=Lsn(batch.complete_to),
        events=batch.events,
        rows=rows,
        versions=batch.versions,
        next_schema_id=batch.next_schema_id,
        tasks=batch.tasks if rows else None,
    )


__all__ = ["DrainResult", "drain", "refusal"]

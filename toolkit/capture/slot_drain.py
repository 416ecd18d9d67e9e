"""Drain the slot into the raw log: peek, decode, stage in one commit, advance. The order is the guarantee.

Nothing is consumed by a peek, a batch is one Iceberg commit with its ledger row inside, and the slot moves last, to
what that commit holds. A kill at any point leaves the old or the new batch, and the next drain goes on from the ledger.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from toolkit.rawlog.batch import BatchRecord, SourceIdentity
from toolkit.source.spooling import spool_directory
from toolkit.values.errors import ConfigError, HistoryDiverged, LakeError
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    import psycopg

    from toolkit.capture.drift import Observation
    from toolkit.decode.planner import Plan
    from toolkit.lake.ledger import Ledger
    from toolkit.rawlog.arrow import Event
    from toolkit.source.slot import Cut
    from toolkit.values.config import Config
    from toolkit.values.spool import Spool
    from toolkit.values.table import SchemaVersion

_log = logger(__name__)

_ADVICE = "the log cannot be continued; start a new one with `cdc init --new-generation`"
_TASK_CHANGES = 125_000  # a task holds some 50 bytes a change besides the chunk that it decodes


@dataclass(frozen=True, slots=True)
class DrainResult:
    """What one drain committed: `changes` are rows and truncates, the LSNs are end LSNs."""

    batches: int
    changes: int
    from_lsn: Lsn
    committed_lsn: Lsn


def drain(
    config: Config, upto: Lsn | None = None, max_changes: int | None = None, *, cut: Cut | None = None
) -> DrainResult:
    """Drain to `upto` or to an exact cut, else to the WAL flush position at the start.

    The last two compare the catalog: one of now says nothing of an LSN that is behind. `max_changes` bounds the
    messages taken, in whole transactions; the drain then stops early and says so by its `committed_lsn`.

    Raises:
        SlotError, HistoryDiverged, SourceUnavailable, LakeError, CommitConflict: nothing was lost; see the message.
    """
    from toolkit.capture import drift
    from toolkit.lake.ledger import Ledger
    from toolkit.source import catalog, change_log, connection, slot

    with connection.connect(config) as conn:
        ledger = Ledger(config)  # one reading: the row the run continues and the table snapshot it commits against
        last = ledger.last()
        if last is None:
            raise LakeError(f"draining slot {config.source.slot!r}: the lake has no ledger yet; run `cdc init` first")
        last.require_format()
        slot.require_primary(conn)
        if change_log.by_ticks(conn, config):
            from toolkit.capture import tick_drain

            return tick_drain.drain(config, conn, ledger, last, upto, cut=cut)
        state = slot.require_slot(conn, config)
        if last.tick is not None:
            raise HistoryDiverged(
                f"the ledger was drained by ticks to {last.complete_to}, not through slot {state.name!r}: run"
                " `cdc init` to hand over"
            )
        identity = catalog.read_identity(conn, config)
        require_same_history(config, last, identity, state.confirmed_flush_lsn, slot.flush_lsn(conn))
        if state.confirmed_flush_lsn < last.complete_to:
            # Killed between commit and advance, or the server fell back to its last saved position: both are normal.
            slot.advance(conn, config.source.slot, last.complete_to)
        versions = ledger.latest_versions()
        live = [relid for relid, version in versions.items() if not version.table.dropped]
        seen = None  # read before upto, so that it shows nothing beyond
        if cut is not None:
            seen = drift.observe_at(config, cut, live)
            upto = cut.lsn
        elif upto is None:
            seen = drift.observe(conn, config, live)
        target = upto if upto is not None else slot.flush_lsn(conn)
        if upto is not None and upto > slot.flush_lsn(conn):
            raise ConfigError(f"draining to {upto}: the source has flushed its WAL only to {slot.flush_lsn(conn)}")
        if target <= last.complete_to:
            return DrainResult(0, 0, last.complete_to, last.complete_to)
        result = _Run(config, conn, ledger, last, identity, versions, seen).to(target, max_changes)
        if config.uses_change_log and seen is not None and result.committed_lsn >= seen.upto:
            if seen.log_is_read:
                change_log.purge(conn, seen.snapshot)
            change_log.recheck(conn, config)
        return result


def require_same_history(
    config: Config, last: BatchRecord, identity: SourceIdentity, confirmed: Lsn | None, flushed: Lsn
) -> None:
    """Refuse a source that is not the one the ledger continues. `confirmed` is the slot's position, if there is one.

    Raises:
        HistoryDiverged: names what differs.
    """
    require_same_source(last, identity)
    if last.identity.publications.keys() != identity.publications.keys():
        raise HistoryDiverged(
            f"[source] publication was {_listed(last.identity)} at batch {last.batch_id} and is {_listed(identity)}"
            " now: run `cdc init` to go over to that"
        )
    if confirmed is not None and confirmed > last.complete_to:
        raise HistoryDiverged(
            f"slot {config.source.slot!r} is at {confirmed}, ahead of the ledger at {last.complete_to}: changes between"
            f" them were consumed by somebody else or the slot was re-created; {_ADVICE}"
        )
    if flushed < last.complete_to:
        raise HistoryDiverged(
            f"the source's WAL ends at {flushed}, below the ledger at {last.complete_to}: it was restored from an older"
            f" copy; {_ADVICE}"
        )


def require_same_source(last: BatchRecord, identity: SourceIdentity) -> None:
    """Refuse another server or database, and a publication made again: what it would have sent in between is lost.

    Raises:
        HistoryDiverged: names what differs.
    """
    for what in ("system_id", "timeline", "database_oid"):
        was, now = getattr(last.identity, what), getattr(identity, what)
        if was != now:
            raise HistoryDiverged(f"the source's {what} was {was} at batch {last.batch_id} and is {now} now: {_ADVICE}")
    for name, oid in last.identity.publications.items():
        found = identity.publications.get(name, oid)
        if found != oid:
            raise HistoryDiverged(
                f"publication {name!r} had OID {oid} at batch {last.batch_id} and has {found} now: it was dropped and"
                f" made again: {_ADVICE}"
            )


def as_read(config: Config, last: BatchRecord) -> Config:
    """The configuration with the publications that the log was read with up to a batch."""
    source = config.source.model_copy(update={"publication": tuple(last.identity.publications)})
    return config.model_copy(update={"source": source})


def _listed(identity: SourceIdentity) -> str:
    return ", ".join(sorted(identity.publications)) or "none"


class _Run:
    """One drain in progress. `last` is the newest committed ledger row."""

    def __init__(
        self,
        config: Config,
        conn: psycopg.Connection,
        ledger: Ledger,
        last: BatchRecord,
        identity: SourceIdentity,
        versions: dict[int, SchemaVersion],
        seen: Observation | None,
    ) -> None:
        from toolkit.source import catalog

        self.config = config
        self.conn = conn
        self.last = last
        self.start = last.complete_to
        self.identity = identity
        self.seen = seen
        self.key = catalog.hmac_key(conn)
        self.ledger = ledger
        self.snapshot = ledger.snapshot_id()
        self.versions = versions
        self.next_schema_id = max((v.schema_id for v in self.versions.values()), default=0) + 1
        self.batches = 0
        self.changes = 0
        self.ddl_xids: dict[int, int] = {}  # relid -> xid of its newest DDL in this drain

    def to(self, target: Lsn, max_changes: int | None) -> DrainResult:
        """Take peek after peek until `target` or `max_changes`."""
        from toolkit.source import peek, slot

        left, more = max_changes, 1
        while self.last.complete_to < target and (left is None or left > 0):
            size = more * (self.config.drain.max_changes if left is None else min(left, self.config.drain.max_changes))
            started = time.monotonic()
            with spool_directory(self.config) as directory:
                spool = peek.peek(self.conn, self.config, upto=target, max_changes=size, directory=directory)
                peeked = time.monotonic()
                plan = self._plan(spool)
                # Messages of no transaction count too, and may be all that came.
                more = 1 if plan.batches else more * 2
                if not plan.batches:
                    continue
                self._require_beacon(plan, target)
                for index in range(len(plan.batches)):
                    self._commit(plan, index, target)
                messages = len(spool)
            slot.advance(self.conn, self.config.source.slot, self.last.complete_to)
            _log.info(
                "drained",
                extra={
                    "batch_id": self.last.batch_id,
                    "upto_lsn": str(self.last.complete_to),
                    "messages": messages,
                    "peek_seconds": round(peeked - started, 3),
                    "seconds": round(time.monotonic() - started, 3),
                },
            )
            if left is not None:
                left -= messages
        return DrainResult(self.batches, self.changes, self.start, self.last.complete_to)

    def _plan(self, spool: Spool) -> Plan:
        from toolkit.capture import drift
        from toolkit.decode import planner

        context = planner.PlanContext(
            generation=self.last.generation,
            batch_id=self.last.batch_id + 1,
            next_schema_id=self.next_schema_id,
            versions=self.versions,
            key=self.key,
            system_id=self.identity.system_id,
            batch_changes=self.config.drain.batch_changes,
            now=datetime.now(UTC),
            publications=frozenset(self.config.source.publications),
            known_good=lambda relid: drift.known_good(self.ledger, self.last, relid),
        )
        return planner.plan(spool, context=context)

    def _require_beacon(self, plan: Plan, target: Lsn) -> None:
        """The nonce of an earlier drain must be in the stream, else this is another history with the same numbers."""
        expected, at = self.last.beacon, self.last.beacon_lsn
        reached = plan.batches[-1].complete_to if plan.batches else target
        if expected is None or at is None or at <= self.last.complete_to or at > reached:
            return
        if any(expected in batch.beacons for batch in plan.batches):
            return
        beacon = f"beacon {expected} written at {at} by batch {self.last.batch_id}"
        refused = (e.payload for batch in plan.batches for e in batch.events if e.kind == "message")
        if any(expected in (payload or "") for payload in refused):
            raise HistoryDiverged(
                f"{beacon} is not signed by the key in cdc.settings: schema cdc, or its settings, were dropped on the"
                f" source and made anew, and what capture told before cannot be verified; {_ADVICE}"
            )
        raise HistoryDiverged(
            f"{beacon} is not in the stream: the source was restored to an earlier copy and written again; {_ADVICE}"
        )

    def _commit(self, plan: Plan, index: int, target: Lsn) -> None:
        """Commit one planned batch with its ledger row; the last one with what the catalog comparison found."""
        from toolkit.capture import drift
        from toolkit.lake.ledger import Ledger

        batch = plan.batches[index]
        events, counts = list(batch.events), dict(batch.counts)
        for event in events:
            if event.kind == "schema" and event.relid is not None and event.xid is not None:
                self.ddl_xids[event.relid] = event.xid
        compared_to, capture = self.last.compared_to, self.last.capture
        if self.seen is not None and batch.complete_to >= max(target, self.seen.upto):
            compared_to, capture = self.seen.lsn, self.seen.capture.state
            found = drift.against(
                Ledger(self.config), self.last, self.seen, versions=batch.versions, ddl_xids=self.ddl_xids,
                batch_id=batch.batch_id, next_schema_id=batch.next_schema_id, at=Lsn(batch.complete_to),
            )  # fmt: skip
            for event in found:
                events.append(event)
                counts[event.kind] = counts.get(event.kind, 0) + 1
        beacon, beacon_lsn = self._beacon(batch.complete_to, changes=batch.changes)
        record = BatchRecord(
            batch_id=batch.batch_id,
            generation=self.last.generation,
            from_lsn=self.last.complete_to,
            upto_lsn=target,
            complete_to=Lsn(batch.complete_to),
            origin="slot",
            slot=self.config.source.slot,
            identity=self.identity,
            changes=batch.changes,
            counts=counts,
            beacon=beacon,
            beacon_lsn=beacon_lsn,
            committed_at=datetime.now(UTC).isoformat(),
            compared_to=compared_to,
            capture=capture,
        )
        tasks = batch.tasks(self._partitions(batch.changes)) if batch.counts.get("row") else []
        if tasks:
            from toolkit.lake import session, staging

            spark = session.own_session(self.config)
            self.snapshot = staging.commit_batch(
                spark, self.config, record, tasks=tasks, events=events, base_snapshot=self.snapshot
            )
        else:
            self.snapshot = self._append(record, events)
        self._committed(record)
        self.versions = dict(batch.versions)
        self.next_schema_id = batch.next_schema_id

    def _partitions(self, changes: int) -> int:
        """One a core, more where that bounds a worker's memory; a small batch is not worth a second worker."""
        if changes < 20_000:
            return 1
        from toolkit.lake import session

        cores = int(session.own_session(self.config).sparkContext.defaultParallelism)
        return max(cores, -(-changes // _TASK_CHANGES))

    def _append(self, record: BatchRecord, events: list[Event]) -> int:
        """Commit a batch without rows and without a JVM, on top of this run's own last commit only."""
        from toolkit.lake import ledger

        current = ledger.Ledger(self.config)
        if current.snapshot_id() != self.snapshot:
            raise ledger.conflict(record.batch_id)
        return current.append_empty(record, events)

    def _committed(self, record: BatchRecord) -> None:
        self.last = record
        self.batches += 1
        self.changes += record.changes

    def _beacon(self, complete_to: int, *, changes: int) -> tuple[str | None, Lsn | None]:
        """The beacon a ledger row carries: one still to be found, else a new one when it is due."""
        from toolkit.source import slot

        pending, at = self.last.beacon, self.last.beacon_lsn
        if at is not None and at > complete_to:
            return pending, at
        if changes == 0 and pending is not None and self.last.committed_at:
            age = datetime.now(UTC) - datetime.fromisoformat(self.last.committed_at)
            if age.total_seconds() < self.config.drain.beacon_minutes * 60:
                return pending, at
        return slot.emit_beacon(self.conn, self.key)

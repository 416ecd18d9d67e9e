"""Skip the one transaction that the server cannot send, on an operator's request; its tables become stale.

Its DDL, its truncates and the tables of its rows are read in binary form, which is shorter than text. If that cannot be
sent either, it is not known what the transaction changed, and every table becomes stale. All other transactions are
drained.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from toolkit.capture.slot_drain import DrainResult, drain
from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Gap, Kind, Origin
from toolkit.source.spooling import spool_directory
from toolkit.values.errors import ConfigError, UnreadableChange
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn
from toolkit.values.names import command
from toolkit.values.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from toolkit.decode.planned import PlanContext
    from toolkit.lake.opened import Lake
    from toolkit.rawlog.batch import BatchRecord
    from toolkit.rawlog.store import LogReader
    from toolkit.source.connection import Connection
    from toolkit.values.capture_rules import SourceConfig
    from toolkit.values.source_access import SourceAccess
    from toolkit.values.table import SchemaVersion

_log = logger(__name__)
_ALIGNED = 8  # bytes: alignment of WAL records


@dataclass(frozen=True, slots=True)
class _LeftOut:
    """The transaction, without its rows."""

    commit_lsn: Lsn
    end_lsn: Lsn
    tables: Mapping[int, int]  # relid -> ordinal of its first row
    events: tuple[Event, ...] = ()


def skip(source: SourceAccess, lake: Lake, at: Lsn) -> DrainResult:
    """Drain up to the transaction with the unreadable change at `at`, and commit gaps instead of its rows.

    Raises:
        ConfigError: the change at `at` is not what stops the slot.
    """
    from toolkit.source import connection, slot

    ledger = lake.reading().require()
    with connection.connect(source.config) as conn:
        slot.require_slot(conn, source.config)
        last = ledger.last()
        assert last is not None
        before = _last_readable(conn, source.config, at, last.complete_to)
        commit = slot.next_record(conn, before)
        drained = drain(source, lake, upto=before, unreadable=at)
        ledger = lake.reading().require()
        last = ledger.last()
        assert last is not None
        if last.complete_to > commit:  # an earlier skip was killed after its commit; the drain has advanced the slot
            return drained
        context = _context(source, conn, last, ledger)
        with spool_directory(source.spool_dir) as directory:
            try:
                left_out = _in_binary(conn, source.config, Lsn(commit + _ALIGNED), context, directory)
            except UnreadableChange:
                # Its end is not known; any position after the start of its commit record is beyond it.
                left_out = _LeftOut(
                    commit, Lsn(order.made_after(commit).end_lsn), dict.fromkeys(_live(context.versions), 0)
                )
        events = [*left_out.events, *_gaps(left_out, at, context)]
        record = last.next(
            events,
            changes=sum(event.kind == Kind.TRUNCATE for event in events),
            upto_lsn=left_out.end_lsn,
            complete_to=left_out.end_lsn,
        )
        ledger.append_empty(record, events)
        slot.advance(conn, source.config.slot, left_out.end_lsn)
    _log.warning(
        "left out a transaction", extra={"lsn": str(at), "end_lsn": str(left_out.end_lsn), "batch_id": record.batch_id}
    )
    return DrainResult(drained.batches + 1, drained.changes + record.changes, drained.from_lsn, left_out.end_lsn)


def _last_readable(conn: Connection, source: SourceConfig, at: Lsn, low: int) -> Lsn:
    """Return the greatest position to which the slot can be read; the commit of the transaction of `at` is next.

    The error that stops a peek names a change and not its transaction, so the position is found by bisection.
    """
    from toolkit.source import peek, slot

    def stopped_by(upto: int) -> Lsn | None:
        try:
            peek.try_peek(conn, source, Lsn(upto))
        except UnreadableChange as error:
            if error.lsn != at:
                raise
            return at
        return None

    low, high = low // _ALIGNED, -(-slot.flush_lsn(conn) // _ALIGNED)
    if stopped_by(high * _ALIGNED) is None:
        raise ConfigError(f"leaving out the change at {at}: nothing stops the slot there; run `cdc drain`")
    while high - low > 1:
        middle = (low + high) // 2
        if stopped_by(middle * _ALIGNED) is None:
            low = middle
        else:
            high = middle
    return Lsn(low * _ALIGNED)


def _context(source: SourceAccess, conn: Connection, last: BatchRecord, ledger: LogReader) -> PlanContext:
    from toolkit.capture import drift
    from toolkit.decode.planned import PlanContext
    from toolkit.source import signatures, slot

    versions = ledger.latest_versions()
    return PlanContext(
        generation=last.generation,
        batch_id=last.batch_id + 1,
        next_schema_id=max((v.schema_id for v in versions.values()), default=0) + 1,
        versions=versions,
        signed=signatures.verifier(conn),
        system_id=last.identity.system_id,
        near_xid=Visibility.parse(slot.shown(conn)).xmax,
        batch_changes=source.drain.batch_changes,
        now=datetime.now(UTC),
        known_good=lambda relid: drift.known_good(ledger, last, relid),
        publications=frozenset(source.config.publications),
        slot=source.config.slot,
    )


def _in_binary(conn: Connection, source: SourceConfig, upto: Lsn, context: PlanContext, directory: Path) -> _LeftOut:
    """Read the first transaction of the slot; `upto` is a position inside its commit record."""
    import numpy as np

    from toolkit.decode.layout import logs
    from toolkit.decode.planner import Planner
    from toolkit.decode.stream import ROW_BYTES, open_bytes, scan
    from toolkit.source import peek

    spool = peek.peek(conn, source, upto=upto, max_changes=1, directory=directory, binary=True)
    stream = scan(open_bytes(spool.path), spool.offsets)
    planner = Planner(stream, spool, context)
    (batch,) = planner.batches()
    rows = np.flatnonzero(np.isin(stream.types, ROW_BYTES))
    ordinals = zip(stream.relids(rows).tolist(), stream.ordinals[rows].tolist(), strict=True)
    first: dict[int, int] = {}
    for relid, ordinal in ordinals:
        first.setdefault(relid, ordinal)
    if planner.logs & first.keys():  # rows of the change log: their tables are named inside them
        others = {relid: ordinal for relid, ordinal in first.items() if relid not in planner.logs}
        first = {relid: 0 for relid in _live(batch.versions) if logs(batch.versions[relid].table)} | others
    return _LeftOut(Lsn(int(stream.commit_lsns[0])), Lsn(int(stream.end_lsns[0])), first, batch.events)


def _live(versions: Mapping[int, SchemaVersion]) -> set[int]:
    return {relid for relid, v in versions.items() if v.table.published and not v.table.dropped}


def _gaps(left_out: _LeftOut, at: Lsn, context: PlanContext) -> list[Event]:
    gaps = []
    for relid, ordinal in sorted(left_out.tables.items()):
        known = context.versions.get(relid)
        gap = Gap(
            f"its changes beside the unreadable one at {at} were left out by `cdc drain --skip {at}`",
            command("repair", known.table.identifier if known else str(relid)),
        )
        gaps.append(
            Event(
                batch_id=context.batch_id,
                generation=context.generation,
                commit_lsn=int(left_out.commit_lsn),
                ordinal=ordinal,
                end_lsn=int(left_out.end_lsn),
                kind=Kind.GAP,
                lsn=int(at),
                origin=Origin.SLOT,
                relid=relid,
                payload=gap.to_json(),
            )
        )
    return gaps

"""Drain the change log by ticks: all transactions between two snapshots, in one commit with its ledger row.

A tick in the ledger is never read again, and a tick that was read twice before its commit gives the same events.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from toolkit.capture.drain_loop import DrainResult, LogEnd, ReadBatch, run
from toolkit.capture.same_history import ADVICE, require_same_history
from toolkit.rawlog import order
from toolkit.rawlog.event import Gap, Kind, Origin
from toolkit.values.errors import CdcError, ConfigError, HistoryDiverged, LakeError
from toolkit.values.names import command
from toolkit.values.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import psycopg
    import pyarrow as pa

    from toolkit.decode.logged_ddl import LoggedDdl
    from toolkit.decode.logged_rows import LogRows
    from toolkit.decode.planned import PlanContext
    from toolkit.decode.task import Binding
    from toolkit.rawlog.arrow import Event
    from toolkit.rawlog.batch import BatchRecord
    from toolkit.rawlog.store import LogReader, RawLog
    from toolkit.source.slot import Cut
    from toolkit.source.ticks import Tick
    from toolkit.values.capture_rules import CaptureRules
    from toolkit.values.lsn import Lsn
    from toolkit.values.source_access import SourceAccess
    from toolkit.values.table import SchemaVersion

_FILE_ROWS = 500_000  # rows of one Spark partition


def drain(
    source: SourceAccess,
    conn: psycopg.Connection[Any],
    log: RawLog,
    upto: Lsn | None,
    *,
    cut: Cut | None = None,
) -> DrainResult:
    """Drain to the tick at `upto` or of a cut, else to a new tick.

    Raises:
        ConfigError: there is no tick at `upto`.
        LakeError: the lake has no ledger yet.
        CdcError: DDL that has not committed locks a captured table.
        HistoryDiverged: the source does not have the tick at which the ledger ends.
    """
    from toolkit.capture import drift
    from toolkit.source import ticks

    ledger = log.reading()
    last = ledger.last()
    if last is None:
        raise LakeError("draining ticks: the lake has no ledger yet; run `cdc init` first")
    since = last_tick(source.rules, conn, last)
    log.force(ledger.snapshot_id())  # the drain before may have been killed before its files were on the disk
    upto = cut.lsn if cut is not None else upto
    if upto is not None and upto <= last.complete_to:
        return DrainResult(0, 0, last.complete_to, last.complete_to)
    versions = ledger.latest_versions()
    live = [relid for relid, version in versions.items() if not version.table.dropped]
    seen = None
    if upto is None:
        seen = drift.observe(conn, source.rules, live)  # catalog and tick are of one snapshot
        if seen is None:  # without the catalog of the same snapshot the rows cannot be read
            raise CdcError("draining a tick: DDL that has not committed locks a table; run it again when it has ended")
        target = ticks.record(conn, seen.snapshot)
    else:
        found = ticks.known(conn, upto)
        if found is None:
            raise ConfigError(
                f"draining to {upto}: no tick is at that LSN; without logical decoding the log ends at ticks"
            )
        target = found
        if cut is not None:
            seen = drift.observe_at(source, cut, live)
    return run(source, log, ledger, LogEnd.of(last, versions), _TickReader(source, conn, ledger, since, target), seen)


def last_tick(rules: CaptureRules, conn: psycopg.Connection[Any], last: BatchRecord) -> Tick:
    """Return the tick at which the ledger ends; require that the source still has it unchanged.

    Raises:
        HistoryDiverged: another server or timeline, an older copy, or a log that was not drained by ticks.
    """
    from toolkit.source import catalog, slot, ticks

    if last.tick is None:
        raise HistoryDiverged(
            f"the ledger was drained through slot {last.slot!r} to {last.complete_to}, not by ticks; run `cdc init` to"
            " hand over while that slot is there"
        )
    # Ticks need no publication. One may exist: of a slot that was read before, or will be.
    identity = replace(catalog.read_identity(conn, rules), publications=last.identity.publications)
    require_same_history(rules.source, last, identity, None, slot.flush_lsn(conn))
    found = ticks.known(conn, last.complete_to)
    if found is None or found.snapshot != last.tick:
        why = (
            "it was restored from an older copy" if ticks.any_known(conn) else "schema cdc, or its ticks, were dropped"
        )
        raise HistoryDiverged(
            f"the source does not know the tick at {last.complete_to} of batch {last.batch_id}: {why}; {ADVICE}"
        )
    return found


class _TickReader:
    """A reader of the one tick `target`, which follows `since`."""

    logged = "drained a tick"

    def __init__(
        self, source: SourceAccess, conn: psycopg.Connection[Any], ledger: LogReader, since: Tick, target: Tick
    ) -> None:
        self.source, self.conn, self.ledger, self.since, self.target = source, conn, ledger, since, target
        self.changes = 0

    @property
    def upto(self) -> Lsn:
        return self.target.lsn

    def has_more(self, last: BatchRecord) -> bool:
        return last.complete_to < self.target.lsn

    def read(self, end: LogEnd, directory: Path) -> Sequence[ReadBatch]:
        """Read the rows and the DDL of the tick."""
        from toolkit.source import signatures

        context = end.context(
            self.source, signatures.verifier(self.conn), end.last.identity.system_id,
            near_xid=Visibility.parse(self.target.snapshot).xmax,
        )  # fmt: skip
        return (_TickRead(self.conn, self.ledger, self.since, self.target, context, directory).batch(),)

    def compares(self, batch: ReadBatch) -> bool:
        return True

    def row(self, last: BatchRecord, batch: ReadBatch, changes: int) -> dict[str, Any]:
        self.changes = changes
        return {
            "upto_lsn": self.target.lsn, "origin": Origin.CHANGE_LOG, "beacon": None, "beacon_lsn": None,
            "tick": self.target.snapshot,
        }  # fmt: skip

    def forget(self, last: BatchRecord) -> dict[str, Any]:
        from toolkit.source import change_log, ticks

        change_log.purge(self.conn, self.target.snapshot)
        ticks.forget_before(self.conn, self.target.lsn)
        return {"changes": self.changes, "repaired": list(change_log.recheck(self.conn, self.source.rules))}


class _TickRead:
    """One tick while it is read into the log."""

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        ledger: LogReader,
        since: Tick,
        target: Tick,
        context: PlanContext,
        directory: Path,
    ) -> None:
        self.conn, self.ledger, self.since, self.target = conn, ledger, since, target
        self.context, self.directory = context, directory
        self.oldest: dict[int, int] = {}  # by relid, the LSN at which its first row in this tick was logged
        self.place = 0  # number of rows in the tick so far
        self.files: list[Path] = []
        self.counts: Counter[str] = Counter()  # number of events in the files, per kind

    def batch(self) -> ReadBatch:
        """Return the rows of the tick as files, and everything else as events."""
        ddl = self.ddl()
        self.rows(ddl)
        return ReadBatch(
            complete_to=self.target.lsn,
            events=[*ddl.events, *self.overtaken()],
            rows=self.counts,
            versions=ddl.versions,
            next_schema_id=ddl.next_schema_id,
            files=self.files,
        )

    def ddl(self) -> LoggedDdl:
        """Read and fold the DDL messages of the tick."""
        from toolkit.decode import logged_ddl
        from toolkit.source import ticks

        messages = []
        if ticks.has_messages(self.conn):
            for cells in ticks.rows(self.conn, self.since, self.target, messages=True):
                texts = cells.to_pylist()
                for place, xid, lsn, _, _, _, content in zip(*(texts[i::7] for i in range(7)), strict=True):
                    messages.append(logged_ddl.LoggedMessage(int(place), int(xid), int(lsn), content))
        return logged_ddl.fold(messages, at=self.target.lsn, context=self.context)

    def rows(self, ddl: LoggedDdl) -> None:
        """Spool the rows of the tick as events; their ordinals count all rows of the tick."""
        import numpy as np
        import pyarrow as pa

        from toolkit.decode import logged_rows
        from toolkit.decode.layout import logged_layout
        from toolkit.rawlog.arrow import EVENT_SCHEMA
        from toolkit.source import ticks

        def layout(start: int, version: SchemaVersion) -> Binding:
            return replace(logged_layout(start, version), kind=Kind.ROW)  # published or not: no slot sends its rows

        layouts = {relid: [layout(-1, version)] for relid, version in self.context.versions.items()}
        for version in ddl.changed:
            layouts.setdefault(version.table.relid, []).append(layout(version.ordinal, version))
        batch_id, generation = self.context.batch_id, self.context.generation
        written = _FILE_ROWS
        with ExitStack() as stack:
            writer: pa.RecordBatchWriter | None = None
            for cells in ticks.rows(self.conn, self.since, self.target):
                log = self._log_rows(cells, self.place)
                self.place += len(log)
                for relid in np.unique(log.relids).tolist():
                    first = int(log.lsns[log.relids == relid].min())
                    self.oldest[relid] = min(first, self.oldest.get(relid, first))
                for batch in logged_rows.events(log, layouts, batch_id=batch_id, generation=generation):
                    if written >= _FILE_ROWS:
                        stack.close()
                        self.files.append(self.directory / f"tick-{len(self.files)}.arrow")
                        sink = stack.enter_context(pa.OSFile(str(self.files[-1]), "wb"))
                        writer, written = stack.enter_context(pa.ipc.new_stream(sink, EVENT_SCHEMA)), 0
                    assert writer is not None
                    writer.write_batch(batch)
                    written += batch.num_rows
                    self.counts.update(batch.column("kind").to_pylist())

    def overtaken(self) -> Iterator[Event]:
        """Yield gaps of tables whose rows were logged before a type of theirs changed, but follow a later baseline.

        A tick, and so a baseline, waits for no writer. Such a change of a type does not wait for one either. Without
        the baseline, the gap of the change itself covers the rows, or the version with the former names of a label
        does.
        """
        from toolkit.decode.ddl import prints_by_own_types, prints_differently
        from toolkit.rawlog.arrow import Event

        late = {relid for relid, lsn in self.oldest.items() if lsn < self.since.lsn and relid in self.context.versions}
        if not late:
            return
        baselines: dict[int, int] = {}
        for event in self.ledger.baselines():
            if event.relid in late and event.generation == self.context.generation:
                baselines[event.relid] = max(int(event.end_lsn), baselines.get(event.relid, 0))
        chains: dict[int, list[SchemaVersion]] = {}
        for version in self.ledger.schema_versions():
            if version.table.relid in baselines:  # earlier generations too: a writer may outlast them
                chains.setdefault(version.table.relid, []).append(version)
        for relid, chain in sorted(chains.items()):
            since, until = self.oldest[relid], baselines[relid]
            # How its values printed before its first version is not known.
            first = since < chain[0].end_lsn <= until and prints_by_own_types(chain[0].table)
            if first or any(
                since < v.end_lsn <= until and prints_differently(u.table, v.table) for u, v in pairwise(chain)
            ):
                reason = "a transaction that wrote before a type of it changed was committed after it was copied"
                yield Event(
                    batch_id=self.context.batch_id,
                    generation=self.context.generation,
                    **order.made_at(self.target.lsn)._asdict(),
                    ordinal=self.place,
                    kind=Kind.GAP,
                    relid=relid,
                    origin=Origin.CHANGE_LOG,
                    payload=Gap(reason, command("repair", chain[-1].table.identifier)).to_json(),
                )

    def _log_rows(self, cells: pa.StringArray, place: int) -> LogRows:
        """Parse one block of the log; `place` is that of its first row."""
        import numpy as np
        import pyarrow as pa

        from toolkit.decode.logged_rows import LogRows

        count = len(cells) // 6
        columns = [cells.take(pa.array(np.arange(i, len(cells), 6))) for i in range(6)]
        xids, lsns, relids = (column.cast(pa.int64()).to_numpy() for column in columns[:3])
        at, places = order.made_at(self.target.lsn), np.arange(place, place + count, dtype=np.int64)
        now = int(self.context.now.timestamp() * 1_000_000)
        commits, ends, times = (np.full(count, value, np.int64) for value in (*at, now))
        return LogRows(places, commits, places, ends, times, lsns, xids, relids, *columns[3:])

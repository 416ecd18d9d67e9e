"""Copy the rows of tables at one exact LSN, for first copies and repairs, and commit them with baselines.

The log is first drained to the cut L. `complete_to` of the ledger is therefore never below a baseline in it, and batch
and schema version of the rows are known before the first row is read. The rows are written directly to Parquet files of
`raw.events`, one group of tables after the other. After a kill, the committed groups stay and the others start again
under a new cut. Pieces of one table under two cuts would lose the rows that moved between them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from toolkit.capture import row_forms
from toolkit.capture.copy_workers import Copiers, Item, Task
from toolkit.capture.repair_scope import WHOLE, Scope, images_of
from toolkit.capture.slot_drain import drain
from toolkit.decode import ddl
from toolkit.lake.files import FileTarget
from toolkit.lake.proofs import differing_tables, proven
from toolkit.lake.stored_log import StoredLog
from toolkit.rawlog import order
from toolkit.rawlog.arrow import Event
from toolkit.rawlog.event import Baseline, Covers, Gap, Kind, Origin
from toolkit.rawlog.states import State, TableState, not_copied, table_states
from toolkit.values.errors import ConfigError, LakeError, UnknownTable
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn
from toolkit.values.names import command, meant, nearest, qualified
from toolkit.values.progress import stage
from toolkit.values.table import SchemaVersion, TableVersion

if TYPE_CHECKING:
    from toolkit.lake.opened import Lake
    from toolkit.rawlog.store import LogReader, NewFiles, RawLog
    from toolkit.source.connection import Connection
    from toolkit.source.slot import Cut
    from toolkit.source.snapshot_rows import Images, Piece, Size
    from toolkit.values.capture_rules import SourceConfig
    from toolkit.values.source_access import SourceAccess

_log = logger(__name__)
_GROUP_BYTES = 256 << 20  # size of table files: small tables share a commit
_WORKERS_FROM = 64 << 20  # reading less takes less time than starting a worker
_LEAST_PIECE = 16 << 20
_CUTS = 3  # a table that changed during its copy is tried again under another cut


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """The copied rows by table identifier, as of `lsn` (of the last cut), and why other tables were left out."""

    lsn: Lsn
    rows: dict[str, int]
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Plan:
    """One table to copy."""

    table: TableVersion
    payload: str  # JSON of the catalog in the same exported snapshot
    pieces: tuple[Piece, ...]
    size: Size
    images: Images

    @property
    def bytes(self) -> int:
        return sum(p.bytes for p in self.pieces)


@dataclass(slots=True)
class _Outcome:
    """The results for the tables of one cut, by relid."""

    rows: dict[int, int] = field(default_factory=dict)
    refused: dict[int, tuple[str, bool]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    forms: row_forms.Forms | None = None  # at the cut


def missing_baselines(conn: Connection, lake: Lake) -> tuple[str, ...]:
    """Return identifiers of published tables without a complete snapshot in this generation of the log."""
    from toolkit.source import catalog

    return tuple(t.identifier for t in not_copied(lake.reading().require(), catalog.published_tables(conn)))


def repair(source: SourceAccess, lake: Lake, tables: Sequence[str] = (), *, scope: Scope = WHOLE) -> SnapshotResult:
    """Copy the named tables, or all stale ones, again at a new cut.

    The copy repairs a stale table, and gives a new table its baseline.

    Raises:
        UnknownTable: a named table is not published on the source; nothing was copied.
        ConfigError: the table does not have the scope; nothing was copied.
    """
    from toolkit.source import ticks

    if scope.covers != Covers.ALL and len(tables) != 1:
        raise ConfigError(f"repairing a part: {len(tables)} tables are named; name exactly one table")
    drain(source, lake)  # most of a backlog, while no snapshot is held open
    rows: dict[str, int] = {}
    left_out: dict[str, str] = {}
    last = lake.reading().require().last()
    assert last is not None
    lsn = last.complete_to
    # A table that is no longer published has nothing to copy. It must not prevent the copy of other tables.
    wanted: Sequence[str] | frozenset[int] = tuple(tables) or frozenset(state.relid for state in _stale(lake))
    for _ in range(_CUTS):
        if not wanted:
            break
        forms = forms_before(source, wanted)
        with ticks.exact_cut(source.rules, cut_seconds=source.cut_seconds) as cut:
            drain(source, lake, cut=cut)  # no later drain would find changes since the first one that were not captured
            found = _copy(source, lake, StoredLog(lake.access, rules=lake.rules), cut, forms, wanted, scope)
        lsn = cut.lsn
        rows |= {found.names[relid]: count for relid, count in found.rows.items()}
        left_out = {found.names[relid]: reason for relid, (reason, _) in found.refused.items()} | {
            name: reason for name, reason in left_out.items() if name not in rows
        }
        wanted = frozenset(relid for relid, (_, moved) in found.refused.items() if moved)
    return SnapshotResult(lsn, rows, {name: reason for name, reason in left_out.items() if name not in rows})


def repair_stale(source: SourceAccess, lake: Lake) -> SnapshotResult | None:
    """Repair stale tables, the small ones first, up to `[snapshot] heal_mb` together; None if nothing was done.

    Larger tables stay stale, and the status names them.
    """
    from toolkit.source import snapshot_rows

    stale = {state.relid for state in _stale(lake)}
    ledger = lake.reading().require()
    latest = ledger.latest_versions().items()
    tables = [version.table for relid, version in latest if relid in stale and version.table.published]
    sizes = snapshot_rows.estimate(source.config, tables, lock_seconds=source.snapshot.lock_seconds)
    chosen, left = [], source.snapshot.heal_mb * (1 << 20)
    for table in sorted((t for t in tables if t.relid in sizes), key=lambda t: sizes[t.relid].bytes):
        left -= sizes[table.relid].bytes
        if left < 0:
            _log.warning("too large to repair unasked", extra={"table": table.identifier})
        else:
            chosen.append(table.identifier)
    return repair(source, lake, chosen) if chosen else None


def _stale(lake: Lake) -> list[TableState]:
    """Return tables that need a repair, without those that only wait for their check."""
    ledger = lake.reading().require()
    return [
        s
        for s in table_states(ledger, proven(lake.access, ledger))
        if s.state == State.STALE and s.repaired_lsn is None
    ]


def forms_before(source: SourceAccess, tables: Sequence[str] | frozenset[int] | None = None) -> row_forms.Forms:
    """Read the forms of `tables` (all published ones if None), which a copy compares with those at its cut.

    Raises:
        UnknownTable: a named table is not published on the source.
    """
    from toolkit.source import catalog, connection, locks

    with connection.connect(source.config) as conn:
        with locks.waiting(conn, "reading the catalog before a copy", seconds=source.snapshot.lock_seconds):
            payloads = catalog.snapshot_json(conn)
        return row_forms.Forms.read(conn, {t.relid: payloads[t.relid] for t in _chosen(payloads, tables)})


def copy_tables(
    source: SourceAccess,
    lake: Lake,
    cut: Cut,
    forms: row_forms.Forms,
    tables: Sequence[str] | None = None,
    *,
    scope: Scope = WHOLE,
    log: RawLog | None = None,
) -> SnapshotResult:
    """Copy `tables` (all published ones if None) as the cut's snapshot shows them, and commit them.

    `forms` were read before the cut was begun. The log must be drained to the cut; it is the lake's unless another one
    is given. Each table is either in the log as a whole or not at all; a table that cannot be read is left out.

    Raises:
        UnknownTable, ConfigError: nothing was copied.
        SourceUnavailable, LakeError: tables that are already committed stay; run it again for the others.
    """
    log = StoredLog(lake.access, rules=lake.rules) if log is None else log
    found = _copy(source, lake, log, cut, forms, tables, scope)
    return SnapshotResult(
        cut.lsn,
        {found.names[relid]: count for relid, count in found.rows.items()},
        {found.names[relid]: reason for relid, (reason, _) in found.refused.items()},
    )


def _copy(
    source: SourceAccess,
    lake: Lake,
    log: RawLog,
    cut: Cut,
    forms: row_forms.Forms,
    tables: Sequence[str] | frozenset[int] | None,
    scope: Scope,
) -> _Outcome:
    from toolkit.capture import executor_copies

    last = log.reading().last()
    if last is None:
        raise LakeError("the lake has no ledger yet; run `cdc init` first")
    if last.complete_to < cut.lsn:
        raise LakeError(f"copying at {cut.lsn}: the log ends below it, at {last.complete_to}; run `cdc drain` first")
    outcome = _Outcome()
    plans = _plans(source, log.reading(), cut, forms, tables, scope, outcome)
    total = sum(p.size.bytes for p in plans)
    workers = source.snapshot.workers if total > _WORKERS_FROM else 0
    spread = bool(workers) and executor_copies.on_executors(source, lake.access)
    if spread:
        executor_copies.require_connected(source, lake.access)
    with (
        log.new_files() as files,
        stage("copying", "rows", sum(p.size.rows for p in plans)) as progress,
    ):
        target = FileTarget(dict(files.ids), dict(files.properties))
        start = partial(executor_copies.ExecutorCopier, source, lake, cut, target, progress.add) if spread else None
        with Copiers(source, cut, target, workers=workers, report=progress.add, start=start) as copiers:
            for group in _groups(plans):
                _copy_group(source, lake, log, cut, copiers, group, files, scope, outcome)
    return outcome


def _plans(
    source: SourceAccess,
    ledger: LogReader,
    cut: Cut,
    forms: row_forms.Forms,
    tables: Sequence[str] | frozenset[int] | None,
    scope: Scope,
    outcome: _Outcome,
) -> list[_Plan]:
    """Plan what to read, ordered by relid."""
    from toolkit.source import catalog, locks, snapshot_rows

    plans: list[_Plan] = []
    with snapshot_rows.reader(source.config, cut) as conn:
        with locks.waiting(conn, f"reading the catalog at {cut.lsn}", seconds=source.snapshot.lock_seconds):
            payloads = catalog.snapshot_json(conn)
        chosen = _chosen(payloads, tables)
        outcome.names |= {t.relid: t.identifier for t in chosen}
        outcome.forms = row_forms.Forms.read(conn, {t.relid: payloads[t.relid] for t in chosen})
        outcome.refused |= row_forms.altered(forms, outcome.forms, chosen)
        most = int(source.snapshot.piece_mb * (1 << 20))
        cutting = snapshot_rows.Cutting(4 * max(1, source.snapshot.workers), min(_LEAST_PIECE, most), most)
        for table in sorted((t for t in chosen if t.relid not in outcome.refused), key=lambda t: t.relid):
            images = images_of(ledger, table, scope)
            try:
                found, size = snapshot_rows.pieces(conn, table, cutting, lock_seconds=source.snapshot.lock_seconds)
            except snapshot_rows.TableRefused as error:
                outcome.refused[table.relid] = (str(error), error.moved)
                continue
            if scope.partition:
                names = {qualified(p.schema, p.name) for p in found}
                name = meant(scope.partition, names)
                if name is None:
                    raise ConfigError(
                        f"repairing {table.identifier}: it has no partition {scope.partition};"
                        f" {nearest(scope.partition, names)}"
                    )
                found = tuple(p for p in found if qualified(p.schema, p.name) == name)
            plans.append(_Plan(table, payloads[table.relid], found, size, images))
    return plans


def _chosen(payloads: dict[int, str], tables: Sequence[str] | frozenset[int] | None) -> list[TableVersion]:
    versions = {relid: TableVersion.from_json(json.loads(text)) for relid, text in payloads.items()}
    if tables is None:
        return list(versions.values())
    if isinstance(tables, frozenset):
        return [versions[relid] for relid in tables if relid in versions]
    names = {v.identifier: v for v in versions.values()}
    found = {}
    for given in tables:
        name = meant(given, names)
        if name is None:
            raise UnknownTable(f"copying {given}: no published table has that name; {nearest(given, names)}")
        found[name] = names[name]
    return [*found.values()]


def _groups(plans: Sequence[_Plan]) -> Iterator[list[_Plan]]:
    """Group tables up to `_GROUP_BYTES` together; a larger table is a group of its own."""
    group: list[_Plan] = []
    for plan in plans:
        if group and sum(p.bytes for p in group) + plan.bytes > _GROUP_BYTES:
            yield group
            group = []
        group.append(plan)
    if group:
        yield group


def _copy_group(
    source: SourceAccess,
    lake: Lake,
    log: RawLog,
    cut: Cut,
    copiers: Copiers,
    plans: Sequence[_Plan],
    files: NewFiles,
    scope: Scope,
    outcome: _Outcome,
) -> None:
    """Copy and commit tables that share a batch."""
    ledger = log.reading()
    base = ledger.snapshot_id()
    last = ledger.last()
    assert last is not None
    batch_id = last.batch_id + 1
    versions = ledger.latest_versions()
    schema_ids, changed = _schema_ids(plans, versions, scope)
    items = [
        Item(plan.table.relid, plan.payload, schema_ids[plan.table.relid], piece, plan.images)
        for plan in plans
        for piece in plan.pieces
    ]
    tasks = [Task(files.place(batch_id), last.generation, batch_id, tuple(run)) for run in _runs(items)]
    done, refused = copiers.run(tasks)
    while reprinted := _reprinted(
        source.config, [p.table for p in plans if p.table.relid not in refused], outcome.forms
    ):
        # Other tables may share their files.
        refused |= reprinted
        done, more = copiers.run([task for task in (t.without(set(refused)) for t in tasks) if task.items])
        refused |= more
    outcome.refused |= refused
    for relid, (reason, _) in refused.items():
        _log.warning("not copied at this cut", extra={"table": outcome.names[relid], "reason": reason})
    whole = [plan for plan in plans if plan.table.relid not in refused]
    if not whole:
        return
    rows: Counter[int] = Counter({plan.table.relid: 0 for plan in whole})
    for copied in done:
        rows.update(copied.rows)
    at: dict[str, Any] = {"batch_id": batch_id, "generation": last.generation, "origin": Origin.SNAPSHOT}
    at |= order.made_at(cut.lsn)._asdict()
    events: list[Event] = []
    wrong = differing_tables(lake.access, ledger)
    for plan in whole:
        of: dict[str, Any] = {"relid": plan.table.relid, "schema_id": schema_ids[plan.table.relid]}
        if plan.table.relid in wrong:
            # It is not known when its rows became wrong: at some point after the last proof or copy in which they were
            # right.
            right, checked = wrong[plan.table.relid]
            reason = f"a check at {checked} found rows that differ"
            gap = Gap(reason, command("repair", plan.table.identifier), checked)
            place = order.made_after(right)._asdict() | {"ordinal": order.COPY_GAP}
            events.append(Event(**{**at, **place}, **of, kind=Kind.GAP, payload=gap.to_json()))
        if plan.table.relid in changed:
            events.append(Event(**at, **of, ordinal=order.COPIED_VERSION, kind=Kind.SCHEMA, payload=plan.payload))
        copied_rows, keys = rows[plan.table.relid], len(plan.images.keys)
        proof = Baseline(cut.lsn, copied_rows, scope.covers, tuple(scope.columns), scope.partition, keys)
        events.append(Event(**at, **of, ordinal=order.BASELINE, kind=Kind.BASELINE, payload=proof.to_json()))
        if unsent := plan.table.unsent(source.config.publications):
            # The table is right at the cut, but later changes may not be sent.
            gap = Gap(*unsent)
            events.append(Event(**at, **of, ordinal=order.COPY_GAP, kind=Kind.GAP, payload=gap.to_json()))
        # Delete each named key; the rows that were read follow. A row that no longer exists stays deleted.
        events += [
            Event(
                **at, **of, ordinal=order.copied_deletion(number), kind=Kind.ROW, op="D", **_old_image(plan.table, key)
            )
            for number, key in enumerate(plan.images.keys)
        ]
    record = last.next(events, rows={Kind.ROW: sum(rows.values())}, origin=Origin.SNAPSHOT)
    # The commit is based on the reading from which the batch was planned: it fails if another runner has committed
    # since.
    filled = [copied.task.place for copied in done if sum(copied.rows.values())]
    with files.committing(filled):
        log.commit(record, events, base=base, parquet_files=filled)
    outcome.rows |= dict(rows)
    for plan in whole:
        copied_rows = rows[plan.table.relid]
        if copied_rows < len(plan.images.keys):  # a deleted row is missing, and so is one whose key was mistyped
            missing = {"table": plan.table.identifier, "named": len(plan.images.keys), "found": copied_rows}
            _log.warning("not all of the named rows are on the source", extra=missing)
        _log.info("copied", extra={"table": plan.table.identifier, "rows": copied_rows, "lsn": str(cut.lsn)})


def _old_image(table: TableVersion, key: Sequence[str]) -> dict[str, Any]:
    """Return the old image of a delete: the key of its row."""
    cells = dict(zip(table.key_attnums, key, strict=True))
    absent = [c.attnum for c in table.columns if not c.published]
    old = [cells.get(attnum) for attnum in range(1, table.width + 1)]
    return {"old_kind": "K", "old": old, "unchanged": [], "absent": absent}


def _reprinted(
    source: SourceConfig, tables: Sequence[TableVersion], at_cut: row_forms.Forms | None
) -> dict[int, tuple[str, bool]]:
    from toolkit.source import connection

    if at_cut is None or not at_cut.printing:
        return {}
    with connection.connect(source) as conn:
        return row_forms.reprinted(conn, tables, at_cut)


def _schema_ids(
    plans: Sequence[_Plan], versions: dict[int, SchemaVersion], scope: Scope
) -> tuple[dict[int, int], set[int]]:
    """Return the schema version of each table's rows, and the relids with a new version."""
    ids: dict[int, int] = {}
    changed: set[int] = set()
    following = max((v.schema_id for v in versions.values()), default=0) + 1
    for plan in plans:
        known, found = versions.get(plan.table.relid), json.loads(plan.payload)
        logged = None if known is None else json.loads(known.payload)
        same = logged == found
        if scope.covers != Covers.ALL and known is not None:
            # Rows from before it stay in the log, and need what the catalog has dropped.
            same = TableVersion.from_json(ddl.carry(logged, found)) == known.table
        if known is not None and same:
            ids[plan.table.relid] = known.schema_id
            continue
        if scope.covers != Covers.ALL:
            raise ConfigError(
                f"repairing {plan.table.identifier}: the log does not know its present columns; run"
                f" `{command('repair', plan.table.identifier)}`"
            )
        ids[plan.table.relid] = following + len(changed)
        changed.add(plan.table.relid)
    return ids, changed


def _runs(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Group small pieces that share a file."""
    run: list[Item] = []
    for item in items:
        if run and sum(i.piece.bytes for i in run) + item.piece.bytes > _LEAST_PIECE:
            yield run
            run = []
        run.append(item)
    if run:
        yield run

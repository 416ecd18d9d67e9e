"""Run `cdc init` and `cdc uninstall`: objects on the source, the slot, the first copy at the slot's exact LSN."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from toolkit.capture.copy import copy_tables, forms_before, missing_baselines, repair
from toolkit.capture.same_history import (
    followed,
    prove,
    require_continued,
    require_same_database,
    require_same_history,
    require_same_source,
    with_read_publications,
)
from toolkit.lake.stored_log import StoredLog
from toolkit.rawlog.batch import BatchRecord, SourceIdentity
from toolkit.rawlog.event import Origin
from toolkit.values import progress
from toolkit.values.errors import HistoryDiverged, LakeError, PreflightFailed
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn
from toolkit.values.names import in_one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.lake.opened import Lake
    from toolkit.rawlog.store import RawLog
    from toolkit.source.connection import Connection
    from toolkit.source.slot import SlotState
    from toolkit.values.capture_rules import SourceConfig
    from toolkit.values.config import DbtProject
    from toolkit.values.source_access import SourceAccess

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class InitResult:
    """The rows copied by table identifier; empty if everything existed already."""

    lsn: Lsn
    generation: int
    rows: dict[str, int]
    left_out: dict[str, str] = field(default_factory=dict)  # why a table is not captured or was not copied


def plan_sql(source: SourceAccess) -> str:
    """Return the SQL that `init` would run on the source, to read it or to run it by hand."""
    from toolkit.source import (
        change_log,
        connection,
        drain_mode,
        install,
        own_publication,
        preflight,
        selection,
    )

    with connection.connect(source.config) as conn:
        preflight.require(conn, source.rules, ddl=source.ddl)
        tables, ticks = (selection.selected_tables(conn, source.rules), drain_mode.by_ticks(conn, source.rules))
        # A line names a table. A line break in that name must not end the comment.
        cost = "".join(f"-- {in_one_line(line)}\n" for line in change_log.predicted(conn, source.rules))
        publication = own_publication.publication_sql(conn, source.rules, ticks=ticks)
        return cost + install.install_sql(source.rules, tables, publication, ticks=ticks, ddl=source.ddl)


def init(
    source: SourceAccess,
    lake: Lake,
    dbt: DbtProject,
    *,
    new_generation: bool = False,
    strict: bool = False,
    new_key: bool = False,
) -> InitResult:
    """Install capture, create the slot and copy every table without a baseline. Idempotent and resumable.

    Tables that publishing would break are left out and named in the result; `strict` makes them an error instead.
    `new_generation` starts a new incarnation of the log after the history of the source was lost. `new_key` replaces
    the signing key.

    Raises:
        PreflightFailed, SlotError, HistoryDiverged: nothing was changed on the source.
    """
    from toolkit.source import connection, preflight, selection, signatures

    with connection.connect(source.config) as conn:
        left = {
            r.identifier: f"{why}; {preflight.keyless_remedy(r)}"
            for r, why in selection.left_out(conn, source.rules).items()
        }
        if strict and left:
            raise PreflightFailed("; ".join(f"table {name}: {why}" for name, why in left.items()))
        done, missing = _install(source, lake, dbt, conn, new_generation=new_generation)
    done = done or _complete(source, lake, missing)
    if new_key:
        with connection.connect(source.config) as conn:
            signatures.replace_key(conn)
    return replace(done, left_out=left | done.left_out)


def _install(
    source: SourceAccess, lake: Lake, dbt: DbtProject, conn: Connection, *, new_generation: bool
) -> tuple[InitResult | None, tuple[str, ...]]:
    """Bring source and lake to the point where only copies are missing.

    Return the result if this call began a log, with its first copies, or else the tables to copy.
    """
    from toolkit.build import project
    from toolkit.capture import executor_copies, handover
    from toolkit.lake import reads, session, tables
    from toolkit.source import catalog, change_log, claim, drain_mode, install, preflight, roles, slot
    from toolkit.source.claim import Claim

    tables.require_writable(lake.access)
    roles.require_installer(conn, source.config, "installing capture")
    preflight.require(conn, source.rules, ddl=source.ddl, new_slot=new_generation)
    ticks = drain_mode.by_ticks(conn, source.rules)
    ledger = lake.reading()
    last = ledger.last()
    uuid = reads.table_uuid(lake.access, lake.access.names.events)
    claim.require_unclaimed(conn, source.config, uuid)
    former = _former_slots(source.config, conn, uuid, new_generation)
    ours = claim.has_slot(conn, source.config, has_read=handover.has_read(ledger, source.config.slot))
    if not (ours or ticks):
        claim.require_no_slot(conn, source.config)
    existing = slot.read_slot(conn, source.config.slot)
    if last is not None and not new_generation:
        last.require_format()
        require_same_database(lake.access, last, claim.database_of(conn))
    if last is not None and existing is None and not new_generation and not ticks and last.tick is None:
        raise HistoryDiverged(
            f"slot {source.config.slot!r} is gone but the ledger goes on to {last.complete_to}: changes since then"
            " are lost; start a new log with `cdc init --new-generation`"
        )
    through_slot = last is not None and last.tick is None and not (new_generation or ticks)
    if through_slot and last:
        read = with_read_publications(source, last)
        here = catalog.read_identity(conn, read.rules)
        last = followed(conn, source.config, last, here)
        require_same_source(last, here)
        if existing is not None:
            require_continued(source.config, last, existing.confirmed_flush_lsn, slot.flush_lsn(conn))
            prove(conn, read.config, last)
    project.require_own(lake.access, dbt.folder)
    project.ensure(dbt)
    spark = session.own_session(lake.access)
    if executor_copies.on_executors(source, lake.access):
        executor_copies.require_connected(source, lake.access)
    tables.ensure(spark, lake.access)
    moving = change_log.moving(conn, source.rules) if last is not None and not new_generation else ()
    made = reads.table_uuid(lake.access, lake.access.names.events)
    assert made is not None
    _drop(conn, former)  # while their names are on record
    mine = Claim(made, lake.access.warehouse, source.config.slot, claim.database_of(conn))
    install.install(conn, source.rules, mine, ddl=source.ddl, lock_seconds=source.snapshot.lock_seconds)
    if not ticks:
        claim.record_slot(conn, source.config, exists=True)
    identity = catalog.read_identity(conn, source.rules)
    generation = 1 if last is None else last.generation + int(new_generation)
    if new_generation and existing is not None and ours:
        slot.drop_slot(conn, source.config.slot)
        existing = None
    if last is not None and not new_generation and (last.tick is not None) != ticks:
        (handover.to_ticks if ticks else handover.to_slot)(source, lake, conn)
        last, existing = (lake.reading().last(), slot.read_slot(conn, source.config.slot))
    elif through_slot and last and last.identity.publications.keys() != identity.publications.keys():
        handover.to_publications(source, lake, conn)
        last, existing = (lake.reading().last(), slot.read_slot(conn, source.config.slot))
    batch_id = 1 if last is None else last.batch_id + 1
    if last is None or new_generation if ticks else existing is None:
        change_log.settle(conn, source.rules, lock_seconds=source.snapshot.lock_seconds)
        change_log.begin(conn, source.rules, lock_seconds=source.snapshot.lock_seconds)
        return _first(source, lake, conn, identity, generation, batch_id, ticks), ()
    if last is not None and ticks:
        from toolkit.capture import tick_drain

        tick_drain.last_tick(source.rules, conn, last)
        handover.drop_left_slot(source, lake, conn)
    if last is not None and not ticks and existing is not None:
        require_same_history(source.config, last, identity, existing.confirmed_flush_lsn, slot.flush_lsn(conn))
    if last is None and existing is not None:
        # An earlier call was killed between slot and ledger. Nothing was read from the slot, so the log starts at
        # its position.
        log = StoredLog(lake.access, rules=lake.rules)
        start(log, source.config, conn, identity, generation, 1, existing.confirmed_flush_lsn)
    change_log.settle(conn, source.rules, lock_seconds=source.snapshot.lock_seconds)
    return None, _to_copy(conn, lake, moving)


def _to_copy(conn: Connection, lake: Lake, moved: Sequence[str]) -> tuple[str, ...]:
    """Return the tables without a copy, and those that have moved.

    A table that must not be published has left capture instead, and a partition is part of its root where the slot
    sends its rows as those of the root.
    """
    from toolkit.source import catalog

    published = {table.identifier for table in catalog.published_tables(conn)}
    return tuple(dict.fromkeys([*missing_baselines(conn, lake), *(name for name in moved if name in published)]))


def _former_slots(
    source: SourceConfig, conn: Connection, lake: str | None, new_generation: bool
) -> tuple[SlotState, ...]:
    """Return the slots from which the lake was read under another configuration. They would keep WAL for ever."""
    from toolkit.source import claim, slot

    former = claim.former_slots(conn, source, lake) if lake is not None else ()
    if former and not new_generation:
        name = former[0].name
        raise HistoryDiverged(
            f"[source] slot is {source.slot!r}, and the log is read from slot {name!r}; set it to {name!r} again, or"
            " start a new log with `cdc init --new-generation`, which drops that slot"
        )
    for state in former:
        slot.require_ours(state)
    return former


def _drop(conn: Connection, slots: Sequence[SlotState]) -> None:
    from toolkit.source import slot

    for state in slots:
        slot.drop_slot(conn, state.name)


def _complete(source: SourceAccess, lake: Lake, missing: Sequence[str]) -> InitResult:
    """Copy the tables that have no copy yet in this generation of the log."""
    last = lake.reading().last()
    assert last is not None
    if not missing:
        return InitResult(last.complete_to, last.generation, {})
    result = repair(source, lake, missing)
    return InitResult(result.lsn, last.generation, result.rows, result.left_out)


def _first(
    source: SourceAccess,
    lake: Lake,
    conn: Connection,
    identity: SourceIdentity,
    generation: int,
    batch_id: int,
    ticks: bool,
) -> InitResult:
    """Create the slot, or take the first tick, and copy all tables; the exported snapshot is the cut of the copy."""
    from toolkit.source import claim, connection, slot
    from toolkit.source import ticks as tick

    if ticks:
        claim.record_slot(conn, source.config, exists=False)
    forms = forms_before(source)
    opened = (
        tick.tick_cut(source.config)
        if ticks
        else slot.create_slot(source.config, source.config.slot, cut_seconds=source.cut_seconds)
    )
    with ExitStack() as stack:
        with progress.stage("waiting for running transactions"):
            cut = stack.enter_context(opened)
        log = StoredLog(lake.access, rules=lake.rules)
        start(log, source.config, conn, identity, generation, batch_id, cut.lsn, tick=cut.tick)
        copied = copy_tables(source, lake, cut, forms)
    if not copied.left_out:
        return InitResult(cut.lsn, generation, copied.rows)
    # These tables changed or were locked during the copy: copy them again under a cut of their own, if they still
    # exist.
    with connection.connect(source.config) as later:  # the session of the command was idle during the copies
        missing = missing_baselines(later, lake)
    again = repair(source, lake, missing)
    return InitResult(again.lsn, generation, copied.rows | again.rows, again.left_out)


def start(
    log: RawLog,
    source: SourceConfig,
    conn: Connection,
    identity: SourceIdentity,
    generation: int,
    batch_id: int,
    at: Lsn,
    *,
    tick: str | None = None,
) -> None:
    """Commit the first ledger row of a generation: the log is complete to the position at which the slot starts."""
    from toolkit.source import guard, slot

    beacon, beacon_lsn = slot.emit_beacon(conn) if tick is None else (None, None)
    record = BatchRecord(
        batch_id=batch_id,
        generation=generation,
        from_lsn=at,
        upto_lsn=at,
        complete_to=at,
        origin=Origin.SNAPSHOT,
        slot=source.slot,
        identity=identity,
        changes=0,
        beacon=beacon,
        beacon_lsn=beacon_lsn,
        tick=tick,
        committed_at=datetime.now(UTC).isoformat(),
        compared_to=at,
        capture=guard.capture_state(conn).state,
    )
    log.commit(record, [], base=log.reading().snapshot_id())


def uninstall(source: SourceAccess, lake: Lake) -> bool:
    """Remove slot, publication, event triggers and schema from the source. The lake stays as it is.

    What other lakes of the database use too stays with them. Return whether there was anything of this configuration.

    Raises:
        PreflightFailed: another lake uses the slot.
    """
    from toolkit.capture import handover
    from toolkit.lake import reads
    from toolkit.source import catalog, claim, connection, install, roles

    made, has_read = None, False
    with suppress(LakeError):  # a lake that cannot be read any more is no reason to keep its capture
        made = reads.table_uuid(lake.access, lake.access.names.events)
        has_read = handover.has_read(lake.reading(), source.config.slot)
    with connection.connect(source.config) as conn:
        roles.require_installer(conn, source.config, "removing capture")
        claim.require_unclaimed(conn, source.config, made, slot_of_lost_lake=source.config.slot)
        lakes = claim.claims(conn)
        there = has_read or (any(c.slot == source.config.slot for c in lakes) if lakes else catalog.begun(conn))
        install.uninstall(conn, source.config, lock_seconds=source.snapshot.lock_seconds, has_read=has_read)
    return there

"""Run `cdc init` and `cdc uninstall`: objects on the source, the slot, the first copy at the slot's exact LSN."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from toolkit.capture.copy import copy_tables, missing_baselines, repair
from toolkit.capture.same_history import (
    followed,
    prove,
    require_continued,
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

if TYPE_CHECKING:
    from toolkit.rawlog.store import RawLog
    from toolkit.values.config import Config

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class InitResult:
    """The rows copied by table identifier; empty if everything existed already."""

    lsn: Lsn
    generation: int
    rows: dict[str, int]
    left_out: dict[str, str] = field(default_factory=dict)  # why a table is not captured or was not copied


def plan_sql(config: Config) -> str:
    """Return the SQL that `init` would run on the source, to read it or to run it by hand."""
    from toolkit.source import catalog, change_log, connection, install, preflight

    with connection.connect(config) as conn:
        preflight.require(conn, config)
        tables, ticks = catalog.selected_tables(conn, config), change_log.by_ticks(conn, config)
        cost = "".join(f"-- {line}\n" for line in change_log.predicted(conn, config))
        return cost + install.install_sql(config, tables, ticks=ticks)


def init(config: Config, *, new_generation: bool = False, strict: bool = False, new_key: bool = False) -> InitResult:
    """Install capture, create the slot and copy every table without a baseline. Idempotent and resumable.

    Tables that publishing would break are left out and named in the result; `strict` makes them an error instead.
    `new_generation` starts a new incarnation of the log after the history of the source was lost.

    Raises:
        PreflightFailed, SlotError, HistoryDiverged: nothing was changed on the source.
    """
    from toolkit.source import catalog, connection, preflight

    with connection.connect(config) as conn:
        left = {
            r.identifier: f"{why}; {preflight.keyless_remedy(r)}" for r, why in catalog.left_out(conn, config).items()
        }
    if strict and left:
        raise PreflightFailed("; ".join(f"table {name}: {why}" for name, why in left.items()))
    done = _init(config, new_generation=new_generation)
    return replace(done, left_out=left | done.left_out)


def _init(config: Config, *, new_generation: bool) -> InitResult:
    from toolkit.build import project
    from toolkit.lake import reads, session, tables
    from toolkit.lake.ledger import Ledger
    from toolkit.source import catalog, change_log, claim, connection, install, preflight, roles, slot
    from toolkit.source.claim import Claim

    tables.require_writable(config)
    with connection.connect(config) as conn:
        roles.require_installer(conn, config, "installing capture")
        preflight.require(conn, config)
        ticks = change_log.by_ticks(conn, config)
        last = Ledger(config).last()
        claim.require_unclaimed(conn, config, reads.table_uuid(config, tables.EVENTS))
        existing = slot.read_slot(conn, config.source.slot)
        if last is not None and not new_generation:
            last.require_format()
        if last is not None and existing is None and not new_generation and not ticks and last.tick is None:
            raise HistoryDiverged(
                f"slot {config.source.slot!r} is gone but the ledger goes on to {last.complete_to}: changes since then"
                " are lost; start a new log with `cdc init --new-generation`"
            )
        through_slot = last is not None and last.tick is None and not (new_generation or ticks)
        if through_slot and last:
            read = with_read_publications(config, last)
            here = catalog.read_identity(conn, read)
            last = followed(conn, config, last, here)
            require_same_source(last, here)
            if existing is not None:
                require_continued(config, last, existing.confirmed_flush_lsn, slot.flush_lsn(conn))
                prove(conn, read, last)
        project.ensure(config)
        tables.ensure(session.own_session(config), config)
        moving = change_log.moving(conn, config) if last is not None and not new_generation else ()
        made = reads.table_uuid(config, tables.EVENTS)
        assert made is not None
        mine = Claim(made, config.warehouse, config.source.slot, claim.database_of(conn))
        install.install(conn, config, mine)
        identity = catalog.read_identity(conn, config)
        generation = 1 if last is None else last.generation + int(new_generation)
        if new_generation and existing is not None:
            slot.drop_slot(conn, config.source.slot)
            existing = None
        if last is not None and not new_generation and (last.tick is not None) != ticks:
            from toolkit.capture import handover

            (handover.to_ticks if ticks else handover.to_slot)(config, conn)
            last, existing = Ledger(config).last(), slot.read_slot(conn, config.source.slot)
        elif through_slot and last and last.identity.publications.keys() != identity.publications.keys():
            from toolkit.capture import handover

            handover.to_publications(config, conn)
            last, existing = Ledger(config).last(), slot.read_slot(conn, config.source.slot)
        batch_id = 1 if last is None else last.batch_id + 1
        if last is None or new_generation if ticks else existing is None:
            change_log.settle(conn, config)
            change_log.begin(conn, config)
            return _first(config, identity, generation, batch_id, ticks)
        if last is not None and ticks:
            from toolkit.capture import handover, tick_drain

            tick_drain.last_tick(config, conn, last)
            handover.drop_left_slot(config, conn)
        if last is not None and not ticks and existing is not None:
            require_same_history(config, last, identity, existing.confirmed_flush_lsn, slot.flush_lsn(conn))
        if last is None and existing is not None:
            # An earlier call was killed between slot and ledger. Nothing was read from the slot, so the log starts at
            # its position.
            start(StoredLog(config), config, identity, generation, 1, existing.confirmed_flush_lsn)
        change_log.settle(conn, config)
    missing = tuple(dict.fromkeys([*missing_baselines(config), *moving]))
    if not missing:
        done = Ledger(config).last()
        assert done is not None
        return InitResult(done.complete_to, done.generation, {})
    result = repair(config, missing)
    return InitResult(result.lsn, generation, result.rows, result.left_out)


def _first(config: Config, identity: SourceIdentity, generation: int, batch_id: int, ticks: bool) -> InitResult:
    """Create the slot, or take the first tick, and copy all tables; the exported snapshot is the cut of the copy."""
    from toolkit.source import slot
    from toolkit.source import ticks as tick

    opened = tick.tick_cut(config) if ticks else slot.create_slot(config, config.source.slot, temporary=False)
    with ExitStack() as stack:
        with progress.stage("waiting for running transactions"):
            cut = stack.enter_context(opened)
        start(StoredLog(config), config, identity, generation, batch_id, cut.lsn, tick=cut.tick)
        copied = copy_tables(config, cut)
    if not copied.left_out:
        return InitResult(cut.lsn, generation, copied.rows)
    # These tables changed or were locked during the copy: copy them again under a cut of their own, if they still
    # exist.
    again = repair(config, missing_baselines(config))
    return InitResult(again.lsn, generation, copied.rows | again.rows, again.left_out)


def start(
    log: RawLog,
    config: Config,
    identity: SourceIdentity,
    generation: int,
    batch_id: int,
    at: Lsn,
    *,
    tick: str | None = None,
) -> None:
    """Commit the first ledger row of a generation: the log is complete to the position at which the slot starts."""
    from toolkit.source import connection, guard, slot

    beacon = beacon_lsn = None
    with connection.connect(config) as conn:
        capture = guard.capture_state(conn).state
        if tick is None:
            beacon, beacon_lsn = slot.emit_beacon(conn)
    record = BatchRecord(
        batch_id=batch_id,
        generation=generation,
        from_lsn=at,
        upto_lsn=at,
        complete_to=at,
        origin=Origin.SNAPSHOT,
        slot=config.source.slot,
        identity=identity,
        changes=0,
        beacon=beacon,
        beacon_lsn=beacon_lsn,
        tick=tick,
        committed_at=datetime.now(UTC).isoformat(),
        compared_to=at,
        capture=capture,
    )
    log.commit(record, [], base=log.reading().snapshot_id())


def uninstall(config: Config) -> None:
    """Remove slot, publication, event triggers and schema from the source. The lake stays as it is.

    What other lakes of the database use too stays with them.

    Raises:
        PreflightFailed: another lake uses the slot.
    """
    from toolkit.lake import reads
    from toolkit.lake.tables import EVENTS
    from toolkit.source import claim, connection, install, roles

    try:
        lake = reads.table_uuid(config, EVENTS)
    except LakeError:  # a lake that cannot be read any more is no reason to keep its capture
        lake = None
    with connection.connect(config) as conn:
        roles.require_installer(conn, config, "removing capture")
        claim.require_unclaimed(conn, config, lake, slot_of_lost_lake=config.source.slot)
        install.uninstall(conn, config)

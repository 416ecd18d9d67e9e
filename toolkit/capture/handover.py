"""Hand the change log over from ticks to a slot, and back, under any load: both meet at one exact cut.

The consistent point L of a logical slot has a snapshot S that shows exactly the transactions with `commit_lsn < L`. S
is therefore a tick: what it shows comes from one side, everything else from the other, and nothing from both.
`drop_left_slot` and `change_log.settle` remove what the other side used afterwards, also after a kill.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolkit.capture.same_history import with_read_publications
from toolkit.capture.slot_drain import drain
from toolkit.lake.ledger import require_ledger
from toolkit.lake.stored_log import StoredLog
from toolkit.values.errors import HistoryDiverged
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.log_setup import logger

if TYPE_CHECKING:
    from toolkit.source.connection import Connection
    from toolkit.values.config import Config

_log = logger(__name__)


def to_slot(config: Config, conn: Connection) -> None:
    """Drain the last tick at the cut of a new slot; the slot has everything from there.

    After a kill the handover starts again: nothing was read from the slot yet.
    """
    from toolkit.capture import tick_drain
    from toolkit.source import catalog, slot, ticks

    slot.drop_slot(conn, config.source.slot)  # left by an earlier attempt
    with slot.create_slot(config, config.source.slot, temporary=False) as cut:
        taken = ticks.at_cut(conn, config, cut)
    tick_drain.drain(config, conn, StoredLog(config), taken.lsn)
    beacon, at = slot.emit_beacon(conn)
    identity = catalog.read_identity(conn, config)
    _row(config, slot=config.source.slot, identity=identity, tick=None, beacon=beacon, beacon_lsn=at)
    _log.info("handed over to the slot", extra={"lsn": str(cut.lsn)})


def to_ticks(config: Config, conn: Connection) -> None:
    """Drain the slot to the cut of a temporary slot, which is the first tick.

    Raises:
        HistoryDiverged: the slot is gone, and with it the position at which ticks could begin.
    """
    from toolkit.source import slot, ticks

    if slot.read_slot(conn, config.source.slot) is None:
        raise HistoryDiverged(
            f"slot {config.source.slot!r} is gone, so the first position of the ticks is unknown; hand over while it is"
            " there (`cdc init` before wal_level is lowered), or start a new log with `cdc init --new-generation`"
        )
    by_slot = config.model_copy(update={"source": config.source.model_copy(update={"change_log_drain": "slot"})})
    with slot.create_slot(config, slot.temporary_name(config), temporary=True) as cut:
        taken = ticks.at_cut(conn, config, cut)
    last = require_ledger(config).last()
    assert last is not None
    drain(with_read_publications(by_slot, last), upto=cut.lsn)
    identity = replace(last.identity, publications={})
    _row(config, slot="", identity=identity, tick=taken.snapshot, beacon=None, beacon_lsn=None)
    _log.info("handed over to ticks", extra={"lsn": str(cut.lsn)})


def to_publications(config: Config, conn: Connection) -> None:
    """Drain the slot with the old publications to the cut of a temporary slot, then continue with the new ones.

    The cut waits for transactions older than a publication, because the slot could not be read with that publication
    before its creation. Event triggers use the new publications already; DDL captured meanwhile becomes a gap
    (`decode.transaction`).
    """
    from toolkit.source import catalog, slot

    last = require_ledger(config).last()
    assert last is not None
    with slot.create_slot(config, slot.temporary_name(config), temporary=True) as cut:
        pass
    drain(with_read_publications(config, last), upto=cut.lsn)
    # The next drain reads at least the beacon after the cut, so it compares the catalog in any case.
    _row(config, identity=catalog.read_identity(conn, config))
    _log.info("handed over to other publications", extra={"lsn": str(cut.lsn), "now": config.source.publication_names})


def drop_left_slot(config: Config, conn: Connection) -> None:
    """Drop the slot that was read before the switch to ticks; a slot of that name that others created stays."""
    from toolkit.source import slot

    left = slot.read_slot(conn, config.source.slot)
    if left is not None and any(b.slot == left.name and b.tick is None for b in require_ledger(config).batches()):
        slot.require_ours(conn, config, left)
        slot.drop_slot(conn, left.name)


@can_fail(Point.HANDOVER)
def _row(config: Config, **changes: Any) -> None:
    """Commit a ledger row at the same position that records how draining continues."""
    ledger = require_ledger(config)
    last = ledger.last()
    assert last is not None
    ledger.append_empty(last.next(upto_lsn=last.complete_to, **changes), [])


__all__ = ["drop_left_slot", "to_publications", "to_slot", "to_ticks"]

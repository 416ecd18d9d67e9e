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
from toolkit.lake.stored_log import StoredLog
from toolkit.values.errors import HistoryDiverged
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.log_setup import logger
from toolkit.values.modes import LogDrain

if TYPE_CHECKING:
    from toolkit.lake.ledger import Ledger
    from toolkit.lake.opened import Lake
    from toolkit.source.connection import Connection
    from toolkit.values.source_access import SourceAccess

_log = logger(__name__)


def to_slot(source: SourceAccess, lake: Lake, conn: Connection) -> None:
    """Drain the last tick at the cut of a new slot; the slot has everything from there.

    After a kill the handover starts again: nothing was read from the slot yet.
    """
    from toolkit.capture import tick_drain
    from toolkit.source import catalog, slot, ticks

    slot.drop_slot(conn, source.config.slot)  # left by an earlier attempt
    with slot.create_slot(source.config, source.config.slot, cut_seconds=source.cut_seconds) as cut:
        taken = ticks.at_cut(conn, source.config, cut)
    tick_drain.drain(source, conn, StoredLog(lake.access, rules=lake.rules), taken.lsn)
    beacon, at = slot.emit_beacon(conn)
    identity = catalog.read_identity(conn, source.rules)
    _row(lake, slot=source.config.slot, identity=identity, tick=None, beacon=beacon, beacon_lsn=at)
    _log.info("handed over to the slot", extra={"lsn": str(cut.lsn)})


def to_ticks(source: SourceAccess, lake: Lake, conn: Connection) -> None:
    """Drain the slot to the cut of a temporary slot, which is the first tick.

    Raises:
        HistoryDiverged: the slot is gone, and with it the position at which ticks could begin.
    """
    from toolkit.source import slot, ticks

    if slot.read_slot(conn, source.config.slot) is None:
        raise HistoryDiverged(
            f"slot {source.config.slot!r} is gone, so the first position of the ticks is unknown; hand over while it is"
            " there (`cdc init` before wal_level is lowered), or start a new log with `cdc init --new-generation`"
        )
    by_slot = source.changed(change_log_drain=LogDrain.SLOT)
    with slot.create_slot(source.config, cut_seconds=source.cut_seconds) as cut:
        taken = ticks.at_cut(conn, source.config, cut)
    last = lake.reading().require().last()
    assert last is not None
    drain(with_read_publications(by_slot, last), lake, upto=cut.lsn)
    last = lake.reading().require().last()  # the drain may have followed a promotion to another timeline
    assert last is not None
    identity = replace(last.identity, publications={})
    _row(lake, slot="", identity=identity, tick=taken.snapshot, beacon=None, beacon_lsn=None)
    _log.info("handed over to ticks", extra={"lsn": str(cut.lsn)})


def to_publications(source: SourceAccess, lake: Lake, conn: Connection) -> None:
    """Drain the slot with the old publications to the cut of a temporary slot, then continue with the new ones.

    The cut waits for transactions older than a publication, because the slot could not be read with that publication
    before its creation. Event triggers use the new publications already; DDL captured meanwhile becomes a gap
    (`decode.transaction`).
    """
    from toolkit.source import catalog, slot

    last = lake.reading().require().last()
    assert last is not None
    with slot.create_slot(source.config, cut_seconds=source.cut_seconds) as cut:
        pass
    drain(with_read_publications(source, last), lake, upto=cut.lsn)
    # The next drain reads at least the beacon after the cut, so it compares the catalog in any case.
    _row(lake, identity=catalog.read_identity(conn, source.rules))
    _log.info("handed over to other publications", extra={"lsn": str(cut.lsn), "now": source.config.publication_names})


def has_read(ledger: Ledger, name: str) -> bool:
    """Return whether the log was ever read from a slot of that name."""
    return ledger.last() is not None and any(b.slot == name and b.tick is None for b in ledger.batches())


def drop_left_slot(source: SourceAccess, lake: Lake, conn: Connection) -> None:
    """Drop the slot that was read before the switch to ticks; a slot of that name that others created stays."""
    from toolkit.source import claim, slot

    left = slot.read_slot(conn, source.config.slot)
    if left is not None:
        if not claim.has_slot(conn, source.config, has_read=has_read(lake.reading(), left.name)):
            return
        slot.require_ours(left)
        slot.drop_slot(conn, left.name)
    claim.record_slot(conn, source.config, exists=False)


@can_fail(Point.HANDOVER)
def _row(lake: Lake, **changes: Any) -> None:
    """Commit a ledger row at the same position that records how draining continues."""
    ledger = lake.reading().require()
    last = ledger.last()
    assert last is not None
    ledger.append_empty(last.next(upto_lsn=last.complete_to, **changes), [])

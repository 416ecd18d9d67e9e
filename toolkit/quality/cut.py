"""Open the cut of a check: a snapshot of the source at an exact LSN."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from toolkit.values.errors import CdcError
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn

if TYPE_CHECKING:
    from toolkit.lake.opened import Lake
    from toolkit.source.opened import Source

_log = logger(__name__)


class Drain(Protocol):
    """The type of `toolkit.capture.slot_drain.drain`, which the caller passes in."""

    def __call__(self, *, upto: Lsn) -> Any:
        """Drain to an LSN."""


def open_cut(source: Source, lake: Lake, stack: ExitStack, drain: Drain) -> Lsn:
    """Open the snapshot of an exact LSN in the session of `source`, and wait until the slot can be drained to it.

    A temporary slot gives the LSN if one can be created at once; otherwise the LSN is found in the stream.
    """
    from toolkit.source import exact_cut, row_lines, slot, ticks

    conn, seconds = source.conn, source.access.cut_seconds
    if exact_cut.slot_at_once(source):
        try:
            # The slot is temporary, so that a kill leaves nothing behind.
            made = stack.enter_context(ticks.exact_cut(source.access.rules, cut_seconds=seconds))
        except CdcError as error:
            _log.info("no cut by a slot", extra={"reason": str(error)})
        else:
            stack.enter_context(row_lines.inside_snapshot(conn, made.snapshot_name, seconds=seconds))
            with source.second_connection() as other:
                slot.wait_flush(other)
            return Lsn(made.lsn)
    with source.second_connection() as other:
        drain(upto=slot.flush_lsn(other))  # so that only a short stretch must be searched
    from toolkit.lake.evidence import unseen_xids

    ledger = lake.reread()
    last = ledger.last()
    assert last is not None
    unseen = partial(unseen_xids, lake.access, ledger)
    return exact_cut.without_slot(source, stack, drained=Lsn(last.complete_to), unseen=unseen)

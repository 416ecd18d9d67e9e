"""Allow one runner at a time, on this machine and on the source, and write the states and plans of the tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from toolkit.values.errors import CdcError
from toolkit.values.failpoints import Point, can_fail

if TYPE_CHECKING:
    from toolkit.lake.opened import Lake
    from toolkit.values.capture_rules import SourceConfig


@contextmanager
def only_runner(lake: Lake, source: SourceConfig | None = None) -> Iterator[None]:
    """Hold the lease of the lake and, with `source`, that of the slot; then write the states and plans of the tables.

    Raises:
        LeaseHeld: another process holds one of them; the message names it.
        LakeError, SourceUnavailable: a lease cannot be taken, or the states cannot be written.
    """
    from toolkit.lake.lease import hold_lease
    from toolkit.source.slot_lease import hold_slot_lease

    with hold_lease(lake.access), hold_slot_lease(source) if source is not None else nullcontext():
        try:
            yield
        except CdcError:
            with suppress(Exception):  # the command's error is more useful; `ops.tables` says stale until then
                _write_judged(lake)
            raise
        _write_judged(lake)


@can_fail(Point.JUDGED)
def _write_judged(lake: Lake) -> None:
    from toolkit.lake import plans, table_states

    ledger = lake.reading()
    plans.follow(ledger)
    table_states.write(ledger)

"""Allow one runner at a time, on this machine and on the source, and write the states and plans of the tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from toolkit.values.errors import CdcError
from toolkit.values.failpoints import Point, can_fail

if TYPE_CHECKING:
    from toolkit.values.config import Config


@contextmanager
def only_runner(config: Config, *, source: bool = True) -> Iterator[None]:
    """Hold the lease of the lake and, with `source`, that of the slot; then write the states and plans of the tables.

    Raises:
        LeaseHeld: another process holds one of them; the message names it.
        LakeError, SourceUnavailable: a lease cannot be taken, or the states cannot be written.
    """
    from toolkit.lake.lease import hold_lease
    from toolkit.source.slot_lease import hold_slot_lease

    with hold_lease(config), hold_slot_lease(config) if source else nullcontext():
        try:
            yield
        except CdcError:
            with suppress(Exception):  # the command's error is more useful; `ops.tables` says stale until then
                _write_judged(config)
            raise
        _write_judged(config)


@can_fail(Point.JUDGED)
def _write_judged(config: Config) -> None:
    from toolkit.lake import plans, table_states
    from toolkit.lake.ledger import Ledger

    ledger = Ledger(config)
    plans.follow(ledger)
    table_states.write(ledger)


__all__ = ["only_runner"]

"""One runner at a time, on this machine and on the source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.values.config import Config


@contextmanager
def only_runner(config: Config) -> Iterator[None]:
    """Hold the lease of the lake, and that of the slot on the source.

    Raises:
        LeaseHeld: another process holds one of them; the message says which.
        LakeError, SourceUnavailable: a lease cannot be taken.
    """
    from toolkit.lake.lease import hold_lease
    from toolkit.source.slot_lease import hold_slot_lease

    with hold_lease(config), hold_slot_lease(config):
        yield


__all__ = ["only_runner"]

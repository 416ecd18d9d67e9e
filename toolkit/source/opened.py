"""Open the source once for a command: its session, and facts that the command reads more than once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from toolkit.source import drain_mode, slot
from toolkit.source.connection import Connection, connect
from toolkit.source.slot import SlotState
from toolkit.values.config import Config


class Source:
    """The source as one command sees it."""

    def __init__(self, config: Config, conn: Connection) -> None:
        self.config, self.conn = config, conn

    @cached_property
    def by_ticks(self) -> bool:
        """Return whether the change log is drained by ticks and there is no slot at all."""
        return drain_mode.by_ticks(self.conn, self.config)

    @cached_property
    def slot(self) -> SlotState | None:
        """Return the configured slot as this command found it; None if it does not exist."""
        return slot.read_slot(self.conn, self.config.source.slot)

    @contextmanager
    def second_connection(self) -> Iterator[Connection]:
        """Open a further session, for work that the first one cannot see or do in its transaction."""
        with connect(self.config) as conn:
            yield conn


@contextmanager
def open_source(config: Config) -> Iterator[Source]:
    """Connect to the source.

    Raises:
        SourceUnavailable: the server cannot be reached.
    """
    with connect(config) as conn:
        yield Source(config, conn)

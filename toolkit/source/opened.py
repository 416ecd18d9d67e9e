"""Open the source once for a command: its session, and facts that the command reads more than once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from toolkit.source import drain_mode, slot
from toolkit.source.connection import Connection, connect
from toolkit.source.row_lines import others
from toolkit.source.slot import SlotState
from toolkit.values.source_access import SourceAccess


class Source:
    """The source as one command sees it."""

    def __init__(self, access: SourceAccess, conn: Connection) -> None:
        self.access, self.conn = access, conn
        #: What opens the further sessions that may read a large table.
        self.others = others(access.config, sessions=access.sessions)

    @cached_property
    def by_ticks(self) -> bool:
        """Return whether the change log is drained by ticks and there is no slot at all."""
        return drain_mode.by_ticks(self.conn, self.access.rules)

    @cached_property
    def slot(self) -> SlotState | None:
        """Return the configured slot as this command found it; None if it does not exist."""
        return slot.read_slot(self.conn, self.access.config.slot)

    @contextmanager
    def second_connection(self) -> Iterator[Connection]:
        """Open a further session, for work that the first one cannot see or do in its transaction."""
        with connect(self.access.config) as conn:
            yield conn


@contextmanager
def open_source(access: SourceAccess) -> Iterator[Source]:
    """Connect to the source.

    Raises:
        SourceUnavailable: the server cannot be reached.
    """
    with connect(access.config) as conn:
        yield Source(access, conn)

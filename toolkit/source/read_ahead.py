"""Read what the slot will send next, while what it has sent is decoded and committed.

The slot itself cannot be asked: it sends everything after its own position, and moves only after the commit. A
temporary copy of it can move before. A copy at the position to which the slot will move sends the same.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import psycopg

from toolkit.source import peek, slot
from toolkit.source.connection import Connection, connect
from toolkit.source.spooling import spool_directory
from toolkit.values.capture_rules import SourceConfig
from toolkit.values.errors import CdcError
from toolkit.values.log_setup import logger
from toolkit.values.lsn import Lsn
from toolkit.values.spool import Spool

_log = logger(__name__)


class ReadAhead:
    """A peek at what follows `after`, in a thread and session of its own.

    Args:
        after: the end of what is being committed.
        upto, max_changes: as for `toolkit.source.peek.peek`.
        spool_dir: the folder in which the peek has one of its own.
    """

    def __init__(self, source: SourceConfig, *, after: Lsn, upto: Lsn, max_changes: int, spool_dir: Path) -> None:
        self._source, self._after, self._upto, self._max_changes = source, after, upto, max_changes
        self._conn: Connection | None = None
        self._held = ExitStack()  # the thread, and the folder of the spool
        pool = self._held.enter_context(ThreadPoolExecutor(1, "read-ahead"))
        self._peek = pool.submit(self._read, spool_dir)

    def take(self, directory: Path) -> Spool | None:
        """Wait for the spool, and move it to `directory`.

        None if it could not be read: no slot was free, the server had no room, or an error that reading the slot itself
        will name.
        """
        try:
            spool = self._peek.result()
            return replace(spool, path=spool.path.rename(directory / spool.path.name))
        except (CdcError, psycopg.Error, OSError) as error:
            _log.debug("nothing was read ahead", extra={"reason": str(error)})
            return None
        finally:
            self.close()

    def close(self) -> None:
        """End the peek, and remove what is left of it."""
        while wait((self._peek,), timeout=0.1).not_done:
            if (conn := self._conn) is not None:
                with suppress(psycopg.Error):  # it has ended by itself
                    conn.cancel_safe(timeout=1)
        self._held.close()

    def _read(self, spool_dir: Path) -> Spool:
        directory = self._held.enter_context(spool_directory(spool_dir))
        with connect(self._source) as self._conn:
            copy = self._source.model_copy(update={"slot": slot.copy_slot(self._conn, self._source.slot)})
            slot.advance(self._conn, copy.slot, self._after)
            return peek.peek(self._conn, copy, upto=self._upto, max_changes=self._max_changes, directory=directory)

"""Read rows of a COPY ... TO STDOUT as fast as libpq returns them."""

from __future__ import annotations

import select
from collections.abc import Iterator

import psycopg
from psycopg import pq

from toolkit.source.connection import Connection

_BLOCK_BYTES = 4 << 20
_WAIT_SECONDS = 1.0  # Ctrl-C must work while the server is still decoding


def copy_blocks(conn: Connection, statement: str, block_bytes: int = _BLOCK_BYTES) -> Iterator[list[bytes]]:
    """Run a COPY and yield lists of its messages, about `block_bytes` together. The server sends one message a row.

    `psycopg.Copy` runs its event loop once per message; this loop empties libpq's buffer first.

    Raises:
        psycopg.Error: an error of the server, also after the first rows.
    """
    pgconn = conn.pgconn
    with conn.cursor() as cursor, cursor.copy(statement):
        messages: list[bytes] = []
        size = 0
        get = pgconn.get_copy_data
        while True:
            length, data = get(1)
            if length > 0:
                messages.append(bytes(data))
                del data  # a second copy of the row, which may be huge
                size += length
                if size >= block_bytes:
                    yield messages
                    messages, size = [], 0
            elif length == 0:
                arrives(pgconn)
            else:
                break
        _finish(conn)
        if messages:
            yield messages


def arrives(pgconn: pq.abc.PGconn) -> bool:
    """Wait up to a second for input, and read it."""
    if not select.select([pgconn.socket], [], [], _WAIT_SECONDS)[0]:
        return False
    pgconn.consume_input()
    return True


def next_result(pgconn: pq.abc.PGconn) -> pq.abc.PGresult | None:
    """Wait for a result. libpq's own wait would block all threads of this process, and Ctrl-C."""
    while pgconn.is_busy():
        arrives(pgconn)
    return pgconn.get_result()


def _finish(conn: Connection) -> None:
    """Read the final results, so that the session is idle again."""
    failure: psycopg.Error | None = None
    while (result := next_result(conn.pgconn)) is not None:
        if result.status == pq.ExecStatus.FATAL_ERROR and failure is None:
            failure = psycopg.errors.error_from_result(result, encoding="utf-8")
    if failure is not None:
        raise failure

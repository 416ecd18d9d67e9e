"""Read the slot by streaming replication, which needs no temporary files on the server. Nothing is consumed.

A peek collects its whole result on the server first, so `temp_file_limit` or a full disk stops it at one transaction
that is too large. Streaming sends each message as it is decoded, at half the speed (decision 4). No position is ever
acknowledged as flushed, so the slot does not move.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Generator, Iterator
from contextlib import closing

import psycopg
from psycopg import pq

from toolkit.source import signatures, slot
from toolkit.source.connection import Connection, connect
from toolkit.source.copyout import arrives, next_result
from toolkit.values.capture_rules import SourceConfig
from toolkit.values.lsn import Lsn
from toolkit.values.names import quote_postgres

#: `(lsn, xid, message)`, as a peek returns them.
Message = tuple[int, int, bytes]

_DATA = struct.Struct(">cqqq")  # w, LSN of the message, LSN again, time of sending
_KEEPALIVE = struct.Struct(">cqq?")  # k, end of what was sent, time, whether an answer is wanted
_STATUS = struct.Struct(">cqqqq?")  # r, written, flushed, applied, time, whether an answer is wanted
_BEGIN = struct.Struct(">cqqI")  # B, LSN of the COMMIT record, time, xid
_ROW = struct.Struct(">hiqiIi")  # a row of COPY BINARY up to the bytes of its third field
_BLOCK_BYTES = 4 << 20
_ENDING_MILLISECONDS = 30_000
_SIGNED = (b"cdc.ddl", b"cdc.beacon")
_EMPTY_APART = b"cdc.apart\0\0\0\0\0"


def messages(
    conn: Connection, source: SourceConfig, *, upto: Lsn, max_changes: int | None = None
) -> Generator[Message, None, None]:
    """Yield what a peek returns up to the end of a record, in the same order. Closing it ends the session.

    The xid of a message outside of transactions is 0: the stream does not contain it.

    Raises:
        psycopg.Error: an error of the server; the connection has ended.
    """
    options = {"proto_version": "1", "publication_names": source.publication_names, "messages": "true"}
    given = ", ".join(f"{quote_postgres(name)} {_literal(value)}" for name, value in options.items())
    statement = f"START_REPLICATION SLOT {quote_postgres(source.slot)} LOGICAL 0/0 ({given})"
    with connect(source, replication=True) as session:
        slot.require_server(session, slot.server_identity(conn), f"streaming slot {source.slot!r}")
        pid = session.pgconn.backend_pid
        try:
            yield from _messages(session.pgconn, statement.encode(), Lsn(upto), max_changes)
        finally:
            session.close()
            _end(conn, source.slot, pid)


def blocks(
    conn: Connection, source: SourceConfig, *, upto: Lsn, max_changes: int | None
) -> Generator[list[bytes], None, None]:
    """Yield rows of a spool as a peek writes them: an unsigned message is replaced by its prefix and a hash.

    Raises:
        psycopg.Error: as `messages`.
    """
    signed = signatures.verifier(conn)
    rows: list[bytes] = []
    size = 0
    with closing(messages(conn, source, upto=upto, max_changes=max_changes)) as found:
        for lsn, xid, message in found:
            data = _own(message, signed) if message[:1] == b"M" else message
            rows.append(_ROW.pack(3, 8, lsn, 4, xid, len(data)) + data)
            size += len(data)
            if size >= _BLOCK_BYTES:
                yield rows
                rows, size = [], 0
    if rows:
        yield rows


def _messages(pgconn: pq.abc.PGconn, statement: bytes, upto: int, max_changes: int | None) -> Iterator[Message]:
    pgconn.send_query(statement)
    _require(pgconn, pq.ExecStatus.COPY_BOTH)
    written = xid = count = 0
    inside = False
    first: list[bytes] = []  # only the message of a change has its LSN; these precede it
    while True:
        length, data = pgconn.get_copy_data(1)
        if length == 0:
            if not arrives(pgconn):
                _report(pgconn, written, ask=True)
            continue
        if length < 0:
            _require(pgconn, None)
        if data[0] == ord("k"):
            _, written, _, wanted = _KEEPALIVE.unpack(data)
            if not inside and written >= upto:
                return
            if wanted:
                _report(pgconn, written)
            continue
        _, lsn, _, _ = _DATA.unpack_from(data)
        message = bytes(data[_DATA.size :])
        del data  # a second copy of the message, which may be huge
        if not inside:
            if message[:1] == b"B":
                inside = True
                _, commit_lsn, _, xid = _BEGIN.unpack(message)
                beyond = commit_lsn >= upto
            else:
                beyond = lsn > upto  # the end of the record of a message outside of transactions
            if beyond:
                return
        first.append(message)
        if lsn == 0:
            continue
        for one in first:
            yield lsn, xid, one
        count += len(first)
        first.clear()
        if message[:1] == b"C":
            inside, xid = False, 0
        if not inside and max_changes is not None and count >= max_changes:
            return


def _require(pgconn: pq.abc.PGconn, status: pq.ExecStatus | None) -> None:
    """Require a result of that status.

    Raises:
        psycopg.Error: an error of the server, or an early end of the stream.
    """
    result = next_result(pgconn)
    if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(result, encoding="utf-8")
    if result is None or result.status != status:
        raise psycopg.OperationalError("the server ended the stream")


def _report(pgconn: pq.abc.PGconn, written: int, *, ask: bool = False) -> None:
    """Report to the server that this client is alive. The flushed position is zero, so the slot does not move."""
    pgconn.put_copy_data(_STATUS.pack(b"r", written, 0, 0, 0, ask))
    pgconn.flush()


def _end(conn: Connection, name: str, pid: int) -> None:
    """Wait until the server has ended the session, which holds the slot."""
    if not conn.closed:
        conn.execute(
            "select pg_catalog.pg_terminate_backend(s.active_pid, %s) from pg_catalog.pg_replication_slots as s"
            " where s.slot_name = %s and s.active_pid = %s",
            [_ENDING_MILLISECONDS, name, pid],
        )


def _own(message: bytes, signed: signatures.Signed) -> bytes:
    """Return a logical message in the form that `sql/introspect/stream.sql` gives it."""
    prefix, _, rest = message[10:].partition(b"\0")
    if prefix in _SIGNED and signed(rest[4:68], rest[68:]):
        return message
    if message[10:] == _EMPTY_APART:
        return message
    shown = prefix if len(prefix) < 64 else b"..."
    return message[:10] + shown + b"\0" + struct.pack(">i", 32) + hashlib.sha256(message).digest()


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

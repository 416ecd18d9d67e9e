"""Read the slot into a spool on disk, by one bounded peek or by streaming. Nothing is consumed."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import psycopg

from toolkit.source import slot, streaming
from toolkit.source.connection import Connection, one_line
from toolkit.source.copyout import copy_blocks
from toolkit.values import progress, resources
from toolkit.values.capture_rules import SourceConfig
from toolkit.values.errors import (
    DecodeError,
    LakeError,
    PreflightFailed,
    ServerFull,
    SlotError,
    SourceUnavailable,
    UnreadableChange,
)
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.lsn import Lsn
from toolkit.values.spool import ROW_HEADER, Spool

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_FILE_HEADER = 19  # signature (11), flags (4), length of the extension (4); COPY sends it with the first row
_TRAILER = b"\xff\xff"
_LSN = re.compile(r"(?<![0-9A-Za-z_])[0-9A-F]{1,8}/[0-9A-F]{1,8}(?![0-9A-Za-z_])")
_WORDS = re.compile(r"[a-z0-9_]+")  # characters in the names of slots and of the plugin


@can_fail(Point.PEEK)
def peek(
    conn: Connection, source: SourceConfig, *, upto: Lsn, max_changes: int | None, directory: Path, binary: bool = False
) -> Spool:
    """Read every transaction with a commit LSN below `upto` that the slot holds into a file in `directory`.

    Args:
        upto: at most the WAL flush position.
        max_changes: stop after the transaction that reaches this number of messages.
        binary: read values in binary form, which may be shorter than text. This package cannot decode them.

    Only the prefix and a hash of a logical message that this source has not signed are read. Memory use is bounded; the
    server keeps its result in temporary files until it is sent.

    Raises:
        SlotError: the slot is in use, lost or missing.
        PreflightFailed: the publication did not exist at a position of the log.
        ServerFull: the server has no room for the decoded changes; a smaller `max_changes` may help.
        SourceUnavailable: the connection broke.
        UnreadableChange: the server cannot send one of the changes.
    """
    # Closed at once where writing fails: until the COPY has ended, the session can do nothing else.
    with _refusals(conn, source):
        query = resources.load("introspect/stream").format(peek=_query(conn, source, upto, max_changes, binary))
        with closing(_rows(conn, f"copy ({query}) to stdout (format binary)")) as rows:
            return _spool(rows, upto, max_changes, directory)


def stream(conn: Connection, source: SourceConfig, *, upto: Lsn, max_changes: int | None, directory: Path) -> Spool:
    """Read what `peek` reads, byte for byte, without temporary files on the server.

    A logical message of another program crosses the network whole, and the largest one is held in memory once.

    Raises:
        CdcError: as `peek`.
    """
    with (
        _refusals(conn, source),
        closing(streaming.blocks(conn, source, upto=upto, max_changes=max_changes)) as rows,
    ):
        return _spool(rows, upto, max_changes, directory)


def try_peek(conn: Connection, source: SourceConfig, upto: Lsn) -> None:
    """Let the server decode what `peek` would read, and discard the result.

    Raises:
        CdcError: as `peek`.
    """
    try:
        with _refusals(conn, source):
            conn.execute(f"select count(*) from ({_query(conn, source, upto)}) as p".encode())
    except ServerFull:
        with _refusals(conn, source), closing(streaming.messages(conn, source, upto=upto)) as found:
            for _ in found:
                pass


def has_message(conn: Connection, source: SourceConfig, text: str, *, upto: Lsn) -> bool:
    """Return whether the slot holds a logical message with `text`, of a transaction with a commit LSN below `upto`.

    Raises:
        CdcError: as `peek`.
    """
    try:
        with _refusals(conn, source):
            query = _query(conn, source, upto)
            row = conn.execute(
                f"select exists (select from ({query}) as p where pg_catalog.substr(data, 1, 1) = 'M'::bytea".encode()
                + b" and pg_catalog.position(data, %s) > 0)",
                [text.encode()],
            ).fetchone()
            assert row is not None
            return bool(row[0])
    except ServerFull:
        with _refusals(conn, source), closing(streaming.messages(conn, source, upto=upto)) as found:
            return any(data[:1] == b"M" and text.encode() in data for _, _, data in found)


@contextmanager
def _refusals(conn: Connection, source: SourceConfig) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise PreflightFailed(
            f"reading slot {source.slot!r}: role {conn.info.user!r}: {one_line(error)}; connect as the role in"
            " [source] drainer, or as the one that ran `cdc init`"
        ) from None
    except psycopg.errors.ObjectInUse as error:
        raise SlotError(f"reading slot {source.slot!r}: {one_line(error)}; wait for it or end it") from None
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        raise SlotError(
            f"reading slot {source.slot!r}: {one_line(error)}; start a new log with `cdc init --new-generation`"
        ) from None
    except psycopg.errors.UndefinedFile as error:  # WAL that was removed by hand, or left out of a restore
        raise SlotError(
            f"reading slot {source.slot!r}: {one_line(error)}; if the WAL archive has it, copy it there, else start a"
            " new log with `cdc init --new-generation`"
        ) from None
    except psycopg.errors.UndefinedObject as error:
        if slot.read_slot(conn, source.slot) is not None:  # then a publication is missing
            raise PreflightFailed(
                f"reading slot {source.slot!r}: {one_line(error)} at a position of the log that is still to be"
                " read; start a new log with `cdc init --new-generation`"
            ) from None
        raise SlotError(f"reading slot {source.slot!r}: {one_line(error)}; run `cdc init`") from None
    except psycopg.errors.FeatureNotSupported as error:
        what = "most often, the publications did not agree there"
        raise _unreadable(source, error, what, "The next row needs them to agree again first") from None
    except (psycopg.errors.CharacterNotInRepertoire, psycopg.errors.UntranslatableCharacter) as error:
        raise _unreadable(source, error, "a value there is no text of the encoding", _copy("corrected")) from None
    except psycopg.DataError as error:
        what = "most often, the row filter of a publication fails for a row there"
        first = "A copy needs another row filter, or that row corrected, first"
        raise _unreadable(source, error, what, first) from None
    except (
        psycopg.errors.InternalError_,
        psycopg.errors.DataCorrupted,
        psycopg.errors.IndexCorrupted,
        psycopg.errors.ProgramLimitExceeded,
    ) as error:
        what = "most often, a value there is too large for the server to print, or damaged"
        raise _unreadable(source, error, what, _copy("removed")) from None
    except OSError as error:
        raise LakeError(
            f"spooling what slot {source.slot!r} holds: {error.strerror or error}; the slot was not moved: free"
            " space or set another [drain] spool_dir, and run it again"
        ) from None
    except (psycopg.errors.ConfigurationLimitExceeded, psycopg.errors.DiskFull) as error:
        raise ServerFull(
            f"reading slot {source.slot!r}: {one_line(error)}: the server has no room for what it decodes; free"
            " space on its disk or raise temp_file_limit of this role, and run it again"
        ) from None
    except psycopg.OperationalError as error:
        raise SourceUnavailable(f"reading slot {source.slot!r}: {one_line(error)}; run it again") from None


def _copy(remedy: str) -> str:
    return f"A copy needs the value {remedy} at the source first"


def _unreadable(source: SourceConfig, error: psycopg.Error, what: str, first: str) -> UnreadableChange:
    """Make the error for a change that the server cannot decode, with the position that the server reports."""
    lsn = position_said(error.diag.context, source.slot)
    way = "start a new log with `cdc init --new-generation`"
    if lsn is not None:
        way = f"run `cdc drain --skip {lsn}`, which leaves its transaction out and makes its tables stale, or {way}"
    return UnreadableChange(
        f"reading slot {source.slot!r}: {one_line(error)} at {'an unknown LSN' if lsn is None else lsn}: {what},"
        f" and the slot stays before it; {way}. {first}",
        lsn,
    )


def position_said(context: str | None, name: str) -> Lsn | None:
    """Return the LSN in the context of an error of logical decoding; None if there is none.

    The server writes that line in the language of its `lc_messages`, which only a superuser may set. In every language
    it contains the names of the slot and the plugin, and the LSN. The search uses these and no words.
    """
    for line in (context or "").splitlines():
        found = _LSN.findall(line)
        if found and {name, slot.PLUGIN} <= set(_WORDS.findall(line)):
            return Lsn.parse(found[-1])
    return None


def _query(
    conn: Connection, source: SourceConfig, upto: Lsn, max_changes: int | None = None, binary: bool = False
) -> str:
    def literal(text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    count = "null" if max_changes is None else str(min(int(max_changes), 2**31 - 1))  # an `int` of the server
    return (
        "select lsn, xid, data from pg_catalog.pg_logical_slot_peek_binary_changes("
        f"{literal(source.slot)}, '{slot.record_end(conn, upto)}', {count}, 'proto_version', '1', 'publication_names',"
        f" {literal(source.publication_names)}, 'messages', 'true', 'binary', '{str(binary).lower()}')"
    )


def _rows(conn: Connection, statement: str) -> Generator[list[bytes]]:
    """Yield rows of a COPY BINARY without its file header and trailer."""
    first = True
    ended = False
    for messages in copy_blocks(conn, statement):
        if first:
            first = False
            if not messages[0].startswith(_SIGNATURE):
                raise DecodeError("reading the slot: the server did not answer with COPY's binary form")
            messages[0] = messages[0][_FILE_HEADER:]
            if not messages[0]:
                del messages[0]
        if messages and messages[-1] == _TRAILER:
            ended = True
            del messages[-1]
        yield messages
    if not ended:
        raise DecodeError("reading the slot: COPY ended without its trailer")


def _spool(blocks: Iterable[list[bytes]], upto: Lsn, max_changes: int | None, directory: Path) -> Spool:
    """Write rows one after the other."""
    path = directory / f"peek-{Lsn(upto).tag}.spool"
    lengths = [np.zeros(0, np.int64)]
    with (
        progress.stage("reading the slot", "messages") as stage,
        path.open("wb") as file,
    ):  # buffered: a raw write may write only a part, which its result shows
        for rows in blocks:
            sizes = np.fromiter(map(len, rows), np.int64, len(rows))
            if sizes.size and int(sizes.min()) < ROW_HEADER:
                raise DecodeError(f"reading the slot: a row of {int(sizes.min())} bytes, below its fixed {ROW_HEADER}")
            lengths.append(sizes)
            stage.add(len(sizes))
            file.write(b"".join(rows))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
    complete = max_changes is None or len(offsets) <= max_changes
    return Spool(path=path, offsets=offsets, upto_lsn=int(upto), complete=complete)

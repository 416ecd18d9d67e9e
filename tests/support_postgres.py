"""PostgreSQL for tests: servers of three majors, and a fresh database for each test.

A pytest plugin: `pg15` (skipped where it is not installed), `pg16`, `pg18` (one server a session), `pg` (each in
turn), `database` (conninfo of a new database on `pg`, dropped with its slots afterwards), `source` (its configuration).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import json
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import generators, pq, sql
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from toolkit.demo.server import EmbeddedServer
from toolkit.quality import source_rows
from toolkit.source.connection import Connection
from toolkit.values.config import CheckConfig, Config, SourceConfig

#: Bytes of a page of the WAL, and of its header: short, or long at the start of a segment.
WAL_PAGE, WAL_HEADERS = 8192, (24, 40)
_EMPTY_MESSAGE = 55  # bytes of its WAL record
_DEBIAN = Path("/usr/lib/postgresql")
_numbers = itertools.count(1)


def has_postgres_15() -> bool:
    """Whether Debian's is installed."""
    return (_DEBIAN / "15" / "bin" / "postgres").exists()


def programs(major: int) -> Path | None:
    """Where the programs of a major are; None: in the wheel. Skips the test where 15 is not installed."""
    if major != 15:
        return None
    if not has_postgres_15():
        pytest.skip("PostgreSQL 15 is not installed: make postgres15 installs Debian's")
    return _DEBIAN / "15" / "bin"


@contextlib.contextmanager
def serve(major: int) -> Iterator[EmbeddedServer]:
    """A server of a major: the wheel's, or Debian's."""
    with EmbeddedServer(None, major, {"max_prepared_transactions": 5}, bindir=programs(major)) as server:
        yield server


@pytest.fixture(scope="session")
def pg16() -> Iterator[EmbeddedServer]:
    """PostgreSQL 16."""
    with serve(16) as server:
        yield server


@pytest.fixture(scope="session")
def pg18() -> Iterator[EmbeddedServer]:
    """PostgreSQL 18."""
    with serve(18) as server:
        yield server


@pytest.fixture(scope="session")
def pg15() -> Iterator[EmbeddedServer]:
    """PostgreSQL 15 where the machine has it."""
    with serve(15) as server:
        yield server


#: For a test that is dear and hardly differs between servers: on one by default, on the others too where it is wide.
mostly_one_server = pytest.mark.parametrize(
    "pg", ["pg16", *(pytest.param(name, marks=pytest.mark.wide) for name in ("pg15", "pg18"))], indirect=True
)


@pytest.fixture(params=["pg15", "pg16", "pg18"])
def pg(request: pytest.FixtureRequest) -> EmbeddedServer:
    """Each server of the session in turn."""
    server: EmbeddedServer = request.getfixturevalue(request.param)
    return server


@contextlib.contextmanager
def fresh_database(server: EmbeddedServer) -> Iterator[str]:
    """Conninfo of a new database; at the end it and its slots are dropped."""
    name = f"t{next(_numbers)}"
    with psycopg.connect(server.conninfo(), autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    try:
        yield server.conninfo(name)
    finally:
        if server.running:
            with psycopg.connect(server.conninfo(), autocommit=True) as admin:
                drop_database(admin, name)


@contextlib.contextmanager
def waiting_for_a_standby(conninfo: str, insert: str) -> Iterator[tuple[int, int]]:
    """(pid, xid) of a commit that waits for a standby that does not exist: in the stream, and not visible.

    Inserts are committed until one waits, because the server takes the setting a moment after it was asked to.
    """
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(conninfo, autocommit=True, application_name="writer") as session:
            while not stop.is_set():
                session.execute(insert.encode())

    with psycopg.connect(conninfo, autocommit=True) as admin:
        admin.execute("alter system set synchronous_standby_names = 'missing'")
        admin.execute("select pg_reload_conf()")
        writer = threading.Thread(target=write)
        writer.start()
        try:
            waiting = None
            end = time.monotonic() + 60
            while waiting is None:
                assert time.monotonic() < end, "no session waits for a standby"
                waiting = admin.execute(
                    "select pid, backend_xid::text::int8 & 4294967295 from pg_stat_activity"
                    " where wait_event = 'SyncRep' and application_name = 'writer' and datname = current_database()"
                ).fetchone()
                time.sleep(0.01)
            yield waiting[0], waiting[1]
        finally:
            stop.set()
            admin.execute("alter system reset synchronous_standby_names")
            admin.execute("select pg_reload_conf()")
            writer.join(30)


def tcp_conninfo(server: EmbeddedServer, password: str | None = None) -> str:
    """Libpq conninfo over 127.0.0.1 with the password in it."""
    secret = server.password if password is None else password
    return make_conninfo(host="127.0.0.1", port=server.port, user=server.user, dbname="postgres", password=secret)


def fingerprints(conn: Connection) -> dict[int, str]:
    """What a check compares before it carries the proof of a table, by relid."""
    return {relid: fingerprint for relid, (_, fingerprint) in source_rows.described(conn).items()}


def drop_database(admin: psycopg.Connection[tuple[object, ...]], name: str) -> None:
    """Drop a database with its slots and whoever is still connected to it."""
    admin.execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s", [name])
    admin.execute(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s and not temporary",
        [name],
    )
    admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


@contextlib.contextmanager
def copy_of(primary: EmbeddedServer, *options: str) -> Iterator[EmbeddedServer]:
    """A server from a base backup of `primary`, as it is now, that has not been started yet."""
    server = EmbeddedServer(None, primary.major, primary.settings, bindir=primary.bindir)
    server._initialise()  # for its folders, of which the data is replaced
    subprocess.run(["find", str(server.data), "-mindepth", "1", "-delete"], check=True)
    where = conninfo_to_dict(primary.conninfo())
    command = [primary.program("pg_basebackup"), "-D", str(server.data), *options, "-c", "fast", "--no-sync"]
    command += ["-h", str(where["host"]), "-p", str(where["port"]), "-U", str(where["user"])]
    try:
        with tempfile.TemporaryFile() as errors:
            subprocess.run(command, check=True, cwd="/", stderr=errors, **server._identity())
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def standby_of(primary: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """A streaming standby of `primary`, as it is now."""
    with copy_of(primary, "-R") as server:
        server.start()
        yield server


@contextlib.contextmanager
def restored_from(primary: EmbeddedServer, slot: str) -> Iterator[EmbeddedServer]:
    """The server as a snapshot of the volume of `primary` has it, as it is now: with its slot."""
    with copy_of(primary) as server:
        folder = Path("pg_replslot", slot)
        subprocess.run(["cp", "-a", str(primary.data / folder), str(server.data / folder)], check=True)
        server.start()
        yield server


def replayed(standby: EmbeddedServer, primary: EmbeddedServer) -> None:
    """Wait until the standby has all that the primary wrote."""
    with psycopg.connect(primary.conninfo()) as conn:
        (target,) = conn.execute("select pg_current_wal_insert_lsn()").fetchone()  # type: ignore[misc]
    with psycopg.connect(standby.conninfo(), autocommit=True) as conn:
        while conn.execute("select pg_last_wal_replay_lsn() < %s::pg_lsn", [target]).fetchone() != (False,):
            pass


@pytest.fixture(scope="session")
def scratch16() -> Iterator[EmbeddedServer]:
    """A second PostgreSQL 16, for what must not run on the source."""
    with serve(16) as server:
        yield server


@pytest.fixture(scope="session")
def scratch18() -> Iterator[EmbeddedServer]:
    """A second PostgreSQL 18."""
    with serve(18) as server:
        yield server


@pytest.fixture
def scratch(pg: EmbeddedServer, request: pytest.FixtureRequest) -> EmbeddedServer:
    """A server that can take the schema of `pg`."""
    server: EmbeddedServer = request.getfixturevalue("scratch18" if pg.major == 18 else "scratch16")
    return server


@pytest.fixture
def database(pg: EmbeddedServer) -> Iterator[str]:
    """Conninfo of a database of this test's own."""
    with fresh_database(pg) as conninfo:
        yield conninfo


@pytest.fixture
def source(database: str) -> Config:
    """Configuration of `database`, with a slot name of its own (slots are shared by all databases of a server)."""
    name = conninfo_to_dict(database)["dbname"]
    return Config(source=SourceConfig(conninfo=database, slot=f"cdc_{name}"), check=CheckConfig(cut_seconds=20.0))


def run_sql(config: Config, *statements: str) -> None:
    """Run statements on the source, each in a transaction of its own."""
    with psycopg.connect(config.source.conninfo, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement.encode())


def stream(conn: psycopg.Connection[Any], config: Config) -> list[tuple[int, bytes]]:
    """`(lsn, message)` of everything in the slot; nothing is consumed."""
    rows = conn.execute(
        "select (lsn - '0/0')::int8, data from pg_catalog.pg_logical_slot_peek_binary_changes(%s, null, null,"
        " 'proto_version', '1', 'publication_names', %s, 'messages', 'true')",
        [config.source.slot, config.source.publication_names],
    ).fetchall()
    return [(lsn, bytes(data)) for lsn, data in rows]


@contextlib.contextmanager
def reading_beside(config: Config) -> Iterator[psycopg.Connection[Any]]:
    """A session that reads the slot, as a drain or another program does."""
    with psycopg.connect(config.source.conninfo) as conn:
        row = conn.execute(
            "select confirmed_flush_lsn from pg_replication_slots where slot_name = %s", [config.source.slot]
        ).fetchone()
    assert row is not None
    options = f"proto_version '1', publication_names '{config.source.publication_names}'"
    session = psycopg.connect(config.source.conninfo, replication="database", autocommit=True)
    try:
        statement = f"START_REPLICATION SLOT {config.source.slot} LOGICAL {row[0]} ({options})"
        session.pgconn.send_query(statement.encode())
        assert session.wait(_first_result(session.pgconn)) == pq.ExecStatus.COPY_BOTH
        yield session
    finally:
        session.close()


def _first_result(pgconn: pq.abc.PGconn) -> PQGen[int]:
    result = yield from generators.fetch(pgconn)
    assert result is not None
    return int(result.status)


def consume(conn: psycopg.Connection[Any], config: Config) -> None:
    """Move the slot past everything there is."""
    conn.execute(
        "select pg_catalog.pg_replication_slot_advance(%s, pg_catalog.pg_current_wal_flush_lsn())", [config.source.slot]
    )


def logical_messages(messages: list[tuple[int, bytes]]) -> list[tuple[str, bytes]]:
    """`(prefix, content)` of the logical messages that say something."""
    found = []
    for _, data in messages:
        if data[:1] == b"M":
            prefix, rest = data[10:].split(b"\0", 1)
            found.append((prefix.decode(), rest[4:]))
    return [(prefix, content) for prefix, content in found if prefix != "cdc.apart"]


def ddl_messages(conn: psycopg.Connection[Any], config: Config, key: bytes) -> list[dict[str, Any]]:
    """The DDL messages in the slot; each one must verify under `key`."""
    found = []
    for prefix, content in logical_messages(stream(conn, config)):
        if prefix == "cdc.ddl":
            assert verifies(content, key), content[:200]
            found.append(json.loads(content[64:]))
    return found


def hmac_key(conn: psycopg.Connection[Any]) -> bytes:
    """The signing key, which only its owner and superusers read."""
    row = conn.execute("select value from cdc.signing_key where name = 'hmac_key'").fetchone()
    assert row is not None
    return bytes(row[0])


def verifies(content: bytes, key: bytes) -> bool:
    """Whether the first 64 characters sign the rest."""
    return hmac.compare_digest(hmac.new(key, content[64:], hashlib.sha256).hexdigest().encode(), content[:64])


def inserted(messages: list[tuple[int, bytes]]) -> list[list[str | None]]:
    """Values of the INSERT messages, as text."""
    rows: list[list[str | None]] = []
    for _, data in messages:
        if data[:1] != b"I":
            continue
        (count,) = struct.unpack_from(">h", data, 6)
        at = 8
        row: list[str | None] = []
        for _ in range(count):
            if data[at : at + 1] == b"n":
                row.append(None)
                at += 1
            else:
                (length,) = struct.unpack_from(">i", data, at + 1)
                row.append(data[at + 5 : at + 5 + length].decode())
                at += 5 + length
        rows.append(row)
    return rows


def change_in_every_way(conninfo: str, first: int) -> None:
    """Insert, delete, insert again and update rows of `public.a` (id, x), and move a key; keys from `first` to + 4."""
    with psycopg.connect(conninfo, autocommit=True) as conn:
        conn.execute(f"insert into public.a select i, 'new' from generate_series({first}, {first + 3}) as i".encode())
        with conn.transaction():
            conn.execute(f"delete from public.a where id = {first}".encode())
            conn.execute(f"insert into public.a values ({first}, 'again')".encode())
        with conn.transaction():
            conn.execute(f"update public.a set id = {first + 4} where id = {first + 1}".encode())
            conn.execute(f"delete from public.a where id = {first + 2}".encode())


def fill_page(conn: psycopg.Connection[Any]) -> bool:
    """Write a record that ends where a page of the WAL does, so that the next one starts the next page."""
    for _ in range(10):
        row = conn.execute("select (pg_current_wal_insert_lsn() - '0/0')::int8 %% %s", [WAL_PAGE]).fetchone()
        assert row is not None
        if row[0] in WAL_HEADERS:
            return True
        length = max(0, int(WAL_PAGE - row[0]) - _EMPTY_MESSAGE)
        conn.execute("select pg_logical_emit_message(true, 'x', repeat('x', %s))", [length])
    return False

"""PostgreSQL for tests: embedded servers of two majors, and a fresh database for each test.

A pytest plugin: `pg16`, `pg18` (one server a session), `pg` (both, one after the other), `database` (conninfo of a
new database on `pg`, dropped with its slots afterwards).
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from toolkit.embedded import EmbeddedServer

_DEBIAN = Path("/usr/lib/postgresql")
_numbers = itertools.count(1)


def _serve(major: int) -> Iterator[EmbeddedServer]:
    bindir = None if major in (16, 18) else _DEBIAN / str(major) / "bin"
    with EmbeddedServer(None, major, bindir=bindir) as server:
        yield server


@pytest.fixture(scope="session")
def pg16() -> Iterator[EmbeddedServer]:
    """PostgreSQL 16."""
    yield from _serve(16)


@pytest.fixture(scope="session")
def pg18() -> Iterator[EmbeddedServer]:
    """PostgreSQL 18."""
    yield from _serve(18)


@pytest.fixture(scope="session")
def pg15() -> Iterator[EmbeddedServer]:
    """PostgreSQL 15 where the machine has it."""
    if not (_DEBIAN / "15" / "bin" / "postgres").exists():
        pytest.skip("no PostgreSQL 15 on this machine")
    yield from _serve(15)


@pytest.fixture(params=["pg15", "pg16", "pg18"] if os.environ.get("CDC_TEST_PG15") else ["pg16", "pg18"])
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


def drop_database(admin: psycopg.Connection[tuple[object, ...]], name: str) -> None:
    """Drop a database with its slots and whoever is still connected to it."""
    admin.execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s", [name])
    admin.execute(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s and not temporary",
        [name],
    )
    admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def database(pg: EmbeddedServer) -> Iterator[str]:
    """Conninfo of a database of this test's own."""
    with fresh_database(pg) as conninfo:
        yield conninfo

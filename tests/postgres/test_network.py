"""A network that fails in the middle of a command: it ends with one line, nothing is lost, and the lease is free."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests import commands
from tests.support_lake import plain_lake, rows_in_log
from tests.support_network import Proxy, proxy_before
from tests.support_night import Night, with_notices
from tests.support_postgres import tcp_conninfo
from toolkit.demo.server import EmbeddedServer
from toolkit.values.config import Config

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]

#: The probes of the toolkit, faster: with its own values each half-open connection would last for a minute.
_PROBES = {"keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 2, "tcp_user_timeout": 3000}
_SERVER_PROBES = " ".join(f"-c tcp_{name.removeprefix('tcp_')}={value}" for name, value in _PROBES.items())
_ROWS = "insert into public.a select i, repeat(md5(i::text), 20) from generate_series(2, 2000) i"
_SECONDS = 60.0  # far above these probes, and far below the quarter of an hour of unacknowledged data
_OWN_SECONDS = 120.0  # the same for the toolkit's own values


@pytest.fixture
def proxy(pg: EmbeddedServer) -> Iterator[Proxy]:
    with proxy_before(pg.port) as made:
        yield made


def _behind(direct: Config, pg: EmbeddedServer, proxy: Proxy, stack: ExitStack) -> Night:
    """A table with rows, and a configuration that reaches it through the proxy."""
    night = Night(with_notices(direct), pg, stack)
    night.sql("create table public.a (id int primary key, x text)", "insert into public.a values (1, 'one')")
    night.sql(_ROWS)
    # libpq would ask for encryption first, and connect again without it if the network fails there.
    plain = "sslmode=disable gssencmode=disable"
    there = f"{tcp_conninfo(pg)} port={proxy.port} dbname={conninfo_to_dict(direct.source.conninfo)['dbname']} {plain}"
    night.words["direct"] = direct.source.conninfo
    night.conninfo(**conninfo_to_dict(make_conninfo(there, options=_SERVER_PROBES, **_PROBES)))
    return night


@pytest.fixture
def night(source: Config, plain_lake: Config, pg: EmbeddedServer, proxy: Proxy) -> Iterator[Night]:
    """A captured table with rows to drain, behind the proxy."""
    direct = source.model_copy(update={"root": plain_lake.root})
    with ExitStack() as stack:
        night = _behind(direct, pg, proxy, stack)
        night.sql("delete from public.a where id > 1")
        commands.init(direct)
        night.sql(_ROWS)
        yield night


def _fails(night: Night, proxy: Proxy, command: str, seconds: float = _SECONDS) -> None:
    """The command ends with one line that names a remedy, within some seconds."""
    started = time.monotonic()
    night.fails(command, 1, "^(?!unexpected).*(slot|lease|connect).*(; |, and )(run|check) ", "")
    assert proxy.failed.is_set()
    assert time.monotonic() - started < seconds


def _freed(night: Night, seconds: float = _SECONDS) -> None:
    """The server ends what the runner has left, and does so by itself."""
    with psycopg.connect(night.words["direct"], autocommit=True) as conn:
        held = (
            "select count(*) from pg_locks as l join pg_stat_activity as a using (pid)"
            " where l.locktype = 'advisory' and a.application_name = 'cdc-toolkit' and a.datname = current_database()"
        )
        until = time.monotonic() + seconds
        while conn.execute(held.encode()).fetchone() != (0,):
            assert time.monotonic() < until, "the lease is still held"


def _drained(night: Night) -> None:
    """The next drain reads what the failed one did not, once."""
    done = night.cdc("drain")
    assert done.exit_code == 0, done
    rows = [event["new"][0] for event in rows_in_log(night.config, "kind = 'row' and op = 'I'")]
    assert sorted(rows, key=int) == [str(i) for i in range(2, 2001)]


_BOTH = pytest.mark.parametrize("half_open", [False, True], ids=["cut", "half-open"])


@_BOTH
@pytest.mark.parametrize(
    "statement", [b"pg_try_advisory_lock", b"pg_logical_slot_peek_binary_changes", b"pg_replication_slot_advance"]
)
def test_the_network_fails_while_the_runner_waits_for_an_answer(
    night: Night, proxy: Proxy, statement: bytes, half_open: bool
) -> None:
    proxy.plant(lambda _, said: statement in said, half_open=half_open)
    _fails(night, proxy, "drain")
    _freed(night)
    _drained(night)


@pytest.mark.wide
@pytest.mark.parametrize("statement", [b"pg_try_advisory_lock", b"pg_replication_slot_advance"])
def test_the_own_probes_end_a_half_open_connection(night: Night, proxy: Proxy, statement: bytes) -> None:
    given = conninfo_to_dict(night.config.source.conninfo)
    kept: dict[str, Any] = {name: value for name, value in given.items() if name not in (*_PROBES, "options")}
    night.change(source=night.config.source.model_copy(update={"conninfo": make_conninfo(**kept)}))
    proxy.plant(lambda _, said: statement in said, half_open=True)
    _fails(night, proxy, "drain", _OWN_SECONDS)
    _freed(night, _OWN_SECONDS)
    _drained(night)


@pytest.mark.parametrize(
    ("size", "half_open"),
    [
        *(pytest.param(size, how, marks=pytest.mark.wide) for size in (1, 1_500, 20_000) for how in (False, True)),
        (200_000, False),
        (200_000, True),
    ],
)
def test_the_network_fails_after_some_bytes_of_the_server(
    night: Night, proxy: Proxy, size: int, half_open: bool
) -> None:
    """Also right before the runner sends: nothing but a limit on unacknowledged data ends that wait."""
    proxy.plant(lambda sent, _: sent >= size, half_open=half_open)
    _fails(night, proxy, "drain")
    _freed(night)
    _drained(night)


@_BOTH
@pytest.mark.parametrize(("command", "code"), [("status", 3), ("doctor", 1)])
def test_the_network_fails_while_a_session_reads(
    night: Night, proxy: Proxy, command: str, code: int, half_open: bool
) -> None:
    proxy.plant(lambda sent, _: sent >= 2_000, half_open=half_open)
    started = time.monotonic()
    done = night.cdc(command, "--output", "json")
    assert proxy.failed.is_set() and time.monotonic() - started < _SECONDS
    assert (done.exit_code, done.stderr.count("\n") <= 1) == (code, True), done
    assert re.search("could not receive|closed the connection|reset", done.stdout), done
    night.cdc("drain")
    night.quiet()


@_BOTH
def test_the_network_fails_during_a_copy(
    source: Config, plain_lake: Config, pg: EmbeddedServer, proxy: Proxy, half_open: bool
) -> None:
    """The workers of the copy are processes of their own."""
    with ExitStack() as stack:
        night = _behind(source.model_copy(update={"root": plain_lake.root}), pg, proxy, stack)
        proxy.plant(lambda sent, _: sent >= 400_000, half_open=half_open)
        started = time.monotonic()
        done = night.cdc("init")
        assert proxy.failed.is_set() and time.monotonic() - started < _SECONDS
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done
        _freed(night)
        done = night.cdc("init")
        assert done.exit_code == 0, done
        rows = [event["new"][0] for event in rows_in_log(night.config, "kind = 'row' and op = 'R'")]
        assert {*rows} == {str(i) for i in range(1, 2001)}

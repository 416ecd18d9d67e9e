"""Connections: pinned settings hold, and failures are one line without a password."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support_network import proxy_before
from tests.support_postgres import tcp_conninfo
from toolkit.demo.server import EmbeddedServer
from toolkit.source.connection import PINNED, Connection, connect, pinned_conninfo
from toolkit.values import log_setup
from toolkit.values.config import Config, SourceConfig
from toolkit.values.errors import ConfigError, SourceUnavailable

pytestmark = pytest.mark.postgres


def test_104_settings_hold_against_role_and_database(pg: EmbeddedServer, source: Config) -> None:
    hostile = {
        "DateStyle": "German",
        "IntervalStyle": "iso_8601",
        "TimeZone": "Asia/Kolkata",
        "bytea_output": "escape",
        "extra_float_digits": "-5",
        "search_path": "public",
        "row_security": "on",
        "constraint_exclusion": "on",
        "statement_timeout": "9s",
        "idle_in_transaction_session_timeout": "9s",
        "idle_session_timeout": "9s",
        "lock_timeout": "9s",
        "lc_monetary": "POSIX",
        "xmlbinary": "hex",
        "quote_all_identifiers": "on",
        "default_transaction_read_only": "on",
        "default_transaction_isolation": "serializable",
        "synchronous_commit": "off",
        "standard_conforming_strings": "off",
    }
    assert hostile.keys() == dict(PINNED).keys()
    with psycopg.connect(source.source.conninfo, autocommit=True) as conn:
        for name, value in hostile.items():
            conn.execute(f"alter role postgres in database {conn.info.dbname} set {name} = '{value}'")
    with psycopg.connect(source.source.conninfo) as plain:  # planted fault: without the pins the text differs
        row = plain.execute("select '2024-05-06 01:02:03+00'::timestamptz::text, E'\\\\x00ff'::bytea::text").fetchone()
        assert row == ("06.05.2024 06:32:03 IST", "\\000\\377")
    for replication in (False, True):
        with connect(source.source, replication=replication) as conn:
            row = conn.execute("select '2024-05-06 01:02:03+00'::timestamptz::text, '\\x00ff'::bytea::text").fetchone()
            assert row == ("2024-05-06 01:02:03+00", "\\x00ff")
            for name, value in PINNED:
                (found,) = conn.execute(f"show {name}").fetchone() or ("",)
                assert found.startswith(value), name


@pytest.mark.parametrize("replication", [False, True])
def test_a_pooler_that_ignores_the_settings_of_a_session_is_refused(pg16: EmbeddedServer, replication: bool) -> None:
    """Such as PgBouncer, which is commonly set so. Dates of another style would be read as other dates."""
    with proxy_before(pg16.port) as pooler:
        there = SourceConfig(conninfo=f"{tcp_conninfo(pg16)} port={pooler.port} sslmode=disable gssencmode=disable")
        connect(there, replication=replication).close()
        pooler.edit = lambda said: re.sub(rb"(?<=options\0)[^\0]*", lambda given: b" " * len(given[0]), said)
        with pytest.raises(ConfigError, match=r"pooler .*: cdc\.slot is '' instead of 'cdc'; connect to the server"):
            connect(there, replication=replication)


def test_user_options_are_kept(source: Config) -> None:
    given = psycopg.conninfo.make_conninfo(source.source.conninfo, options="-c work_mem=7MB -c DateStyle=German")
    with connect(Config(source=SourceConfig(conninfo=given)).source) as conn:
        row = conn.execute("select current_setting('work_mem'), current_setting('DateStyle')").fetchone()
        assert row == ("7MB", "ISO, DMY")


@pytest.mark.parametrize("named", [True, False])
def test_what_a_service_file_says_is_kept(
    source: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Its options and limits were left out: with `options=-c role=...`, a session ran as another role."""
    file = tmp_path / "services"
    file.write_text("[shop]\noptions=-c work_mem=7MB -c DateStyle=German\nconnect_timeout=3\n", encoding="utf-8")
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    given = source.source.conninfo
    if named:
        given = make_conninfo(given, service="shop")
    else:
        monkeypatch.setenv("PGSERVICE", "shop")
    with connect(Config(source=SourceConfig(conninfo=given)).source) as conn:
        row = conn.execute("select current_setting('work_mem'), current_setting('DateStyle')").fetchone()
        assert row == ("7MB", "ISO, DMY")
        assert conn.info.get_parameters()["connect_timeout"] == "3"


def test_threads_that_read_a_service_leave_none_to_other_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "services").write_text("[shop]\nhost=/nowhere\n", encoding="utf-8")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.delenv("PGSERVICE", raising=False)
    read, entered = psycopg.pq.Conninfo.get_defaults, [threading.Event(), threading.Event()]
    order = iter(entered)
    source = SourceConfig(conninfo="service=shop")
    threads = [threading.Thread(target=pinned_conninfo, args=(source,)) for _ in entered]

    def together() -> Any:
        """Read, the first one not before the second one has come, and the second one after the end of the first."""
        mine = next(order)
        mine.set()
        if mine is entered[0]:
            entered[1].wait(0.5)
        else:
            threads[0].join()
        return read()

    monkeypatch.setattr(psycopg.pq.Conninfo, "get_defaults", together)
    for thread, here in zip(threads, entered, strict=True):
        thread.start()
        here.wait(5)
    for thread in threads:
        thread.join()
    assert "PGSERVICE" not in os.environ


@pytest.mark.parametrize(
    ("conninfo", "message"),
    [
        ("host=127.0.0.1 port=1 user=u dbname=d", r"host=127.0.0.1 port=1.*refused.*check that PostgreSQL runs"),
        ("host=/nowhere dbname=d", "check that PostgreSQL runs"),
    ],
)
def test_no_server(conninfo: str, message: str) -> None:
    with pytest.raises(SourceUnavailable, match=message) as refusal:
        connect(Config(source=SourceConfig(conninfo=conninfo)).source)
    assert "\n" not in str(refusal.value)


def test_wrong_password_is_not_printed(pg16: EmbeddedServer) -> None:
    with pytest.raises(SourceUnavailable, match=r"password authentication failed.*check the user") as refusal:
        connect(Config(source=SourceConfig(conninfo=tcp_conninfo(pg16, password="hunter2"))).source)
    assert "hunter2" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_malformed_conninfo_is_not_printed() -> None:
    with pytest.raises(ConfigError, match=r"conninfo is malformed") as refusal:
        connect(Config(source=SourceConfig(conninfo="host=h password = 'hunter2")).source)
    assert "hunter2" not in str(refusal.value)
    with pytest.raises(ConfigError, match=r"conninfo: bad value for connect_timeout: 'soon'; correct it there"):
        connect(Config(source=SourceConfig(conninfo="host=127.0.0.1 port=1 connect_timeout=soon")).source)


@pytest.mark.parametrize("handlers", [0, 1], ids=["Python's", "another library's"])
def test_a_lost_session_adds_no_line_of_the_driver(
    pg16: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], handlers: int
) -> None:
    """With `[log] format = "json"` too, standard error had "error ignored in rollback on <psycopg.Connection [BAD]"."""
    log_setup.configure(verbose=False, as_json=True)
    own = [logging.StreamHandler() for _ in range(handlers)]
    monkeypatch.setattr(logging.getLogger(), "handlers", own)  # in place of those of pytest
    with (
        psycopg.connect(pg16.conninfo(), autocommit=True) as other,
        pytest.raises(ZeroDivisionError),
        connect(Config(source=SourceConfig(conninfo=pg16.conninfo())).source) as conn,
    ):
        conn.execute("begin")
        other.execute("select pg_terminate_backend(%s, 5000)", [conn.info.backend_pid])
        raise ZeroDivisionError
    assert capsys.readouterr().err == ""


def test_unknown_database(pg16: EmbeddedServer) -> None:
    with pytest.raises(SourceUnavailable, match='"nope" does not exist; check dbname'):
        connect(Config(source=SourceConfig(conninfo=pg16.conninfo("nope"))).source)


def test_the_remedy_rests_on_what_libpq_reports(pg16: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's message may be in any language, so each remedy is chosen without it."""
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    monkeypatch.setattr("toolkit.source.connection.one_line", lambda _: "Meldung in einer anderen Sprache")

    def remedy(conninfo: str) -> str:
        with pytest.raises(SourceUnavailable, match="Meldung") as refusal:
            connect(Config(source=SourceConfig(conninfo=conninfo)).source)
        return str(refusal.value).rpartition("; ")[2]

    asked = remedy(make_conninfo(tcp_conninfo(pg16), password=""))
    assert asked == remedy(tcp_conninfo(pg16, password="wrong"))
    assert asked.startswith("check the user and its password")
    refused = remedy(pg16.conninfo("nope"))
    assert refused.startswith("check dbname and user")
    assert refused == remedy(make_conninfo(pg16.conninfo(), user="no_such_role"))
    assert remedy("host=127.0.0.1 port=1 user=u dbname=d").startswith("check that PostgreSQL runs")


def test_a_lost_network_is_noticed_within_minutes(pg16: EmbeddedServer) -> None:
    """A half-open connection held the lease for two hours, and a client waited for its server as long."""

    def probes(conn: Connection) -> tuple[list[int], list[str]]:
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        with socket.socket(fileno=os.dup(conn.fileno())) as mine:
            here = [mine.getsockopt(socket.IPPROTO_TCP, option) for option in options]
        names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
        return here, [row[0] for name in names for row in conn.execute(f"show {name}").fetchall()]

    with connect(Config(source=SourceConfig(conninfo=tcp_conninfo(pg16))).source) as conn:
        assert probes(conn) == ([30, 10, 3, 60_000], ["30", "10", "3"])
    chosen: dict[str, Any] = {"keepalives_idle": 77, "tcp_user_timeout": 9_000, "options": "-c tcp_keepalives_idle=88"}
    with connect(Config(source=SourceConfig(conninfo=make_conninfo(tcp_conninfo(pg16), **chosen))).source) as conn:
        assert probes(conn) == ([77, 10, 3, 9_000], ["88", "10", "3"])

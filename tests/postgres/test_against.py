"""Two PostgreSQL servers compared: a restored copy, what differs in it, and one that changes meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
import pytest

from tests import commands
from tests.support_postgres import fresh_database, replayed, standby_of, waiting_for_a_standby
from toolkit.demo.server import EmbeddedServer
from toolkit.quality.report import TableCheck
from toolkit.quality.second_server import _doubt
from toolkit.source import bare_server
from toolkit.source.bare_server import Position
from toolkit.source.connection import Connection
from toolkit.values.config import CheckConfig, Config, SourceConfig
from toolkit.values.errors import CdcError, SourceUnavailable, UnknownTable
from toolkit.values.lsn import Lsn

pytestmark = pytest.mark.postgres

SCHEMA = (
    "create table public.item (gone int, id bigint primary key, name text, price numeric(10,2), code char(5))",
    "alter table public.item drop column gone",
    "insert into public.item select i, 'n' || i || E'\\t\\\\', i, 'c' from generate_series(1, 500) i",
    "create table public.bag (line text)",
    "insert into public.bag values ('a'), ('a'), (null), ('')",
    "create table public.part (id int, v text, primary key (id)) partition by range (id)",
    "create table public.part_1 partition of public.part for values from (0) to (100)",
    "insert into public.part select i, 'v' from generate_series(1, 50) i",
)
#: The same tables as a restore makes them: other attribute numbers.
RESTORED = (
    "create table public.item (id bigint primary key, name text, price numeric(10,2), code char(5))",
    *SCHEMA[2:],
)


@pytest.fixture
def copy(pg16: EmbeddedServer) -> Iterator[str]:
    with fresh_database(pg16) as conninfo:
        _run(conninfo, *RESTORED)
        yield conninfo


def test_children_by_inheritance_are_noted(source: Config, copy: str) -> None:
    _run(source.source.conninfo, *SCHEMA, "create table public.kin () inherits (public.bag)")
    found = _by_name(source, copy, "public.bag", "public.part")
    assert {name: (t.status, t.reason) for name, t in found.items()} == {
        "public.bag": (
            "identical",
            "SELECT also shows the rows of public.kin by inheritance; the lake has those of SELECT FROM ONLY",
        ),
        "public.part": ("identical", None),
    }


def _run(conninfo: str, *statements: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement.encode())


def _one(conninfo: str, query: str) -> str:
    with psycopg.connect(conninfo, autocommit=True) as conn:
        (found,) = conn.execute(query.encode()).fetchone() or ("",)
    return str(found)


def _by_name(config: Config, copy: str, *tables: str) -> dict[str, TableCheck]:
    return {t.table: t for t in commands.against(config, copy, tables).tables}


def _standing(config: Config, copy: str) -> dict[str, TableCheck]:
    """Compare until no autovacuum has taken a transaction meanwhile: that moves the server too."""
    for _ in range(20):
        found = _by_name(config, copy)
        if not any("moved while it was read" in (t.reason or "") for t in found.values()):
            return found
    raise AssertionError("the server moved in each of 20 comparisons")


def test_a_restored_copy_is_identical_and_each_fault_is_classed(source: Config, copy: str) -> None:
    _run(source.source.conninfo, *SCHEMA)
    report = commands.against(source, copy)
    assert report.green
    assert {t.table: t.rows for t in report.tables} == {"public.bag": 4, "public.item": 500, "public.part": 50}
    _run(
        copy,
        "update public.item set name = name || ' ' where id = 7",
        "delete from public.item where id = 8",
        "insert into public.item values (999, 'x', 1, 'y')",
        "update public.bag set line = null where line = ''",
        "update public.part set v = 'w' where id = 9",
    )
    found = _standing(source, copy)
    item = found["public.item"]
    assert (item.status, item.identical, item.modified, item.added, item.removed) == ("different", 498, 1, 1, 1)
    assert item.samples[0].to_dict()["columns"] == {"name": {"source": "n7\t\\", "lake": "n7\t\\ "}}
    assert (found["public.bag"].added, found["public.bag"].removed) == (1, 1)
    assert found["public.part"].modified == 1
    assert set(_by_name(source, copy, "item")) == {"public.item"}
    with pytest.raises(UnknownTable, match="no table 'nope'"):
        commands.against(source, copy, ["nope"])


@pytest.mark.parametrize(
    ("conninfo", "found"),
    [
        ("host=127.0.0.1 port=1 password=secret", "cannot connect to the other server (host=127.0.0.1 port=1): "),
        ("hots=secret", "--against is malformed: "),
    ],
)
def test_a_second_server_that_cannot_be_reached_is_named(database: str, conninfo: str, found: str) -> None:
    """The message was about the source, and its remedy to correct [source] conninfo."""
    with pytest.raises(CdcError) as refused:
        commands.against(Config(source=SourceConfig(conninfo=database)), conninfo)
    text = str(refused.value)
    assert text.startswith(found)
    assert "source" not in text and "secret" not in text


def test_another_shape_is_a_difference(source: Config, copy: str) -> None:
    _run(source.source.conninfo, *SCHEMA)
    _run(copy, "drop table public.bag", "alter table public.item alter column price type numeric(12,2)")
    found = _standing(source, copy)
    assert "no such table" in (found["public.bag"].reason or "")
    assert "columns or its key" in (found["public.item"].reason or "")
    assert found["public.part"].status == "identical"


def test_a_server_that_moves_is_not_called_different(
    source: Config, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(source.source.conninfo, *SCHEMA)
    _run(copy, "delete from public.item where id = 8")
    from toolkit.quality import second_server

    real = second_server._compared

    def meanwhile(*arguments: object, **more: object) -> TableCheck:
        with contextlib.suppress(psycopg.errors.UniqueViolation):
            _run(copy, "insert into public.item values (8, 'back', 1, 'y')")
        return real(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(second_server, "_compared", meanwhile)
    found = _by_name(source, copy)
    assert (found["public.item"].status, found["public.bag"].status) == ("not_taken", "identical")
    assert "moved while it was read: at transaction" in (found["public.item"].reason or "")


def test_a_row_committed_after_the_snapshot_is_not_in_the_lsn_of_the_report(
    source: Config, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report named the position after the snapshot: identical at an LSN at which the source had one row more."""
    _run(source.source.conninfo, *SCHEMA)
    committed = Lsn(0)
    asked = 0
    real = bare_server.position

    def meanwhile(conn: Connection) -> Position:
        nonlocal asked, committed
        asked += 1
        if asked == 2:
            conn.execute("select 1")  # a snapshot is taken now, if it was not before
            _run(source.source.conninfo, "insert into public.item values (1000, 'late', 1, 'y')")
            committed = real(conn).lsn  # at the start of a page, PostgreSQL's own function is behind the page's header
        return real(conn)

    monkeypatch.setattr(bare_server, "position", meanwhile)
    report = commands.against(source, copy, ["item"])
    (item,) = report.tables
    assert report.lsn is not None
    has_it = report.lsn >= committed
    assert (item.status, item.removed) == (("different", 1) if has_it else ("identical", 0))


def test_a_source_that_never_stands_still_has_no_exact_lsn(
    source: Config, copy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(source.source.conninfo, *SCHEMA)
    real = bare_server.position

    def moving(conn: Connection) -> Position:
        _run(source.source.conninfo, "create temp table t ()")
        return real(conn)

    monkeypatch.setattr(bare_server, "position", moving)
    busy = source.model_copy(update={"check": CheckConfig(cut_seconds=0.5)})
    with pytest.raises(SourceUnavailable, match=r"no snapshot of the source at an exact LSN in 0\.5 s: .*; pause its"):
        commands.against(busy, copy)


def test_a_commit_that_no_snapshot_shows_yet_has_no_exact_lsn(source: Config, copy: str) -> None:
    """A commit that waits for the disk or a standby is in the WAL already, and its transaction is still active."""
    _run(source.source.conninfo, *SCHEMA)
    quiet = source.model_copy(update={"check": CheckConfig(cut_seconds=0.5)})
    with (
        waiting_for_a_standby(source.source.conninfo, "update public.item set id = id"),
        pytest.raises(SourceUnavailable, match="a transaction that has written is active"),
    ):
        commands.against(quiet, copy)
    with psycopg.connect(source.source.conninfo) as conn:  # an idle one commits nothing
        conn.execute("insert into public.item values (1001, 'open', 1, 'y')")
        report = commands.against(quiet, copy, ["item"])
    assert [t.status for t in report.tables] == ["identical"]


LABEL = "alter type public.mood rename value 'ill' to 'sick'"


@pytest.mark.parametrize(
    ("meanwhile", "before"),
    [
        ((LABEL,), True),
        ((LABEL, "alter type public.mood rename value 'sick' to 'ill'"), False),
        (("alter type public.pair add attribute three int",), False),
        (tuple(f"alter table public.felt rename {names[0]} to {names[1]}" for names in ("ac", "ba", "cb")), True),
    ],
)
def test_what_is_altered_after_the_snapshot_is_not_taken(
    source: Config, copy: str, monkeypatch: pytest.MonkeyPatch, meanwhile: tuple[str, ...], before: bool
) -> None:
    """Rows of a snapshot are printed as the catalogs are now: neither equal nor different at its LSN."""
    for conninfo in (source.source.conninfo, copy):
        _run(
            conninfo,
            "create type public.mood as enum ('well', 'ill')",
            "create type public.pair as (one int, two int)",
            "create table public.felt (id int primary key, a text, b text, mood public.mood, pairs public.pair[])",
            """insert into public.felt values (1, 'a', 'b', 'ill', '{"(1,2)"}')""",
            "create table public.plain (id int primary key)",
        )
    if before:  # the copy is as the source will be, and not as it is at the LSN
        _run(copy, *meanwhile)
    from toolkit.quality import second_server

    real = second_server._compared

    def altered(*arguments: object, **more: object) -> TableCheck:
        if arguments[4].name == "felt":  # type: ignore[attr-defined]
            _run(source.source.conninfo, *meanwhile)
        return real(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(second_server, "_compared", altered)
    found = _by_name(source, copy, "felt", "plain")
    assert (found["public.felt"].status, found["public.plain"].status) == ("not_taken", "identical")
    assert "altered on the source while it was read" in (found["public.felt"].reason or "")


@pytest.mark.wide
def test_trap_027_what_a_paused_replica_lacks_is_no_difference() -> None:
    with EmbeddedServer() as primary, standby_of(primary) as standby:
        config = Config(source=SourceConfig(conninfo=primary.conninfo()))
        _run(config.source.conninfo, *SCHEMA)
        replayed(standby, primary)
        _run(standby.conninfo(), "select pg_wal_replay_pause()")
        report = commands.against(config, standby.conninfo())
        assert report.green
        assert str(report.lsn) == _one(standby.conninfo(), "select pg_last_wal_replay_lsn()::text")
        _run(config.source.conninfo, "update public.item set name = 'later' where id < 10")
        report = commands.against(config, standby.conninfo())
        found = {t.table: t for t in report.tables}
        item = found["public.item"]
        assert (item.status, found["public.bag"].status) == ("not_taken", "identical")
        stands = _one(standby.conninfo(), "select pg_last_wal_replay_lsn()::text")
        assert f"the source at {report.lsn}, the other server at {stands}" in (item.reason or "")
        assert f"pg_last_wal_replay_lsn() is {report.lsn}" in (item.remedy or "")
        # The other way round it is the source that lacks them.
        turned = Config(source=SourceConfig(conninfo=standby.conninfo()))
        found = _by_name(turned, primary.conninfo())
        assert (found["public.item"].status, found["public.bag"].status) == ("not_taken", "identical")
        # What the remedy says.
        _run(standby.conninfo(), "select pg_wal_replay_resume()")
        replayed(standby, primary)
        assert commands.against(config, standby.conninfo()).green


def test_servers_that_follow_each_other_are_compared_at_one_lsn() -> None:
    def at(lsn: int, *, follows: bool = False, cluster: str = "1", xid: str = "7") -> Position:
        return Position(cluster, follows, Lsn(lsn), xid)

    assert _doubt(at(8), [at(8, follows=True), at(8, follows=True)]) is None
    # It replayed on, or the source had written.
    for found in ((8, 9), (9, 9), (7, 7)):
        doubt = _doubt(at(8), [at(n, follows=True) for n in found])
        assert doubt is not None
        assert "the other server follows the source" in doubt[0]
    # A promoted copy, or another cluster, only has to stand still.
    assert _doubt(at(8), [at(5), at(6)]) is None
    assert _doubt(at(9), [at(5, cluster="2", follows=True), at(5, cluster="2", follows=True)]) is None
    assert _doubt(at(8), [at(5), at(5, xid="8")]) is not None

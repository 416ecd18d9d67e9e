"""What becomes of the table that the change log is: it leaves the publication, is dropped, purged, restored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests import commands
from tests.postgres.test_snapshot_log import current, of, on_source, sql
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from toolkit.demo.server import EmbeddedServer
from toolkit.ops import alerts, diagnosis, status_report
from toolkit.source import change_log
from toolkit.values.config import Config, SourceConfig, TableConfig
from toolkit.values.modes import Capture

__all__ = ["plain_lake"]
pytestmark = pytest.mark.postgres


@pytest.fixture
def lake(source: Config, plain_lake: Config) -> Iterator[Config]:
    """Table `a` comes by the slot, `b` by triggers; both have a row of before."""
    config = source.model_copy(update={"root": plain_lake.root})
    for name in "ab":
        sql(config, f"create table public.{name} (id int primary key, x text)", f"insert into {name} values (1, 'one')")
    yield config.model_copy(update={"table": {"public.b": TableConfig(capture=Capture.CHANGE_LOG)}})


def _by_ticks(config: Config) -> Config:
    return config.model_copy(
        update={"source": config.source.model_copy(update={"capture": "change_log", "change_log_drain": "tick"})}
    )


def _in_log(config: Config) -> int:
    with psycopg.connect(config.source.conninfo) as conn:
        row = conn.execute("select count(*) from cdc.change_log where op <> 'M'").fetchone()
    assert row is not None
    return int(row[0])


_GONE = {
    "set": "alter publication cdc set table public.a",
    "drop": "alter publication cdc drop table cdc.change_log",
    "no inserts": "alter publication cdc set (publish = 'update, delete, truncate')",
    "filter": "alter publication cdc add table cdc.change_log_0 where (op = 'T')",
    "columns": "alter publication cdc add table cdc.change_log_0 (part, xid)",
}


@pytest.mark.parametrize("gone", _GONE)
@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_a_log_that_leaves_the_publication_is_red_and_kept(lake: Config, gone: str) -> None:
    """Its rows are not sent then: their tables turn red from there, and the rows stay until they are repaired."""
    commands.init(lake)
    commands.drain(lake)
    sql(lake, _GONE[gone], "insert into b values (2, 'unsent')")
    commands.drain(lake)
    assert of(lake, "b").state == "stale"
    assert gone == "no inserts" or of(lake, "a").state == "ok"
    assert _in_log(lake) == 1, "what was not sent is not purged"
    back = "set (publish = 'insert, update, delete, truncate')" if gone == "no inserts" else "set table public.a"
    sql(lake, f"alter publication cdc {back}")
    commands.init(lake)
    commands.drain(lake)
    assert of(lake, "b").state == "stale" and of(lake, "b").repaired_lsn is None
    commands.repair(lake, ["public.b"])
    sql(lake, "insert into b values (3, 'sent')")
    commands.drain(lake)
    assert of(lake, "b").repaired_lsn is not None
    assert current(lake, "b") == on_source(lake, "b")


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_a_log_that_left_the_publication_and_came_back_between_two_drains_is_red(lake: Config) -> None:
    commands.init(lake)
    commands.drain(lake)
    sql(lake, _GONE["set"], "insert into b values (2, 'unsent')", "alter publication cdc add table cdc.change_log")
    commands.drain(lake)
    assert of(lake, "b").state == "stale"
    assert of(lake, "a").state == "ok"


@pytest.mark.parametrize("ticks", [False, True], ids=["slot", "ticks"])
@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_a_log_that_was_dropped_and_made_again_is_red(lake: Config, ticks: bool) -> None:
    config = _by_ticks(lake) if ticks else lake
    commands.init(config)
    commands.drain(config)
    sql(config, "insert into b values (2, 'lost')", "drop table cdc.change_log cascade")
    commands.init(config)
    sql(config, "insert into b values (3, 'logged')")
    commands.drain(config)
    assert of(config, "b").state == "stale"
    assert ticks or of(config, "a").state == "ok"
    commands.repair(config, ["public.b"])
    commands.drain(config)
    assert current(config, "b") == on_source(config, "b")
    assert ledger_of(config).last() is not None


_UPPER = "alter table public.b alter x type text using upper(x)"


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_a_ddl_message_waits_for_the_log(lake: Config) -> None:
    """A rewrite that leaves the catalog as it was is in its message alone, and without a slot only in the log."""
    config = _by_ticks(lake)
    commands.init(config)
    conninfo = config.source.conninfo
    late = "select 1 from pg_locks where waitstart < clock_timestamp() - interval '1.5 s'"
    with psycopg.connect(conninfo) as holder, psycopg.connect(conninfo, autocommit=True) as watch:
        holder.execute("lock table cdc.change_log_0, cdc.change_log_1, cdc.change_log_2 in access exclusive mode")
        with psycopg.connect(conninfo, autocommit=True) as app, ThreadPoolExecutor(1) as pool:
            altered = pool.submit(app.execute, _UPPER)
            while not altered.done() and not watch.execute(late).fetchone():
                pass
            holder.commit()
            altered.result()
    commands.drain(config)
    assert of(config, "b").state == "stale" and "rewritten" in str(of(config, "b").reason)
    assert of(config, "a").state == "ok"


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_a_ddl_message_that_cannot_be_logged_turns_tables_red(lake: Config) -> None:
    config = _by_ticks(lake)
    commands.init(config)
    sql(config, "alter table cdc.change_log add constraint full_disk check (op <> 'M') not valid")
    sql(config, _UPPER, "alter table cdc.change_log drop constraint full_disk")
    commands.drain(config)
    assert of(config, "b").state == "stale"
    commands.repair(config)
    commands.drain(config)
    assert of(config, "b").repaired_lsn is not None
    assert current(config, "b") == on_source(config, "b")


@pytest.mark.parametrize("begun", ["first", "generation", "by slot"])
@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_what_a_dump_brought_into_the_log_is_not_replayed(lake: Config, begun: str) -> None:
    """Its xids are another cluster's, and this one will get there: then a tick would show the rows."""
    config = lake if begun == "by slot" else _by_ticks(lake)
    commands.init(config)
    sql(
        config,
        "insert into cdc.change_log"
        " select 0, (pg_current_xact_id()::text::int8 + 50)::text::xid8, '0/1', 'b'::regclass, 'I', null, '(7,old)'",
        "insert into cdc.tick values ('FFFFFFFF/0', '1:1:')",
    )
    if begun == "first":
        # The record of the lake came with the dump, from the other cluster.
        sql(
            config,
            "update cdc.settings set value = convert_to(jsonb_set(convert_from(value, 'UTF8')::jsonb, '{database}',"
            " '\"1 5\"')::text, 'UTF8') where name = 'lake'",
        )
        config = config.model_copy(update={"root": config.root / "other"})
        config.root.mkdir()
    commands.init(config, new_generation=begun != "first")
    sql(config, *(["select pg_current_xact_id()"] * 60), "insert into b values (2, 'new')")
    for _ in range(3):
        commands.drain(config)
    assert _in_log(config) == 0
    assert current(config, "b") == on_source(config, "b")
    with psycopg.connect(config.source.conninfo) as conn:
        assert conn.execute("select from cdc.tick where lsn > pg_current_wal_lsn()").fetchone() is None


_RETOLD = {
    "label": ("mood", "a", "alter type mood rename value 'a' to 'x'"),
    "label inside": ("mood[]", "{a}", "alter type mood rename value 'a' to 'x'"),
    "attribute": ("pair", "(1)", "alter type pair add attribute m int"),
    "new generation": ("mood", "a", "alter type mood rename value 'a' to 'x'"),
}


@pytest.mark.parametrize("prints_differently", _RETOLD)
@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_a_writer_older_than_a_change_of_a_type_is_red_behind_a_repair(lake: Config, prints_differently: str) -> None:
    """A tick waits for no one: the text that such a one has logged is not how the table shows it now."""
    config = _by_ticks(lake)
    kind, value, change = _RETOLD[prints_differently]
    sql(config, "create type mood as enum ('a', 'b'); create type pair as (n int)")
    sql(config, f"create table public.t (id int primary key, v {kind}); insert into t values (1, '{value}')")
    commands.init(config)
    with psycopg.connect(config.source.conninfo) as old:
        old.execute(f"insert into t values (2, '{value}')")
        sql(config, change)
        if prints_differently == "new generation":
            commands.init(config, new_generation=True)
        else:
            commands.repair(config, ["public.t", "public.b"])
        old.execute("insert into b values (2, 'the same')")
        old.commit()
    commands.drain(config)
    assert of(config, "t").state == "stale" and of(config, "t").repaired_lsn is None
    assert of(config, "b").comparable
    commands.repair(config)
    commands.drain(config)
    assert of(config, "t").repaired_lsn is not None
    assert current(config, "t") == on_source(config, "t")


@pytest.mark.wide
def test_a_crash_behind_a_tick_loses_and_doubles_nothing(plain_lake: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server goes down between the commit in the lake and the purge, with every kind of transaction under way."""
    with EmbeddedServer(None, 18, {"wal_level": "replica", "max_prepared_transactions": 5}) as server:
        source = SourceConfig(conninfo=server.conninfo(), capture=Capture.CHANGE_LOG)
        config = plain_lake.model_copy(update={"source": source})
        sql(config, "create table public.b (id int primary key, x text)", "insert into b values (1, 'one')")
        commands.init(config)
        sql(config, "begin; insert into b values (2, 'prepared'); prepare transaction 'p'")
        asynchronous = "set synchronous_commit = off; insert into b values ({}, 'asynchronous')"

        def going_down(*_: object) -> None:
            sql(config, asynchronous.format(5))
            server.stop(True)

        with psycopg.connect(server.conninfo()) as left:
            left.execute("insert into b values (3, 'open')")
            sql(config, asynchronous.format(4))
            with monkeypatch.context() as patch, pytest.raises(psycopg.OperationalError):
                patch.setattr(change_log, "purge", going_down)
                commands.drain(config)
            left.close()
        server.start()
        sql(config, "commit prepared 'p'", "insert into b values (6, 'after')")  # by xids that were lost, perhaps
        for _ in range(3):
            commands.drain(config)
        assert current(config, "b") == on_source(config, "b")
        assert {"1", "2", "4", "6"} <= on_source(config, "b").keys()
        assert Counter(e["new"][0] for e in rows_in_log(config)) == Counter(on_source(config, "b").keys())
        assert _in_log(config) == 0


def test_ticks_need_no_sender(plain_lake: Config) -> None:
    """With this remedy, the server would not start again: without WAL for replicas it allows no senders."""
    with EmbeddedServer(None, 16, {"wal_level": "minimal", "max_wal_senders": 0}) as server:
        source = SourceConfig(conninfo=server.conninfo(), capture=Capture.CHANGE_LOG)
        config = plain_lake.model_copy(update={"source": source})
        sql(config, "create table public.b (id int primary key)")
        commands.init(config)
        assert status_report.status(config).alerts == () == alerts.at_the_end(config)
        assert "max_wal_senders" not in {found.what for found in diagnosis.doctor(config)}

"""An LSN can be named by a time: the transactions that had committed then, and no others."""

from __future__ import annotations

from datetime import datetime, timedelta

import psycopg
import pytest

from tests import commands
from tests.postgres.test_snapshot_log import sql
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import lake_of
from toolkit.history.commit_times import lsn_at
from toolkit.lake.lake_catalog import open_catalog
from toolkit.ops import erased_tables
from toolkit.rawlog import erasure
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError
from toolkit.values.lsn import Lsn

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]


def _now(config: Config) -> datetime:
    with psycopg.connect(config.source.conninfo) as conn:
        row = conn.execute("select clock_timestamp()").fetchone()
    assert row is not None
    found: datetime = row[0]
    return found


def test_a_time_is_the_lsn_before_the_first_later_commit(source: Config, plain_lake: Config) -> None:
    config = source.model_copy(update={"root": plain_lake.root})
    sql(config, "create table public.a (id int primary key)")
    commands.init(config)
    times = []
    for number in range(4):
        times.append(_now(config))
        sql(config, f"insert into public.a values ({number})")
        if number == 1:
            commands.drain(config)  # the times lie in two batches
    commands.drain(config)
    with pytest.raises(ConfigError, match="no transaction that committed later; drain"):
        lsn_at(lake_of(config), _now(config) + timedelta(hours=1))
    end = _now(config)
    with pytest.raises(ConfigError, match="drain"):
        lsn_at(lake_of(config), end)  # what committed just before that time may be on the source alone
    commands.drain(config)
    commands.drain(config)  # reads the message that the one before has left
    changes = rows_in_log(config, "kind = 'row'")
    for number, at in enumerate([*times, end]):
        lsn = lsn_at(lake_of(config), at)
        assert sum(row["end_lsn"] <= lsn for row in changes) == number
        assert sum(row["commit_lsn"] < lsn for row in changes) == number


@pytest.mark.parametrize("by", ["slot", "tick"])
def test_a_time_before_the_log_begins_is_refused(source: Config, plain_lake: Config, by: str) -> None:
    """It was the LSN of the first transaction in the log, at which the rows of the first copy were shown."""
    config = source.model_copy(update={"root": plain_lake.root})
    if by == "tick":
        chosen = config.source.model_copy(update={"capture": "change_log", "change_log_drain": "tick"})
        config = config.model_copy(update={"source": chosen})
    sql(config, "create table public.a (id int primary key)")
    before = _now(config)
    sql(config, "insert into public.a values (1)")
    commands.init(config)
    after = _now(config)
    sql(config, "insert into public.a values (2)")
    commands.drain(config)
    changes = rows_in_log(config, "kind = 'row' and op = 'I'")
    assert [row["commit_lsn"] for row in changes] == [lsn_at(lake_of(config), after)]
    with pytest.raises(ConfigError, match=r"the log begins at .*give a later time"):
        lsn_at(lake_of(config), before)


@pytest.mark.parametrize("by", ["slot", "tick"])
def test_no_time_gives_an_lsn_after_commits_that_are_erased(
    source: Config, plain_lake: Config, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A later commit stood for the erased one, so that the rows of the copy were shown for a time before it."""
    config = source.model_copy(update={"root": plain_lake.root})
    if by == "tick":
        chosen = config.source.model_copy(update={"capture": "change_log", "change_log_drain": "tick"})
        config = config.model_copy(update={"source": chosen})
    sql(config, "create table public.a (id int primary key)")
    commands.init(config)
    commands.drain(config)
    moment = _now(config)
    sql(config, "insert into public.a values (1)")
    commands.drain(config)
    commands.repair(config, ["public.a"])
    (relid,) = {row["relid"] for row in rows_in_log(config, "kind = 'row'")}
    monkeypatch.setattr(erased_tables, "proven", lambda *_: {relid: Lsn(1 << 60)})  # no check runs here
    (erased,) = commands.erase(config, "public.a")
    condition = erasure.condition(lake_of(config).ledger)
    assert condition is not None
    open_catalog(config.lake_access).load_table("raw.events").delete(condition)
    assert {row["op"] for row in rows_in_log(config, "kind = 'row'")} == {"R"}
    for number in (2, 3):  # the second drain of a slot finds the message of the first
        sql(config, f"insert into public.a values ({number})")
        commands.drain(config)
    assert lsn_at(lake_of(config), moment) < erased.erased_before <= lsn_at(lake_of(config), _newest(config))


def _newest(config: Config) -> datetime:
    """Just before the newest commit in the log."""
    newest: datetime = max(row["committed_at"] for row in rows_in_log(config, "kind = 'row' and op = 'I'"))
    return newest - timedelta(microseconds=1)


@pytest.mark.parametrize("time", ["infinity", "-infinity", "20000-01-01", "0044-03-15 BC"])
def test_a_commit_time_that_no_datetime_has_stops_no_drain(source: Config, plain_lake: Config, time: str) -> None:
    """A session of a replication origin sets any time. With one after the year 9999 every drain ended with an error."""
    config = source.model_copy(update={"root": plain_lake.root})
    sql(config, "create table public.a (id int primary key)")
    commands.init(config)
    _commit_at(config, time, "insert into public.a values (1)")
    _commit_at(config, time, "alter table public.a add column x text")
    sql(config, "insert into public.a values (2, 'two')")
    commands.drain(config)
    commands.drain(config)  # finds the beacon of the one before
    found = rows_in_log(config, "kind = 'row'")
    assert [row["new"] for row in sorted(found, key=lambda row: row["commit_lsn"])] == [["1"], ["2", "two"]]
    with pytest.raises(ConfigError, match="no transaction that committed later"):
        lsn_at(lake_of(config), _now(config) + timedelta(days=365))


@pytest.mark.parametrize("capture", ["slot", "change_log"])
@pytest.mark.parametrize("clock", [-1, 1], ids=["an hour behind", "an hour ahead"])
def test_a_time_is_refused_around_rows_of_a_subscription(
    source: Config, plain_lake: Config, clock: int, capture: str
) -> None:
    """The server sends when they committed on the publisher: they were shown for times before they came."""
    chosen = source.source.model_copy(update={"capture": capture, "change_log_drain": "slot"})
    config = source.model_copy(update={"root": plain_lake.root, "source": chosen})
    sql(config, "create table public.a (id int primary key)")
    commands.init(config)
    times = [_now(config)]
    sql(config, "insert into public.a values (1)")
    times.append(_now(config))
    _commit_at(config, str(_now(config) + timedelta(hours=clock)), "insert into public.a values (2); truncate public.a")
    times.append(_now(config))
    sql(config, "insert into public.a values (3)")
    times.append(_now(config))
    commands.drain(config)
    commands.drain(config)
    changes = sorted((row["commit_lsn"], row["committed_at"]) for row in rows_in_log(config, "op in ('I', 'T')"))
    (one, _), (two, inserted), (_, truncated), (three, _) = changes
    lake = lake_of(config)
    assert lsn_at(lake, times[0]) <= one and lsn_at(lake, times[3]) > three
    for time in times[1:3]:
        with pytest.raises(ConfigError, match=f"came by replication, .*give an LSN from {Lsn(two)} to {Lsn(three)}"):
            lsn_at(lake, time)
    assert inserted is truncated is None


def _commit_at(config: Config, time: str, statement: str) -> None:
    with psycopg.connect(config.source.conninfo, autocommit=True) as conn:
        conn.execute("select pg_replication_origin_create('elsewhere')")
        conn.execute("select pg_replication_origin_session_setup('elsewhere')")
        with conn.transaction():
            conn.execute("select pg_replication_origin_xact_setup('0/100', %s)", [time])
            conn.execute(statement.encode())
        conn.execute("select pg_replication_origin_session_reset()")
        conn.execute("select pg_replication_origin_drop('elsewhere')")

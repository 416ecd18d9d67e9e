"""A partitioned table whose partitions are captured as tables of their own has a state, which follows from theirs."""

from __future__ import annotations

import pytest

from tests import commands
from tests.postgres.test_snapshot_log import sql
from tests.support_lake import of_others, plain_lake
from tests.support_ledger import ledger_of
from toolkit.lake.root_views import shown_roots
from toolkit.ops import status_report
from toolkit.rawlog.states import State, table_states
from toolkit.values.config import Config

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]


@pytest.fixture
def config(source: Config, plain_lake: Config) -> Config:
    """Two partitions and an ordinary table, captured through a publication of others for all tables."""
    made = of_others(source, plain_lake, "everything")
    sql(
        made,
        "create table public.m (id int primary key, v text) partition by range (id)",
        "create table public.m_1 partition of public.m for values from (0) to (10)",
        "create table public.m_2 partition of public.m for values from (10) to (20)",
        "create table public.apart (v text, id int primary key)",
        "insert into public.m values (1, 'one'), (11, 'eleven')",
        "insert into public.apart values ('twenty', 20)",
        "create publication everything for all tables",
    )
    commands.init(made)
    commands.drain(made)
    return made


def _root(config: Config, name: str = "public.m") -> tuple[str, str | None, str | None]:
    (found,) = (s for s in table_states(ledger_of(config)) if s.table == name)
    return found.state, found.reason, found.remedy


def _parts(config: Config) -> dict[str, list[str]]:
    return {r.version.table.name: [part.name for part in r.parts] for r in shown_roots(ledger_of(config))}


def test_a_root_is_shown_over_the_partitions_that_it_has(config: Config) -> None:
    """Partitions are created, attached, detached and dropped: each by one event at its LSN."""
    assert _root(config) == (State.OK, None, None)
    found = status_report.status(config)
    assert not found.not_captured and found.notes == {"public.m": status_report.AS_VIEW} and not found.failing
    assert _parts(config) == {"m": ["m_1", "m_2"]}
    before = ledger_of(config).last()
    for statement, parts in {
        "create table public.m_4 partition of public.m for values from (40) to (50)": ["m_1", "m_2", "m_4"],
        "alter table public.m attach partition public.apart for values from (20) to (30)": [
            "apart",
            "m_1",
            "m_2",
            "m_4",
        ],
        "alter table public.m detach partition public.m_1": ["apart", "m_2", "m_4"],
        "drop table public.m_2": ["apart", "m_4"],
        "drop table public.m_4": ["apart"],
    }.items():
        sql(config, statement)
        commands.drain(config)
        assert _parts(config) == {"m": parts}, statement
        stale = {s.table: s.reason for s in table_states(ledger_of(config)) if s.state != State.OK}
        assert not stale, statement
        reasons = {gap.payload.reason for gap in ledger_of(config).gaps()}
        assert reasons <= {"partitions or children were attached or detached"}, statement  # each event was captured
    assert before is not None
    then = shown_roots(ledger_of(config), before.complete_to)
    assert [part.name for part in then[0].parts] == ["m_1", "m_2"]
    sql(config, "drop table public.m")
    commands.drain(config)
    assert _parts(config) == {} and "public.m" not in {s.table for s in table_states(ledger_of(config))}


def test_a_stale_partition_makes_its_root_stale_by_name(config: Config) -> None:
    sql(config, "alter table public.m alter column v type varchar(40) using upper(v)")
    commands.drain(config)
    state, reason, remedy = _root(config)
    assert state == State.STALE and remedy == "cdc repair public.m_1"
    assert reason is not None and reason.startswith("its partition public.m_1 is stale: ")
    commands.repair(config)
    state, reason, remedy = _root(config)
    assert (state, remedy) == (State.STALE, "cdc check public.m_1")


def test_a_partition_that_is_not_captured_makes_its_root_stale(config: Config) -> None:
    sql(config, "create unlogged table public.m_3 partition of public.m for values from (30) to (40)")
    commands.drain(config)
    remedy = "alter table public.m_3 set logged"
    assert _root(config) == (State.STALE, "its partition public.m_3 is unlogged", remedy)
    assert _parts(config) == {}
    sql(config, remedy)
    commands.init(config)
    commands.drain(config)
    assert _root(config) == (State.OK, None, None)


def test_partitions_of_partitions_are_shown_in_both_roots(config: Config) -> None:
    sql(
        config,
        "create table public.sub partition of public.m for values from (50) to (70) partition by range (id)",
        "create table public.sub_1 partition of public.sub for values from (50) to (60)",
        "insert into public.m values (55, 'below')",
    )
    commands.drain(config)
    assert _parts(config) == {"m": ["m_1", "m_2", "sub_1"], "sub": ["sub_1"]}


def test_columns_that_not_all_partitions_send_make_the_root_stale(source: Config, plain_lake: Config) -> None:
    config = of_others(source, plain_lake, "parts")
    sql(
        config,
        "create table public.m (id int primary key, v text, w text) partition by range (id)",
        "create table public.m_1 partition of public.m for values from (0) to (10)",
        "create table public.m_2 partition of public.m for values from (10) to (20)",
        "create publication parts for table public.m_1 (id, v), public.m_2 (id, w)",
    )
    commands.init(config)
    commands.drain(config)
    state, reason, remedy = _root(config)
    assert (state, reason) == (
        State.STALE,
        "its partition public.m_2 has another column v in the lake than the others",
    )
    assert remedy == "publish the same columns of all partitions; or name public.m in [source] exclude"
    excluding = config.model_copy(update={"source": config.source.model_copy(update={"exclude": ("public.m",)})})
    assert {s.table for s in table_states(ledger_of(excluding))} == {"public.m_1", "public.m_2"}


def test_a_partition_in_no_publication_makes_its_root_stale_until_it_is_excluded(
    source: Config, plain_lake: Config
) -> None:
    config = of_others(source, plain_lake, "parts")
    sql(
        config,
        "create table public.m (id int primary key) partition by range (id)",
        "create table public.m_1 partition of public.m for values from (0) to (10)",
        "create publication parts for table public.m_1",
    )
    commands.init(config)
    commands.drain(config)
    assert _root(config) == (State.OK, None, None)
    sql(config, "create table public.m_2 partition of public.m for values from (10) to (20)")
    commands.drain(config)
    state, reason, remedy = _root(config)
    assert (state, reason) == (State.STALE, "its partition public.m_2 is not captured")
    assert remedy is not None and 'alter publication "parts" add table public.m_2' in remedy
    sql(config, "alter publication parts add table public.m_2")
    commands.drain(config)
    commands.init(config)
    assert _root(config) == (State.OK, None, None)

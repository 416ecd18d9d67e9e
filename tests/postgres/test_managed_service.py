"""A service without superusers that lets a role create event triggers: DDL is captured as everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from tests import commands
from tests.support_lake import plain_lake
from tests.support_ledger import ledger_of
from tests.support_postgres import fingerprints, run_sql
from toolkit.ops import status_report
from toolkit.rawlog.states import table_states
from toolkit.source import connection
from toolkit.values.config import Config, TableConfig
from toolkit.values.errors import PreflightFailed
from toolkit.values.modes import Capture, NewTables, Selection, Triggers
from toolkit.values.resources import load

__all__ = ["plain_lake"]
pytestmark = pytest.mark.postgres

_KEEPER, _DEVELOPER = "keeper_of_all", "developer"


@pytest.fixture
def keeper(source: Config, plain_lake: Config) -> Iterator[Config]:
    """A lake of a role that owns the tables and is no superuser; another role owns one more table."""
    with connection.connect(source.source) as conn:
        name = conn.info.dbname
    run_sql(
        source,
        *(f"create role {role} login replication" for role in (_KEEPER, _DEVELOPER)),
        f"grant create on database {name} to {_KEEPER}",
        f"grant all on schema public to {_KEEPER}, {_DEVELOPER}",
    )
    of_role = {"conninfo": make_conninfo(source.source.conninfo, user=_KEEPER), "new_tables": NewTables.PUBLISH}
    config = source.model_copy(update={"root": plain_lake.root, "source": source.source.model_copy(update=of_role)})
    run_sql(
        config,
        "create table public.t (id int primary key, v text)",
        "create table public.root (id int primary key) partition by range (id)",
        "create table public.root_1 partition of public.root for values from (0) to (10)",
        "insert into public.t values (1, 'x')",
    )
    yield config
    run_sql(source, f"drop owned by {_KEEPER}, {_DEVELOPER} cascade", f"drop role {_KEEPER}, {_DEVELOPER}")


def _let_create_event_triggers(source: Config, config: Config) -> None:
    """What such a service does. PostgreSQL gives event triggers to superusers only, so a superuser hands them over."""
    commands.init(config)
    run_sql(
        source,
        load("install/40_event_triggers"),
        "set allow_system_table_mods = on",
        f"update pg_event_trigger set evtowner = '{_KEEPER}'::regrole where evtname like '\\_cdc%'",
    )
    commands.init(config)
    commands.drain(config)
    commands.repair(config)


def test_ddl_of_every_role_is_captured(source: Config, keeper: Config) -> None:
    _let_create_event_triggers(source, keeper)
    developer = make_conninfo(source.source.conninfo, user=_DEVELOPER)
    run_sql(
        keeper,
        "alter table public.t add column c int default 7",
        "insert into public.t values (2, 'y', 8)",
        "create table public.root_2 partition of public.root for values from (10) to (20)",
        "insert into public.root values (1), (11)",
        "create table public.born (id int primary key)",
        "insert into public.born values (1)",
    )
    run_sql(
        keeper.model_copy(update={"source": keeper.source.model_copy(update={"conninfo": developer})}),
        "create table public.theirs (id int primary key)",
        "alter table public.theirs add column v text",
    )
    assert commands.drain(keeper).changes == 4
    states = table_states(ledger_of(keeper))
    assert {s.table for s in states} == {f"public.{name}" for name in ("t", "root", "root_1", "root_2", "born")}
    assert [s.table for s in states if not s.comparable] == []
    latest = {v.table.identifier: v.table for v in ledger_of(keeper).latest_versions().values()}
    assert [c.name for c in latest["public.t"].columns] == ["id", "v", "c"]
    assert "is in no publication" in status_report.status(keeper).not_captured["public.theirs"]
    with pytest.raises(
        PreflightFailed, match=r"must be owner of table theirs; .*, or name tables of others in \[source\]"
    ):
        commands.init(keeper)
    excluded = keeper.source.model_copy(update={"exclude": ("public.theirs",)})
    commands.init(keeper.model_copy(update={"source": excluded}))
    run_sql(keeper, "update public.t set c = 9 where id = 1")
    assert commands.drain(keeper).changes == 1
    commands.uninstall(keeper)
    with connection.connect(source.source) as conn:
        assert conn.execute("select count(*) from pg_event_trigger").fetchone() == (0,)


def test_a_table_that_left_a_published_schema_for_a_while_is_stale(source: Config, keeper: Config) -> None:
    """Its changes were not sent meanwhile, and its proof was carried: the check was green."""
    run_sql(
        source, f"create schema far authorization {_KEEPER}", "create publication theirs for tables in schema public"
    )
    of_others = {"publication": "theirs", "scope": Selection.PUBLISHED, "new_tables": NewTables.PROPOSE}
    config = keeper.model_copy(update={"source": keeper.source.model_copy(update=of_others)})
    commands.init(config)
    relids = {state.table: state.relid for state in table_states(ledger_of(config))}
    with connection.connect(config.source) as conn:
        before = fingerprints(conn)
        run_sql(
            config,
            "alter table public.t set schema far", "update far.t set v = 'unsent'",
            "alter table far.t set schema public",
            "alter table public.root_1 set (fillfactor = 90)", "grant select on public.root_1 to public",
        )  # fmt: skip
        after = fingerprints(conn)
    assert {name for name, relid in relids.items() if before[relid] != after[relid]} == {"public.t"}
    commands.drain(config)
    states = {s.table: s for s in table_states(ledger_of(config))}
    assert {name for name, s in states.items() if not s.comparable} == {"public.t"}
    run_sql(source, "drop publication theirs", "drop schema far cascade")


def test_another_kind_of_triggers_is_a_doubt_where_no_event_says_when(keeper: Config) -> None:
    chosen = keeper.source.model_copy(update={"capture": Capture.CHANGE_LOG, "tables": ("public.t",)})
    config = keeper.model_copy(update={"source": chosen.model_copy(update={"new_tables": NewTables.PROPOSE})})
    commands.init(config)
    commands.drain(config)
    assert [s.state for s in table_states(ledger_of(config))] == ["ok"]
    statement = {"public.t": TableConfig(triggers=Triggers.STATEMENT)}
    config = config.model_copy(update={"table": statement})
    commands.init(config)
    commands.drain(config)
    (state,) = table_states(ledger_of(config))
    assert "triggers" in str(state.reason) and state.remedy == "cdc repair public.t"
    commands.repair(config)
    assert [s.comparable for s in table_states(ledger_of(config))] == [True]

"""Generated columns, constraints that are not validated, and row filters that fail, where rows must be identified."""

from __future__ import annotations

import re

import psycopg
import pytest

from tests import commands
from tests.support_lake import plain_lake
from tests.support_ledger import ledger_of
from toolkit.rawlog import states
from toolkit.source import preflight
from toolkit.source.connection import connect
from toolkit.values.config import Config
from toolkit.values.errors import PreflightFailed, UnreadableChange
from toolkit.values.lsn import Lsn

__all__ = ["plain_lake"]
pytestmark = pytest.mark.postgres


def _sql(config: Config, *statements: str) -> None:
    with psycopg.connect(config.source.conninfo, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement.encode())


def _errors(config: Config) -> dict[str, tuple[str, str]]:
    with connect(config.source) as conn:
        found = preflight.preflight(conn, config.capture_rules, ddl=config.ddl)
        return {one.what: (one.found, one.remedy) for one in found if one.what.startswith("table ")}


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_no_table_is_published_whose_generated_column_makes_writes_fail(source: Config, plain_lake: Config) -> None:
    """PostgreSQL 18 refused UPDATE and DELETE to the application from `cdc init` on, and nothing said so before."""
    config = source.model_copy(update={"root": plain_lake.root})
    rules = config.source.model_copy(update={"new_tables": "publish"})
    config = config.model_copy(update={"source": rules})
    tables = {
        "v": "(a int, g int generated always as (a * 2))",
        "f": "(a int, g int generated always as (a * 2) stored)",
        "k": "(a int, g int generated always as (a * 2) stored primary key)",
        "p": "(a int primary key, g int generated always as (a * 2))",
    }
    _sql(config, *(f"create table {name} {columns}" for name, columns in tables.items()))
    _sql(config, *(f"alter table {name} replica identity full" for name in "vf"))
    left = _errors(config)
    assert left.keys() == {f"table public.{name}" for name in "vfk"}
    for why, remedy in left.values():
        assert why.startswith(
            "has a replica identity with a generated column, which the publication does not send: once"
        )
        assert "primary key of other columns; or " in remedy
        assert re.search(
            r"replica identity full, and set capture = \"change_log\" in \[table.\"public.\w\"\]; or", remedy
        )
    commands.init(config)
    _sql(config, *(f"create table later_{name} {columns}" for name, columns in tables.items()))
    for name in (*tables, "later_k", "later_p"):
        _sql(config, f"insert into {name} (a) values (1)", f"update {name} set a = a + 1", f"delete from {name}")
    commands.drain(config)
    assert {state.table for state in states.table_states(ledger_of(config))} == {"public.p", "public.later_p"}


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_a_key_with_a_generated_column_that_is_not_captured_identifies_no_row(
    source: Config, plain_lake: Config
) -> None:
    """The key was NULL in every image: distinct rows shared it in the lake, and the table was ok."""
    config = source.model_copy(update={"root": plain_lake.root})
    made = "create table t (a int, b int, id int generated always as (a * 2) stored, primary key (b, id))"
    _sql(config, "create table u (id int primary key)")
    commands.init(config)
    _sql(config, made, "alter publication cdc add table t", "insert into t (a, b) values (1, 1), (2, 1)")
    commands.drain(config)
    (state,) = (one for one in states.table_states(ledger_of(config)) if one.table == "public.t")
    reason = "rows are identified by column id, which is generated and not captured"
    assert state.state == states.State.STALE and str(state.reason).count(reason) == 1
    assert _errors(config)["table public.t"][0] == reason


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_an_index_over_a_column_that_may_hold_null_identifies_no_row(source: Config, plain_lake: Config) -> None:
    """PostgreSQL takes a NOT NULL that is not validated for one, and several rows had the key NULL."""
    config = source.model_copy(update={"root": plain_lake.root})
    _sql(
        config, "create table t (a int, v text)", "insert into t values (null, 'x'), (null, 'y'), (3, 'z')",
        "alter table t add constraint filled not null a not valid", "create unique index by_a on t (a)",
        "alter table t replica identity using index by_a",
    )  # fmt: skip
    why = "rows are identified by column a, in which NULL may be: its NOT NULL is not validated"
    with pytest.raises(
        PreflightFailed, match=f'{why}; alter table public.t alter column "a" set not null, then cdc repair'
    ):
        commands.init(config)
    _sql(config, "delete from t where a is null", "alter table public.t alter column a set not null")
    commands.init(config)
    assert [state.state for state in states.table_states(ledger_of(config))] == [states.State.OK]


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_a_row_filter_that_fails_for_a_row_can_be_skipped(source: Config, plain_lake: Config) -> None:
    """The server evaluates it only while it decodes. Every drain ended in an unexpected error, and so did each skip."""
    config = source.model_copy(update={"root": plain_lake.root})
    own = config.source.model_copy(update={"publication": "theirs", "scope": "published"})
    config = config.model_copy(update={"source": own})
    _sql(
        config, "create table t (id int primary key)", "create table u (id int primary key)",
        "create publication theirs for table t where (1000 / id > 1), u",
    )  # fmt: skip
    commands.init(config)
    _sql(config, "insert into t values (2)", "insert into t values (0)", "insert into u values (5)")
    with pytest.raises(UnreadableChange, match=r"division by zero at \S+: most often, the row filter of a publication"):
        commands.drain(config)
    with pytest.raises(UnreadableChange) as stopped:
        commands.drain(config)
    assert stopped.value.lsn is not None
    commands.skip(config, Lsn(stopped.value.lsn))
    commands.drain(config)
    found = {state.table: state.state for state in states.table_states(ledger_of(config))}
    # The transaction cannot be sent in binary form either, so it is not known which tables it changed.
    assert found == {"public.t": states.State.STALE, "public.u": states.State.STALE}

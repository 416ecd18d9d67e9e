"""`cdc drain --skip`: one transaction is left out, its tables are stale by name, and everything else is there."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests import commands
from tests.postgres.test_snapshot_log import current, of, on_source, sql
from tests.postgres.test_stages import killed
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from tests.support_postgres import WAL_HEADERS, WAL_PAGE, drop_database, fill_page
from toolkit.demo.server import EmbeddedServer
from toolkit.lake.ledger import Ledger
from toolkit.values.config import Config, SourceConfig
from toolkit.values.errors import ConfigError, UnreadableChange
from toolkit.values.lsn import Lsn

__all__ = ["plain_lake"]
pytestmark = pytest.mark.postgres


def _refused(config: Config) -> Lsn:
    with pytest.raises(UnreadableChange, match=r"`cdc drain --skip [0-9A-F]+/[0-9A-F]+`") as refused:
        commands.drain(config)
    assert refused.value.lsn is not None
    return Lsn(refused.value.lsn)


def _states(config: Config, *names: str) -> dict[str, str]:
    return {name: of(config, name).state for name in names}


@pytest.mark.wide
@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_trap_030_only_the_tables_of_the_transaction_turn_stale(source: Config, plain_lake: Config) -> None:
    """Its rows cannot be sent as text; in binary form they can, and so its DDL is read too."""
    config = source.model_copy(update={"root": plain_lake.root})
    sql(
        config, *(f"create table public.{name} (id int primary key, n numeric[])" for name in ("t", "u", "v", "w", "x"))
    )
    commands.init(config)
    sql(config, "insert into w values (1)")
    commands.drain(config)
    compared = ledger_of(config).last()
    sql(
        config,
        "set allow_system_table_mods = on",
        "update pg_attribute set attname = 'm' where attrelid = 'x'::regclass and attnum = 2",
        "begin; insert into u values (1); alter table v add column x int; alter table x add column y int;"
        " insert into t select 1, array_agg('1e131071'::numeric) from generate_series(1, 8300);"
        " truncate w; delete from t; insert into u values (2); commit",
        "insert into t values (2); insert into u values (3)",
        "insert into v values (1, null, 5); insert into w values (2)",
    )
    at = _refused(config)
    with pytest.raises(UnreadableChange):
        commands.skip(config, Lsn(at - 8))
    before = ledger_of(config).last()
    commands.skip(config, at)
    after = ledger_of(config).last()
    assert before is not None and after is not None and after.changes == 1
    commands.drain(config)
    assert _states(config, "t", "u", "v", "w") == {"t": "stale", "u": "stale", "v": "ok", "w": "ok"}
    # Its DDL shows what happened without an event, at some point after the last comparison of the catalog.
    assert compared is not None and of(config, "x").from_lsn == compared.compared_to
    assert str(at) in str(of(config, "u").reason) and of(config, "u").remedy == "cdc repair public.u"
    with pytest.raises(ConfigError, match="nothing stops the slot"):
        commands.skip(config, at)
    assert commands.repair(config, ["public.t", "public.u", "public.x"]).left_out == {}
    for name in ("t", "u", "v", "w", "x"):
        assert current(config, name) == on_source(config, name)


@pytest.fixture
def ascii_only(pg: EmbeddedServer, plain_lake: Config) -> Iterator[Config]:
    """A database that takes any byte, and two tables."""
    name = "skip_ascii"
    with psycopg.connect(pg.conninfo(), autocommit=True) as admin:
        admin.execute(f"create database {name} template template0 encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C'")
        try:
            config = Config(source=SourceConfig(conninfo=pg.conninfo(name), slot=name), root=plain_lake.root)
            sql(config, *(f"create table public.{table} (id int primary key, a text)" for table in ("t", "u")))
            yield config
        finally:
            drop_database(admin, name)


@pytest.mark.parametrize("at_page", [False, True], ids=["inside a page", "at the start of a page"])
def test_trap_030_every_table_turns_stale_where_nothing_can_be_sent(
    ascii_only: Config, monkeypatch: pytest.MonkeyPatch, at_page: bool
) -> None:
    config = ascii_only
    commands.init(config)
    sql(config, "insert into t values (1, 'before')")
    with psycopg.connect(config.source.conninfo, client_encoding="SQL_ASCII") as raw:
        for number in range(10, 30):
            raw.execute(f"insert into t values ({number}, '".encode() + b"\xe9')")
            if not at_page or fill_page(raw):
                raw.commit()
                break
            raw.rollback()
    sql(config, "insert into t values (2, 'after'); insert into u values (1)")
    at = _refused(config)
    with killed(monkeypatch, Ledger, "append_empty", after=True, match=lambda _, __, events: events[0].kind == "gap"):
        commands.skip(config, at)
    commands.skip(config, at)  # goes on where it was killed
    last = ledger_of(config).last()
    assert len(rows_in_log(config, "kind = 'gap'")) == 2, "one a table"
    assert last is not None and (last.complete_to % WAL_PAGE - 1 in WAL_HEADERS) == at_page
    commands.drain(config)
    assert [e["new"] for e in rows_in_log(config)] == [["1", "before"], ["2", "after"], ["1", None]]
    assert _states(config, "t", "u") == {"t": "stale", "u": "stale"}
    sql(config, "delete from t where id >= 10")
    assert commands.repair(config, ["public.t", "public.u"]).left_out == {}
    assert (set(current(config, "t")), set(current(config, "u"))) == ({"1", "2"}, {"1"})

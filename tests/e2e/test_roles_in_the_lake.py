"""Every command that works on the data, run by a role that has REPLICATION and SELECT and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from toolkit.cli import frame, main
from toolkit.lake import session
from toolkit.values.config import Config

pytestmark = [pytest.mark.e2e, pytest.mark.wide]

_TABLES = """
create schema shop;
create table shop.customer (id int primary key, name text);
create table shop.orders (id int primary key, customer int references shop.customer, price numeric(10, 2));
create table shop.bag (a int, b text);
alter table shop.bag replica identity full;
create table shop.events (id int primary key, note text) partition by range (id);
create table shop.events_1 partition of shop.events for values from (0) to (100);
create table shop.logged (id int primary key, v text);
create table shop.secret (id int primary key, card text);
insert into shop.customer select i, 'c' || i from generate_series(1, 20) as i;
insert into shop.orders select i, 1 + i % 20, i from generate_series(1, 50) as i;
insert into shop.bag values (1, 'x'), (1, 'x');
insert into shop.events values (1, 'begun');
insert into shop.logged values (1, 'one');
insert into shop.secret values (1, '4111');
"""
_CHANGES = """
insert into shop.orders values (100, 1, 9.99);
update shop.customer set name = 'new' where id = 2;
delete from shop.bag where ctid = (select min(ctid) from shop.bag);
alter table shop.customer add column tier text default 'plain';
alter table shop.orders alter price type numeric(12, 2);
create table shop.events_2 partition of shop.events for values from (100) to (200);
insert into shop.events values (2, 'again'), (150, 'later');
update shop.logged set v = 'two';
insert into shop.logged values (2, 'three');
"""
_CONFIG = """
[source]
conninfo = {conninfo}
tables = ["shop.*"]
exclude = ["shop.secret"]
drainer = {drainer}
{more}

[table."shop.logged"]
capture = "change_log"
"""


@dataclass(frozen=True)
class Drained:
    """A lake whose configuration names the drainer as the only role to connect as."""

    config: Config
    admin: str
    drainer: str

    def sql(self, text: str) -> None:
        with psycopg.connect(self.admin, autocommit=True) as conn:
            conn.execute(text.encode())

    def cdc(self, *words: str, code: int = 0, **environment: str) -> str:
        done = CliRunner().invoke(main, [*words, "--config", str(self.config.root / "cdc.toml")], env=environment)
        assert done.exit_code == code, (words, done.output, done.exception)
        return done.stdout

    def statuses(self, *words: str, code: int = 0) -> dict[str, str]:
        found = json.loads(self.cdc(*words, "--output", "json", code=code))
        return {t["table"].removeprefix("shop."): t["status"] for t in found["tables"]}


@pytest.fixture(params=["slot", "tick"])
def drained(
    request: pytest.FixtureRequest, database: str, lake: Config, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Drained]:
    monkeypatch.setattr(frame, "_stop_spark", lambda **_: None)
    role = f"{conninfo_to_dict(database)['dbname']}_drainer"
    more = 'capture = "change_log"\nchange_log_drain = "tick"' if request.param == "tick" else ""
    conninfo = make_conninfo(database, user=role)
    text = _CONFIG.format(conninfo=json.dumps(conninfo), drainer=json.dumps(role), more=more)
    lake.root.joinpath("cdc.toml").write_text(text, encoding="utf-8")
    made = Drained(lake, database, role)
    made.sql(_TABLES)
    made.sql(f"create role {role} login replication")
    try:
        made.cdc("init", CDC_SOURCE__CONNINFO=database)
        yield made
    finally:
        made.sql(
            f"select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = '{role}';"
            f"drop owned by {role} cascade; drop role {role}"
        )


def test_row_6_run_check_and_repair_work_as_the_drainer(drained: Drained) -> None:
    drained.sql(_CHANGES)
    all_equal = dict.fromkeys(("bag", "customer", "events_1", "events_2", "logged", "orders"), "identical")
    assert drained.statuses("run") == all_equal
    with psycopg.connect(drained.admin) as held:  # a cut cannot wait for this transaction
        held.execute("insert into shop.logged values (3, 'held')")
        drained.sql("update shop.orders set price = price + 1 where id < 10")
        assert drained.statuses("check", "--full") == all_equal
    assert drained.statuses("run") == all_equal

    session.own_session(drained.config.lake_access).sql("delete from current.shop__orders where id in (3, 4)")
    session.own_session(drained.config.lake_access).sql("update current.shop__logged set v = 'planted' where id = 1")
    found = drained.statuses("check", "--full", code=3)
    assert found == all_equal | {"orders": "different", "logged": "different"}
    for table in ("shop.orders", "shop.logged"):
        drained.cdc("repair", table, "--differing")
    drained.sql("alter table shop.customer alter name type varchar(40) using name || '!'")
    assert drained.statuses("run", "--heal") == all_equal
    for words in (
        ("drain",), ("build",), ("status",), ("doctor",), ("rows", "shop.orders"), ("maintain",), ("audit",),
        ("schema", "history", "shop.customer"), ("ddl", "list"),
    ):  # fmt: skip
        drained.cdc(*words)

"""The signing key is replaced: what is not drained yet stays valid, and the key before signs nothing new."""

from __future__ import annotations

import hashlib
import hmac
import json

import psycopg
import pytest

from tests import commands
from tests.postgres.test_snapshot_log import current, on_source, sql
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from tests.support_postgres import hmac_key
from tests.trap_world import World
from toolkit.decode.layout import OWN_NAME
from toolkit.lake.proofs import current_states
from toolkit.source import connection, ddl_switch, install, signatures
from toolkit.values.config import Config, DdlConfig
from toolkit.values.errors import PreflightFailed
from toolkit.values.modes import CommandText

__all__ = ["plain_lake"]
pytestmark = pytest.mark.postgres


def test_a_new_key_loses_no_ddl(source: Config, plain_lake: Config) -> None:
    config = source.model_copy(update={"root": plain_lake.root})
    sql(config, "create table public.a (id int primary key, x text)")
    commands.init(config)
    commands.drain(config)
    with psycopg.connect(config.source.conninfo, autocommit=True) as conn:
        first = hmac_key(conn)
        sql(config, "alter table public.a add column y int", "insert into public.a values (1, 'one', 1)")
        with psycopg.connect(config.source.conninfo) as other:
            other.execute("create table public.open (id int primary key)")
            with (
                connection.connect(config.source) as session,
                pytest.raises(PreflightFailed, match="nothing was changed; wait"),
            ):
                signatures.replace_key(session)
            assert hmac_key(conn) == first
        for _ in range(2):  # the key before the last one stays valid too
            with connection.connect(config.source) as session:
                signatures.replace_key(session)
        second = hmac_key(conn)
        assert second != first
        sql(config, "alter table public.a add column z int", "insert into public.a values (2, 'two', 2, 2)")
        sql(config, "update public.a set z = 1 where id = 1")  # the log's plain fold has no column that came later
        # Whoever has the key before can sign for no transaction that began after it was replaced.
        (now,) = conn.execute("select pg_current_xact_id()::text::int8").fetchone() or (0,)
        for content, good in (({"xid": "3"}, True), ({"xid": str(now)}, False), ({}, False), ("no json", False)):
            data = (content if isinstance(content, str) else json.dumps(content)).encode()
            signature = hmac.new(first, data, hashlib.sha256).hexdigest().encode()
            assert conn.execute("select cdc.is_signed(%b, %b)", [signature, data]).fetchone() == (good,), content
        assert conn.execute("select cdc.is_signed(%b, %b)", [b"x" * 64, b"foreign"]).fetchone() == (False,)
    assert commands.drain(config).changes >= 2
    messages = [json.loads(e["payload"]) for e in rows_in_log(config, "kind = 'message'")]
    assert not [m for m in messages if m.get("refused") or m["prefix"] == "cdc.ddl"]
    assert current(config, "a") == on_source(config, "a")
    assert {s.state for s in current_states(ledger_of(config))} == {"ok"}
    commands.init(config, new_key=True)
    with psycopg.connect(config.source.conninfo, autocommit=True) as conn:
        assert hmac_key(conn) not in (first, second)
    commands.drain(config)  # finds the beacon that the second key signed


@pytest.mark.parametrize("resumed", ["", "now", "by an earlier version"])
def test_the_key_is_not_in_the_log_of_a_publication_for_all_tables(world: World, resumed: str) -> None:
    """A new key came into the lake, where any reader of it could sign with it."""
    log = world.start(
        "create table t (id int primary key)", "create publication everything for all tables",
        scope="published", publication=("everything",),
    )  # fmt: skip
    log.drain()
    if resumed:
        ddl_switch.pause(log.config.source)
        ddl_switch.resume(log.config.source)
    if resumed == "by an earlier version":  # which described the tables of the toolkit too
        log.conn.execute(
            "select cdc.emit('capture_resumed', jsonb_build_object('tables', to_jsonb(cdc.publishable()::int8[])))"
        )
    with connection.connect(log.config.source) as conn:
        signatures.replace_key(conn)
        install.install(
            conn, log.config.capture_rules, ddl=DdlConfig(sql=CommandText.HASH), lock_seconds=3
        )  # changes its settings
    world.sql("insert into t values (1)")
    log.drain()
    assert {e["relid"] for e in log.events if e["kind"] == "row"} == {world.relid("t")}
    assert {e["relid"] for e in log.events if e["kind"] == "gap"} <= {world.relid("t")} or "earlier" in resumed
    if resumed:
        log.repair("public.t")
    world.exact("t")


def test_every_table_of_the_toolkit_is_known_as_its_own(world: World) -> None:
    """One that is not would be captured as a table of the user, with the key that signs."""
    log = world.start("create table t (id int primary key)", capture="change_log", change_log_drain="slot")
    known = "select t, cdc.is_own(pg_catalog.format('cdc.%%I', t)) from pg_catalog.unnest(%s::text[]) as t"
    made = log.conn.execute(
        "select c.relname::text from pg_catalog.pg_class as c"
        " where c.relnamespace = 'cdc'::pg_catalog.regnamespace and c.relkind in ('r', 'p')"
    )
    own = {name for (name,) in made}
    assert own > {"change_log", "settings", "signing_key", "tick"}
    users = {"orders", "ticks", "my_settings"}
    for name, is_own in log.conn.execute(known, [sorted(own | users)]):
        assert (is_own, OWN_NAME.fullmatch(name) is not None) == (name in own, name in own), name

"""A remedy that is printed as a command or a statement is run as it stands, and what it is for is gone."""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest

from tests.support_remedies import pasted
from tests.trap_cases import steps
from tests.trap_world import PAIR, World
from toolkit.ops import alerts
from toolkit.ops.alerts import Alert
from toolkit.source import ddl_switch, install, preflight, pressure, slot
from toolkit.source.connection import connect
from toolkit.values.config import Config, LimitsConfig, TableConfig
from toolkit.values.modes import Capture

pytestmark = pytest.mark.postgres

_ODD = '"we`ird $t"'


def _findings(config: Config) -> dict[tuple[str, str], str]:
    with connect(config.source) as conn:
        return {(f.what, f.found): f.remedy for f in preflight.preflight(conn, config.capture_rules, ddl=config.ddl)}


def _paste(world: World, text: str) -> None:
    if not text.startswith("cdc "):
        world.sql(*text.split("; "))
        return
    words = shlex.split(text)[1:]
    with closing(connect(world.config.source)) as conn:
        if words == ["init"]:
            install.install(
                conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
            )
        elif words == ["ddl", "resume"]:
            ddl_switch.resume(world.config.source)
        else:
            assert words[0] == "repair", text
            if world.stale():
                world.log.repair(*(words[1:] or world.stale()))


@pytest.mark.parametrize(
    ("planted", "what"),
    [
        (f"create unlogged table public.{_ODD} (id int primary key)", f"table public.{_ODD}"),
        (f"create table public.{_ODD} (id int)", f"table public.{_ODD}"),
        ("select cdc.pause()", "DDL capture"),
        ("alter role current_user set cdc.capture = off", "DDL capture"),
        ("alter role all set cdc.capture = off", "DDL capture"),
        ("do $$ begin execute format('alter database %I set cdc.capture = off', current_database()); end $$",
         "DDL capture"),
        ("do $$ begin execute format('alter role %I in database %I set cdc.capture = off', current_user,"
         " current_database()); end $$", "DDL capture"),
        ("alter event trigger _cdc_0_command disable", "event trigger _cdc_0_command"),
        (
            "do $$ begin execute replace(pg_get_functiondef('cdc.capture_drop()'::regprocedure), 'AS $function$',"
            " 'AS $function$ '); end $$",
            "function",
        ),
        ("update cdc.settings set value = 'x' where name = 'version'", "capture"),
        ("update cdc.settings set value = 'none' where name = 'sql'", "DDL capture"),
    ],
)  # fmt: skip
def test_a_finding_of_doctor_is_gone_after_its_remedy(world: World, planted: str, what: str) -> None:
    world.start(*PAIR)
    before = _findings(world.config)
    try:
        world.sql(planted)
        new = {key: remedy for key, remedy in _findings(world.config).items() if key not in before}
        assert [key for key in new if key[0].startswith(what)], new
        for key, remedy in new.items():
            commands = pasted(remedy)
            assert commands, f"{key}: {remedy} names nothing to run"
            for text in commands:
                _paste(world, text)
        assert not [key for key in _findings(world.config) if key in new]
    finally:
        world.sql("alter role all reset cdc.capture", "alter role current_user reset cdc.capture")


def test_rights_that_are_missing_are_granted_as_printed(world: World) -> None:
    role = 'we"ird role'
    quoted = psycopg.sql.Identifier(role)
    world.user.execute(psycopg.sql.SQL("create role {} login password 'x'").format(quoted))
    try:
        conninfo = psycopg.conninfo.make_conninfo(world.config.source.conninfo, user=role, password="x")
        config = world.config.model_copy(
            update={"source": world.config.source.model_copy(update={"conninfo": conninfo})}
        )
        found = {k: r for k, r in _findings(config).items() if k[0].startswith("role") and r.startswith("run: ")}
        assert len(found) == 2
        for remedy in found.values():
            for text in pasted(remedy):
                _paste(world, text)
        assert not [key for key in _findings(config) if key in found]
    finally:
        world.user.execute(psycopg.sql.SQL("drop owned by {0} cascade").format(quoted))
        world.user.execute(psycopg.sql.SQL("drop role {}").format(quoted))


@pytest.mark.parametrize(
    "planted",
    [
        "alter table t alter v type text using upper(v)",
        "select cdc.pause()",
        "alter publication cdc drop table t",
        "alter publication cdc set (publish = 'insert')",
        "alter publication cdc drop table t; alter table t set unlogged",
    ],
)
def test_a_stale_table_of_status_is_right_after_its_remedy(world: World, planted: str) -> None:
    log = world.start(f"create table public.{_ODD} (id int primary key)", *PAIR)
    world.sql(*planted.split("; "))
    log.drain()
    assert "public.t" in world.stale()
    for _ in range(2):  # one remedy may lead to the next
        for state in log.states().values():
            for text in steps(state.remedy or "") if not state.comparable else ():
                _paste(world, text)
        log.drain()
    assert not world.stale()
    world.exact("t")


def _alert(world: World, what: str) -> Alert:
    with connect(world.config.source) as conn:
        state, found = slot.read_slot(conn, world.config.source.slot), pressure.read_pressure(conn)
    assert state is not None
    state, found = replace(state, wal_status="unreserved"), replace(found, slots_used=found.slots, senders_used=99999)
    wrong = alerts.of_server(world.config.limits, world.config.source, state, found, by_ticks=False)
    (alert,) = (one for one in wrong if one.what == what)
    return alert


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_a_setting_that_an_alert_names_is_made_by_its_remedy(world: World) -> None:
    world.start(*PAIR)
    for what, name in (
        (f"slot {world.config.source.slot!r}", "max_slot_wal_keep_size"),
        ("max_replication_slots", "max_replication_slots"),
        ("max_wal_senders", "max_wal_senders"),
    ):
        (statement,) = (text for text in pasted(_alert(world, what).remedy) if not text.startswith("cdc "))
        try:
            _paste(world, statement)
            made = world.user.execute(
                "select f.setting::text, f.error from pg_file_settings as f where f.name = %s and f.sourcefile like %s",
                [name, "%auto.conf"],
            ).fetchone()
            assert made is not None and f"= '{made[0]}'" in statement.replace(f"= {made[0]}", f"= '{made[0]}'")
        finally:
            world.sql(f"alter system reset {name}", "select pg_reload_conf()")


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_a_transaction_that_an_alert_names_is_ended_by_its_remedy(world: World) -> None:
    world.start(*PAIR)
    world.config = world.config.model_copy(update={"limits": LimitsConfig(transaction_minutes=1e-9)})
    with closing(psycopg.connect(world.config.source.conninfo)) as old:
        old.execute("select pg_current_xact_id()")
        alert = _alert(world, "transactions of the source")
        assert f"pid {old.info.backend_pid} " in alert.found
        (statement,) = pasted(alert.remedy)
        _paste(world, statement)
        with pytest.raises(psycopg.OperationalError):
            old.execute("select 1")


@pytest.mark.parametrize("pg", ["pg15", "pg16", "pg18"], indirect=True)
def test_a_prepared_transaction_is_an_alert_with_what_ends_it(world: World) -> None:
    """The slot keeps WAL from before it too, and no session has it: it was never named."""
    world.start(*PAIR)
    world.config = world.config.model_copy(update={"limits": LimitsConfig(transaction_minutes=1e-9)})
    world.sql("begin; insert into t values (3, 'z'); prepare transaction 'left'")
    alert = _alert(world, "transactions of the source")
    assert f"prepared transaction left in database {world.user.info.dbname} has been running" in alert.found
    assert alert.remedy == "run: commit prepared 'left', or rollback prepared 'left'"
    world.sql("rollback prepared 'left'")


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_a_misspelt_name_in_the_configuration_is_found_with_the_nearest(world: World) -> None:
    """A table that `exclude` misspells was captured, and a misspelt [table] had no effect, both without a word."""
    world.start("create table public.secret (id int primary key)", *PAIR)
    config = world.config.model_copy(
        update={
            "source": world.config.source.model_copy(update={"exclude": ("public.secrt", "public.tmp_*")}),
            "table": {"public.tt": TableConfig(capture=Capture.SCHEMA), "public.t": TableConfig()},
        }
    )
    found = {what: remedy for (what, _), remedy in _findings(config).items() if "[" in what}
    assert set(found) == {"[source] exclude 'public.secrt'", '[table."public.tt"]'}
    assert "did you mean public.secret?" in found["[source] exclude 'public.secrt'"]
    assert "did you mean public.t?" in found['[table."public.tt"]']

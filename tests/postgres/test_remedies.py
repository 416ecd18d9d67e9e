"""A remedy that is printed as a command or a statement is run as it stands, and what it is for is gone."""

from __future__ import annotations

import re
import shlex
from contextlib import closing

import psycopg
import pytest

from tests.trap_cases import steps
from tests.trap_world import PAIR, World
from toolkit.capture import ddl_switch
from toolkit.source import install, preflight
from toolkit.source.connection import connect
from toolkit.values.config import Config

pytestmark = pytest.mark.postgres

#: A statement after `run:` up to another way, or a command in backticks.
_RUN = re.compile(r"run: (.+?)(?=, or |; or |, then |$)|run `(cdc [^`]+)`|then `(cdc [^`]+)`")
_ODD = '"we`ird $t"'


def _commands(remedy: str) -> list[str]:
    return [next(filter(None, match.groups())) for match in _RUN.finditer(remedy)]


def _findings(config: Config) -> dict[tuple[str, str], str]:
    with connect(config) as conn:
        return {(f.what, f.found): f.remedy for f in preflight.preflight(conn, config)}


def _paste(world: World, text: str) -> None:
    if not text.startswith("cdc "):
        world.sql(*text.split("; "))
        return
    words = shlex.split(text)[1:]
    with closing(connect(world.config)) as conn:
        if words == ["init"]:
            install.install(conn, world.config)
        elif words == ["ddl", "resume"]:
            ddl_switch.resume(world.config)
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
            commands = _commands(remedy)
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
            for text in _commands(remedy):
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

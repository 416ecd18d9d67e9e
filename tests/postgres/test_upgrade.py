"""Capture that another version of the toolkit has installed is named, and `cdc init` replaces it."""

from __future__ import annotations

import pytest

from tests.trap_world import PAIR, World
from toolkit.source import guard, install, preflight
from toolkit.values import resources

pytestmark = pytest.mark.postgres

_FOUND = "was installed by another version of the toolkit"


@pytest.mark.parametrize("noted", [False, True])
def test_an_older_installation_is_named_until_init_replaces_it(
    world: World, said: pytest.LogCaptureFixture, noted: bool
) -> None:
    log = world.start(*PAIR)
    log.drain()
    assert not any(
        f.found == _FOUND for f in preflight.preflight(log.conn, world.config.capture_rules, ddl=world.config.ddl)
    )
    # As an older `cdc init` has left it: other functions, sealed by it, and its own note or none.
    log.conn.execute(
        "do $$ begin"
        " execute replace(pg_get_functiondef('cdc.pause()'::regprocedure), 'AS $function$', 'AS $function$ ');"
        " end $$;"
        "update cdc.settings set value = 'another' where name = 'version'"
        if noted
        else "delete from cdc.settings where name = 'version'"
    )
    log.conn.execute("create function cdc.unheard(command text) returns void language sql as ''")  # its name until 0.1
    log.conn.execute(resources.load("install/45_seal").encode())
    world.sql("alter table t add column before_init int")
    assert guard.of_another_version(log.conn)
    (found,) = (
        f for f in preflight.preflight(log.conn, world.config.capture_rules, ddl=world.config.ddl) if f.found == _FOUND
    )
    assert (found.level, found.remedy) == ("warning", "run `cdc init`")
    said.clear()
    log.drain()
    assert _FOUND in said.text
    assert not world.stale()

    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    assert log.conn.execute("select to_regprocedure('cdc.unheard(text)')").fetchall() == [(None,)]
    world.sql("alter table t add column after_init int", "insert into t values (77)")
    said.clear()
    log.drain()
    assert not world.stale() and _FOUND not in said.text
    assert not any(
        f.found == _FOUND for f in preflight.preflight(log.conn, world.config.capture_rules, ddl=world.config.ddl)
    )

"""Traps of capture itself: bypassed, switched off, forged, and in the way of no one."""

from __future__ import annotations

import json
import os
import pwd
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests import commands
from tests.support_lake import plain_lake
from tests.support_ledger import ledger_of
from tests.support_postgres import logical_messages, stream
from tests.trap_world import PAIR, World
from toolkit.history import column_life, unhandled_ddl, versions
from toolkit.rawlog.states import table_states
from toolkit.source import ddl_switch as switch
from toolkit.source import install
from toolkit.values.config import Config, DdlConfig
from toolkit.values.errors import ConfigError
from toolkit.values.modes import Capture, CommandText, LogDrain

pytestmark = pytest.mark.postgres


def test_installing_again_is_no_alteration(world: World) -> None:
    log = world.start(*PAIR)
    log.drain()
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    log.drain()
    world.exact("t")


def test_ddl_after_a_cut_is_not_held_against_the_log(world: World) -> None:
    """A drain to an earlier LSN compares nothing: the catalog of now may show DDL that is behind it."""
    log = world.start(*PAIR)
    at = log.drain()
    world.sql("alter table t add column c int")
    log.drain(upto=at)
    assert world.stale() == {}
    log.drain()
    world.exact("t")


def test_a_row_right_behind_a_ddl_message_comes_after_it(world: World) -> None:
    """A message from a subtransaction and the next row of the outer one had the same place in the stream: row first."""
    log = world.start(*PAIR, "alter table t replica identity full")
    world.sql("begin", "alter table t replica identity default", "update t set id = 11 where id = 1", "commit")
    log.drain()
    assert world.stale() == {}
    world.exact("t")


@pytest.mark.parametrize(
    ("script", "exact"),
    [
        ("alter table t alter n type bigint; alter table o alter n type bigint", True),
        ("begin; alter table t alter n type bigint; /* ; using */ alter table t add column c int; commit", True),
        ("begin; alter table t alter n type bigint; -- so\nalter table only public.t add column c int; commit", True),
        ("alter table t alter n type bigint; alter table o alter n type bigint using n + 1", False),
        ("alter table t alter n type bigint; alter table o alter n set default 7", False),
        ("alter table t alter n type bigint; alter table o /* using */ add column c int", False),
        ("update o set n = 2; alter table t alter n type bigint", False),
        ("select hidden(); alter table t alter n type bigint", False),
    ],
)
def test_trap_068_several_commands_in_one_string(world: World, script: str, exact: bool) -> None:
    log = world.start(
        "create table t (id int primary key, n int)", "insert into t values (1, 10)",
        "create table o (id int primary key, n int)", "insert into o values (1, 10)",
        "create function hidden() returns int language plpgsql as"
        " $$ begin alter table t alter n type bigint using n + 1; return 1; end $$",
    )  # fmt: skip
    world.sql(script, "insert into t (id, n) values (2, 5000000000)")
    log.drain()
    if not exact:
        assert "rewritten by ALTER TABLE" in world.stale()["public.t"]
        log.repair(*world.stale())
        log.drain()
    world.exact("t", "o")


# -- pause


def test_pause_is_a_gap_with_its_interval(world: World) -> None:
    log = world.start(*PAIR)
    log.drain()
    assert switch.pause(world.config.source) == switch.SwitchResult(paused=True, changed=True)
    assert not switch.pause(world.config.source).changed
    world.sql(
        "alter table t alter v type text using upper(v)",
        "alter table t add column c int",
        "insert into t values (3, 'z', 1)",
    )
    assert switch.resume(world.config.source) == switch.SwitchResult(paused=False, changed=True)
    world.sql("insert into t values (4, 'w', 2)")
    log.drain()
    assert "DDL capture was paused" in world.stale()["public.t"]
    events = [e["payload"] for e in log.of("ddl")]
    reported = [(e["event"], e["tag"]) for e in events if e["event"].startswith("capture")]
    assert reported[0][0] == "capture_paused"
    assert reported[-1][0] == "capture_resumed"
    assert {tag for _, tag in reported[1:-1]} == {"ALTER TABLE"}
    log.repair("public.t")
    log.drain()
    world.exact("t")
    assert log.conn.execute("select from cdc.known_settings where name = 'paused'").fetchall() == []


def test_a_drain_while_paused_stays_red(world: World) -> None:
    log = world.start(*PAIR)
    log.conn.execute("select cdc.pause()")
    log.drain()
    log.repair("public.t")
    log.drain()
    assert world.stale() == {"public.t": "DDL capture is paused"}
    log.conn.execute("select cdc.resume()")
    log.drain()
    log.repair("public.t")
    log.drain()
    world.exact("t")


def test_trap_089_kill_switch_of_a_session(world: World) -> None:
    log = world.start(*PAIR)
    world.sql("set cdc.capture = off", "alter table t add column c int", "reset cdc.capture")
    log.drain()
    assert any("DDL capture was paused" in gap["payload"]["reason"] for gap in log.of("gap"))
    assert "public.t" in world.stale()


# -- forgery


def test_forged_replayed_malformed_and_oversized_messages_are_recorded_and_ignored(world: World) -> None:
    log = world.start(*PAIR)
    world.sql("alter table t add column c int")
    (_, genuine), *_ = logical_messages(stream(log.conn, world.config))
    log.drain()
    before = log.versions
    forged = genuine.replace(b'"public"', b'"hidden"')
    attempts: list[bytes] = [
        forged, genuine, b"", b"x", b"0" * 64, b"0" * 64 + b"{", b"\xff\xfe\x00", b"0" * 64 + b"[]",
        b"f" * 64 + b'{"event": "' + b"A" * 1_000_000 + b'"}',
    ]  # fmt: skip
    world.sql("do $$ begin create role mallory; exception when duplicate_object then null; end $$", "set role mallory")
    for content in attempts:
        world.user.execute("select pg_logical_emit_message(true, 'cdc.ddl', %b::bytea)", [content])
    world.user.execute("select pg_logical_emit_message(true, 'cdc.beacon', 'x')")
    world.user.execute("select pg_logical_emit_message(true, 'cdc.other', 'x')")
    world.sql("reset role")
    recorded = len(log.of("message"))
    log.drain()
    # Beacons of the drains are messages too, without a reason.
    messages = [e["payload"] for e in log.of("message")[recorded:] if "reason" in e["payload"]]
    assert len(messages) == len(attempts) + 2
    assert all(m["reason"] and m.keys() == {"prefix", "reason", "count", "sha256"} for m in messages)
    assert "another transaction" in messages[1]["reason"]
    assert log.versions == before
    world.exact("t")


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
@pytest.mark.parametrize("row", [True, False])
@pytest.mark.parametrize(
    "command", ["alter table t add column c int default 5", "alter table t rename v to w", "drop table t"]
)
def test_a_message_replayed_out_of_a_rolled_back_savepoint_makes_its_table_stale(
    world: World, command: str, row: bool
) -> None:
    """It is genuine, and of this transaction: whoever reads the WAL has it. What it says has not happened."""
    log = world.start(*PAIR)
    world.sql("select pg_switch_wal()", "begin", "savepoint s", command)
    genuine = _last_signed(log.conn)
    world.sql("rollback to savepoint s")
    world.user.execute("select pg_logical_emit_message(true, 'cdc.ddl', %b::bytea)", [genuine])
    world.sql(*(["insert into t values (3, 'z')"] if row else []), "commit")
    log.drain()
    assert not [e for e in log.of("message") if e["payload"].get("prefix") == "cdc.ddl"], "it was refused"
    assert "public.t" in world.stale()
    log.repair("public.t")
    log.drain()
    world.exact("t")


def _last_signed(conn: psycopg.Connection[Any]) -> bytes:
    """The content of the last DDL message in the WAL, of whatever transaction, read from the segment's file."""
    conn.execute("select pg_logical_emit_message(true, 'flush', '')")  # its commit flushes what others wrote before it
    row = conn.execute(
        "select pg_read_binary_file('pg_wal/' || file_name, 0, file_offset)"  # what comes after it is of an older file
        " from pg_walfile_name_offset(pg_current_wal_insert_lsn())"
    ).fetchone()
    (segment,) = row or (b"",)
    pages = (segment[at : at + 8192] for at in range(0, len(segment), 8192))
    wal = b"".join(page[24 if number else 40 :] for number, page in enumerate(pages))  # less the page headers
    content = wal[wal.rindex(b"cdc.ddl\0") + len(b"cdc.ddl\0") :]
    text = content[64 : 64 + 100_000].decode("utf-8", "replace")
    _, length = json.JSONDecoder().raw_decode(text)
    return content[: 64 + len(text[:length].encode())]


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_messages_of_no_transaction_cannot_hold_up_a_drain(world: World, plain_lake: Config) -> None:
    """They count as messages of a peek and complete nothing: a drain by so small a count never got past them."""
    world.sql(*PAIR)
    config = plain_lake.model_copy(update={"source": world.config.source})
    commands.init(config)
    commands.drain(config)
    world.sql(
        "select pg_logical_emit_message(false, 'any', 'x') from generate_series(1, 50)", "alter table t add c int"
    )
    commands.drain(config, max_changes=1)  # the beacon of the drain before
    assert commands.drain(config, max_changes=1).batches == 1
    assert ledger_of(config).latest_versions()[world.relid("t")].table.column("c") is not None


# -- what people see


def test_doctor_shows_the_state_of_capture(world: World) -> None:
    log = world.start("create table t (id int primary key, v text)", "create publication cdc for table t (id)")
    assert "is published without v" in world.findings()
    world.sql("create table later (id int primary key)")
    assert "later: is named by [source] tables and not in the publication" in world.findings()
    log.conn.execute("select cdc.pause()")
    assert "run `cdc ddl resume`" in world.findings()
    log.conn.execute("select cdc.resume()")
    world.sql("alter event trigger _cdc_0_drop disable")
    assert "DDL is not captured" in world.findings()
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    assert "DDL" not in world.findings()
    other = DdlConfig(ignore=("REINDEX",), sql=CommandText.HASH)
    world.config = world.config.model_copy(update={"ddl": other})
    assert "[ddl] ignore is REINDEX, and on the source, where it has effect, empty" in world.findings()
    assert "[ddl] sql is hash, and on the source, where it has effect, keep" in world.findings()
    install.install(
        log.conn, world.config.capture_rules, ddl=world.config.ddl, lock_seconds=world.config.snapshot.lock_seconds
    )
    assert "DDL" not in world.findings()
    name = log.conn.info.dbname
    world.sql(f"alter database {name} set cdc.capture = off")
    assert "cdc.capture=off" in world.findings()


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_unhandled_events_are_listed_and_resolved_with_a_note(world: World, plain_lake: Config) -> None:
    world.sql(*PAIR)
    config = plain_lake.model_copy(update={"source": world.config.source})
    commands.init(config)
    commands.drain(config)
    world.sql(
        "select pg_logical_emit_message(true, 'cdc.ddl', 'forged')", "alter event trigger _cdc_0_command disable",
        "alter table t add column sneaked int", "alter event trigger _cdc_0_command enable always",
        "set cdc.capture = off", "alter table t add column skipped int", "reset cdc.capture",
    )  # fmt: skip
    commands.drain(config)
    found = unhandled_ddl.unhandled(ledger_of(config))
    assert sorted({one.kind for one in found}) == ["not captured", "refused message", "without an event"]
    assert {s.state for s in table_states(ledger_of(config))} == {"stale"}
    with pytest.raises(ConfigError, match="no unhandled event"):
        unhandled_ddl.resolve(ledger_of(config), "1-2-3", "what?")
    with pytest.MonkeyPatch.context() as patch:  # in a container the number of the account may have no name
        patch.setattr(pwd, "getpwuid", {}.__getitem__)
        for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
            patch.delenv(name, raising=False)
        assert unhandled_ddl.resolve(ledger_of(config), found[0].id, "seen").resolved_by == str(os.getuid())
    for one in found:
        assert unhandled_ddl.resolve(ledger_of(config), one.id, "seen").note == "seen"
    assert unhandled_ddl.unhandled(ledger_of(config)) == ()
    assert [one.note for one in unhandled_ddl.unhandled(ledger_of(config), resolved=True)] == ["seen"] * len(found)
    assert {s.state for s in table_states(ledger_of(config))} == {"stale"}  # a note repairs nothing
    # The log goes on from there, and an idle drain finds nothing again.
    world.sql("insert into t values (8, 'z')")
    commands.drain(config)
    commands.drain(config)
    assert unhandled_ddl.unhandled(ledger_of(config)) == ()


@pytest.mark.parametrize("pg", ["pg16"], indirect=True)
def test_a_comparison_goes_into_the_batch_that_completes_the_drain(world: World, plain_lake: Config) -> None:
    world.sql(*PAIR)
    config = plain_lake.model_copy(update={"source": world.config.source})
    commands.init(config)
    first = ledger_of(config).last()
    assert first is not None and first.compared_to is not None and first.capture is not None
    commands.drain(config)
    world.sql("insert into t values (8, 'z')")
    world.bypass()
    before = ledger_of(config).last()
    result = commands.drain(config)
    after = ledger_of(config).last()
    assert before is not None and after is not None and before.compared_to is not None and after.compared_to is not None
    assert (result.batches, after.batch_id) == (1, before.batch_id + 1)
    assert after.compared_to > before.compared_to
    (state,) = table_states(ledger_of(config))
    assert (state.state, state.from_lsn) == ("stale", before.compared_to)
    # When it happened no one knows: schema history has the interval.
    found = versions.versions(ledger_of(config), "t")[-1]
    assert (found.since, found.valid_from, found.ddl) == (before.compared_to, result.committed_lsn, None)
    assert [v.since for v in versions.versions(ledger_of(config), "t")[:-1]] == [None]
    assert [s.since for s in column_life.explain(ledger_of(config), "t", "sneaked")] == [before.compared_to]
    assert list(versions.versions_frame(ledger_of(config), "t")["since"]) == [
        None,
        str(before.compared_to),
    ]


__all__ = ["plain_lake"]


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)  # older servers read scripts from their own folder only
def test_the_script_of_an_extension_is_captured(world: World) -> None:
    """What was written while it had switched a trigger off was lost, and the table stayed ok."""
    world.start(*PAIR, capture=Capture.CHANGE_LOG, change_log_drain=LogDrain.SLOT)
    row = world.user.execute("select current_setting('data_directory') || '/trap'").fetchone()
    assert row is not None
    folder = row[0]
    files = {
        "trap.control": "default_version = 1",
        "trap--1.sql": 'alter table public.t disable trigger "!cdc_row"; insert into public.t values (3, $$lost$$);'
        ' alter table public.t enable always trigger "!cdc_row"',
    }
    try:
        for name, text in files.items():
            put = f"mkdir -p {folder}/extension && cat > {folder}/extension/{name}"
            world.user.execute(sql.SQL("copy (select {}) to program {}").format(text, put))
        world.sql(f"set extension_control_path = '{folder}:$system'", "create extension trap")
    finally:
        world.sql(f"copy (select) to program 'cat > /dev/null && rm -r {folder}'")  # or the server's pipe may break
    world.log.drain()
    assert "no longer captured by the change log" in world.stale().get("public.t", "")


@pytest.mark.parametrize("pg", ["pg18"], indirect=True)  # the first that has them
@pytest.mark.parametrize("identity", ["primary key (k, v without overlaps)", "unique (k, v without overlaps)"])
def test_rows_are_found_by_a_key_without_overlaps(world: World, identity: str) -> None:
    """Its index is one of exclusion, and says that it is unique."""
    log = world.start(
        f"create table t (k int4range not null, v daterange not null, x text, {identity})",
        *(["alter table t replica identity using index t_k_v_key"] if "unique" in identity else []),
        "insert into t values ('[1,2)', '[2026-01-01,2026-02-01)', 'a'), ('[1,2)', '[2026-02-01,2026-03-01)', 'b')",
    )
    world.sql(
        "update t set x = 'c' where x = 'a'", "update t set v = '[2026-02-01,2026-04-01)' where x = 'b'",
        "insert into t values ('[2,3)', '[2026-01-01,2026-02-01)', 'd'), ('[3,4)', '[2026-01-01,2026-02-01)', 'e')",
        "delete from t where x = 'd'",
        "alter table t add note int not null default 3", "update t set note = 4 where x = 'e'",
    )  # fmt: skip
    log.drain()
    world.exact("t")
    assert world.stale() == {}

"""`cdc init` and `cdc uninstall` killed at every stage: each run goes on where the last one stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests import commands
from tests.postgres.test_snapshot_log import Killed, current, of, on_source, sql
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from tests.support_postgres import fresh_database
from toolkit.capture import copy, copy_workers, initialise, repair_scope, stages
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import tables
from toolkit.ops import status_report
from toolkit.rawlog import states
from toolkit.source import connection, install, locks, slot
from toolkit.values import config as configuration
from toolkit.values.config import Config, SnapshotConfig
from toolkit.values.errors import CdcError, ConfigError, HistoryDiverged, LakeError, SlotError, SlotRefused

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg18"], indirect=True)]


@pytest.fixture
def config(source: Config, plain_lake: Config) -> Config:
    config = source.model_copy(update={"root": plain_lake.root})
    sql(
        config,
        "create table public.a (id int primary key, x text)",
        "insert into public.a select i, 'x' || i from generate_series(1, 20) i",
        "create table public.b (id int primary key)",
        "insert into public.b select generate_series(1, 5)",
    )
    return config


def test_a_log_of_an_older_format_is_refused_and_begun_again(config: Config) -> None:
    """Rows of a copy stood before its baseline once: read by today's rule they would be left out, and nothing red."""
    commands.init(config)
    last = ledger_of(config).last()
    assert last is not None
    old = replace(last, batch_id=last.batch_id + 1, from_lsn=last.complete_to, format=1)
    ledger_of(config).append_empty(old, [])
    for command in (commands.drain, commands.build, commands.init):
        with pytest.raises(LakeError, match=r"format 1.*--new-generation"):
            command(config)
    commands.init(config, new_generation=True)
    commands.drain(config)
    assert {s.state for s in states.table_states(ledger_of(config))} == {"ok"}


@contextmanager
def killed(
    patch: pytest.MonkeyPatch, owner: object, name: str, *, after: bool, match: Callable[..., bool]
) -> Iterator[None]:
    """Strike before or after the first matching call of a function."""
    whole = getattr(owner, name)

    def strike(*arguments: Any, **named: Any) -> Any:
        if not match(*arguments, **named):
            return whole(*arguments, **named)
        if after:
            whole(*arguments, **named)
        raise Killed

    with patch.context() as inner:
        inner.setattr(owner, name, strike)
        with pytest.raises(Killed):
            yield


def done(config: Config) -> list[str]:
    with connection.connect(config.source) as conn:
        return [stage.name for stage in stages.stages(ledger_of(config), conn) if stage.done]


def place(config: Config) -> str:
    with connection.connect(config.source) as conn:
        return str(stages.next_stage(ledger_of(config), conn))


@contextmanager
def slot_then_killed(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The slot is made, and then the process is gone."""
    whole = slot.create_slot

    @contextmanager
    def create(*arguments: Any, **named: Any) -> Iterator[Any]:
        with whole(*arguments, **named) as cut:
            if len(arguments) > 1:  # one with a name stays
                raise Killed
            yield cut

    with patch.context() as inner:
        inner.setattr(slot, "create_slot", create)
        with pytest.raises(Killed):
            yield


def _proven_whole(config: Config) -> None:
    """The log is dense and right, and everything is there once."""
    commands.drain(config)
    for name in "ab":
        assert current(config, name) == on_source(config, name)
    batches = [b.batch_id for b in ledger_of(config).batches()]
    assert batches == list(range(1, len(batches) + 1))
    with connection.connect(config.source) as conn:
        assert stages.next_stage(ledger_of(config), conn) is None
        slots = conn.execute("select count(*) from pg_replication_slots where database = current_database()").fetchone()
    assert slots == (1,)
    assert {s.state for s in states.table_states(ledger_of(config))} == {"ok"}


def always(*_: Any, **__: Any) -> bool:
    return True


def test_init_killed_at_every_stage_goes_on_where_it_stopped(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "_GROUP_BYTES", 1)
    with killed(monkeypatch, tables, "ensure", after=False, match=always):
        commands.init(config)
    assert done(config) == []
    assert place(config) == "lake (no raw.events)"
    with killed(monkeypatch, tables, "ensure", after=True, match=always):
        commands.init(config)
    assert done(config) == ["lake"]
    with pytest.raises(LakeError, match=r"run `cdc init` first; done so far: lake; next: objects \(no schema cdc\)"):
        status_report.status(config)
    with killed(monkeypatch, install, "install", after=True, match=always):
        commands.init(config)
    assert done(config) == ["lake", "objects"]
    with slot_then_killed(monkeypatch):
        commands.init(config)
    assert done(config) == ["lake", "objects", "slot"]
    sql(config, "update public.a set x = 'between' where id = 1", "insert into public.b values (100)")
    with killed(monkeypatch, initialise, "start", after=True, match=always):
        commands.init(config)
    assert done(config) == ["lake", "objects", "slot", "ledger"]
    assert status_report.status(config).stage == "snapshot (0 of 2 tables)"
    with killed(monkeypatch, copy, "_copy_group", after=True, match=always):
        commands.init(config)
    assert status_report.status(config).stage == "snapshot (1 of 2 tables)"
    assert status_report.status(config).failing
    assert commands.init(config).rows == {"public.b": 6}
    assert status_report.status(config).stage is None
    _proven_whole(config)


def test_a_new_generation_killed_at_every_stage(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    commands.init(config)
    with killed(monkeypatch, slot, "drop_slot", after=True, match=always):
        commands.init(config, new_generation=True)
    assert place(config).startswith("slot (slot ")
    with pytest.raises(HistoryDiverged, match="--new-generation"):
        commands.init(config)
    sql(config, "insert into public.b values (100)")
    with slot_then_killed(monkeypatch):
        commands.init(config, new_generation=True)
    # The slot is another one than the ledger's: a plain init must not call that complete.
    assert "its generation was not begun" in place(config)
    for command in (commands.init, commands.drain):
        with pytest.raises(HistoryDiverged, match="ahead of the ledger"):
            command(config)
    with killed(monkeypatch, initialise, "start", after=True, match=always):
        commands.init(config, new_generation=True)
    assert place(config) == "snapshot (0 of 2 tables)"
    result = commands.init(config)
    assert (result.generation, result.rows) == (2, {"public.a": 20, "public.b": 6})
    _proven_whole(config)


def _objects(config: Config) -> set[tuple[str, ...]]:
    with connection.connect(config.source) as conn:
        return set(
            conn.execute(
                """
                select 'class', n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
                  where n.nspname not like 'pg\\_toast%'
                union all select 'function', pronamespace::regnamespace::text, proname || oid from pg_proc
                union all select 'type', typnamespace::regnamespace::text, typname from pg_type
                  where typnamespace <> 'pg_toast'::regnamespace
                union all select 'trigger', tgrelid::regclass::text, tgname from pg_trigger
                union all select 'event trigger', evtname, '' from pg_event_trigger
                union all select 'publication', pubname, '' from pg_publication
                union all select 'schema', nspname, '' from pg_namespace
                union all select 'default', defaclrole::text, '' from pg_default_acl
                union all select 'slot', slot_name, '' from pg_replication_slots where database = current_database()
                """
            ).fetchall()
        )


def test_uninstall_killed_half_way_goes_on_and_leaves_nothing(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """psycopack's defect (c): functions stayed behind, and a left-over row kept refusing what it advised."""
    before = _objects(config)
    commands.uninstall(config)  # nothing is there yet: no error
    commands.init(config)
    assert len(_objects(config)) > len(before) + 5
    with killed(monkeypatch, slot, "drop_slot", after=True, match=always):
        commands.uninstall(config)
    with pytest.raises(SlotError, match="cdc init"):
        commands.drain(config)
    with killed(monkeypatch, install, "_locked", after=False, match=always):
        commands.uninstall(config)
    commands.uninstall(config)
    assert _objects(config) == before
    commands.uninstall(config)
    with pytest.raises(CdcError, match="cdc init"):
        commands.drain(config)
    with pytest.raises(HistoryDiverged, match="--new-generation"):
        commands.init(config)
    assert commands.init(config, new_generation=True).generation == 2
    _proven_whole(config)


def test_after_uninstall_another_capture_may_be_chosen(config: Config) -> None:
    """psycopack's defect (c): a changed strategy was refused after the reset that the refusal had advised."""

    def by(capture: str) -> Config:
        chosen = config.source.model_copy(update={"capture": capture, "change_log_drain": "tick"})
        return config.model_copy(update={"source": chosen})

    before = _objects(config)
    for generation, capture in enumerate(("slot", "change_log", "slot"), 1):
        chosen = by(capture)
        commands.init(chosen, new_generation=generation > 1)
        sql(chosen, f"insert into public.b values ({100 + generation})", "update public.a set x = 'x' where id = 2")
        commands.drain(chosen)
        assert current(chosen, "a") == on_source(chosen, "a") and current(chosen, "b") == on_source(chosen, "b")
        commands.uninstall(chosen)
        assert _objects(config) == before


def test_commands_out_of_order_are_refused_by_name(config: Config) -> None:
    for command in (
        commands.drain,
        commands.repair,
        status_report.status,
        commands.repair_stale,
        commands.missing_baselines,
    ):
        with pytest.raises(CdcError, match="run `cdc init` first"):
            command(config)
    with slot.create_slot(config.source, config.source.slot, cut_seconds=config.check.cut_seconds):
        pass
    with pytest.raises(LakeError, match="run `cdc init` first"):
        commands.drain(config)
    with pytest.raises(SlotRefused, match=r"has not created it: .*; give another name in \[source\] slot"):
        commands.init(config)  # another program may read that slot
    sql(config, f"select pg_drop_replication_slot('{config.source.slot}')")
    commands.init(config)
    _proven_whole(config)


def test_the_slot_of_another_database_is_no_done_stage(config: Config, pg: EmbeddedServer) -> None:
    """`cdc status` before `cdc init` counted any slot of the configured name."""
    with fresh_database(pg) as elsewhere:
        other = config.source.model_copy(update={"conninfo": elsewhere})
        with slot.create_slot(other, config.source.slot, cut_seconds=config.check.cut_seconds):
            pass
        with connection.connect(config.source) as conn:
            (found,) = (str(stage) for stage in stages.stages(ledger_of(config), conn) if stage.name == "slot")
        assert "slot" not in done(config) and " belongs to database " in found
        with connection.connect(other) as conn:
            slot.drop_slot(conn, config.source.slot)


def test_what_was_taken_away_is_seen_and_put_back(config: Config) -> None:
    """psycopack checks its tracker for tampering; here there is none, and the facts are looked at."""
    commands.init(config)
    for statement, found in (
        ("drop event trigger _cdc_0_drop", "objects (no event triggers)"),
        ("drop function cdc.table_snapshots cascade", "objects (no schema cdc)"),
    ):
        sql(config, statement)
        assert status_report.status(config).stage == found
        commands.init(config)
        assert status_report.status(config).stage is None
    sql(config, f"drop publication {config.source.publication}")
    assert status_report.status(config).stage == "objects (no publication cdc)"
    with pytest.raises(HistoryDiverged, match="publication 'cdc'"):  # what it would have sent is gone
        commands.init(config)
    commands.init(config, new_generation=True)
    _proven_whole(config)


def test_a_lock_in_the_way_of_init_is_waited_for_a_while_and_named(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    short = config.model_copy(update={"snapshot": SnapshotConfig(lock_seconds=1.8)})
    before = _objects(config)
    with psycopg.connect(config.source.conninfo, application_name="night shift") as holder:
        holder.execute("lock table public.a in access exclusive mode")
        with pytest.raises(locks.LockTimeout) as refused:
            commands.init(short)
        pid = holder.info.backend_pid
    message = str(refused.value)
    assert message.startswith(f"installing capture: waited 1.8 s for a lock held by pid {pid} (postgres night shift, ")
    assert "\n" not in message
    assert sum(r.getMessage() == "lock not acquired, trying again" for r in caplog.records) == 2
    assert _objects(config) == before  # rolled back whole
    commands.init(config)
    _proven_whole(config)


def test_changes_of_keys_and_truncates_during_the_first_copy_are_not_lost(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psycopack's defects (a) and (b): the old key of a row came back to life after the swap; TRUNCATE went unseen."""
    whole = copy_workers.Copiers.run
    struck: list[int] = []

    def run(self: copy_workers.Copiers, tasks: Any) -> Any:
        if not struck:
            struck.append(1)
            sql(config, "update public.a set id = id + 1000 where id <= 3", "delete from public.a where id = 1002")
        found = whole(self, tasks)
        if len(struck) == 1:
            struck.append(2)
            sql(
                config,
                "truncate public.b",
                "insert into public.b values (9)",
                "update public.a set id = 2 where id = 4",
            )
        return found

    monkeypatch.setattr(copy_workers.Copiers, "run", run)
    assert commands.init(config).rows == {"public.a": 20, "public.b": 5}
    _proven_whole(config)
    assert set(current(config, "b")) == {"9"}
    assert "1" not in current(config, "a")
    assert len(rows_in_log(config, "op = 'R'")) == 25


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[snapshot]\nworkers = -1\n", "snapshot.workers"),
        ("[snapshot]\npiece_mb = 0\n", "snapshot.piece_mb"),
        ("[snapshot]\nlock_seconds = 'soon'\n", "snapshot.lock_seconds"),
        ("[snapshot]\nheal = 1\n", "snapshot.heal"),
    ],
)
def test_a_bad_setting_is_refused_at_once_by_its_key(pg: object, tmp_path: Any, text: str, key: str) -> None:
    """psycopack's defect (d): a missing batch size was a bare AssertionError, at stage five."""
    (tmp_path / "cdc.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=key):
        configuration.load(str(tmp_path / "cdc.toml"))


def test_an_unfinished_table_is_red_by_name(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "_GROUP_BYTES", 1)
    with killed(monkeypatch, copy, "_copy_group", after=True, match=always):
        commands.init(config)
    commands.drain(config)
    assert of(config, "a").state == "ok"
    assert status_report.status(config).stage == "snapshot (1 of 2 tables)"


def test_a_part_of_a_table_without_a_complete_copy_is_refused(config: Config) -> None:
    """It was copied, and `cdc init` then called capture complete while `cdc status` said that a snapshot is missing."""
    only = config.model_copy(update={"source": config.source.model_copy(update={"tables": ["public.a"]})})
    commands.init(only)
    sql(config, "alter publication cdc add table public.b")
    commands.drain(config)
    for scope in (repair_scope.Scope(columns=("id",)), repair_scope.Scope(rows=({"id": "1"},))):
        with pytest.raises(ConfigError, match=r"public\.b: no complete copy of it .* `cdc repair public\.b`"):
            commands.repair(config, ["public.b"], scope=scope)
    assert commands.missing_baselines(config) == ("public.b",)
    assert place(config) == "snapshot (1 of 2 tables)"
    commands.init(config)
    assert of(config, "b").state == "ok" and commands.missing_baselines(config) == ()
    assert commands.repair(config, ["public.b"], scope=repair_scope.Scope(columns=("id",))).rows == {"public.b": 5}

"""A drain by ticks and both handovers, killed at every step: each run goes on, and nothing is missed or doubled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests import commands
from tests.postgres.test_snapshot_log import current, of, on_source, sql
from tests.postgres.test_stages import always, done, killed
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from tests.support_postgres import change_in_every_way, mostly_one_server
from toolkit.capture import handover, tick_drain
from toolkit.lake import staging
from toolkit.source import change_log, connection, slot, ticks
from toolkit.values.config import Config
from toolkit.values.errors import HistoryDiverged, SlotRefused

__all__ = ["plain_lake"]
pytestmark = pytest.mark.postgres


def _by(config: Config, drain: str) -> Config:
    chosen = config.source.model_copy(update={"capture": "change_log", "change_log_drain": drain})
    return config.model_copy(update={"source": chosen})


@pytest.fixture
def config(source: Config, plain_lake: Config) -> Config:
    """One table; its changes are captured by triggers."""
    config = source.model_copy(update={"root": plain_lake.root})
    sql(config, "create table public.a (id int primary key, x text)", "insert into public.a values (0, 'first')")
    return config


class _Changes:
    """Each call changes the table in every way; the key of a row says when."""

    def __init__(self, config: Config) -> None:
        self.config, self.number = config, 0

    def __call__(self) -> None:
        self.number += 10
        change_in_every_way(self.config.source.conninfo, self.number)


def _whole(config: Config) -> None:
    commands.drain(config)
    assert of(config, "a").state == "ok"
    assert current(config, "a") == on_source(config, "a")
    positions = [(e["commit_lsn"], e["ordinal"]) for e in rows_in_log(config)]
    assert len(positions) == len(set(positions))
    inserted = [e["new"][0] for e in rows_in_log(config, "op = 'I'") if e["new"][1] == "new"]
    assert len(inserted) == len(set(inserted)), "no row came twice"
    batches = [b.batch_id for b in ledger_of(config).batches()]
    assert batches == list(range(1, len(batches) + 1))


@mostly_one_server
def test_a_tick_killed_anywhere_is_there_once(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    config = _by(config, "tick")
    commands.init(config)
    change = _Changes(config)
    steps: tuple[tuple[object, str, bool], ...] = (
        (ticks, "record", True),
        (staging, "commit_batch", False),
        (staging, "commit_batch", True),
        (change_log, "purge", False),
        (change_log, "purge", True),
        (ticks, "forget_before", True),
    )
    for owner, name, after in steps:
        change()
        with killed(monkeypatch, owner, name, after=after, match=always):
            commands.drain(config)
        change()
        _whole(config)
    assert commands.drain(config).changes == 0


def _kills() -> list[Any]:
    def permanent(_: Any, *name: str, **__: Any) -> bool:
        return bool(name)

    steps: list[tuple[str, object, str, bool, Callable[..., bool]]] = [
        ("slot", slot, "drop_slot", True, always),
        ("slot", slot, "create_slot", True, permanent),
        ("slot", ticks, "at_cut", False, always),
        ("slot", ticks, "at_cut", True, always),
        ("slot", tick_drain, "drain", True, always),
        ("slot", handover, "_row", True, always),
        ("slot", change_log, "settle", False, always),
        ("tick", ticks, "at_cut", True, always),
        ("tick", handover, "drain", True, always),
        ("tick", handover, "_row", True, always),
        ("tick", slot, "drop_slot", True, always),
    ]
    return [pytest.param(*step, id=f"to {step[0]}: {step[2]} {'after' if step[3] else 'before'}") for step in steps]


@pytest.mark.wide
@pytest.mark.parametrize(("to", "owner", "name", "after", "match"), _kills())
def test_a_handover_killed_anywhere_goes_on(
    config: Config, monkeypatch: pytest.MonkeyPatch, to: str, owner: object, name: str, after: bool,
    match: Callable[..., bool],
) -> None:  # fmt: skip
    old, new = _by(config, "tick" if to == "slot" else "slot"), _by(config, to)
    commands.init(old)
    change = _Changes(config)
    change()
    commands.drain(old)
    change()
    with killed(monkeypatch, owner, name, after=after, match=match):
        commands.init(new)
    change()
    last = ledger_of(new).last()
    assert last is not None
    if last.tick is not None and to == "slot" and slot_of(new) is not None:
        with pytest.raises(HistoryDiverged, match=r"drained by ticks .* run `cdc init`"):
            commands.drain(new)
    commands.init(new)
    change()
    _whole(new)
    assert "snapshot" in done(new)
    with connection.connect(new.source) as conn:
        logging = conn.execute("select count(*) from cdc.settings where name = 'ddl_to_log'").fetchone()
    assert (slot_of(new) is not None, logging) == ((True, (0,)) if to == "slot" else (False, (1,)))
    sql(config, "alter table public.a alter x set default 'ddl is captured'")
    change()
    _whole(new)
    (version,) = ledger_of(new).latest_versions().values()
    assert "ddl is captured" in version.payload


def _positions(config: Config) -> tuple[object, ...] | None:
    found = slot_of(config)
    return None if found is None else (found.restart_lsn, found.confirmed_flush_lsn)


def slot_of(config: Config) -> slot.SlotState | None:
    with connection.connect(config.source) as conn:
        return slot.read_slot(conn, config.source.slot)


def _leaves_a_slot_of_another_program(config: Config) -> None:
    with connection.connect(config.source) as conn:
        conn.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [config.source.slot])
    made = _positions(config)
    commands.init(config)
    commands.init(config, new_generation=True)
    for new_generation in (False, True):
        with pytest.raises(SlotRefused, match="has not created it: another program may read it; give another name"):
            commands.init(_by(config, "slot"), new_generation=new_generation)
    _whole(config)
    commands.uninstall(config)
    assert _positions(config) == made
    with connection.connect(config.source) as conn:
        slot.drop_slot(conn, config.source.slot)


@mostly_one_server
def test_a_slot_that_the_log_never_read_stays(config: Config) -> None:
    """With ticks, `cdc init` drops the slot that was read before a handover, and no other slot of that name."""
    config = _by(config, "tick")
    commands.init(config)
    _leaves_a_slot_of_another_program(config)


@mostly_one_server
def test_a_slot_that_takes_the_name_of_a_dropped_one_stays(config: Config) -> None:
    """The log was read from a slot of that name before the handover to ticks, which dropped it."""
    commands.init(_by(config, "slot"))
    config = _by(config, "tick")
    commands.init(config)
    _leaves_a_slot_of_another_program(config)


@mostly_one_server
def test_a_slot_of_another_program_is_not_taken_over(config: Config) -> None:
    """A subscription that is not connected has an idle slot of this kind. `cdc init` read on where it was."""
    config = _by(config, "slot")
    with connection.connect(config.source) as conn:
        conn.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [config.source.slot])
    made = _positions(config)
    with pytest.raises(SlotRefused, match="has not created it: another program may read it; give another name"):
        commands.init(config)
    with connection.connect(config.source) as conn:
        assert conn.execute("select to_regnamespace('cdc') is null").fetchone() == (True,)
    commands.uninstall(config)
    assert _positions(config) == made
    with connection.connect(config.source) as conn:
        slot.drop_slot(conn, config.source.slot)
    commands.init(config)
    _whole(config)


@mostly_one_server
@pytest.mark.parametrize("record", [True, False])
def test_a_slot_of_the_toolkit_is_known_after_an_upgrade_and_a_handover(config: Config, record: bool) -> None:
    """Earlier versions did not record which slot they had created."""
    config = _by(config, "slot")
    commands.init(config)
    if not record:
        sql(config, "delete from cdc.settings where name = 'slot'")
    commands.init(config, new_generation=True)
    for drain in ("tick", "slot"):
        commands.init(_by(config, drain))
        assert (slot_of(config) is not None) == (drain == "slot")
    if not record:
        sql(config, "delete from cdc.settings where name = 'slot'")
    commands.uninstall(config)
    assert slot_of(config) is None


@mostly_one_server
def test_a_table_that_cannot_move_from_triggers_to_the_slot_is_left_out(config: Config) -> None:
    """It ended `cdc init` before the others were copied, and its triggers logged on, into a log that was not read."""
    sql(config, "create table public.keyless (x text)", "create table public.b (id int primary key)")
    commands.init(_by(config, "slot"))
    plain = config.model_copy(update={"source": config.source.model_copy(update={"capture": "slot"})})
    made = commands.init(plain)
    assert set(made.rows) == {"public.a", "public.b"} and set(made.left_out) == {"public.keyless"}
    with connection.connect(config.source) as conn:
        assert change_log.triggered(conn) == set()
    sql(config, "insert into public.keyless values ('unseen')", "insert into public.a values (7, 'through the slot')")
    commands.drain(plain)
    assert current(plain, "a") == on_source(plain, "a")
    assert of(plain, "keyless").state == "stale"


@mostly_one_server
def test_a_publication_that_is_left_sends_nothing_to_ticks(config: Config) -> None:
    """A table whose triggers were off seemed to come through the slot, which was dropped, and stayed ok."""
    sql(config, "create publication cdc for all tables")
    commands.init(config.model_copy(update={"source": config.source.model_copy(update={"capture": "slot"})}))
    config = _by(config, "tick")
    commands.init(config)
    _whole(config)
    sql(config, "create table public.new (id int primary key)", "insert into public.new values (1)")
    sql(config, "alter table public.a disable trigger user", "insert into public.a values (7, 'not logged')")
    commands.drain(config)
    assert of(config, "a").state == "stale" and commands.missing_baselines(config) == ("public.new",)
    commands.init(config)
    commands.repair(config, ["public.a"])
    sql(config, "insert into public.new values (2)", "insert into public.a values (8, 'logged')")
    commands.drain(config)
    assert all(current(config, name) == on_source(config, name) for name in ("a", "new"))


@mostly_one_server
def test_ticks_begin_a_log_beside_a_publication(config: Config) -> None:
    """The first ledger row named it. Each drain was refused, with the advice to run `cdc init`, and that too."""
    config = _by(config, "tick")
    sql(config, "create publication cdc for all tables")
    for new_generation in (False, True):
        commands.init(config, new_generation=new_generation)
        sql(config, f"insert into public.a values (10 + {int(new_generation)}, 'logged')")
        commands.drain(config)
        assert current(config, "a") == on_source(config, "a")
    commands.init(config)


@mostly_one_server
def test_a_partition_that_moves_from_triggers_into_its_root(config: Config) -> None:
    """It is no published table any more, which ended `cdc init` before the root was copied."""
    sql(
        config,
        "create table public.r (id int primary key, x text) partition by range (id)",
        "create table public.r1 partition of public.r for values from (0) to (10)",
        "create publication cdc for all tables with (publish_via_partition_root = true)",
    )
    commands.init(_by(config, "tick"))
    plain = config.model_copy(update={"source": config.source.model_copy(update={"capture": "slot"})})
    sql(config, "insert into public.r values (1, 'logged')", "insert into public.a values (7, 'logged')")
    assert set(commands.init(plain).rows) == {"public.r"}
    sql(config, "insert into public.r values (2, 'sent')", "insert into public.a values (8, 'sent')")
    commands.drain(plain)
    assert (of(plain, "a").state, of(plain, "r").state) == ("ok", "ok")
    assert all(current(plain, name) == on_source(plain, name) for name in ("a", "r"))

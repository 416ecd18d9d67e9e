"""Another role drops the change log: no write of the application fails, and the loss is reported and repaired."""

from __future__ import annotations

import re
import threading
from itertools import product

import psycopg
import pytest
from click.testing import CliRunner

from tests import commands
from tests.postgres.test_snapshot_log import at, current, of, on_source, sql
from tests.support_lake import plain_lake
from tests.support_postgres import fingerprints
from tests.support_remedies import stepped
from toolkit.cli import frame, main
from toolkit.ops import diagnosis
from toolkit.source import change_log, connection, slot
from toolkit.values import config as configuration
from toolkit.values.config import Config, TableConfig
from toolkit.values.errors import HistoryDiverged, PreflightFailed

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg18"], indirect=True)]

_LOST = {
    "log": "drop table cdc.change_log cascade",
    "part": "drop table cdc.change_log_0",
    "which part": "drop table cdc.change_log_current cascade",
    "schema": "drop schema cdc cascade",
    "attached": "alter table cdc.change_log detach partition cdc.change_log_0",
}
_WRITES = (
    "insert into {0} values ({1}, 'new')",
    "update {0} set x = x || '!' where id = {1}",
    "insert into {0} values ({1}, 'again') on conflict (id) do update set x = excluded.x",
    "update {0} set id = {1} + 100 where id = {1}",
    "delete from {0} where id = {1} + 100",
    "insert into {0} values ({1}, 'stays')",
)


def _logged(source: Config, lake: Config, *, ticks: bool) -> Config:
    """Table `r` by row triggers, `s` by statement triggers; both have a row of before."""
    by = {
        f"public.{name}": TableConfig.model_validate({"capture": "change_log", "triggers": how})
        for name, how in zip("rs", ("row", "statement"), strict=True)
    }
    chosen = {"capture": "change_log", "change_log_drain": "tick"} if ticks else {}
    config = source.model_copy(
        update={"root": lake.root, "table": by, "source": source.source.model_copy(update=chosen)}
    )
    for name in "rs":
        sql(config, f"create table public.{name} (id int primary key, x text)", f"insert into {name} values (1, 'one')")
    commands.init(config)
    commands.drain(config)
    return config


def _handed_over(config: Config, *, ticks: bool) -> Config:
    """The same log drained the other way from here on."""
    how = {"capture": "change_log" if ticks else "slot", "change_log_drain": "tick" if ticks else "slot"}
    config = config.model_copy(update={"source": config.source.model_copy(update=how)})
    commands.init(config)
    commands.drain(config)
    return config


def _rows(key: int, text: str) -> tuple[str, ...]:
    return tuple(f"insert into {name} values ({key}, '{text}')" for name in "rs")


def _require_right(config: Config) -> None:
    for name in "rs":
        assert of(config, name).comparable
        assert current(config, name) == on_source(config, name)


def _write(conn: psycopg.Connection, key: int) -> None:
    for name in "rs":
        for statement in _WRITES:
            conn.execute(statement.format(name, key))


@pytest.mark.parametrize(
    ("lost", "ticks"),
    [
        pytest.param(lost, ticks, marks=[] if (lost, ticks) == ("log", False) else pytest.mark.wide)
        for lost in _LOST
        for ticks in (False, True)
    ],
)
def test_a_log_that_is_dropped_fails_no_write_and_is_red(
    source: Config, plain_lake: Config, monkeypatch: pytest.MonkeyPatch, lost: str, ticks: bool
) -> None:
    """Then the printed remedies, one after the other, make the tables right."""
    config = _logged(source, plain_lake, ticks=ticks)
    conninfo = config.source.conninfo
    with psycopg.connect(conninfo, autocommit=True) as old, psycopg.connect(conninfo) as within:
        _write(old, 10)
        _write(within, 20)
        within.commit()
        sql(config, _LOST[lost])
        with psycopg.connect(conninfo, autocommit=True) as new:
            for key, conn in ((30, within), (40, old), (50, new)):  # by plans of before, or new ones
                _write(conn, key)
                if conn is within:
                    within.commit()
                    within.close()
    monkeypatch.setattr(configuration, "load", lambda _: config)
    monkeypatch.setattr(frame, "_stop_spark", lambda **_: None)
    drained = CliRunner().invoke(main, ["drain"])
    assert "run `cdc init`" in drained.output or drained.exit_code == 0
    if lost != "schema" and not (ticks and lost == "log"):  # these cannot be drained at all
        remedies = [f"cdc init, then cdc repair public.{name}" for name in "rs"]
        assert [of(config, name).remedy for name in "rs"] == remedies
    try:
        commands.init(config)
        commands.drain(config)
    except HistoryDiverged as error:
        assert "cdc init --new-generation" in str(error)
        commands.init(config, new_generation=True)
        commands.drain(config)
    else:
        assert {of(config, name).state for name in "rs"} == {"stale"}
        commands.repair(config)
    sql(config, *_rows(60, "logged"))
    commands.drain(config)
    _require_right(config)


_UNKEPT = "drop trigger kept on cdc.change_log"
_OFF = "alter table cdc.change_log_{} disable trigger kept"
_ON = "alter table cdc.change_log_{} enable always trigger kept"


@pytest.mark.parametrize("by", ["ticks from the start", "a handover to ticks"])
@pytest.mark.parametrize("remade", [False, True])
def test_a_log_that_is_emptied_uncaptured_is_stale(source: Config, plain_lake: Config, remade: bool, by: str) -> None:
    """Nothing records rows that are removed while the trigger of that is off: it was green, with changes lost."""
    config = _logged(source, plain_lake, ticks=by == "ticks from the start")
    if by == "a handover to ticks":
        config = _handed_over(config, ticks=True)
    sql(config, *_rows(70, "lost"), _UNKEPT, *map(_OFF.format, range(3)), "truncate cdc.change_log")
    if remade:
        commands.init(config)
    commands.drain(config)
    assert {of(config, name).state for name in "rs"} == {"stale"}
    commands.init(config)
    commands.repair(config)
    sql(config, *_rows(71, "logged"))
    commands.drain(config)
    _require_right(config)


def test_a_part_that_is_emptied_while_another_is_uncaptured_is_stale(source: Config, plain_lake: Config) -> None:
    """What still captures it records it for every table that logs."""
    config = _logged(source, plain_lake, ticks=True)
    sql(config, *_rows(70, "lost"))
    sql(config, *map(_OFF.format, range(2)), "truncate cdc.change_log", *map(_ON.format, range(2)))
    commands.drain(config)
    assert {of(config, name).state for name in "rs"} == {"stale"}


def test_a_log_that_a_slot_drains_is_emptied_without_loss(source: Config, plain_lake: Config) -> None:
    """Also where it was drained by ticks before: it was red without need, and by the init that mends the trigger."""
    config = _handed_over(_logged(source, plain_lake, ticks=True), ticks=False)
    sql(config, *_rows(70, "sent"), "truncate cdc.change_log")
    commands.drain(config)
    sql(config, _UNKEPT)
    commands.init(config)
    commands.drain(config)
    _require_right(config)


@pytest.mark.parametrize(
    ("ticks", "emptied"),
    [
        (True, "truncate cdc.change_log"),
        (True, "truncate cdc.change_log_0, cdc.change_log_1, cdc.change_log_2"),
        (True, "delete from cdc.change_log where op = 'U'"),
        (False, "truncate cdc.change_log"),
    ],
)
def test_a_log_that_a_session_empties_is_stale_where_it_was_not_drained(
    source: Config, plain_lake: Config, ticks: bool, emptied: str
) -> None:
    """A DBA does, for its size, when no one has drained for long: it was green, with changes lost."""
    config = _logged(source, plain_lake, ticks=ticks)
    with psycopg.connect(config.source.conninfo, autocommit=True) as conn:
        _write(conn, 10)
        commands.drain(config)
        commands.drain(config)  # purges, which must not count as a change by another session
        assert {of(config, name).state for name in "rs"} == {"ok"}
        _write(conn, 20)
        conn.execute(f"set session_replication_role = replica; {emptied}; reset session_replication_role".encode())
        _write(conn, 30)
    commands.drain(config)
    if ticks:
        assert {of(config, name).state for name in "rs"} == {"stale"}
        assert "rows of the change log were removed by hand" in (of(config, "r").reason or "")
        commands.repair(config)
        commands.drain(config)
    _require_right(config)


_PART = "(select 'cdc.change_log_' || part from cdc.change_log_current)"
_DETACH = f"do $$ begin execute 'alter table cdc.change_log detach partition ' || {_PART}; end $$"
_ATTACH = (
    f"do $$ begin execute format('alter table cdc.change_log attach partition %s for values in (%s)', {_PART},"
    " (select part from cdc.change_log_current)); end $$"
)
#: What is done to the log, and what makes it whole again: `cdc init` where it says nothing.
_REMADE = {
    "by hand": (_DETACH, _ATTACH),
    "by init": (_DETACH, None),
    "dropped": ("drop table cdc.change_log cascade", None),
    "part dropped": ("drop table cdc.change_log_0, cdc.change_log_1, cdc.change_log_2", None),
}


_SHOWN = (("by hand", False, False), ("dropped", True, False), ("by init", True, True))


@pytest.mark.parametrize(
    ("remade", "reported", "ticks"),
    [
        pytest.param(*case, marks=[] if case in _SHOWN else pytest.mark.wide)
        for case in product(_REMADE, (False, True), (False, True))
    ],
)
def test_a_log_that_was_not_whole_between_two_drains_is_red_from_the_first_on(
    source: Config, plain_lake: Config, remade: str, reported: bool, ticks: bool
) -> None:
    """No one records its DDL, so what records it later says nothing of when it was."""
    config = _logged(source, plain_lake, ticks=ticks)
    lose, bring = _REMADE[remade]
    sql(config, lose, *_rows(70, "lost"))
    with connection.connect(config.source) as conn:
        between = slot.flush_lsn(conn)
    if bring:
        sql(config, bring)
    else:
        commands.init(config)
    if reported:
        sql(config, "alter table r add n int", "alter table s add n int")
    sql(config, *_rows(71, "logged"))
    commands.drain(config)
    for name in "rs":
        assert of(config, name).state == "stale", of(config, name)
        assert ticks or at(config, name, between) == "stale"
    commands.repair(config)
    sql(config, *_rows(72, "logged"))
    commands.drain(config)
    _require_right(config)


@pytest.mark.parametrize(
    ("ticks", "drained"), [(True, True), *(pytest.param(t, False, marks=pytest.mark.wide) for t in (False, True))]
)
def test_init_attaches_a_part_again_with_its_rows(
    source: Config, plain_lake: Config, ticks: bool, drained: bool
) -> None:
    """No one purges a part that is not attached: what is in it was perhaps never read."""
    config = _logged(source, plain_lake, ticks=ticks)
    sql(config, "insert into r values (70, 'logged')", _DETACH)
    if drained:
        commands.drain(config)
        assert {of(config, name).state for name in "rs"} == {"stale"}
    commands.init(config)
    with connection.connect(config.source) as conn:
        assert change_log.is_read(conn)
        assert conn.execute("select new from cdc.change_log where new like '(70,%'").fetchall() == [("(70,logged)",)]
    commands.drain(config)
    commands.repair(config)
    commands.drain(config)
    _require_right(config)


@pytest.mark.parametrize(
    ("blind", "seeing", "found"),
    [
        (
            "alter table cdc.change_log_{0} set unlogged", "alter table cdc.change_log_{0} set logged",
            "unlogged for a while",
        ),
        (
            "alter publication cdc drop table cdc.change_log", "alter publication cdc add table cdc.change_log",
            "no longer captured",
        ),
    ],
    ids=["unlogged", "unpublished"],
)  # fmt: skip
def test_a_log_that_was_blind_for_a_while(
    source: Config, plain_lake: Config, blind: str, seeing: str, found: str
) -> None:
    """Nothing saw it: the proofs of its tables were carried, and the check was green."""
    sql(source, "create table public.q (id int primary key)")
    config = _logged(source, plain_lake, ticks=False)
    relids = {name: of(config, name).relid for name in "qrs"}
    parts = range(3) if "{0}" in blind else [0]
    with connection.connect(config.source) as conn:
        before = fingerprints(conn)
        for number in range(4):  # each part is emptied
            sql(config, *(f"insert into {name} values ({10 + number})" for name in "qrs"))
            commands.drain(config)
        assert fingerprints(conn) == before
        for part in parts:
            sql(config, blind.format(part))
        sql(config, *(f"insert into {name} values (70)" for name in "qrs"))
        for part in parts:
            sql(config, seeing.format(part))
        after = fingerprints(conn)
    assert {name for name, relid in relids.items() if before[relid] != after[relid]} == {"r", "s"}
    commands.drain(config)
    assert {name: of(config, name).state for name in "qrs"} == {"q": "ok", "r": "stale", "s": "stale"}
    assert all(found in str(of(config, name).reason) for name in "rs")


def test_a_part_that_cannot_be_attached_is_named_with_what_to_run(source: Config, plain_lake: Config) -> None:
    config = _logged(source, plain_lake, ticks=False)
    detached = "alter table cdc.change_log detach partition cdc.change_log_0"
    sql(config, detached, "alter table cdc.change_log_0 add note text")
    with pytest.raises(
        PreflightFailed, match=r"cdc\.change_log_0 cannot be .*\bnote\b.* nothing was changed"
    ) as refused:
        commands.init(config)
    remedy = re.search(r"run: (alter table [^;]*)", str(refused.value))
    assert remedy
    sql(config, remedy[1])
    commands.init(config)
    with connection.connect(config.source) as conn:
        assert change_log.is_read(conn)


@pytest.mark.parametrize(
    ("lost", "by", "reported"),
    [
        ("drop schema cdc cascade", "triggers, slot", "key, were dropped"),
        ("drop schema cdc cascade", "triggers, ticks", "ticks, were dropped"),
        ("drop schema cdc cascade", "slot", "key, were dropped"),
        pytest.param("delete from cdc.signing_key", "slot", "key, were dropped", marks=pytest.mark.wide),
        pytest.param("delete from cdc.settings", "triggers, ticks", None, marks=pytest.mark.wide),
        pytest.param("delete from cdc.tick", "triggers, ticks", "ticks, were dropped", marks=pytest.mark.wide),
    ],
)
def test_what_the_toolkit_has_on_the_source_is_dropped(
    source: Config, plain_lake: Config, monkeypatch: pytest.MonkeyPatch, lost: str, by: str, reported: str | None
) -> None:
    """No refusal takes it for a restored copy, and what it says to run, one after the other, makes the tables right."""
    config = source.model_copy(update={"root": plain_lake.root})
    if "triggers" in by:
        config = _logged(config, plain_lake, ticks="ticks" in by)
    else:
        for name in "rs":
            sql(config, f"create table public.{name} (id int primary key, x text)")
        commands.init(config)
    sql(config, *_rows(2, "reported"))
    commands.drain(config)
    sql(config, lost, "insert into r values (3, 'unexplained')", "alter table s add column n int default 5")
    assert "schema" not in lost or "schema cdc" in [d.what for d in diagnosis.doctor(config) if d.level == "error"]
    monkeypatch.setattr(configuration, "load", lambda _: config)
    monkeypatch.setattr(frame, "_stop_spark", lambda **_: None)
    said = ""

    def run(command: str) -> str | None:
        """Run it; the command that its refusal says to run."""
        nonlocal said
        done = CliRunner().invoke(main, command.split()[1:])
        if done.exit_code == 0:
            return None
        said += done.output
        remedies = re.findall(r"`(cdc [^`]*)`", done.output)
        assert remedies and isinstance(done.exception, SystemExit), done.output
        return str(remedies[-1])

    for _ in range(4):
        remedy = run("cdc drain")
        if remedy is None:
            break
        run(remedy)
    else:
        pytest.fail(said)
    assert "restored" not in said and (reported or "") in said, said
    assert reported or {of(config, name).state for name in "rs"} == {"stale"}
    for name in "rs":
        if not of(config, name).comparable:
            steps = stepped(f"{of(config, name).remedy}")
            assert steps and [run(step) for step in steps] == [None] * len(steps)
    sql(config, *_rows(60, "reported"))
    commands.drain(config)
    _require_right(config)


@pytest.mark.wide
def test_a_log_that_is_dropped_under_writers_fails_no_write(source: Config, plain_lake: Config) -> None:
    """Who waits for the log while it is dropped finds it gone, and goes on."""
    config = _logged(source, plain_lake, ticks=False)
    failed: list[Exception] = []
    rounds = [0] * 4
    over = threading.Event()

    def write(number: int) -> None:
        try:
            with psycopg.connect(config.source.conninfo, autocommit=True) as app:
                while not over.is_set():
                    rounds[number] += 1
                    _write(app, 1000 * (number + 1) + rounds[number])
        except Exception as error:
            failed.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for _ in range(3):
        before = list(rounds)
        sql(config, "drop table cdc.change_log cascade")
        while not failed and not all(now > then + 2 for now, then in zip(rounds, before, strict=True)):
            over.wait(0.01)
        commands.init(config)
    over.set()
    for writer in writers:
        writer.join()
    assert failed == []
    commands.drain(config)
    assert {of(config, name).state for name in "rs"} == {"stale"}
    commands.repair(config)
    for name in "rs":
        assert current(config, name) == on_source(config, name)

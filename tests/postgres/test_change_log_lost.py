"""Somebody drops what the triggers write into: no write of the application fails, and the loss is told and heals."""

from __future__ import annotations

import threading

import psycopg
import pytest
from click.testing import CliRunner

from tests.postgres.test_snapshot_log import current, of, on_source, sql
from tests.support_lake import plain_lake
from toolkit import config as configuration
from toolkit import drain as draining
from toolkit import initialise, snapshot
from toolkit.cli import frame, main
from toolkit.config import Config, TableConfig
from toolkit.errors import HistoryDiverged

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg18"], indirect=True)]

_LOST = {
    "log": "drop table cdc.change_log",
    "part": "drop table cdc.change_log_0",
    "which part": "drop table cdc.change_log_current cascade",
    "schema": "drop schema cdc cascade",
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
        f"public.{name}": TableConfig(capture="change_log", triggers=how)
        for name, how in zip("rs", ("row", "statement"), strict=True)
    }
    chosen = {"capture": "change_log", "change_log_drain": "tick"} if ticks else {}
    config = source.model_copy(
        update={"root": lake.root, "table": by, "source": source.source.model_copy(update=chosen)}
    )
    for name in "rs":
        sql(config, f"create table public.{name} (id int primary key, x text)", f"insert into {name} values (1, 'one')")
    initialise.init(config)
    draining.drain(config)
    return config


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
    monkeypatch.setattr(frame, "_stop_spark", lambda: None)
    drained = CliRunner().invoke(main, ["drain"])
    assert "run `cdc init`" in drained.output or drained.exit_code == 0
    if lost != "schema" and not (ticks and lost == "log"):  # these cannot be drained at all
        remedies = [f"cdc init, then cdc repair public.{name}" for name in "rs"]
        assert [of(config, name).remedy for name in "rs"] == remedies
    try:
        initialise.init(config)
        draining.drain(config)
    except HistoryDiverged as error:
        assert "cdc init --new-generation" in str(error)
        initialise.init(config, new_generation=True)
        draining.drain(config)
    else:
        assert {of(config, name).state for name in "rs"} == {"stale"}
        snapshot.repair(config)
    sql(config, "insert into r values (60, 'logged')", "insert into s values (60, 'logged')")
    draining.drain(config)
    for name in "rs":
        assert of(config, name).comparable
        assert current(config, name) == on_source(config, name)


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
        sql(config, "drop table cdc.change_log")
        while not failed and not all(now > then + 2 for now, then in zip(rounds, before, strict=True)):
            over.wait(0.01)
        initialise.init(config)
    over.set()
    for writer in writers:
        writer.join()
    assert failed == []
    draining.drain(config)
    assert {of(config, name).state for name in "rs"} == {"stale"}
    snapshot.repair(config)
    for name in "rs":
        assert current(config, name) == on_source(config, name)

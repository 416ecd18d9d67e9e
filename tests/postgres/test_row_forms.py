"""A copy beside a transaction that has written rows, and is open while the form of the rows is altered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from tests import commands
from tests.postgres.test_snapshot_log import at, by, config, current, on_source, sql
from tests.support_lake import plain_lake
from tests.support_ledger import ledger_of
from toolkit.source import slot, ticks
from toolkit.values.config import Config

__all__ = ["by", "config", "plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg18"], indirect=True)]

_TABLES = (
    "create type mood as enum ('sad', 'glad')",
    "create type pair as (x int, y text)",
    "create table public.m (id int primary key, v mood)",
    "create table public.p (id int primary key, v pair)",
    "insert into public.m values (1, 'sad')",
    "insert into public.p values (1, '(1,x)')",
)
_ALTERED = ("alter type mood rename value 'sad' to 'grey'", "alter type pair add attribute z int")
_WRITTEN = ("insert into public.m values (2, 'sad')", "insert into public.p values (2, '(2,y)')")
_WAITS_FOR = """
select exists (
  select from pg_stat_activity where backend_type = 'walsender' and %s = any (pg_blocking_pids(pid))
)
"""


@contextmanager
def _begun(config: Config, *statements: str) -> Iterator[psycopg.Connection[Any]]:
    """A session with an open transaction that has written."""
    with psycopg.connect(config.source.conninfo) as conn:
        for statement in statements:
            conn.execute(statement)
        yield conn


def _exact(config: Config, *names: str) -> None:
    last = ledger_of(config).last()
    assert last is not None
    for name in names:
        assert (at(config, name, last.complete_to), current(config, name)) == ("ok", on_source(config, name)), name


#: Statements before and after which the rows of a table are sent, but not between them, and how they are captured.
_FOR_A_WHILE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "table": ("alter publication cdc drop table a", "alter publication cdc add table a", {}),
    "operations": (
        "alter publication cdc set (publish = 'truncate')",
        "alter publication cdc set (publish = 'insert, update, delete, truncate')",
        {},
    ),
    "log": (
        "alter publication cdc drop table cdc.change_log",
        "alter publication cdc add table cdc.change_log",
        {"capture": "change_log"},
    ),
}


def _beside_a_writer(
    config: Config,
    copy: Callable[[], dict[str, int]],
    *,
    first: Sequence[str] = (),
    written: Sequence[str],
    then: Sequence[str],
) -> dict[str, int]:
    """Copy while a transaction is open at the cut that has written between other statements.

    The slot waits for the transactions that are open when it is begun, and then for those that began meanwhile. The
    writer begins between the two. The copy must try another cut, which waits for the writer.
    """
    with (
        ExitStack() as sessions,
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(config.source.conninfo, autocommit=True) as watch,
    ):
        old = sessions.enter_context(_begun(config, "insert into public.b values (10)"))

        def waits_for(conn: psycopg.Connection[Any]) -> None:
            while not done.done() and watch.execute(_WAITS_FOR, [conn.info.backend_pid]).fetchone() != (True,):
                time.sleep(0.005)
            assert not done.done(), done.result()

        done = pool.submit(copy)
        waits_for(old)
        between = sessions.enter_context(_begun(config, "insert into public.b values (11)"))
        old.commit()
        waits_for(between)
        sql(config, *first)
        writer = sessions.enter_context(_begun(config, *written))
        sql(config, *then)
        between.commit()
        waits_for(writer)  # that is the second cut
        writer.commit()
        return done.result()


@pytest.mark.parametrize("first", [True, False], ids=["init", "repair"])
def test_rows_that_are_written_before_a_type_is_altered_and_committed_after_the_cut(
    config: Config, first: bool
) -> None:
    """They came after the copy, in the form from before, and the tables were ok."""
    sql(config, *_TABLES)
    if not first:
        commands.init(config)
    tables = ["public.m", "public.p"]
    copied = _beside_a_writer(
        config,
        lambda: (commands.init(config) if first else commands.repair(config, tables)).rows,
        written=_WRITTEN,
        then=_ALTERED,
    )
    assert {name: copied[name] for name in tables} == dict.fromkeys(tables, 2)
    commands.drain(config)
    _exact(config, "m", "p")


@pytest.mark.parametrize("name", _FOR_A_WHILE)
def test_rows_that_are_written_while_nothing_sends_them_and_committed_after_the_cut(config: Config, name: str) -> None:
    """What the publication sends was the same before and after, and the table was ok without these rows."""
    before, after, source = _FOR_A_WHILE[name]
    config = config.model_copy(update={"source": config.source.model_copy(update=source)})
    commands.init(config)
    copied = _beside_a_writer(
        config,
        lambda: commands.repair(config, ["public.a"]).rows,
        first=[before],
        written=["insert into public.a values (21, 'x', 'y')"],
        then=[after],
    )
    assert copied == {"public.a": 21}
    commands.drain(config)
    _exact(config, "a")


def test_a_publication_that_is_altered_while_a_cut_is_begun_has_the_table_copied_again(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that an open transaction wrote before it are never sent."""
    commands.init(config)
    taken = ticks.exact_cut
    cuts: list[slot.Cut] = []

    @contextmanager
    def exact_cut(*given: Any, **more: Any) -> Iterator[slot.Cut]:
        if not cuts:
            sql(config, "alter publication cdc set table a where (id > 0), b")
        with taken(*given, **more) as cut:
            cuts.append(cut)
            yield cut

    monkeypatch.setattr(ticks, "exact_cut", exact_cut)
    done = commands.repair(config, ["public.a", "public.b"])
    assert (len(cuts), done.rows, done.lsn) == (2, {"public.a": 20, "public.b": 5}, cuts[-1].lsn)


@pytest.mark.parametrize("by", ["tick"], indirect=True)
def test_rows_that_are_logged_before_the_first_version_of_their_table_are_in_doubt(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick waits for no writer, and the log has no version by which such rows were printed: the tables were ok."""
    sql(config, *_TABLES)
    taken = ticks.tick_cut
    with ExitStack() as sessions:
        writers: list[psycopg.Connection[Any]] = []

        @contextmanager
        def tick_cut(*given: Any) -> Iterator[slot.Cut]:
            if not writers:
                writers.append(sessions.enter_context(_begun(config, *_WRITTEN)))
                sql(config, *_ALTERED)
            with taken(*given) as cut:
                yield cut

        monkeypatch.setattr(ticks, "tick_cut", tick_cut)
        commands.init(config)
        writers[0].commit()
    lsn = commands.drain(config).committed_lsn
    assert [at(config, name, lsn) for name in ("a", "m", "p")] == ["ok", "stale", "stale"]
    commands.repair(config, ["public.m", "public.p"])
    _exact(config, "a", "m", "p")

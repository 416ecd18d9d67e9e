"""`[source] publication` is changed: the slot goes over at one exact cut, and no table is silently lost or added."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests import commands
from tests.postgres.test_snapshot_log import current, of, on_source, sql
from tests.postgres.test_stages import always, killed
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from tests.support_postgres import mostly_one_server
from toolkit.capture import handover
from toolkit.demo.server import EmbeddedServer
from toolkit.source import connection, install, preflight, slot
from toolkit.values.config import CheckConfig, Config
from toolkit.values.errors import HistoryDiverged, PreflightFailed, SlotError, UnreadableChange
from toolkit.values.lsn import Lsn

__all__ = ["plain_lake"]
pytestmark = pytest.mark.postgres


def _through(config: Config, *names: str) -> Config:
    chosen = config.source.model_copy(update={"publication": names, "scope": "published"})
    return config.model_copy(update={"source": chosen})


@pytest.fixture
def config(source: Config, plain_lake: Config) -> Config:
    """Three tables: t in both publications, u in the first alone, w in the second alone."""
    config = source.model_copy(update={"root": plain_lake.root})
    sql(
        config,
        *(f"create table public.{t} (id int primary key, x text)" for t in "tuw"),
        *(f"insert into public.{t} values (0, 'first')" for t in "tuw"),
        "create publication a for table t, u",
        "create publication b for table t, w",
    )
    return config


def _write(config: Config, number: int, tables: str = "tuw") -> None:
    for table in tables:
        sql(config, f"insert into public.{table} values ({number}, 'new')", f"update public.{table} set x = x || '!'")


def _exact(config: Config, tables: str) -> None:
    commands.drain(config)
    for table in tables:
        assert of(config, table).comparable, (table, of(config, table))
        assert current(config, table) == on_source(config, table), table
    positions = [(e["commit_lsn"], e["ordinal"]) for e in rows_in_log(config, "op <> 'R'")]
    assert len(positions) == len(set(positions))


@mostly_one_server
def test_a_publication_that_joins_brings_its_tables_with_their_rows(config: Config) -> None:
    one, two = _through(config, "a"), _through(config, "a", "b")
    commands.init(one)
    _write(config, 1)
    with pytest.raises(HistoryDiverged, match=r"publication was a at batch \d+ and is a, b now; run `cdc init`"):
        commands.drain(two)
    with connection.connect(two.source) as conn:
        (finding,) = preflight.preflight(conn, two.capture_rules, ddl=two.ddl)
    assert (finding.level, finding.what, finding.found) == (
        "warning", "[source] publication", 'is "a", "b" now, and capture was installed for a'
    )  # fmt: skip
    assert commands.init(two).rows == {"public.w": 2}
    _write(config, 2)
    _exact(two, "tuw")
    assert [of(two, t).state for t in "tuw"] == ["ok"] * 3
    with pytest.raises(HistoryDiverged, match=r"is a now; run `cdc init`"):
        commands.drain(one)


@mostly_one_server
def test_a_publication_that_leaves_turns_its_tables_red(config: Config) -> None:
    two, one = _through(config, "a", "b"), _through(config, "a")
    sql(config, "alter publication a set table t where (id < 100), u")
    commands.init(two)
    _write(config, 1)
    commands.init(one)  # what came through b until then is in the log
    _write(config, 2)
    sql(config, "insert into public.t values (200, 'unexplained')")
    _exact(one, "u")
    assert of(one, "w").reason == "it left the publication" and not of(one, "w").comparable
    assert "row_filter" in (of(one, "t").reason or "") and not of(one, "t").comparable
    assert {e["new"][0] for e in rows_in_log(one, f"relid = {of(one, 'w').relid} and op = 'I'")} == {"1"}
    commands.repair(one, ("public.t",))
    assert current(one, "t") == {k: v for k, v in on_source(one, "t").items() if k != "200"}
    excluded = one.source.model_copy(update={"exclude": ("public.w",)})
    with pytest.raises(KeyError):
        of(one.model_copy(update={"source": excluded}), "w")
    # Back again, with what was written meanwhile. The next drain has something to read, though no one writes.
    commands.init(two)
    last = ledger_of(two).last()
    assert last and last.beacon_lsn and last.beacon_lsn > last.complete_to
    commands.drain(two)
    assert not of(two, "w").comparable and not of(two, "t").comparable
    commands.repair(two, ("public.t", "public.w"))
    _write(config, 3)
    _exact(two, "tuw")


def test_a_writer_older_than_the_publication_is_waited_for(config: Config) -> None:
    """The slot could not be read at its rows: 15 and 16 fail there for ever, and 18 skips them."""
    sql(config, "drop publication b")
    one = _through(config, "a")
    two = _through(config, "a", "b").model_copy(update={"check": CheckConfig(cut_seconds=1)})
    commands.init(one)
    with psycopg.connect(config.source.conninfo, application_name="old writer") as writer:
        writer.execute("insert into public.w values (1, 'older')")
        writer.execute("insert into public.t values (1, 'older')")
        sql(config, "create publication b for table t, w")
        with pytest.raises(SlotError, match="old writer"):
            commands.init(two)
        with pytest.raises(HistoryDiverged, match="run `cdc init`"):
            commands.drain(two)
        writer.execute("insert into public.w values (2, 'older')")
    _write(config, 3)
    commands.init(two)
    _write(config, 4)
    _exact(two, "tuw")


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (install, "install", True),
        pytest.param(slot, "create_slot", True, marks=pytest.mark.wide),
        pytest.param(handover, "drain", True, marks=pytest.mark.wide),
        pytest.param(handover, "_row", False, marks=pytest.mark.wide),
        (handover, "_row", True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_a_change_killed_anywhere_goes_on(
    config: Config, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, after: bool
) -> None:
    one, two = _through(config, "a"), _through(config, "a", "b")
    commands.init(one)
    _write(config, 1)
    with killed(monkeypatch, owner, name, after=after, match=always):
        commands.init(two)
    # Recorded by the new list, and read by the old one: born, altered, and gone with its publication for a moment.
    sql(
        config,
        "create table public.born (id int primary key, x text)",
        "alter publication b add table born",
        "insert into public.born values (1, 'x')",
        "alter publication a drop table t",
        "insert into public.t values (50, 'through b alone')",
        "alter publication a add table t",
    )
    _write(config, 2)
    commands.init(two)
    _write(config, 3)
    commands.drain(two)
    unverified = tuple(f"public.{t}" for t in ("t", "u", "w", "born") if not of(two, t).comparable)
    switched = name == "_row" and after
    assert (unverified == ()) if switched else ("public.t" in unverified and "public.u" not in unverified)
    for table in ("t", "u", "w", "born"):
        if f"public.{table}" not in unverified:
            assert current(two, table) == on_source(two, table), table
    if unverified:
        commands.repair(two, unverified)
    for table in ("t", "u", "w", "born"):
        assert current(two, table) == on_source(two, table), table


@mostly_one_server
@pytest.mark.parametrize("again", [False, True], ids=["dropped", "made again"])
def test_a_publication_that_was_dropped_needs_a_new_generation(config: Config, again: bool) -> None:
    two = _through(config, "a", "b")
    commands.init(two)
    sql(config, "drop publication b")
    _write(config, 1)
    if again:
        sql(config, "create publication b for table t, w")
    now = two if again else _through(config, "a")
    attempts: tuple[Callable[[Config], object], ...] = (commands.drain, commands.init)
    for attempt in attempts:
        with pytest.raises((HistoryDiverged, PreflightFailed), match="publication 'b'"):
            attempt(two)
    with pytest.raises(HistoryDiverged, match=r"publication 'b' .*new-generation"):
        commands.init(now)
    commands.init(now, new_generation=True)
    _write(config, 2)
    _exact(now, "tuw" if again else "tu")


@mostly_one_server
def test_a_publication_that_was_renamed_needs_a_new_generation(config: Config) -> None:
    """18 skips what was written under the name of before, and says so to no one."""
    commands.init(_through(config, "a", "b"))
    _write(config, 1)
    sql(config, "alter publication b rename to c")
    with pytest.raises(HistoryDiverged, match="publication 'b' does not exist"):
        commands.init(_through(config, "a", "c"))
    commands.init(_through(config, "a", "c"), new_generation=True)
    _exact(_through(config, "a", "c"), "tuw")


@mostly_one_server
def test_a_list_that_cannot_be_merged_is_refused_and_nothing_is_changed(config: Config, pg: EmbeddedServer) -> None:
    one = _through(config, "a")
    commands.init(one)
    sql(config, "create publication c for table t (id)")
    with pytest.raises(
        PreflightFailed, match=r"public.t: column lists differ between publications a, c; .*nothing was"
    ):
        commands.init(_through(config, "a", "c"))
    _write(config, 1)
    _exact(one, "tu")
    # And a list that did not agree later is mended by leaving one out.
    two = _through(config, "a", "b")
    commands.init(two)
    sql(config, "alter publication b set table t (id), w")
    commands.drain(two)
    assert "column lists differ" in (of(two, "t").reason or "")
    with pytest.raises(PreflightFailed, match="column lists differ"):
        commands.init(two)
    commands.init(one)
    _write(config, 2)
    commands.drain(one)
    commands.repair(one, ("public.t",))
    _exact(one, "tu")


@mostly_one_server
def test_rows_that_the_publications_did_not_agree_on_can_be_left_out(config: Config) -> None:
    two = _through(config, "a", "b")
    commands.init(two)
    _write(config, 1)
    sql(config, "alter publication b set table t (id), w", "insert into public.t values (2, 'unreadable')")
    with pytest.raises(UnreadableChange, match=r'table "public.t" .*`cdc drain --skip') as refused:
        commands.drain(two)
    assert refused.value.lsn is not None
    sql(config, "alter publication b set table t, w")
    commands.skip(two, Lsn(refused.value.lsn or 0))
    _write(config, 3)
    commands.drain(two)
    assert [of(two, t).comparable for t in "tuw"] == [False] * 3
    commands.repair(two, ("public.t", "public.u", "public.w"))
    _write(config, 4)
    _exact(two, "tuw")


@mostly_one_server
def test_the_ledger_names_the_publications(config: Config) -> None:
    two = _through(config, "a", "b")
    commands.init(two)
    last = ledger_of(two).last()
    with connection.connect(two.source) as conn:
        oids: dict[str, int] = dict(conn.execute("select pubname::text, oid::int8 from pg_publication").fetchall())
    assert last is not None and last.identity.publications == oids

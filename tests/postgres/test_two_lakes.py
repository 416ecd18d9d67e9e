"""Lakes of one database live beside each other by their slots, and none takes over or removes what another one has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import commands
from tests.postgres.test_snapshot_log import sql
from tests.support_lake import plain_lake, rows_in_log
from tests.support_ledger import ledger_of
from tests.support_network import proxy_before
from tests.support_postgres import tcp_conninfo
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import reads
from toolkit.ops import status_report
from toolkit.rawlog.states import State
from toolkit.source import claim, connection, install, slot
from toolkit.values.config import Config, TableConfig
from toolkit.values.errors import HistoryDiverged, PreflightFailed
from toolkit.values.modes import Capture, NewTables

__all__ = ["plain_lake"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]


@pytest.fixture
def first(source: Config, plain_lake: Config) -> Config:
    """A captured table."""
    made = source.model_copy(update={"root": plain_lake.root})
    sql(made, "create table public.a (id int primary key)")
    commands.init(made)
    return made


def _second(first: Config, folder: Path, slot_name: str, **source: object) -> Config:
    changed = {"slot": slot_name, "publication": "cdc_second"} | source
    return first.model_copy(update={"root": folder, "source": first.source.model_copy(update=changed)})


def _other(first: Config, folder: Path, **source: object) -> Config:
    """The configuration of another lake, with a slot of its own."""
    return _second(first, folder / "other", f"{first.source.slot}_b", **source)


def _settings(config: Config) -> list[tuple[object, ...]]:
    with connection.connect(config.source) as conn:
        return conn.execute("select slot, name, value from cdc.settings order by 1, 2").fetchall()


def test_a_second_lake_on_the_same_slot_is_refused_before_anything_changes(first: Config, tmp_path: Path) -> None:
    second = _second(first, tmp_path / "second", first.source.slot)
    before = _settings(first)
    for new_generation in (False, True):
        with pytest.raises(PreflightFailed, match=rf"lake in {first.lake_access.warehouse} captures this database"):
            commands.init(second, new_generation=new_generation)
    assert not reads.tables(second.lake_access, "raw")
    assert _settings(first) == before
    with connection.connect(first.source) as conn:
        slot.require_slot(conn, first.source)
    sql(first, "insert into public.a values (1)")
    assert commands.drain(first).changes == 1


def test_another_slot_in_the_configuration_leaves_none_behind(first: Config) -> None:
    """`cdc init --new-generation` forgot the slot that it had created, which kept WAL for ever, and its publication."""
    renamed = _second(first, first.root, f"{first.source.slot}_new")
    before = _settings(first)
    with pytest.raises(HistoryDiverged, match=f"the log is read from slot '{first.source.slot}'; set it to"):
        commands.init(renamed)
    assert _settings(first) == before
    sql(first, "insert into public.a values (1)")
    assert commands.drain(first).changes == 1
    commands.init(renamed, new_generation=True)
    with connection.connect(first.source) as conn:
        found = conn.execute(
            "select slot_name from pg_replication_slots where database = current_database()"
            " union all select pubname from pg_publication order by 1"
        ).fetchall()
    assert found == [("cdc_second",), (renamed.source.slot,)]
    commands.uninstall(renamed)
    with connection.connect(first.source) as conn:
        assert not slot.read_slot(conn, renamed.source.slot) and not claim.claims(conn)


def test_another_slot_keeps_a_publication_that_is_still_named(first: Config) -> None:
    """`cdc init` had created it, and it is no longer the first one of the list."""
    renamed = _second(first, first.root, f"{first.source.slot}_new", publication=("cdc_second", "cdc"))
    commands.init(renamed, new_generation=True)
    with connection.connect(first.source) as conn:
        found = conn.execute("select pubname from pg_publication order by 1").fetchall()
    assert found == [("cdc",), ("cdc_second",)]


def test_of_two_first_inits_the_second_is_refused_in_its_transaction(first: Config) -> None:
    """Both may have found no claim before they made their lakes; what the second wrote is rolled back."""
    before = _settings(first)
    with connection.connect(first.source) as conn:
        second = first.model_copy(update={"source": first.source.model_copy(update={"publication": "cdc_second"})})
        other = claim.Claim("another", "/elsewhere", first.source.slot, claim.database_of(conn))
        with pytest.raises(PreflightFailed, match="captures this database"):
            install.install(
                conn, second.capture_rules, other, ddl=second.ddl, lock_seconds=second.snapshot.lock_seconds
            )
    assert _settings(first) == before


def test_a_configuration_without_a_lake_does_not_uninstall_that_of_another(first: Config, tmp_path: Path) -> None:
    before = _settings(first)
    commands.uninstall(_second(first, tmp_path / "second", "cdc_second"))
    assert _settings(first) == before
    sql(first, "insert into public.a values (1)")
    assert commands.drain(first).changes == 1


def test_a_lake_that_is_gone_gives_up_its_capture(first: Config, tmp_path: Path) -> None:
    """Its configuration alone is enough to uninstall, and a capture whose slot was dropped is free for another."""
    again = first.model_copy(update={"root": tmp_path / "again"})
    with pytest.raises(PreflightFailed, match="If its files are lost, any configuration with slot"):
        commands.init(again)
    commands.uninstall(again)
    assert set(commands.init(again).rows) == {"public.a"}
    with connection.connect(again.source) as conn:
        slot.drop_slot(conn, again.source.slot)
    third = _second(first, tmp_path / "third", "cdc_third", publication=first.source.publications)
    assert set(commands.init(third).rows) == {"public.a"}
    with connection.connect(third.source) as conn:
        (found,) = claim.claims(conn)
    assert found.lake == reads.table_uuid(third.lake_access, "raw.events")
    assert (found.warehouse, found.slot) == (third.lake_access.warehouse, "cdc_third")
    assert ledger_of(third).last() is not None
    assert {slot_name for slot_name, _, _ in _settings(third)} == {"", "cdc_third"}
    commands.uninstall(third)
    with connection.connect(third.source) as conn:
        assert conn.execute("select to_regnamespace('cdc'), to_regclass('cdc.settings')").fetchone() == (None, None)
        assert conn.execute("select count(*) from pg_publication").fetchone() == (0,)


def test_a_lake_behind_a_pooler_with_its_own_name_for_the_database_takes_nothing_from_another(
    first: Config, pg: EmbeddedServer, tmp_path: Path
) -> None:
    """The slot of the first lake counted as one of another database: its settings were deleted by the second init."""
    name = str(conninfo_to_dict(first.source.conninfo)["dbname"]).encode()
    alias = b"a" * len(name)
    before = [row for row in _settings(first) if row[0] == first.source.slot]
    with proxy_before(pg.port) as pooler:
        pooler.edit = lambda said: said.replace(b"database\0" + alias, b"database\0" + name)
        there = f"{tcp_conninfo(pg)} port={pooler.port} dbname={alias.decode()} sslmode=disable gssencmode=disable"
        second = _other(first, tmp_path, conninfo=there)
        assert commands.init(second).rows == {"public.a": 0}
        assert [row for row in _settings(first) if row[0] == first.source.slot] == before
        sql(first, "insert into public.a values (1)")
        assert [commands.drain(lake).changes for lake in (first, second)] == [1, 1]
        commands.uninstall(second)
    assert [row for row in _settings(first) if row[0] == first.source.slot] == before
    sql(first, "insert into public.a values (2)")
    assert commands.drain(first).changes == 1


@pytest.fixture
def lakes(source: Config, plain_lake: Config, tmp_path: Path) -> tuple[Config, Config]:
    """Two lakes of one database: of `a` and `both`, and of `both`, `logged` (by triggers) and new tables named `b*`."""
    first = source.model_copy(update={"root": plain_lake.root})
    first = _tables(first, ("public.a", "public.both"))
    sql(
        first,
        *(f"create table public.{t} (id int primary key, v text)" for t in ("a", "both", "logged")),
        *(f"insert into public.{t} values (1, 'first')" for t in ("a", "both", "logged")),
    )
    second = _other(first, tmp_path, tables=("public.both", "public.logged", "public.b*"), new_tables=NewTables.PUBLISH)
    second = second.model_copy(update={"table": {"public.logged": TableConfig(capture=Capture.CHANGE_LOG)}})
    assert commands.init(first).rows == {"public.a": 1, "public.both": 1}
    assert commands.init(second).rows == {"public.both": 1, "public.logged": 1}
    return first, second


def _tables(config: Config, tables: Sequence[str]) -> Config:
    return config.model_copy(update={"source": config.source.model_copy(update={"tables": tuple(tables)})})


def _exact(config: Config, *tables: str) -> None:
    """Each of the tables, and no other, is captured and not stale, and its rows in the log are those of the source."""
    commands.drain(config)
    found = status_report.status(config)
    assert found.problem is None, found.problem
    assert {(t.table.removeprefix("public."), t.state) for t in found.tables} == {(t, State.OK) for t in tables}
    relids = {t.relid: t.table for t in found.tables}
    rows: dict[str, dict[str, list[str | None]]] = {name: {} for name in relids.values()}
    for event in rows_in_log(config):
        name = relids[event["relid"]]
        if event["new"] is not None:
            rows[name][event["new"][0]] = event["new"]
        else:
            del rows[name][event["old"][0]]
    with connection.connect(config.source) as conn:
        for name, kept in rows.items():
            shown = conn.execute(f"select to_jsonb(t) from only {name} as t".encode()).fetchall()
            assert sorted((r["id"], r["v"]) for (r,) in shown) == sorted((int(i or 0), v) for i, v, *_ in kept.values())


def _change(config: Config, number: int, *tables: str) -> None:
    for table in tables:
        sql(
            config,
            f"insert into public.{table} values ({number}, 'new'), ({number + 1}, 'gone')",
            f"update public.{table} set v = v || '!' where id = 1",
            f"delete from public.{table} where id = {number + 1}",
        )


def test_row_14_two_lakes_of_one_database_are_both_exact(lakes: tuple[Config, Config]) -> None:
    first, second = lakes
    for number in (10, 20, 30):
        _change(first, number, "a", "both", "logged")
        sql(first, f"alter table public.both add column c{number} text default 'x'")
        sql(
            first,
            f"alter table public.a add column c{number} int",
            f"alter table public.logged add column c{number} int",
        )
        sql(first, f"create table public.born{number} (id int primary key, v text)")
        sql(first, f"insert into public.born{number} values (1, 'born')")
        _exact(first, "a", "both")
        _change(first, number + 5, "both", "logged", f"born{number}")
        _exact(second, "both", "logged", *(f"born{n}" for n in (10, 20, 30) if n <= number))
        _exact(first, "a", "both")
    # Each read the messages for its own slot, all of them signed, and nothing that it could not take for its own.
    for config, publication in ((first, "cdc"), (second, "cdc_second")):
        ddl = [json.loads(e["payload"]) for e in rows_in_log(config, "kind = 'ddl'")]
        assert {d["slot"] for d in ddl} == {config.source.slot}
        assert {tuple(d["publications"]) for d in ddl} == {(publication,)}
        assert len([d for d in ddl if d["tag"] == "CREATE TABLE"]) == 3
        odd = rows_in_log(config, "kind in ('message', 'gap')")
        assert [e["payload"] for e in odd if json.loads(e["payload"]).get("reason")] == []
    assert commands.init(first).rows == commands.init(second).rows == {}  # idempotent beside each other
    _exact(first, "a", "both")
    _exact(second, "both", "logged", "born10", "born20", "born30")


@pytest.mark.parametrize("leaving", [0, 1])
def test_row_14_uninstall_takes_its_own_only(lakes: tuple[Config, Config], leaving: int) -> None:
    gone, stays = lakes[leaving], lakes[1 - leaving]
    tables = ("both", "logged") if leaving == 0 else ("a", "both")
    commands.uninstall(gone)
    with connection.connect(stays.source) as conn:
        assert slot.read_slot(conn, gone.source.slot) is None
        left = conn.execute("select pubname from pg_publication").fetchall()
        assert left == [(stays.source.own,)]
        triggers = conn.execute("select count(*) from pg_trigger where tgname like '!cdc%'").fetchone()
        assert triggers == ((2,) if leaving == 0 else (0,))
    assert {name for name, _, _ in _settings(stays)} == {"", stays.source.slot}
    _change(stays, 10, "a", "both", "logged")
    sql(stays, *(f"alter table public.{t} add column c int default 1" for t in ("a", "both", "logged")))
    _exact(stays, *tables)
    again = commands.init(gone.model_copy(update={"root": gone.root / "again"}))
    assert again.rows == {f"public.{t}": 2 for t in (("a", "both") if leaving == 0 else ("both", "logged"))}
    commands.uninstall(gone.model_copy(update={"root": gone.root / "again"}))
    commands.uninstall(stays)
    with connection.connect(stays.source) as conn:
        assert conn.execute("select to_regnamespace('cdc'), (select count(*) from pg_publication)").fetchone() == (
            None,
            0,
        )
        assert conn.execute("select count(*) from pg_event_trigger").fetchone() == (0,)
        assert conn.execute("select count(*) from pg_trigger where tgname ~ 'cdc'").fetchone() == (0,)


def test_row_14_a_publication_or_the_change_log_of_another_lake_is_refused(
    lakes: tuple[Config, Config], tmp_path: Path
) -> None:
    _, second = lakes
    before = _settings(second)
    third = _second(second, tmp_path / "third", "cdc_third", tables=("public.a",))
    with pytest.raises(
        PreflightFailed, match=f"publication cdc_second belongs to the lake with slot '{second.source.slot}'"
    ):
        commands.init(third.model_copy(update={"table": {}}))
    logs = {"public.a": TableConfig(capture=Capture.CHANGE_LOG)}
    third = _second(third, tmp_path / "third", "cdc_third", publication="cdc_third").model_copy(update={"table": logs})
    with pytest.raises(PreflightFailed, match="the change log belongs to the lake"):
        commands.init(third)
    sql(second, "create publication everything for all tables")
    everything = _second(third, tmp_path / "third", "cdc_third", publication="everything", scope="published", tables=())
    with pytest.raises(PreflightFailed, match="the change log belongs to the lake"):
        commands.init(everything.model_copy(update={"table": {}}))
    assert _settings(second) == before
    with connection.connect(second.source) as conn:
        assert slot.read_slot(conn, "cdc_third") is None
        assert conn.execute("select count(*) from pg_publication where pubname = 'cdc_third'").fetchone() == (0,)
    _change(second, 10, "a", "both", "logged")
    _exact(second, "both", "logged")


def test_row_14_settings_of_an_earlier_version_are_those_of_its_lake(first: Config, tmp_path: Path) -> None:
    with connection.connect(first.source) as conn:
        conn.execute("create or replace view cdc.known_settings as select name, value from cdc.settings offset 0")
        conn.execute("alter table cdc.settings drop constraint settings_pkey, add primary key (name), drop column slot")
    second = _other(first, tmp_path)
    assert set(commands.init(second).rows) == {"public.a"}
    assert {name for name, _, _ in _settings(first)} == {"", first.source.slot, second.source.slot}
    assert set(commands.init(first).rows) == set()
    sql(first, "insert into public.a values (1)", "alter table public.a add column v text")
    for config in (first, second):
        assert commands.drain(config).changes == 1
        assert {t.state for t in status_report.status(config).tables} == {State.OK}


def test_row_14_init_leaves_the_change_log_of_another_lake_alone(
    source: Config, plain_lake: Config, tmp_path: Path
) -> None:
    """One lake is drained by ticks. Another one, through a slot, takes neither its triggers nor its ticks."""
    by_ticks = {"capture": Capture.CHANGE_LOG, "change_log_drain": "tick", "tables": ("public.a",)}
    first = source.model_copy(update={"root": plain_lake.root, "source": source.source.model_copy(update=by_ticks)})
    sql(first, "create table public.a (id int primary key, v text)", "insert into public.a values (1, 'first')")
    assert commands.init(first).rows == {"public.a": 1}
    second = _other(first, tmp_path, capture=Capture.SLOT)
    assert commands.init(second).rows == {"public.a": 1}
    for number in (10, 20):
        _change(first, number, "a")
        sql(first, f"alter table public.a add column c{number} int default 1")
        _exact(second, "a")
        _exact(first, "a")
    commands.uninstall(second)
    _change(first, 30, "a")
    _exact(first, "a")
    with pytest.raises(PreflightFailed, match="captures this database through slot"):
        commands.init(_second(first, tmp_path / "third", first.source.slot))


def test_row_14_rights_are_those_of_each_lake(lakes: tuple[Config, Config]) -> None:
    """Roles of one lake keep their rights when the other lake is initialised or uninstalled; one log, one reader."""
    first, second = lakes
    roles = tuple(f"{first.source.slot}_{name}" for name in ("one", "two"))
    sql(first, *(f"create role {role} login replication" for role in roles))
    first, second = (
        c.model_copy(update={"source": c.source.model_copy(update={"drainer": role})})
        for c, role in zip(lakes, roles, strict=True)
    )
    try:
        for config in (first, second, first):
            commands.init(config)
        with connection.connect(first.source) as conn:

            def may(role: str, what: str) -> bool:
                row = conn.execute("select has_table_privilege(%s, %s, 'select')", [role, what]).fetchone()
                return row == (True,)

            tables = ("public.a", "public.both", "public.logged", "cdc.known_settings", "cdc.logged_changes")
            assert [may(roles[0], t) for t in tables] == [True, True, False, True, False]
            assert [may(roles[1], t) for t in tables] == [False, True, True, True, True]
            conn.execute("create table public.born (id int primary key, v text)")
            assert (may(roles[0], "public.born"), may(roles[1], "public.born")) == (False, True)
            commands.uninstall(second)
            assert [may(roles[1], t) for t in tables[:3]] == [False, False, False]
            assert [may(roles[0], t) for t in tables[:3]] == [True, True, False]
            usage = "select has_schema_privilege(%s, 'cdc', 'usage')"
            assert [conn.execute(usage, [role]).fetchone() for role in roles] == [(True,), (False,)]
            rights = """select a.grantee::regrole::text from pg_class, aclexplode(relacl) as a
                where relnamespace = 'cdc'::regnamespace union
                select a.grantee::regrole::text from pg_proc, aclexplode(proacl) as a
                where pronamespace = 'cdc'::regnamespace"""
            left = {role for (role,) in conn.execute(rights).fetchall()}
            assert (roles[0] in left, roles[1] in left) == (True, False), "on single objects too"
    finally:
        sql(first, f"drop owned by {', '.join(roles)} cascade; drop role {', '.join(roles)}")

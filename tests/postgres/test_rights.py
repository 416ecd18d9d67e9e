"""No role gains rights through capture: code of other roles never runs with the rights of the installer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from tests import commands
from tests.support_change_log import Log, image, with_table
from tests.support_lake import plain_lake
from toolkit.quality import source_rows
from toolkit.source import bare_server, catalog, connection, install, owners_code, row_lines
from toolkit.source.opened import open_source
from toolkit.values.config import Config
from toolkit.values.errors import PreflightFailed
from toolkit.values.row_line import comparison, fields

pytestmark = pytest.mark.postgres
__all__ = ["plain_lake"]

#: What an attacker's function does when it runs with the rights of another role, or even those of a superuser.
_ATTACK = """
create function {schema}.attack({schema}.t) returns text language plpgsql as $$
begin
  if current_user <> 'intruder' then perform pg_catalog.nextval('public.others'); end if;
  alter role intruder superuser;
  return '(0,stolen)';
exception when insufficient_privilege then return '(0,tried)';
end $$
"""


@pytest.fixture
def intruder(database: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A role without rights that owns a schema, with a session of its own."""
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("create role intruder login")
        name = admin.execute("select current_database()").fetchone()
        assert name is not None
        admin.execute(sql.SQL("grant create on database {} to intruder").format(sql.Identifier(name[0])))
        admin.execute("create schema mine authorization intruder")
        admin.execute("create sequence public.others; grant usage on sequence public.others to public")
        try:
            with psycopg.connect(database, autocommit=True) as session:
                session.execute("set session authorization intruder")
                yield session
                assert admin.execute("select is_called from public.others").fetchone() == (False,)
                assert admin.execute("select rolsuper from pg_roles where rolname = 'intruder'").fetchone() == (False,)
        finally:
            admin.execute("alter role intruder nosuperuser")
            admin.execute("drop owned by intruder cascade")
            admin.execute("drop role intruder")


@pytest.mark.parametrize("triggers", ["row", "statement"])
def test_a_cast_to_text_of_the_owner_never_runs_as_the_installer(
    log: Log, intruder: psycopg.Connection[tuple[object, ...]], triggers: str
) -> None:
    intruder.execute("create table mine.t (id int primary key, v text)")
    intruder.execute(_ATTACK.format(schema="mine"))
    intruder.execute("create cast (mine.t as text) with function mine.attack(mine.t) as assignment")
    selected = log.config.source.model_copy(update={"tables": ("mine.*",)})
    log = Log(log.config.model_copy(update={"source": selected}), log.conn)
    with_table(log, "mine.t", triggers=triggers).install()
    since = log.tick()
    intruder.execute("insert into mine.t values (1, 'a'), (2, null)")
    intruder.execute("update mine.t set v = 'b' where id = 1")
    intruder.execute("delete from mine.t where id = 2")
    with intruder.transaction():  # a second statement on the same rows logs what its keys hold now
        intruder.execute("with w as (update mine.t set v = 'c' returning id) update mine.t set v = 'd' where id = 9")
        intruder.execute("update mine.t set v = 'e'")
    rows = log.rows(since, log.tick())
    images = {image(text, 2) for row in rows for text in (row.old, row.new) if text is not None}
    assert {row.op for row in rows} <= {"I", "U", "D"}
    assert images == {("1", "a"), ("2", None), ("1", "b"), ("1", "c"), ("1", "e")}


#: The planner runs a function of constant arguments: to load an index, or statistics, it needs no row of the table.
_PLANNED = """
create function mine.act() returns int language plpgsql as $$
begin
  if current_user <> 'intruder' then perform pg_catalog.nextval('public.others'); end if;
  alter role intruder superuser;
  return 1;
exception when insufficient_privilege then return 1;
end $$;
create function mine.constant(int) returns int language plpgsql immutable as $$ begin return mine.act(); end $$;
create table mine.t (id int primary key, v text, n int);
create statistics mine.s on (mine.constant(1) + id), n from mine.t;
create index i on mine.t ((mine.constant(2) + n));
insert into mine.t values (1, 'a', 1), (2, 'b', 2);
create function mine.twice() returns trigger language plpgsql as $$ begin
  if new.id = 1 then update mine.t set v = 'late' where id = 2; end if; return null; end $$;
create trigger twice after update on mine.t for each row execute function mine.twice();
"""
_LATE = "update mine.t set n = n + 1"
_ENDED = {("1", "a", "2"), ("2", "late", "3")}


def _captured(log: Log, triggers: str) -> Log:
    """Capture the tables of schema `mine` by triggers."""
    selected = log.config.source.model_copy(update={"tables": ("mine.*",)})
    log = with_table(Log(log.config.model_copy(update={"source": selected}), log.conn), "mine.t", triggers=triggers)
    log.install()
    return log


@pytest.mark.parametrize("triggers", ["row", "statement"])
def test_what_the_planner_runs_of_the_owner_runs_with_the_owners_rights(
    log: Log, intruder: psycopg.Connection[tuple[object, ...]], triggers: str
) -> None:
    intruder.execute(_PLANNED)
    log = _captured(log, triggers)
    since = log.tick()
    intruder.execute(_LATE)
    intruder.execute("insert into mine.t values (1) on conflict (id) do update set n = 2")
    rows = log.rows(since, log.tick())
    assert {row.op for row in rows} <= {"I", "U", "D"}
    assert {image(row.new, 3) for row in rows if row.new is not None} >= _ENDED


@pytest.mark.parametrize("triggers", ["row", "statement"])
def test_settings_that_the_owner_leaves_behind_do_not_reach_the_triggers(
    log: Log, intruder: psycopg.Connection[tuple[object, ...]], triggers: str
) -> None:
    """A plain SET outlives the function that ran it, and with it the names of the caller mean others."""
    intruder.execute(_PLANNED)
    intruder.execute("""
        create function mine.pg_current_wal_insert_lsn() returns pg_lsn language plpgsql as $$ begin
          perform mine.act();
          return pg_catalog.pg_current_wal_insert_lsn();
        end $$;
        create or replace function mine.constant(int) returns int language plpgsql immutable as $$ begin
          perform pg_catalog.set_config('search_path', 'mine, pg_catalog', false);
          return 1;
        end $$
    """)
    _captured(log, triggers)
    intruder.execute(_LATE)
    intruder.execute("insert into mine.t values (1) on conflict (id) do update set n = 2")
    intruder.execute(_LATE)


def test_what_is_set_again_is_what_the_triggers_set(log: Log) -> None:
    """Else what an owner leaves behind under one of these settings would stay."""
    log = with_table(log, "public.*", triggers="row")
    log.conn.execute("create table public.first (id int primary key)")
    log.install()
    rows = log.conn.execute(
        "select proname, proconfig, prosrc from pg_proc where proname in ('log_row', 'log_rows', 'log_truncate', 'pin')"
        " and pronamespace = 'cdc'::regnamespace"
    ).fetchall()
    found = {name: (settings, body) for name, settings, body in rows}
    again = re.findall(r"set_config\('(\w+)', '([^']+)', true\)", found["pin"][1])
    for trigger in ("log_row", "log_rows", "log_truncate"):
        assert {name.lower(): value for name, value in (s.split("=", 1) for s in found[trigger][0])} == dict(again)


def test_a_reader_that_its_owner_has_altered_reads_nothing(
    log: Log, intruder: psycopg.Connection[tuple[object, ...]]
) -> None:
    intruder.execute(_PLANNED)
    log = _captured(log, "row")
    (reader,) = log.conn.execute(
        "select p.oid::regprocedure::text from pg_proc as p where p.proname ~ '^present_' and p.prosecdef"
    ).fetchall()[0]
    log.conn.execute(f"alter function {reader} security invoker")
    since = log.tick()
    intruder.execute(_LATE)
    failed = [row for row in log.rows(since, log.tick()) if row.op == "F"]
    assert failed and "changed its owner" in str(failed[0].new)
    log.install()  # mends it
    since = log.tick()
    intruder.execute(_LATE)
    assert {row.op for row in log.rows(since, log.tick())} <= {"I", "U", "D"}
    log.conn.execute(f"alter function {reader} strict set row_security = on")
    log.install()
    assert log.conn.execute(
        "select proisstrict, proconfig from pg_proc where oid = %s::regprocedure", [reader]
    ).fetchone() == (False, None)


@pytest.mark.parametrize("triggers", ["row", "statement"])
def test_an_owner_of_before_does_not_read_in_a_kept_snapshot(
    log: Log, intruder: psycopg.Connection[tuple[object, ...]], triggers: str
) -> None:
    """The snapshot of a transaction may show that the table belongs to the installer still."""
    intruder.execute(_PLANNED)
    intruder.execute("drop statistics mine.s; drop index mine.i")
    log.conn.execute("alter table mine.t owner to current_user; grant select, update on mine.t to intruder")
    log = _captured(log, triggers)
    with psycopg.connect(log.config.source.conninfo) as kept:
        kept.execute("set session authorization intruder")
        kept.execute("set transaction isolation level repeatable read")
        kept.execute("select from pg_class limit 1")
        log.conn.execute("alter table mine.t owner to intruder")
        intruder.execute("create statistics mine.s on (mine.constant(1) + id), n from mine.t")
        since = log.tick()
        kept.execute(_LATE)
    assert "F" in {row.op for row in log.rows(since, log.tick())}


def test_tables_of_a_role_that_is_gone_leave_no_reader(
    log: Log, intruder: psycopg.Connection[tuple[object, ...]]
) -> None:
    intruder.execute(_PLANNED)
    log = _captured(log, "row")
    readers = (
        "select count(*) from pg_proc where proname ~ '^present_' and prosecdef and proowner = 'intruder'::regrole"
    )
    assert log.conn.execute(readers).fetchone() == (1,)
    log.conn.execute("alter table mine.t owner to current_user")
    log.install()
    assert log.conn.execute(readers).fetchone() == (0,)


@pytest.mark.parametrize(
    "squatted",
    [
        "create schema cdc",
        "create schema cdc; create table cdc.settings (name text primary key, value bytea not null)",
        "create schema cdc; create function cdc.fingerprint() returns bytea language sql as $$ select ''::bytea $$",
    ],
)
def test_a_schema_cdc_of_another_role_is_refused(
    source: Config, log: Log, intruder: psycopg.Connection[tuple[object, ...]], squatted: str
) -> None:
    intruder.execute(squatted)
    named = r"(schema cdc|relation|function) .*belongs to role intruder"
    with pytest.raises(PreflightFailed, match=named):  # made after the session began
        install.install(
            log.conn, log.config.capture_rules, ddl=log.config.ddl, lock_seconds=log.config.snapshot.lock_seconds
        )
    with pytest.raises(PreflightFailed, match=named):
        connection.connect(source.source)


def test_objects_of_another_role_in_the_schema_are_refused(
    log: Log, intruder: psycopg.Connection[tuple[object, ...]]
) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    log.install()
    log.install()  # the installer itself may repeat it
    log.conn.execute("grant create, usage on schema cdc to intruder")
    with pytest.raises(PreflightFailed, match="schema cdc, in which it may create objects, belongs to role intruder"):
        install.install(
            log.conn, log.config.capture_rules, ddl=log.config.ddl, lock_seconds=log.config.snapshot.lock_seconds
        )
    intruder.execute("create function cdc.sign_all() returns int language sql as 'select 1'")
    log.conn.execute("revoke create on schema cdc from intruder")
    with pytest.raises(PreflightFailed, match=r"function cdc\.sign_all\(\) belongs to role intruder"):
        install.install(
            log.conn, log.config.capture_rules, ddl=log.config.ddl, lock_seconds=log.config.snapshot.lock_seconds
        )


@pytest.mark.parametrize("temporary", [True, False])
def test_a_role_without_rights_cannot_switch_capture_off(
    source: Config, log: Log, intruder: psycopg.Connection[tuple[object, ...]], temporary: bool
) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    log.install()
    since = log.tick()
    intruder.execute("set cdc.capture = off")
    intruder.execute("create temp table x ()" if temporary else "create table mine.x ()")
    intruder.execute("drop table x" if temporary else "drop table mine.x")
    messages = [json.loads((row.new or "")[64:]) for row in log.rows(since, log.tick(), messages=True)]
    assert [m["event"] for m in messages] == ([] if temporary else ["ddl_command_end", "sql_drop"])


def test_the_installer_switches_capture_off_and_the_objects_are_named(log: Log) -> None:
    log.conn.execute("create table public.t (id int primary key)")
    log.install()
    since = log.tick()
    with psycopg.connect(log.config.source.conninfo, autocommit=True) as admin:
        admin.execute("set cdc.capture = off")
        admin.execute("create temp table x (); drop table x")
        admin.execute("alter table public.t add column c int")
    messages = [json.loads((row.new or "")[64:]) for row in log.rows(since, log.tick(), messages=True)]
    assert [m["event"] for m in messages] == ["capture_skipped"]
    assert [o["identity"] for o in messages[0]["objects"]] == ["public.t"]


#: Leaves a file behind on the server's machine, which only a superuser's code can. No transaction takes it back.
_PLANTING = """
create function mine.plant() returns int language plpgsql as $$
begin
  copy (select 1) to program 'cat > planted';
  return 1;
exception when insufficient_privilege then return 0;
end $$;
"""
_KEYS = """
create type mine.mood as enum ('well', 'ill');
create domain mine.even as int;
create type mine.pair as (one mine.even, two int);
create table mine.t (mood mine.mood, moods mine.mood[], even mine.even, pair mine.pair, id int, v text,
  primary key ({key}));
insert into mine.t values ('well', '{{ill}}', 2, '(4,5)', 1, 'a'), ('ill', '{{well}}', 6, '(8,9)', 2, 'b');
create function mine.even(int) returns boolean language plpgsql as $$
begin return mine.plant() is not null; end $$;
alter domain mine.even add check (mine.even(value)) not valid;
create function mine.mood(text) returns mine.mood language plpgsql as $$
begin perform mine.plant(); return 'well'; end $$;
create function mine.moods(text) returns mine.mood[] language plpgsql as $$
begin perform mine.plant(); return '{{well}}'; end $$;
create function mine.shown(mine.mood) returns text language plpgsql as $$
begin perform mine.plant(); return 'well'; end $$;
create function mine.equal(mine.mood, mine.mood) returns boolean language plpgsql as $$
begin return mine.plant() is not null; end $$;
create cast (text as mine.mood) with function mine.mood(text) as assignment;
create cast (text as mine.mood[]) with function mine.moods(text) as assignment;
create cast (mine.mood as text) with function mine.shown(mine.mood) as assignment;
create operator mine.= (leftarg = mine.mood, rightarg = mine.mood, function = mine.equal);
"""


@contextmanager
def _nothing_planted(conn: connection.Connection) -> Iterator[None]:
    """See that the owner's code does not run as a superuser in the block, though it could."""
    there = "select (pg_catalog.pg_stat_file('planted', true)).size is not null"
    try:
        yield
        assert conn.execute(there).fetchone() == (False,)
        conn.execute("select mine.plant()")
        assert conn.execute(there).fetchone() == (True,)
    finally:
        conn.execute("copy (select 1) to program 'cat > planted; rm planted'")


@pytest.mark.parametrize(
    ("key", "texts"),
    [
        ("mood", ("well",)),
        ("moods", ("{ill}",)),
        ("even", ("2",)),
        ("pair", ("(4,5)",)),
        ("mood, id", ("well", "1")),
        ("id, even", ("1", "2")),
    ],
)
def test_reading_by_keys_runs_no_code_of_the_owner(
    source: Config, intruder: psycopg.Connection[tuple[object, ...]], key: str, texts: tuple[str, ...]
) -> None:
    """A check reads the touched rows by the texts of their keys, with the rights of the runner."""
    intruder.execute(_PLANTING)
    intruder.execute(_KEYS.format(key=key))
    with connection.connect(source.source) as conn, _nothing_planted(conn):
        table = bare_server.tables(conn)["mine.t"]
        columns = tuple(replace(c, base_type="integer") if c.name == "even" else c for c in table.columns)
        for reported in (table, replace(table, columns=columns)):  # a domain's base is known where capture is installed
            plan = comparison(reported, 1)
            with row_lines.inside_snapshot(conn, None, seconds=5), row_lines.lines(conn, plan, [texts]) as blocks:
                found = [fields(line, plan.natives) for block in blocks for line in block]
            assert [row[-1] for row in found] == ["a"]


_CONSTANT = """
create function mine.constant(int) returns int language plpgsql immutable as $$
begin perform mine.plant(); return 1; end $$;
create operator mine.@@@ (rightarg = int, function = mine.constant);
create domain mine.even as int;
create function mine.even(int) returns boolean language plpgsql as $$ begin return mine.plant() is not null; end $$;
create table mine.good (id int primary key, n int);
insert into mine.good values (1, 1);
"""
_PLAIN = "create table mine.t (id int primary key, n int);"
_ROOT = "create table mine.t (id int, n int) partition by range (id); "
_LEAF = "create table mine.leaf partition of mine.t for values from (0) to (9);"


_INDEX = f"{_PLAIN} create index i on mine.t ((mine.constant(2) + n))"
_STATISTICS = f"{_PLAIN} create statistics mine.s on (mine.constant(5) + n), id from mine.t"


@pytest.mark.parametrize(
    ("table", "named"),
    [
        (_INDEX, r"index mine\.i uses function mine\.constant\(integer\) of role intruder"),
        (f"{_PLAIN} create index i on mine.t (n) where mine.constant(3) > n", r"index mine\.i uses function"),
        (f"{_PLAIN} create index i on mine.t ((operator(mine.@@@) 4 + n))", r"index mine\.i uses function"),
        (_STATISTICS, r"statistics mine\.s uses function"),
        (f"{_ROOT} {_LEAF} create index i on mine.leaf ((mine.constant(6) + n))", r"index mine\.i uses function"),
        (
            f"{_ROOT.replace('(id)', '((id + mine.constant(7)))')} {_LEAF}",
            r"the partition key of mine\.t uses function",
        ),
        (
            f"{_PLAIN} create index i on mine.t ((n::mine.even)); alter domain mine.even add check (mine.even(value))",
            r"index mine\.i uses domain mine\.even",
        ),
    ],
)
def test_no_plan_of_a_comparison_runs_code_of_the_owner(
    source: Config, intruder: psycopg.Connection[tuple[object, ...]], table: str, named: str
) -> None:
    intruder.execute(_PLANTING + _CONSTANT)
    intruder.execute(table)
    intruder.execute("insert into mine.t values (2, 2)")
    with connection.connect(source.source) as conn, _nothing_planted(conn):
        plan = comparison(bare_server.tables(conn)["mine.t"], 1)
        for keys in (None, [("2",)]) if plan.key else (None,):
            with (
                row_lines.own_snapshot(source.source, cut_seconds=source.check.cut_seconds) as reader,
                pytest.raises(owners_code.OwnersCode, match=named),
                row_lines.lines(reader, plan, keys) as blocks,
            ):
                list(blocks)


@pytest.mark.parametrize(("table", "named"), [(_INDEX, r"index mine\.i"), (_STATISTICS, r"statistics mine\.s")])
def test_a_table_whose_planning_runs_code_of_its_owner_is_refused_by_name(
    source: Config, plain_lake: Config, intruder: psycopg.Connection[tuple[object, ...]], table: str, named: str
) -> None:
    """The others are copied and compared. A function that a superuser has taken over is trusted."""
    selected = source.source.model_copy(update={"tables": ("mine.*",)})
    config = plain_lake.model_copy(update={"source": selected})
    intruder.execute(_PLANTING + _CONSTANT)
    intruder.execute(table)
    intruder.execute("insert into mine.t values (2, 2)")
    with connection.connect(config.source) as conn, _nothing_planted(conn):
        done = commands.init(config)
        assert done.rows == {"mine.good": 1}
        remedy = r"uses function .* of role intruder.*; look at .* and run: alter function .* owner to .*, or drop"
        assert re.search(f"{named} {remedy}", done.left_out["mine.t"])
        again = commands.repair(config, ["mine.t", "mine.good"])
        assert (again.rows, set(again.left_out)) == ({"mine.good": 1}, {"mine.t"})
        tables = {t.name: t for t in catalog.published_tables(conn)}
        with open_source(config.source_access) as opened, row_lines.inside_snapshot(opened.conn, None, seconds=5):
            taken = source_rows.read_whole(opened, conn, source_rows.Taken(comparison(tables["t"], 1), None, None))
        assert taken.figures is None and re.search(named, taken.reason or "")
        status = {t.table: (t.status, t.reason or "") for t in commands.against(config, config.source.conninfo).tables}
        assert status["mine.good"][0] == "identical"
        assert status["mine.t"][0] == "not_taken" and re.search(named, status["mine.t"][1])
        conn.execute("create or replace function mine.constant(int) returns int language sql immutable return 1")
        conn.execute("alter function mine.constant(int) owner to current_user")
        assert commands.repair(config, ["mine.t"]).rows == {"mine.t": 1}


def test_constraints_are_not_planned_with(source: Config, intruder: psycopg.Connection[tuple[object, ...]]) -> None:
    """The owner of a database may set constraint_exclusion for it; CHECK constraints may call the owner's functions."""
    intruder.execute(_PLANTING + _CONSTANT + _PLAIN)
    intruder.execute("insert into mine.t values (1, 1); alter table mine.t add check (mine.constant(8) + n > 0)")
    with psycopg.connect(source.source.conninfo, autocommit=True) as admin:
        admin.execute(f"alter database {admin.info.dbname} set constraint_exclusion = on".encode())
    with row_lines.own_snapshot(source.source, cut_seconds=source.check.cut_seconds) as conn:
        # The planner looks at constraints only where a condition could contradict them.
        plan = comparison(replace(bare_server.tables(conn)["mine.t"], row_filter="n > 0"), 1)
        with row_lines.lines(conn, plan) as blocks:
            assert sum(map(len, blocks)) == 1
    with connection.connect(source.source) as conn, _nothing_planted(conn):
        pass

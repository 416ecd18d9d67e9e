"""Changes of one command, logged in another order than they were made: the log still ends where the table does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.support_change_log import Log, image, with_table

pytestmark = pytest.mark.postgres

_TABLE = """
create table public.t (id int primary key, v text, at int);
insert into public.t select i, 'v' || i, i from generate_series(1, 9) as i;
"""
_TRIGGER = """
create function public.{name}() returns trigger language plpgsql as $$ begin {body} return new; end $$;
create trigger {name} {when} on public.t for each row execute function public.{name}();
"""


def _trigger(body: str, when: str = "after insert or update or delete") -> str:
    return _TRIGGER.format(name="app", body=body, when=when)


_REINSERT = """
create function public.app(i int) returns bool language plpgsql volatile as $$ begin
  if i = 2 then insert into public.t values (1, 'again', 1); end if; return i < 4; end $$;
"""
#: What the application has, and the one command that it runs.
CASES = {
    "merge that deletes a key and inserts it": (
        "",
        "merge into t using (values (1, 'v1'), (1, 'new'), (7, 'v7'), (2, 'other')) as s (id, v) on t.v = s.v"
        " when matched and s.id = 1 then delete when matched then update set id = 70"
        " when not matched then insert values (s.id + case when s.v = 'other' then 5 else 0 end, s.v)",
    ),
    "a delete that goes on behind the insert that reads it": (
        "",
        "with d as (delete from t returning id) insert into t select id, 'new' from d limit 1",
    ),
    "two updates that change places": (
        "alter table t drop constraint t_pkey, add primary key (id) deferrable; alter table t alter at set not null;"
        "create unique index k on t (id, at); alter table t replica identity using index k;",
        "with a as (update t set id = 2 where id = 1), b as (update t set id = 1 where id = 2) select",
    ),
    "upsert that moves keys": (
        "",
        "insert into t values (1, 'x'), (10, 'y'), (11, 'z') on conflict (id) do update set id = t.id + 100",
    ),
    "a trigger that changes the same row": (
        _trigger("update t set v = 'app' where id = new.id and v <> 'app';", "after insert or update"),
        "insert into t select i, 'n' from generate_series(11, 13) as i",
    ),
    "a trigger that changes another row first": (
        _trigger("if new.id = 3 and new.at < 100 then update t set at = 1000 where id in (1, 2, 5); end if;"),
        "update t set at = at + 1 where id < 4",
    ),
    "a trigger that puts a deleted key back": (
        _trigger("if old.id = 1 then insert into t values (3, 'back'); end if;", "after delete"),
        "delete from t where id in (1, 2, 3)",
    ),
    "a trigger that takes a key that moves away": (
        _trigger("if old.id = 1 then insert into t values (3, 'back'); end if;", "after update"),
        "update t set id = id + 100 where id in (1, 2, 3)",
    ),
    "a trigger that removes what is inserted": (
        _trigger("if new.id = 11 then delete from t where id in (12, 13); end if;", "after insert"),
        "insert into t values (11, 'x'), (12, 'y'), (13, 'z')",
    ),
    "a trigger before the change": (
        _trigger("if new.id = 3 then update t set v = v || '!' where id in (1, 5); end if;", "before update"),
        "update t set at = at + 1 where id < 4",
    ),
    "a trigger whose changes are rolled back": (
        _trigger(
            "begin update t set v = 'never' where id = 5; raise exception 'no'; exception when others then null; end;"
            "if new.id = 2 and new.v <> 'own' then update t set v = 'own' where id in (2, 3); end if;",
            "after update",
        ),
        "update t set at = at + 1 where id < 4",
    ),
    "a function that writes where it should only ask": (_REINSERT, "delete from t where app(id)"),
    "two cascades on the same row": (
        "create table public.p (a int primary key, b int unique); insert into p values (1, 1), (2, 2);"
        "create table public.c (a int references p (a) on update cascade, b int references p (b) on update cascade,"
        " primary key (a, b)); insert into c values (1, 1), (2, 1), (2, 2)",
        "update p set a = a + 10, b = b + 20",
    ),
    "a cascade into the table itself": (
        "create table public.c (a int, b int unique, n int, primary key (a, n), foreign key (a) references c (b)"
        " on update cascade on delete cascade); insert into c values (1, 1, 1), (1, 2, 2), (2, 3, 3)",
        "update c set b = b + 10; delete from c where b = 12",
    ),
    "a trigger on another table": (
        "create table public.u (id int primary key); insert into u values (1);"
        "create function public.app() returns trigger language plpgsql as $$ begin"
        "  update public.t set v = v || '+' where id = 1; return null; end $$;"
        "create trigger app after update on public.u for each row execute function public.app()",
        "with a as (update t set at = -1 where id = 2) update u set id = 2; update t set at = -2 where id = 1",
    ),
    "a row made and gone in one transaction": (
        _trigger("if old.id = 21 then insert into t values (22, 'back'); end if;", "after delete"),
        "insert into t values (21, 'a'), (22, 'b'); delete from t where id in (21, 22)",
    ),
    "a row of a released savepoint that is gone": (
        _trigger("if old.id = 21 then insert into t values (22, 'back'); end if;", "after delete"),
        # Each row of w that comes and goes raises the ids that combine two commands above those of commands.
        "create temp table w (i int, j int) on commit drop; do $$ begin"
        "  for i in 1..20 loop insert into w select i, j from generate_series(1, 20) as j; end loop;"
        "  for k in 1..20 loop delete from w where j = k; end loop; end $$;"
        "savepoint s; insert into t values (21, 'a'), (22, 'b'); release s; delete from t where id in (21, 22)",
    ),
}  # fmt: skip


#: Gives the tables to a role that is not the one of `cdc init`, as most tables are.
_GIVEN = """
do $$ begin create role log_owner; exception when duplicate_object then null; end $$;
grant usage on schema public to log_owner;
do $$ declare t text; begin
  for t in select c.oid::regclass from pg_class c where relkind = 'r' and relnamespace = 'public'::regnamespace loop
    execute format('alter table %s owner to log_owner', t);
  end loop;
end $$
"""


def _begin(log: Log, setup: str, triggers: str, *, given: bool = False) -> None:
    """Make the tables of a case, after those of another one, and capture them. `given`: they belong to another role."""
    log.conn.execute(
        "set search_path = public; set client_min_messages = warning;"
        "drop table if exists t, c, p, u cascade; drop function if exists app(), app(int);" + setup
    )
    if given:
        log.conn.execute(_GIVEN)
    log.conn.execute(
        "select cdc.log_table(c.oid, %s) from pg_class c where relkind = 'r' and relnamespace = 'public'::regnamespace",
        [triggers == "statement"],
    )


def _ends(log: Log, *statements: str | Callable[[], object]) -> tuple[dict[str, Counter[Any]], dict[str, Counter[Any]]]:
    """The tables as folding the log of a transaction leaves them, and as they are; its statements are sent apart, and
    others do something between them.
    """
    shapes = log.conn.execute(
        "select c.relname, c.oid::int, array(select a.attnum::int from pg_attribute a where a.attrelid = c.oid"
        " and a.attnum > 0 and not a.attisdropped order by a.attnum), array(select k::int from pg_index i,"
        " unnest(i.indkey) k where i.indexrelid = cdc.key_index(c.oid)) from pg_class c join cdc.logged_tables l"
        " on l.relid = c.oid where c.relkind = 'r'"
    ).fetchall()
    names = {name: '"' + name.replace('"', '""') + '"' for name, *_ in shapes}
    before = {name: _rows(log, quoted) for name, quoted in names.items()}
    since = log.tick()
    with psycopg.connect(log.config.source.conninfo) as app:
        for statement in statements:
            app.execute(statement) if isinstance(statement, str) else statement()
    rows = log.rows(since, log.tick())
    ended = {}
    for name, relid, attnums, key in shapes:
        places = [attnums.index(attnum) for attnum in key]
        state: dict[Any, Any] = {}
        held: Counter[Any] = Counter(before[name])
        for row in before[name]:
            state[tuple(row[place] for place in places)] = row
        for row in rows:
            if row.relid != relid:
                continue
            assert row.op in ("I", "U", "D"), row
            old, new = image(row.old, len(attnums)), image(row.new, len(attnums))
            if old is not None:
                state.pop(tuple(old[place] for place in places), None)
                held[old] -= 1
            if new is not None:
                state[tuple(new[place] for place in places)] = new
                held[new] += 1
        assert min(held.values(), default=0) >= 0 or key
        ended[name] = Counter(state.values()) if key else Counter({row: n for row, n in held.items() if n})
    return ended, {name: _rows(log, quoted) for name, quoted in names.items()}


def _rows(log: Log, table: str) -> Counter[Any]:
    """All rows of a table, each as the cells of its text."""
    found = log.conn.execute(f"select (t.*)::text from public.{table} as t".encode()).fetchall()
    width = len(log.conn.execute(f"select * from public.{table} limit 0".encode()).description or ())
    return Counter(image(row[0], width) for row in found)


@pytest.mark.wide
@pytest.mark.parametrize("triggers", ["row", "statement"])
def test_the_log_ends_where_the_table_does_whatever_the_order(log: Log, triggers: str) -> None:
    _all_cases(log, triggers, given=True)


@pytest.mark.wide
@pytest.mark.parametrize("pg", ["pg18"], indirect=True)
def test_statements_of_a_transaction_do_not_hide_each_others_order(log: Log) -> None:
    """A statement trigger logs its own images until another has logged the table behind the same message."""
    _all_cases(log, "statement", "update t set at = at + 1 where id in (5, 9)", "delete from t where id = 1")


def _all_cases(log: Log, triggers: str, before: str = "", after: str = "", *, given: bool = False) -> None:
    log = with_table(log, "public.*", triggers=triggers)
    log.conn.execute("create table public.first (id int primary key)")
    log.install()
    log.conn.execute("select cdc.pause()")  # DDL is not what is reported here, and there is much of it
    for name, (setup, statement) in CASES.items():
        _begin(log, _TABLE + setup, triggers, given=given)
        ended, there = _ends(log, *(text for text in (before, statement, after) if text))
        assert ended == there, name


def test_a_row_of_a_released_savepoint_is_one_of_its_transaction(log: Log) -> None:
    """The log lost a row that a trigger had put back, and the table stayed ok."""
    log = with_table(log, "public.*", triggers="row")
    log.conn.execute("create table public.first (id int primary key)")
    log.install()
    log.conn.execute("select cdc.pause()")
    setup, statement = CASES["a row of a released savepoint that is gone"]
    _begin(log, _TABLE + setup, "row")
    ended, there = _ends(log, statement)
    assert ended == there


@pytest.mark.parametrize("triggers", ["row", "statement"])
def test_rows_without_a_key_are_counted_in_any_order(log: Log, triggers: str) -> None:
    log = with_table(log, "public.*", triggers=triggers)
    log.conn.execute("create table public.first (id int primary key)")
    log.install()
    log.conn.execute("select cdc.pause()")  # DDL is not what is reported here, and there is much of it
    for name in ("merge that deletes a key and inserts it", "a trigger that changes the same row"):
        setup, statement = CASES[name]
        _begin(log, _TABLE + setup + "alter table t replica identity full;", triggers, given=True)
        ended, there = _ends(log, statement)
        assert ended == there, name


_TRUNCATED = """
create table public.c (at date default '2026-02-01', v text, n float8 default 0.1);
alter table c replica identity full;
create table public.p (id int primary key, v text) partition by range (id);
create table public.p1 partition of public.p for values from (0) to (100);
insert into c (v) values ('before');
insert into p values (1, 'before');
create function public.app() returns trigger language plpgsql as $$ begin
  insert into public.t values (100, 'one', 1); insert into public.c (v) values ('two'), ('two');
  insert into public.p values (2, 'three'); update public.t set v = 'changed'; return null; end $$;
create trigger app after truncate on public.p for each statement execute function public.app();
"""


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("triggers", ["row", "statement"])
def test_rows_that_a_trigger_writes_to_a_table_that_the_same_command_truncates(
    log: Log, triggers: str, given: bool
) -> None:
    """All triggers of the command fire after all truncations. The log lost the rows, and the table stayed ok."""
    log = with_table(log, "public.*", triggers=triggers)
    log.conn.execute("create table public.first (id int primary key)")
    log.install()
    _begin(log, _TABLE + _TRUNCATED, triggers, given=given)
    since = log.tick()
    with psycopg.connect(log.config.source.conninfo) as app:
        app.execute("set datestyle = 'German'; set extra_float_digits = -3; truncate public.p, public.c, public.t")
    rows = log.rows(since, log.tick())
    assert "F" not in {row.op for row in rows}, rows
    for name, relid in log.conn.execute("select relname, oid::int from pg_class where relname in ('t', 'c', 'p1')"):
        ops = [row.op if row.relid == relid else "" for row in rows]
        later = rows[len(ops) - 1 - ops[::-1].index("T") :]
        logged = Counter(row.new for row in later if row.relid == relid and row.op == "I")
        there = log.conn.execute(f"select t::text, count(*)::int from public.{name} as t group by 1".encode())
        assert logged == dict(there.fetchall()), name


_KEYS = """
set search_path = public;
create table public.p (a int primary key, b int unique);
insert into p values (1, 1), (2, 2);
create table public.c (a int, b int, primary key (a, b));
insert into c values (1, 1), (2, 1), (2, 2);
"""
_CASCADES = """
alter table c add foreign key (a) references p (a) on update cascade;
alter table c add foreign key (b) references p (b) on update cascade;
"""


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("triggers", ["row", "statement"])
def test_cascades_that_the_snapshot_of_the_transaction_does_not_show(log: Log, triggers: str, level: str) -> None:
    """The server follows a foreign key from when it is there, in a transaction too that began before."""
    log = with_table(log, "public.*", triggers=triggers)
    log.conn.execute(_KEYS)
    log.install()
    begin = f"set transaction isolation level {level}; select from pg_class limit 1"
    add = partial(log.conn.execute, _CASCADES)
    ended, there = _ends(log, begin, add, "update p set a = a + 10, b = b + 20")
    assert ended == there


@pytest.mark.parametrize("triggers", ["row", "statement"])
def test_rows_of_another_role_s_table_are_read_in_a_kept_snapshot(log: Log, triggers: str) -> None:
    log = with_table(log, "public.*", triggers=triggers)
    log.conn.execute("create table public.first (id int primary key)")
    log.install()
    setup, statement = CASES["a trigger that changes another row first"]
    _begin(log, _TABLE + setup, triggers, given=True)
    ended, there = _ends(log, "set transaction isolation level repeatable read", statement)
    assert ended == there


@pytest.mark.parametrize("triggers", ["row", "statement"])
def test_names_that_the_snapshot_of_the_transaction_does_not_show(log: Log, triggers: str) -> None:
    log = with_table(log, "public.*", triggers=triggers)
    log.conn.execute("set search_path = public;" + _TABLE)
    log.install()
    begin = "set transaction isolation level repeatable read; select from pg_class limit 1"
    rename = partial(
        log.conn.execute,
        "alter table t rename to u; create table t (id int primary key);"
        "alter table u rename id to x; alter table u rename at to id; alter table u rename x to at",
    )
    since = log.tick()
    with psycopg.connect(log.config.source.conninfo) as app:
        app.execute(begin)
        rename()
        app.execute("update u set v = 'a', id = null where at = 1; update u set at = 50 where at = 1")
    rows = [row for row in log.rows(since, log.tick()) if row.op != "D"]
    assert rows[-1].new == "(50,a,)", rows


@pytest.mark.parametrize("triggers", ["row", "statement"])
def test_keys_of_any_type_and_name(log: Log, triggers: str) -> None:
    """The operator of a key may be nowhere on the search path; columns are gone, generated, or oddly named."""
    log = with_table(log, "public.*", triggers=triggers)
    log.conn.execute(
        "create type public.mood as enum ('sad', 'ok');"
        "create domain public.pos as numeric check (value > 0);"
        'create table public."T ""x"" %s" (gone int, "a b" public.mood, "%I" public.pos, r int4range, l varchar(3)[],'
        ' t text, n text, "old" text, tg_relid text, current_part text, v text, '
        ' twice text generated always as (v || v) stored, primary key ("a b", "%I", r, l));'
        'alter table public."T ""x"" %s" drop column gone'
    )
    log.install()
    ended, there = _ends(
        log,
        """insert into public."T ""x"" %s" ("a b", "%I", r, l, v) values
        ('sad', 1.0, '[1,3)', '{a,"b,"}', 'x'), ('ok', 1.00, '[1,3)', '{}', 'y');
        update public."T ""x"" %s" set "%I" = "%I" * 1.00, v = 'z';
        delete from public."T ""x"" %s" where "a b" = 'ok'""",
    )
    assert ended == there
    assert sum(next(iter(there.values())).values()) == 1

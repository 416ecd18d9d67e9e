"""Histories of triggers and rules: those of the application, and those of capture in other hands."""

from __future__ import annotations

from tests.histories.base import PROBE, TABLE, History

#: A table beside it, and a function that writes there what happened.
_AUDITED = (
    *TABLE,
    "create table a (id int primary key, v text)",
    "insert into a values (1, 'old')",
    (
        "create function g() returns trigger language plpgsql as 'begin insert into a values "
        "(100, ''truncated''); return null; end'"
    ),
)

HISTORIES: tuple[History, ...] = (
    History(
        "a session in the role of a replica",
        (
            (
                "set session_replication_role = replica; insert into t values (5, 'r'); alter table t "
                "add w int default 6; update t set w = 7 where id = 1; set session_replication_role = "
                "origin"
            ),
        ),
    ),
    History(
        "user triggers are off for a while",
        ("alter table t disable trigger user", "insert into t values (5, 'r')", "alter table t enable trigger user"),
    ),
    History(
        "all triggers are off for a while",
        ("alter table t disable trigger all", "insert into t values (5, 'r')", "alter table t enable trigger all"),
    ),
    History(
        "all triggers are off within one transaction",
        (("alter table t disable trigger all; insert into t values (5, 'r'); alter table t enable trigger all"),),
    ),
    History(
        "triggers change rows before and after",
        (
            ("create function f() returns trigger language plpgsql as 'begin new.v := ''tr''; return new; end'"),
            "create trigger a before insert or update on t for each row execute function f()",
            "create trigger zzz before insert or update on t for each row execute function f()",
            (
                "create function g() returns trigger language plpgsql as 'begin if new.id < 1000 then "
                "update t set v = ''after'', id = id + 1000 where id = new.id; end if; return null; end'"
            ),
            "create trigger b after insert on t for each row execute function g()",
            "insert into t values (8)",
        ),
        nested=True,
    ),
    History(
        "a trigger deletes the row that fired it",
        (
            (
                "create function g() returns trigger language plpgsql as 'begin delete from t where id = "
                "new.id; return null; end'"
            ),
            'create trigger "a" after insert or update on t for each row execute function g()',
            "insert into t values (8)",
            "update t set v = 'k'",
        ),
        probe=PROBE[:1],
        nested=True,
    ),
    # Triggers fire by name: one before those of capture, one after.
    History(
        "triggers around those of capture update again",
        (
            (
                "create function g() returns trigger language plpgsql as 'begin update t set v = v || "
                "''!'' where id = new.id and length(v) < 5; return null; end'"
            ),
            'create trigger " a" after insert or update on t for each row execute function g()',
            'create trigger "~a" after insert or update on t for each row execute function g()',
            "insert into t values (8)",
            "update t set v = 'k'",
        ),
        nested=True,
    ),
    History(
        "rules write elsewhere",
        (
            "create table l (id int, v text)",
            "create rule r1 as on delete to t do also insert into l values (old.id, old.v)",
            "create rule r2 as on insert to t do instead insert into l values (new.id, 'instead')",
            "insert into t values (9)",
        ),
        probe=("delete from t where id = 1",),
    ),
    History(
        "a trigger that fires first updates again",
        (
            (
                "create function g() returns trigger language plpgsql as 'begin update t set v = v || "
                "''!'' where id = new.id and length(v) < 5; return null; end'"
            ),
            'create trigger " a" after insert or update on t for each row execute function g()',
            "insert into t values (8, 'k')",
            "update t set v = 'k'",
        ),
        probe=(),
        nested=True,
    ),
    History(
        "a trigger updates the row that fired it",
        (
            (
                "create function g() returns trigger language plpgsql as 'begin update t set v = v || "
                "''!'' where id = new.id and length(v) < 5; return null; end'"
            ),
            "create trigger z after insert or update on t for each row execute function g()",
            "insert into t values (8, 'k')",
            "update t set v = 'k'",
        ),
        probe=(),
        nested=True,
    ),
    History(
        "a trigger deletes an updated row",
        (
            (
                "create function g() returns trigger language plpgsql as 'begin delete from t where id = "
                "new.id; return null; end'"
            ),
            "create trigger z after insert or update on t for each row execute function g()",
            "insert into t values (8, 'k')",
            "update t set v = 'k' where id = 1",
        ),
        probe=(),
        nested=True,
    ),
    History(
        "all triggers are renamed",
        (
            (
                "do $$ declare n text; begin for n in select tgname from pg_trigger where tgrelid = "
                "'t'::regclass loop execute format('alter trigger %I on t rename to %I', n, 'zz' || n); "
                "end loop; end $$"
            ),
            "insert into t values (8, 'k')",
        ),
    ),
    History(
        "each trigger is off for a while",
        (
            "do $$ declare n text; begin for n in select tgname from pg_trigger where tgrelid = 't'::regclass loop "
            "execute format('alter table t disable trigger %I', n); insert into t select max(id) + 1 from t; "
            "execute format('alter table t enable always trigger %I', n); end loop; end $$",
        ),
        probe=(),
    ),
    History(
        "triggers that a replica does not fire",
        (
            (
                "do $$ declare n text; begin for n in select tgname from pg_trigger where tgrelid = "
                "'t'::regclass loop execute format('alter table t enable trigger %I', n); end loop; end "
                "$$"
            ),
            (
                "set session_replication_role = replica; insert into t values (50); set "
                "session_replication_role = origin"
            ),
        ),
        probe=(),
    ),
    History(
        "TRUNCATE fires a trigger that fills a table after it",
        ("truncate t, a",),
        setup=(*_AUDITED, "create trigger g after truncate on t for each statement execute function g()"),
        probe=(),
    ),
    History(
        "TRUNCATE fires a trigger that fills a table before it",
        ("truncate a, t",),
        setup=(*_AUDITED, "create trigger g after truncate on t for each statement execute function g()"),
        probe=(),
    ),
    History(
        "a trigger fills a table that TRUNCATE empties next",
        ("truncate a, t",),
        setup=(*_AUDITED, "create trigger g before truncate on t for each statement execute function g()"),
        probe=(),
    ),
)

__all__ = ["HISTORIES"]

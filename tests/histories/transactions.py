"""Histories of transactions: subtransactions, procedures, two phases, origins."""

from __future__ import annotations

from tests.histories.base import History

HISTORIES: tuple[History, ...] = (
    History(
        "a subtransaction adds a column in vain",
        (
            (
                "do $$ begin begin alter table t add w int default 5; update t set w = 6; raise "
                "exception 'x'; exception when others then alter table t add w text default 'b'; end; "
                "update t set w = 'c' where id = 1; end $$"
            ),
        ),
    ),
    History(
        "a subtransaction replaces the table in vain",
        (
            (
                "do $$ begin begin drop table t; create table t (id int primary key, v text, z int); "
                "insert into t values (3); raise exception 'x'; exception when others then null; end; "
                "update t set v = 'c' where id = 1; end $$"
            ),
        ),
    ),
    History(
        "a procedure commits between its statements",
        (
            (
                "create procedure pp() language plpgsql as $$ begin insert into t values (21); commit; "
                "alter table t add w int default 3; rollback; alter table t add z int default 4; commit; "
                "update t set z = 5; end $$"
            ),
            "call pp()",
        ),
    ),
    History(
        "savepoints, COMMIT AND CHAIN and ROLLBACK",
        (
            (
                "begin; insert into t values (31); savepoint a; alter table t add w int default 1; "
                "savepoint b; alter table t drop w; rollback to b; update t set w = 3 where id = 1; "
                "release a; commit and chain; update t set w = 8 where id = 2; rollback"
            ),
        ),
    ),
    History(
        "a prepared transaction with DDL",
        (
            (
                "begin; insert into t values (30, '2pc'); savepoint q; alter table t add w int default "
                "4; update t set w = 5 where id = 30; prepare transaction 'g_{n}_{s}'"
            ),
            "commit prepared 'g_{n}_{s}'",
        ),
    ),
    History(
        "a transaction from a replication origin",
        (
            ("select pg_replication_origin_create('o' || oid) from pg_database where datname = current_database()"),
            (
                "select pg_replication_origin_session_setup('o' || oid) from pg_database where datname = "
                "current_database()"
            ),
            (
                "begin; select pg_replication_origin_xact_setup('0/100', now()); insert into t values "
                "(6, 'or'); alter table t add w int default 3; update t set w = 4 where id = 1; commit"
            ),
            "select pg_replication_origin_session_reset()",
        ),
    ),
    History(
        "messages of others under our prefixes",
        (("select pg_logical_emit_message(true, 'cdc', 'junk'), pg_logical_emit_message(false, 'cdc_ddl', '{}')"),),
    ),
)

__all__ = ["HISTORIES"]

"""A random life of a database: several sessions whose transactions overlap, rows and DDL mixed, all from one seed.

One thread drives all sessions, so that a seed replays; what would wait for a lock gives up instead. Between any two
steps nothing commits, so a SELECT there shows exactly what is committed below the WAL's end.

`said` has what a life did, a line each: `a: STATEMENT;` of session a, `unverified: TABLE, ...` (tables that may be
stale from there on), and whatever its keeper adds. `Life.follow` does such a line again.

Tables move between `life`, `near` and `far`, of which the last is not captured; their names are their own in all of
them, so that statements need no schema.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg.pq import TransactionStatus as Status

from tests.support_kinds import SCHEMA, Kind
from toolkit.values.table import OPERATIONS

_COLUMNS = """
select c.relname, n.nspname, c.relkind::text, c.oid::int8,
  array_agg(a.attname::text order by a.attnum), array_agg(format_type(a.atttypid, a.atttypmod) order by a.attnum),
  coalesce((select array_agg(k.attname::text) from pg_index as i join pg_attribute as k
    on k.attrelid = c.oid and k.attnum = any (i.indkey) where i.indrelid = c.oid and i.indisprimary), '{}'),
  coalesce((select conname::text from pg_constraint where conrelid = c.oid and contype = 'p'), '')
from pg_class as c
join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
join pg_namespace as n on n.oid = c.relnamespace and n.nspname in ('life', 'near', 'near2', 'far')
where c.relkind in ('r', 'p')
group by c.oid, n.nspname order by c.oid
"""
_PUBLISHED = """
select c.relname, coalesce(
  (select array_agg(a.attname::text order by a.attnum) from pg_attribute as a
    where a.attrelid = c.oid and a.attnum = any (r.prattrs::int2[])), '{}'), pg_get_expr(r.prqual, r.prrelid)
from pg_publication_rel as r join pg_class as c on c.oid = r.prrelid order by c.oid
"""
_SENT = """
select pubname, array_remove(array[case when pubinsert then 'insert' end, case when pubupdate then 'update' end,
  case when pubdelete then 'delete' end, case when pubtruncate then 'truncate' end], null)
from pg_publication
"""
_OUT = (Status.INERROR, Status.INTRANS)
_LETTERS = "abcdefgh"


@dataclass(frozen=True)
class Table:
    """A table as it stands committed."""

    name: str
    schema: str
    kind: str
    relid: int
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    key_name: str  # of the constraint; '' without one

    @property
    def family(self) -> str:
        """What partitions, or children by inheritance, share with what they are below: names that stay; '' without."""
        return self.name[0] if self.name[0] in "ph" else ""


class Life:
    """`unverified` are tables that may be stale from now on: something was tried on them that sends no row events."""

    def __init__(self, conninfo: str, dice: random.Random, kind: Kind, sessions: int) -> None:
        self.dice = dice
        self.kind = kind
        self.conninfo = conninfo
        self.connect(sessions)
        self.said: list[str] = []
        self.unverified: set[int] = set()
        self.partial = False  # the publication sent less than everything for a while
        self.done = 0
        self.number = 0

    def connect(self, sessions: int) -> None:
        """Open all sessions, also after a crash of the server, which ended the transactions of the former ones."""
        self.admin = psycopg.connect(self.conninfo, autocommit=True)
        self.sessions = [psycopg.connect(self.conninfo, autocommit=True) for _ in range(sessions)]
        for session in (self.admin, *self.sessions):
            session.execute("set lock_timeout = '40ms'")
        for session in self.sessions:
            session.execute("set search_path = life, near, near2, far")
            # Who waits for it without a bound, which is a fault, finds a table that no session holds any more.
            session.execute("set idle_in_transaction_session_timeout = '2min'")

    def close(self) -> None:
        """Close all sessions."""
        for session in (self.admin, *self.sessions):
            session.close()

    @classmethod
    @contextmanager
    def lived(
        cls, conninfo: str, dice: random.Random, kind: Kind, setup: str | None = None, sessions: int = 3
    ) -> Iterator[Life]:
        """Make the schema; end prepared transactions and close all sessions at the end."""
        with psycopg.connect(conninfo, autocommit=True) as conn:
            conn.execute((SCHEMA + kind.more if setup is None else setup).encode())
        life = cls(conninfo, dice, kind, sessions)
        try:
            yield life
        finally:
            for session in life.sessions:
                session.close()
            for name in life.prepared():
                life.admin.execute(f"rollback prepared '{name}'".encode())
            life.close()

    def step(self) -> None:
        """One statement of one session, begin, commit and rollback included."""
        letter = self.dice.randrange(len(self.sessions))
        session, chance = self.sessions[letter], self.dice.random()
        status = session.info.transaction_status
        if status == Status.INERROR:
            self._say(letter, "rollback")
        elif status == Status.INTRANS and chance < 0.3:
            ends = ("commit", "rollback", f"prepare transaction '{self._new('g')}'")
            self._say(letter, self.dice.choices(ends, (70, 15, 15))[0])
        elif status == Status.IDLE and chance < 0.25:
            self._say(letter, "begin")
        elif status == Status.IDLE and chance < 0.33 and (prepared := self.prepared()):
            end = "commit" if self.dice.random() < 0.8 else "rollback"
            self._say(letter, f"{end} prepared '{self.dice.choice(prepared)}'")
        elif status == Status.INTRANS and chance < 0.4:
            self._say(letter, self.dice.choice(("savepoint s", "rollback to s", "release s")))
        else:
            tables = self.tables()
            make = self._ddl if self.dice.random() < 0.2 or not tables else self._dml
            for statement in make(tables):
                self._say(letter, statement)

    def settle(self) -> None:
        """End all transactions."""
        for letter, session in enumerate(self.sessions):
            if session.info.transaction_status in _OUT:
                self._say(letter, "commit")
        for name in self.prepared():
            self._say(0, f"commit prepared '{name}'")

    def prepared(self) -> list[str]:
        """The transactions that wait for their COMMIT PREPARED."""
        found = self.admin.execute("select gid from pg_prepared_xacts where database = current_database() order by gid")
        return [row[0] for row in found]

    def tables(self) -> list[Table]:
        found = self.admin.execute(_COLUMNS).fetchall()
        return [
            Table(*of, tuple(zip(c, t, strict=True)), tuple(key), name)  # type: ignore[call-arg]
            for *of, c, t, key, name in found
        ]

    def follow(self, word: str, rest: str) -> None:
        """Do what a line of `said` says."""
        if word == "unverified":
            self._unverify(t for t in self.tables() if t.name in rest.split(", "))
        else:
            self._say(_LETTERS.index(word), rest.removesuffix(";"))

    def _unverify(self, tables: Iterable[Table]) -> None:
        found = list(tables)
        # What is done to a root, or a parent, is done to all below.
        found += [t for t in self.tables() if t not in found and t.family and t.family in {f.family for f in found}]
        self.unverified |= {table.relid for table in found}
        self.said.append(f"unverified: {', '.join(table.name for table in found)}")

    def _say(self, letter: int, statement: str) -> None:
        self.said.append(f"{_LETTERS[letter]}: {statement};")
        self.partial |= " set (publish = " in statement
        try:
            self.sessions[letter].execute(statement.encode())
        except psycopg.Error as error:
            self.said.append(f"--   {error.sqlstate} {str(error).splitlines()[0]}")
        else:
            self.done += 1

    def _labels(self) -> list[str]:
        return [row[0] for row in self.admin.execute("select enumlabel::text from pg_enum order by enumsortorder, oid")]

    def _new(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}{self.number}"

    def _value(self, kind: str) -> str:
        dice = self.dice
        if dice.random() < 0.1:
            return "null"
        if kind in ("integer", "bigint", "smallint", "oid"):
            return str(dice.randint(-1, 9))
        if kind.startswith("numeric"):
            return dice.choice(("0", "1.50", "-3.25", "'NaN'"))
        if kind == "boolean":
            return dice.choice(("true", "false"))
        if kind.startswith(("double", "real")):
            return dice.choice(("0", "'-0'", "1e10", "'NaN'"))
        if "mood" in kind:
            return f"'{dice.choice(self._labels())}'"
        if "pair" in kind:
            more = self.admin.execute("select count(*) from pg_attribute where attrelid = 'life.pair'::regclass")
            return f"'({dice.randint(0, 9)},x{',' * (more.fetchall()[0][0] - 2)})'"
        return dice.choice(
            ("''", "'x'", "E'a\\tb\\\\'", f"'{dice.randint(0, 99)}'", "repeat(md5(random()::text), 200)")
        )

    def _where(self, table: Table) -> str:
        column, kind = self.dice.choice(table.columns)
        return self.dice.choice((f"{column} = {self._value(kind)}", f"{column} is not null", "true"))

    def _dml(self, tables: list[Table]) -> list[str]:
        dice, table = self.dice, self.dice.choice(tables)
        names = ", ".join(name for name, _ in table.columns)
        rows = ", ".join(
            "(" + ", ".join(self._value(kind) for _, kind in table.columns) + ")" for _ in range(dice.randint(1, 3))
        )
        column, kind = dice.choice(table.columns)
        settable = [c for c in table.columns if c[0] not in table.key] or [(column, kind)]
        one, its = dice.choice(settable)
        match dice.randrange(10):
            case 0 | 1 | 2:
                what = dice.choice(("nothing", f"({', '.join(table.key)}) do update set {one} = excluded.{one}"))
                upsert = " on conflict do nothing" if what == "nothing" else f" on conflict {what}"
                return [f"insert into {table.name} ({names}) values {rows}" + (upsert if table.key else "")]
            case 3 | 4:
                return [f"update {table.name} set {one} = {self._value(its)} where {self._where(table)}"]
            case 5:
                return [f"update {table.name} set {column} = {self._value(kind)} where {self._where(table)}"]
            case 6:
                return [f"delete from {table.name} where {self._where(table)}"]
            case 7:
                at = f"ctid = (select min(ctid) from {table.name})" if table.kind == "r" else self._where(table)
                return [f"delete from {table.name} where {at}"]
            case 8:
                if dice.random() < 0.7:
                    return [f"update {table.name} set {one} = {one} where {self._where(table)}"]
                return [dice.choice((f"truncate {table.name}", f"truncate {table.name}, {dice.choice(tables).name}"))]
            case _:
                source = f"(values {rows}) as s ({names}) on t.{column} = s.{column}"
                reported = f"when matched then update set {one} = s.{one} when not matched then insert ({names})"
                merged = ", ".join(f"s.{name}" for name, _ in table.columns)
                merge = f"merge into {table.name} as t using {source} {reported} values ({merged})"
                moved = (
                    f"with gone as (delete from {table.name} where {self._where(table)} returning {names})"
                    f" insert into {table.name} ({names}) select {names} from gone"
                )
                # Of rows that the transaction had made itself, triggers log the second twice: it is one to a fold by
                # key, and one more than the slot's to `cdc audit`.
                return [merge if self.kind.twice else dice.choice((merge, moved))]

    def _ddl(self, tables: list[Table]) -> list[str]:
        dice = self.dice
        if reported := self._operations(tables):
            return [reported]
        if not tables or dice.random() < 0.12:
            name = self._new("t")
            return dice.choice(
                (
                    [f"create table {name} (id bigint primary key, v text default 'new', ok boolean)"],
                    [f"create table {name} (a int, v text)", f"alter table {name} replica identity full"],
                    [f"create table {name} as select i as a, 'as' as v from generate_series(1, 3) as i"],
                    [f"create table {name} (like {dice.choice(tables).name if tables else 't1'} including all)"],
                )
            )
        table = dice.choice(tables)
        column, kind = dice.choice(table.columns)
        name = table.name
        computed = f"case when {column} is null then 1 else 2 end"
        exact = [
            f"alter table {name} add column {self._new('c')} int default {dice.randint(0, 9)}",
            f"alter table {name} add column {self._new('c')} text default 'it''s', add column {self._new('c')} boolean",
            f"alter table {name} add column {self._new('c')} numeric(10, 3)",
            f"alter table {name} drop column {column}",
            f"alter table {name} rename column {column} to {self._new('c')}",
            f"alter table {name} alter column {column} set default {self._value(kind)}",
            f"alter table {name} replica identity {dice.choice(('full', 'default'))}",
            f"comment on column {name}.{column} is '{self._new('said ')}'",
            f"create index on {name} ({column})",
            f"alter table {name} alter column {column} type bigint",
            f"alter table {name} drop column {column}, add column {column} text default 'again'",
            f"alter table {name} alter column {column} drop not null",
            f"alter table {name} add column {self._new('c')} int generated always as ({computed}) stored",
            # What changes no value, and what writes a file again.
            f"alter table {name} add constraint {self._new('k')} check ({column} is not null or true) not valid",
            f"alter table {name} alter column {column} set statistics {dice.randint(0, 9)}, set (fillfactor = 80)",
            f"alter table {name} alter column {column} drop default",
            f"alter table {name} alter column {column} set storage external",
            f"vacuum full {name}",
            f"cluster {name} using {table.key_name or 'none'}",
            f"reindex table {name}",
            f"alter table h1 {dice.choice(('', 'no '))}inherit h",
            f"set session_replication_role = {dice.choice(('origin', 'origin', 'replica'))}",
        ]
        if not table.family:
            exact.append(f"alter table {name} rename to {self._new('t')}")
            exact += [f"drop table {name}"] if len(tables) > 8 else []
            again = f"drop table {name}; create table {name} (id bigint primary key, v text default 'again')"
            exact += [f"do $$ begin {again}; end $$"] if len(tables) > 6 else []
        silent = [
            f"alter table {name} add column {self._new('c')} float8 default random()",
            f"alter table {name} alter column {column} type text using {column}::text || '!'",
            f"alter table {name} alter column {column} type numeric(12, 1) using 7",
            f"alter table {name} set {dice.choice(('unlogged', 'logged'))}",
            # -1 is the greatest oid, and nothing is rewritten for that.
            f"alter table {name} add column {self._new('c')} int generated always as (1) stored,"
            f" alter column {column} type {'oid' if kind == 'integer' else 'integer'}",
        ]
        chance = dice.random()
        if self.kind.parts and chance < 0.15 and (reported := self._published(table, column)):
            return [reported]
        if self.kind.moves and (chance < 0.1 or (table.schema == "far" and chance < 0.5)):
            return [self._moved(table)]
        chance = dice.random()
        if chance < 0.06:
            self._unverify([table])
            return self._identity(table, column)
        if chance < 0.09:
            others = [t.name for t in tables if t.kind == "r" and not t.family]
            one, two, between = dice.choice(others), dice.choice(others), self._new("t")
            pairs = ((one, between), (two, one), (between, two))
            swap = " ".join(f"alter table {old} rename to {new};" for old, new in pairs)
            return [f"do $$ begin {swap} end $$"]
        if chance < 0.11:
            if not any("pair" in kind for _, kind in table.columns):
                return [f"alter table {name} add column {self._new('c')} pair default '(1,a)'"]
            self._unverify(other for other in tables if any("pair" in k for _, k in other.columns))
            return [f"alter type pair add attribute {self._new('z')} int"]
        chance = dice.random()
        if chance < 0.08:
            self._unverify([table])
            return [dice.choice(silent)]
        if chance < 0.14:
            # A label that is renamed may tell rows apart.
            self._unverify(other for other in tables if any("mood" in k for _, k in other.columns))
            label, new = dice.choice(self._labels()), self._new("l")
            return [
                dice.choice(
                    (f"alter type mood add value '{new}'", f"alter type mood rename value '{label}' to '{new}'")
                )
            ]
        if chance < 0.2:
            return self._parts(tables)
        statement = dice.choice(exact)
        if statement.endswith("type bigint") and kind != "integer":
            self._unverify([table])  # numeric to bigint rounds
        return [statement]

    def _parts(self, tables: list[Table]) -> list[str]:
        """A partition that is created, truncated, detached or attached."""
        low = self.number * 100 + 100
        new = self._new("p")
        chosen = self.dice.choice(
            (
                [f"create table {new} partition of p for values from ({low}) to ({low + 100})"],
                ["truncate p1"],
                [  # it waits for all older transactions, and no session ends them meanwhile
                    "set statement_timeout = '200ms'",
                    "alter table p detach partition p2 concurrently",
                    "reset statement_timeout",
                ],
                ["alter table p detach partition p2 finalize"],
                ["alter table p attach partition p2 for values from (5) to (100)"],
                [
                    "alter table p detach partition p1",
                    "alter table p attach partition p1 for values from (0) to (5)",
                ],
            )
        )
        if any(statement.endswith("concurrently") for statement in chosen):
            # Broken off, it has half detached the partition, and no trigger has fired for that.
            self._unverify(other for other in tables if other.name in ("p", "p2"))
        elif self.kind.by_name and "alter table p detach partition p1" in chosen:
            # The publication names its root only, and what is written until it is attached again is not sent.
            self._unverify(other for other in tables if other.name == "p1")
        return chosen

    def _moved(self, table: Table) -> str:
        """A table into another schema, or a schema under another name."""
        if self.dice.random() < 0.15:
            return self.dice.choice(("alter schema near rename to near2", "alter schema near2 rename to near"))
        there = self.dice.choice(("life", "life", "near", "far"))
        if self.kind.by_schema and "far" in (table.schema, there):
            self._unverify([table])
        return f"alter table {table.name} set schema {there}"

    def _operations(self, tables: list[Table]) -> str | None:
        """Now and then the publication sends less than everything, and soon everything again."""
        found = self.admin.execute(_SENT).fetchone()
        whole = found is None or len(found[1]) == len(OPERATIONS)
        if found is None or self.dice.random() > (0.012 if whole else 0.4):
            return None
        self._unverify(tables)
        some = [operation for operation in sorted(OPERATIONS) if not whole or self.dice.random() < 0.5]
        return f"alter publication {found[0]} set (publish = '{', '.join(some)}')"

    def _published(self, table: Table, column: str) -> str | None:
        """What the publication holds, reported again: one table in or out, or another part of it, or the same.

        None while DDL of a session is open: to print a filter the server opens the table.
        """
        dice = self.dice
        try:
            named = {name: (columns, where) for name, columns, where in self.admin.execute(_PUBLISHED)}
        except psycopg.errors.LockNotAvailable:
            return None
        if dice.random() < 0.8:
            self._unverify([table])
            gone = named.pop(table.name, None)
            if gone is None or dice.random() < 0.8:
                reported = dice.choice((column, *table.key))
                value = self._value(dict(table.columns)[reported])
                where = f"{reported} {dice.choice(('=', '<>', '<', 'is distinct from'))} {value}"
                listed = [c for c, _ in table.columns if c in table.key or dice.random() < 0.7]
                named[table.name] = (dice.choice(([], listed)), dice.choice((None, where, f"{reported} is not null")))
        items = (
            name + (f" ({', '.join(columns)})" if columns else "") + (f" where ({where})" if where else "")
            for name, (columns, where) in named.items()
        )
        return f"alter publication theirs set table {', '.join(items)}"

    def _identity(self, table: Table, column: str) -> list[str]:
        """Another key, or another row identity."""
        dice, name, new = self.dice, table.name, self._new("c")
        wider = ", ".join(dict.fromkeys((*table.key, column)))
        found = [
            [
                f"alter table {name} alter column {column} set not null",
                f"create unique index {new} on {name} ({wider})",
                f"alter table {name} replica identity using index {new}",
            ],
            [f"alter table {name} add primary key ({column})"],
        ]
        if table.key:
            drop, old = f"drop constraint {table.key_name}", ", ".join(table.key)
            found += [
                [f"alter table {name} {drop}, add primary key ({wider})"],
                [f"alter table {name} add {new} int not null default 1, {drop}, add primary key ({new}, {old})"],
                [f"alter table {name} {drop}, replica identity full"],
            ]
        return dice.choice(found)


__all__ = ["Life", "Table"]

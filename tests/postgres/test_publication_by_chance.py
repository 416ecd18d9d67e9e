"""Random DDL beside random runs of `cdc init`: what the publication has makes no write fail, and misses no table.

The server itself says whether UPDATE of a table fails: it refuses one that changes no row, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import psycopg
import pytest

from tests.trap_world import World, world
from toolkit.ops import alerts
from toolkit.source import change_log, install, preflight, selection
from toolkit.values.modes import NewTables

__all__ = ["world"]
pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("pg", ["pg16"], indirect=True)]

_STEPS = 40
_SEEDS = {4, 6, 7, 8, 19, 44}  # each finds a fault that was planted
_TABLES = """
select c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relispartition
from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and n.nspname in ('public', 'aside')
order by c.oid
"""
_SENT = """
select n.nspname, c.relname
from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
join pg_publication_tables as p on (p.schemaname, p.tablename) = (n.nspname, c.relname)
where p.pubname = 'cdc' and c.relpersistence = 'p' -- an unlogged one is there too, and gives no rows
"""
_KEY = "select conname from pg_constraint where conrelid = %s and contype in ('p', 'u')"
_PARENT = "select inhparent::regclass::text from pg_inherits where inhrelid = %s"
#: What may take the replica identity of a published table away.
_UNMAKES = ("drop constraint", "replica identity", "attach partition", "set logged", "rename to", "set schema")


class _Tables:
    """The tables of the user, and random DDL on them."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world, self.chance, self.made = world, chance, 0
        self.done: list[str] = []

    def all(self) -> list[tuple[int, str, str, str, bool]]:
        return self.world.user.execute(_TABLES).fetchall()

    def names(self) -> list[str]:
        return [f"{schema}.{name}" for _, schema, name, _, _ in self.all()]

    def failing(self) -> set[str]:
        """Tables of which the server refuses UPDATE."""
        found = set()
        for name in self.names():
            try:
                self.world.sql(f"update {name} set v = v where false")
            except psycopg.errors.ObjectNotInPrerequisiteState:
                found.add(name)
        return found

    def excluding(self) -> None:
        """Exclude other tables."""
        exclude = tuple(name for name in self.names() if name != "public.keep" and self.chance.random() < 0.15)
        source = self.world.config.source.model_copy(update={"exclude": exclude})
        self.world.config = self.world.config.model_copy(update={"source": source})
        self.done.append(f"-- exclude {exclude}")

    def step(self) -> str:
        """Run one statement. One that the server refuses by its own rules is none."""
        makers = (
            self._plain, self._plain, self._root, self._root, self._part, self._part, self._part, self._attach,
            self._detach, self._unkey, self._key, self._identity, self._identity, self._child, self._rename, self._move,
            self._logged, self._drop, self._insert, self._insert,
        )  # fmt: skip
        statement = self.chance.choice(makers)()
        if statement is not None:
            try:
                self.world.sql(statement)
            except psycopg.Error as error:
                assert "cdc" not in str(error), statement
            else:
                self.done.append(statement)
                return statement
        return ""

    def _new(self, letter: str) -> str:
        self.made += 1
        return f"{self.chance.choice(('public', 'public', 'aside'))}.{letter}{self.made}"

    def _any(self, among: Callable[[str, bool], bool] = lambda kind, part: True) -> tuple[int, str] | None:
        others = [one for one in self.all() if one[2] != "keep"]  # the patterns must select a table
        found = [(oid, f"{schema}.{name}") for oid, schema, name, kind, part in others if among(kind, part)]
        return self.chance.choice(found) if found else None

    def _altered(self, change: str, among: Callable[[str, bool], bool] = lambda kind, part: True) -> str | None:
        table = self._any(among)
        return table and f"alter table {table[1]} {change}"

    def _plain(self) -> str:
        key = self.chance.choice(("int primary key", "int", "int unique", "int primary key deferrable"))
        logged = self.chance.choice(("", "", "", "unlogged "))
        return f"create {logged}table {self._new('t')} (id {key}, v text)"

    def _root(self) -> str:
        key = self.chance.choice(("int primary key", "int primary key", "int"))
        return f"create table {self._new('r')} (id {key}, v text) partition by range (id)"

    def _bounds(self, first: int) -> str:
        low = self.chance.randrange(first, first + 50) * 10
        return f"for values from ({low}) to ({low + 10})"

    def _part(self) -> str | None:
        root, below = self._any(lambda kind, _: kind == "p"), self.chance.choice(("", "", " partition by range (id)"))
        return root and f"create table {self._new('p')} partition of {root[1]} {self._bounds(0)}{below}"

    def _attach(self) -> str | None:
        root, table = self._any(lambda kind, _: kind == "p"), self._any(lambda _, part: not part)
        return root and table and f"alter table {root[1]} attach partition {table[1]} {self._bounds(50)}"

    def _detach(self) -> str | None:
        table = self._any(lambda _, part: part)
        row = table and self.world.user.execute(_PARENT, [table[0]]).fetchone()
        return f"alter table {row[0]} detach partition {table[1]}" if table and row else None

    def _unkey(self) -> str | None:
        table = self._any()
        row = table and self.world.user.execute(_KEY, [table[0]]).fetchone()
        return f"alter table {table[1]} drop constraint {row[0]}" if table and row else None

    def _key(self) -> str | None:
        return self._altered("add primary key (id)")

    def _identity(self) -> str | None:
        return self._altered(f"replica identity {self.chance.choice(('full', 'full', 'default', 'nothing'))}")

    def _child(self) -> str | None:
        parent = self._any(lambda kind, part: kind == "r" and not part)
        key = self.chance.choice(("", "primary key (id)"))
        return parent and f"create table {self._new('c')} ({key}) inherits ({parent[1]})"

    def _rename(self) -> str | None:
        self.made += 1
        return self._altered(f"rename to n{self.made}")

    def _move(self) -> str | None:
        return self._altered(f"set schema {self.chance.choice(('public', 'aside'))}")

    def _logged(self) -> str | None:
        how = self.chance.choice(("logged", "logged", "unlogged"))
        return self._altered(f"set {how}", lambda kind, _: kind == "r")

    def _drop(self) -> str | None:
        table = self._any()
        return f"drop table {table[1]} cascade" if table and self.chance.random() < 0.5 else None

    def _insert(self) -> str | None:
        table = self._any()
        return table and f"insert into {table[1]} values ({self.chance.randrange(900)}, 'i')"


def _init(world: World) -> None:
    """Install again, as `cdc init` does."""
    world.log.config, rules = world.config, world.config.capture_rules
    preflight.require(world.log.conn, rules, ddl=world.config.ddl)
    install.install(world.log.conn, rules, ddl=world.config.ddl, lock_seconds=3)
    change_log.settle(world.log.conn, rules, lock_seconds=3)


def _nothing_excluded_is_sent(world: World) -> None:
    sent = world.user.execute(_SENT).fetchall()
    assert not [names for names in sent if world.config.source.excludes(*names)]


def _writes_are_named(world: World, tables: _Tables) -> set[str]:
    """Return the tables that alerts name: those of which writes fail, and roots whose new partitions will."""
    failing, named = tables.failing(), {a.what for a in alerts.of_writes(world.log.conn, world.config.source)}
    roots = {f"table {schema}.{name}" for _, schema, name, kind, _ in tables.all() if kind == "p"}
    assert {f"table {name}" for name in failing} == named - roots
    return named


def _one_step(world: World, tables: _Tables) -> None:
    before, what = tables.failing(), tables.chance.random()
    if what < 0.1:
        if tables.chance.random() < 0.5:
            tables.excluding()
        _init(world)
        tables.done.append("-- cdc init")
        assert tables.failing() <= before, "`cdc init` made writes fail"
        _nothing_excluded_is_sent(world)
    elif what < 0.2:
        world.log.drain()
        tables.done.append("-- cdc drain")
    else:
        roots = {a.what for a in alerts.of_writes(world.log.conn, world.config.source)}
        statement = tables.step()
        worse = tables.failing() - before
        assert not worse or any(one in statement for one in _UNMAKES) or "partition of" in statement, statement
        if "partition of" in statement:
            assert not worse or f"table {statement.split(' partition of ')[1].split()[0]}" in roots, statement
    _writes_are_named(world, tables)


def _each_is_captured_or_named(world: World, tables: _Tables) -> None:
    named = selection.not_captured(world.log.conn, world.config.capture_rules, ticks=False)
    states, source = world.log.states(), world.config.source
    for oid, schema, name, kind, _ in tables.all():
        table, state = f"{schema}.{name}", states.get(f"{schema}.{name}")
        if kind == "p":
            continue
        if state is not None and state.comparable:
            assert not source.excludes(schema, name), table
            assert world.log.rows(oid, world.log.complete_to) == world.log.select(oid), table
        elif source.asks_for(schema, name) and not source.excludes(schema, name):
            assert state is not None or table in named, table


@pytest.mark.parametrize("seed", [*_SEEDS, *(pytest.param(s, marks=pytest.mark.wide) for s in {*range(120)} - _SEEDS)])
def test_no_write_fails_and_no_table_is_missed(world: World, seed: int) -> None:
    tables = _Tables(world, random.Random(seed))
    world.sql("create schema aside", "create table public.keep (id int primary key, v text)")
    for _ in range(12):
        tables.step()
    mode = tables.chance.choice((NewTables.PUBLISH, NewTables.PUBLISH, NewTables.PROPOSE))
    tables.excluding()
    world.start(new_tables=mode)
    tables.done.append(f"-- seed {seed}: started with {mode}")
    assert tables.failing() == set()
    try:
        for _ in range(_STEPS):
            _one_step(world, tables)
        _init(world)
        world.log.drain()
        for number, name in enumerate(tables.names()):
            try:
                world.sql(f"insert into {name} values ({901 + number}, 'the end')")
            except psycopg.Error:
                continue  # no partition for it
        world.log.drain()
        _each_is_captured_or_named(world, tables)
    finally:
        print(";\n".join(tables.done))

"""Several publications: partitions that one of them sends as their root, and any publications at all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.postgres.test_publications import TABLE, theirs
from tests.support_log import Log
from tests.trap_world import World
from toolkit.source import preflight, slot
from toolkit.values.errors import PreflightFailed

pytestmark = pytest.mark.postgres

ROOT = (
    "create table r (id int primary key, v text) partition by range (id)",
    "create table r1 partition of r for values from (0) to (10)",
    "create table r2 partition of r for values from (10) to (20)", "insert into r values (1, 'a'), (11, 'b')",
)  # fmt: skip
VIA = "with (publish_via_partition_root = true)"


@pytest.mark.parametrize(
    ("publications", "shown"),
    [
        ((f"for table r {VIA}", "for table r"), {"public.r"}),
        ((f"for table r {VIA}", "for table r1"), {"public.r"}),
        (("for table r", f"for table r1 {VIA}"), {"public.r1", "public.r2"}),
        ((f"for table r1 {VIA}", "for table r2"), {"public.r1", "public.r2"}),
        ((f"for table r where (id < 100) {VIA}", "for table r1"), {"public.r"}),
        (("for table r1", f"for all tables {VIA}"), {"public.r"}),
    ],
)
def test_a_root_that_only_one_publication_sends(world: World, publications: tuple[str, str], shown: set[str]) -> None:
    log = theirs(world, *ROOT, *(f"create publication {n} {p}" for n, p in zip("ab", publications, strict=True)))
    assert set(log.states()) == shown
    (warned,) = preflight.preflight(log.conn, world.config.capture_rules, ddl=world.config.ddl)
    assert "'a', 'b': differ in publish_via_partition_root" in str(warned) and warned.level == "warning"
    world.sql(
        "insert into r values (2, 'c')", "update r set id = 12 where id = 1", "insert into r2 values (13, 'd')",
        "alter table r add column w int default 3", "create table r3 partition of r for values from (20) to (30)",
        "insert into r values (21, 'e', 4)", "delete from r1 where id = 2",
    )  # fmt: skip
    log.drain()
    world.exact(*(name.removeprefix("public.") for name in shown))
    world.sql("truncate r2")
    log.drain()
    # The new partition is in neither publication, so that the view over the partitions would lack its rows.
    lacks = "for table r2" in publications
    assert set(world.stale()) == ({"public.r"} if lacks or "public.r" in shown else set())
    if "where" in publications[0]:
        world.sql("alter publication a set table r")
    world.sql("alter publication a set (publish_via_partition_root = false)")
    world.sql(
        "alter publication b set (publish_via_partition_root = false)", "insert into r values (3, 'unexplained?')"
    )
    log.drain()
    if "public.r" in shown:
        assert "public.r" not in {n for n, s in log.states().items() if s.comparable}
        assert not {n for n, s in log.states().items() if s.comparable and n in ("public.r1", "public.r2")}
    else:
        world.exact("r1", "r2")


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.wide) for n in (1, 2, 3))])
def test_any_publications_are_merged_exactly_or_refused(world: World, seed: int, number: int) -> None:
    """Random publications over plain, partitioned and schema-wide tables; rows and DDL; SELECT as the oracle."""
    chance = random.Random(seed * 10 + number)
    world.sql(
        *TABLE, "create table u (id int primary key, n int)", "alter table u replica identity full", *ROOT,
        "insert into u values (1, 1)",
    )  # fmt: skip
    refused = 0
    for turn in range(12):
        names = tuple("abc"[: chance.randint(2, 3)])
        for name in names:
            world.sql(f"drop publication if exists {name}", f"create publication {name} {_any(chance)}")
        with _tried(world, names) as log:
            if log is None:
                refused += 1
                continue
            world.log = log
            at = 100 * turn + 30
            world.sql(
                *(f"insert into {t} (id, n) values ({at + i}, {n})" for t in "tu" for i, n in enumerate((4, 50, 600))),
                *(f"update {t} set n = {n} where id = {at + i}" for t in "tu" for i, n in enumerate((700, 3, 40))),
                f"delete from t where id = {at}", f"delete from u where id = {at + 1}",
                f"alter table t add column c{at} int default 5", f"update u set n = n + 1 where id > {at}",
                "insert into r values (2, 'q'), (12, 'q')", "update r set id = 14 where id = 2",
                "delete from r where id > 11",
            )  # fmt: skip
            if chance.random() < 0.5:
                world.sql("truncate u")
            log.drain()
            for name, state in log.states().items():
                if state.parts:  # a view over partitions, stale where one of them is in no publication
                    assert state.state == "ok" or "not captured" in str(state.reason), (name, state)
                    continue
                assert state.state == "ok", (name, state)
                world.exact(name.removeprefix("public."))
    assert refused < 12, "no combination was captured"


def _any(chance: random.Random) -> str:
    lists = {
        "t": ("", "", " where (n < 10)", " where (n > 100)", " where (n < 10)"),
        "u": ("", " where (n > 20)"),
        "r": ("",), "r1": ("",), "r2": ("",),
    }  # fmt: skip
    if chance.random() < 0.1:
        entries = "for all tables"
    else:
        tables = [
            *(["t"] if chance.random() < 0.7 else []),
            *chance.sample(sorted(lists.keys() - {"t"}), chance.randint(1, 3)),
        ]
        entries = "for table " + ", ".join(t + chance.choice(lists[t]) for t in tables)
        if chance.random() < 0.15:
            entries += ", tables in schema public"
    options = [f"publish_via_partition_root = {chance.choice(['true', 'false'])}"]
    if chance.random() < 0.35:
        options.append(f"publish = '{chance.choice(['insert', 'update, delete', 'insert, update', 'truncate'])}'")
    return f"{entries} with ({', '.join(options)})"


@contextmanager
def _tried(world: World, names: tuple[str, ...]) -> Iterator[Log | None]:
    """A log of its own for one round; None where the publications are refused."""
    source = world.config.source.model_copy(update={"scope": "published", "publication": names})
    world.config = world.config.model_copy(update={"source": source})
    with ExitStack() as stack:
        try:
            log = stack.enter_context(Log.started(world.config, world.directory))
        except PreflightFailed as refusal:
            assert "table public." in str(refusal)
            yield None
            return
        yield log
        slot.drop_slot(log.conn, world.config.source.slot)

"""Every durable step, ended or denied in every way by real processes and signals, with a second runner beside it.

A run takes some cases by a number (`CDC_GRID_SEED`), `make test-wide` all others that kill or lie, `make test-long` the
rest. The last line says which points were struck, and how often.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests import commands
from tests.postgres.test_object_store import store
from tests.postgres.test_snapshot_log import sql
from tests.support_invariants import hold
from tests.support_ledger import ledger_of
from tests.support_postgres import change_in_every_way, fresh_database
from tests.support_stores import Store, store_servers
from toolkit.demo.server import EmbeddedServer
from toolkit.values import config as configuration
from toolkit.values import failpoints
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError
from toolkit.values.failpoints import Action, Point

__all__ = ["store", "store_servers"]
pytestmark = pytest.mark.postgres
_ROOT = Path(__file__).parents[2]
_SECONDS = 120.0
_A = Action

#: What a drain through a slot goes through, and one by ticks.
DRAIN = (Point.PEEK, Point.BEACON, Point.COMMIT, Point.FORCE, Point.SWAP, Point.ADVANCE, Point.JUDGED)
TICKS = (Point.TICK, Point.COMMIT, Point.FORCE, Point.SWAP, Point.PURGE, Point.FORGET, Point.JUDGED)
#: The first `cdc init`, and what it goes through where it goes over from ticks to a slot.
INIT = (
    Point.INSTALL, Point.SLOT, Point.COPY, Point.SETTLE, Point.BEACON, Point.COMMIT, Point.FORCE, Point.SWAP,
    Point.JUDGED,
)  # fmt: skip
TO_SLOT = (Point.DROP_SLOT, Point.SLOT, Point.CUT, Point.HANDOVER, Point.SETTLE)
REPAIR = (Point.SLOT, Point.COPY, *DRAIN)
CHECKPOINT = (Point.CHECKPOINT, Point.FORCE, Point.SWAP)
UNINSTALL = (Point.UNINSTALL, Point.DROP_SLOT)
#: Steps that only Spark has: `tests/grid/test_failpoints_spark.py`.
RUN = (Point.EVOLVE, Point.MODELS, Point.RETIRE, Point.TAG, Point.PUBLISH, Point.VIEW, Point.RESULTS)
MAINTAIN = (Point.ERASE, Point.COMPACT, Point.UNTAG, Point.EXPIRE, Point.ORPHANS)
#: By command, the steps that a case strikes. A command that goes through another one fails its test.
STRUCK = {
    "init": {*INIT, *DRAIN, *TO_SLOT, *TICKS},
    "drain": {*DRAIN, *TICKS},
    "repair": {*REPAIR, *TICKS},
    "checkpoint": {*CHECKPOINT, Point.JUDGED},
    "uninstall": {*UNINSTALL},
}
#: Steps whose result no later step needs, so that they can be left out.
_CAN_BE_LEFT_OUT = {Point.ADVANCE, Point.PURGE, Point.FORGET, Point.JUDGED, Point.SETTLE}
_COUNTS: Counter[str] = Counter()
#: Each run takes the same cases until all of them have run: most have not yet. Another number takes others.
_SEED = os.environ.get("CDC_GRID_SEED", "7")


class Runner:
    """Starts commands by `tests.grid.runner`."""

    def __init__(self) -> None:  # with the current environment, so with the keys of a store
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.grid.runner"],
            cwd=_ROOT,
            env={**os.environ, failpoints.VARIABLE: ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def start(self, config: Config, command: str, points: str = "", *, lease: bool = True) -> int:
        file = str(config.root / "cdc.toml")
        pid: int = self._ask(command=command, config=file, points=points, lease=lease)["pid"]
        return pid

    def wait(self, pid: int, seconds: float = _SECONDS) -> dict[str, Any]:
        return self._ask(wait=pid, seconds=seconds)

    def run(self, config: Config, command: str, points: str = "", *, lease: bool = True) -> int:
        answer = self.wait(self.start(config, command, points, lease=lease))
        assert "code" in answer, (command, points, answer, _log(config))
        code: int = answer["code"]
        return code

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _log(config: Config) -> str:
    file = config.root / "runs.log"
    return file.read_text(encoding="utf-8")[-2000:] if file.exists() else ""


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """A process that forks commands."""
    found = Runner()
    yield found
    found.close()
    summary = ", ".join(f"{name} {count}" for name, count in sorted(_COUNTS.items()))
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\nseed {_SEED}, {_COUNTS.total()} cases: {summary}")


class World:
    """One table on the source, which every call of `change` changes in every way, and its lake."""

    def __init__(
        self, conninfo: str, root: Path, runner: Runner, *, drain: str = "slot", other: str = "", lake: str = ""
    ) -> None:
        self.root, self.runner, self.number, self.lake = root, runner, 0, lake
        root.mkdir()
        self.conninfo, self.slot = conninfo, f"cdc_{conninfo_to_dict(conninfo)['dbname']}{other}"
        self.publication = f"cdc{other}"
        self.config = self.by(drain)

    def by(self, drain: str) -> Config:
        """Write the configuration with another way to drain."""
        ticks = "capture = 'change_log'\nchange_log_drain = 'tick'\n" if drain == "tick" else ""
        if drain == "logged":
            ticks = "capture = 'change_log'\nchange_log_drain = 'slot'\n"
        file = self.root / "cdc.toml"
        file.write_text(
            f"[source]\nconninfo = {json.dumps(self.conninfo)}\nslot = '{self.slot}'\n"
            f"publication = '{self.publication}'\n{ticks}{self.lake}",
            encoding="utf-8",
        )
        self.config = configuration.load(str(file))
        return self.config

    def change(self) -> None:
        self.number += 10
        change_in_every_way(self.config.source.conninfo, self.number)

    def clean(self, command: str = "drain") -> None:
        """A run without faults succeeds, another one has nothing to do, and the invariants hold."""
        for again in dict.fromkeys((command, "drain")):
            assert self.runner.run(self.config, again) == 0, _log(self.config)
            through = set((self.root / "steps").read_text(encoding="utf-8").split())
            assert through <= STRUCK[again], f"{again} goes through a step that no case strikes"
        hold(self.config)
        assert commands.drain(self.config).changes == 0, "I7: a second drain found something"


#: What every run takes, beside those that its seed takes.
_CHOSEN = {"commit.after=lie", "advance.before=skip", "commit.after=sigstop"}
_HARD = (_A.SIGKILL, _A.LIE, _A.SKIP, _A.SIGSTOP, _A.HANG)
_WAYS = (_A.SIGKILL, _A.LIE, _A.SKIP, _A.RAISE, _A.EXIT, _A.SLEEP)
_WORST = (_A.SIGKILL, _A.LIE)


def cases(steps: tuple[Point, ...], ways: tuple[Action, ...] = _WAYS, few: int = 1) -> list[Any]:
    """Each step, before and after, in each way. A few, by the seed of the run, have no mark."""
    found = {
        f"{name}.{when}={action}": (f"{name}.{when}", action)
        for name, when, action in itertools.product(steps, ("before", "after"), ways)
        if action != _A.SKIP or (when == "before" and name in _CAN_BE_LEFT_OUT)
    }
    hard = [name for name, (_, action) in found.items() if action in _HARD]
    taken = {*random.Random(f"{_SEED}{hard}").sample(hard, few), *(_CHOSEN if few > 1 else ())}
    return [
        pytest.param(
            *case, id=name, marks=[] if name in taken else [pytest.mark.wide if name in hard else pytest.mark.long]
        )
        for name, case in found.items()
    ]


@pytest.fixture(scope="module")
def drained(pg16: EmbeddedServer, runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world that is drained through a slot, one case after the other."""
    with fresh_database(pg16) as conninfo:
        yield _begun(World(conninfo, tmp_path_factory.mktemp("grid") / "slot", runner))


@pytest.fixture(scope="module")
def ticked(pg16: EmbeddedServer, runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world that is drained by ticks."""
    with fresh_database(pg16) as conninfo:
        yield _begun(World(conninfo, tmp_path_factory.mktemp("grid") / "tick", runner, drain="tick"))


def _begun(world: World) -> World:
    sql(world.config, "create table public.a (id int primary key, x text)", "insert into public.a values (0, 'first')")
    world.clean("init")
    return world


def _struck(world: World, command: str, point: str, action: Action) -> None:
    """Run a command with a fault, a second runner beside it where it lives on, and end it."""
    _COUNTS[f"{point}={action}"] += 1
    before = ledger_of(world.config).last()
    if point.startswith("copy."):  # in a worker process, which the driver replaces
        assert world.runner.run(world.config, command, f"{point}={action}") in (0, 1), _log(world.config)
        return
    if action not in (_A.HANG, _A.SIGSTOP):
        code = world.runner.run(world.config, command, f"{point}={action}")
        expected = {_A.RAISE: 1, _A.LIE: 1, _A.EXIT: 137, _A.SIGKILL: -signal.SIGKILL, _A.SLEEP: 0, _A.SKIP: 0}
        assert code == expected[action], _log(world.config)
        return
    pid = world.runner.start(world.config, command, f"{point}={action}")
    assert world.runner.wait(pid, 10.0 if action == _A.HANG else _SECONDS).keys() <= {"running", "stopped"}
    try:
        assert world.runner.run(world.config, command) == 4, "the lease does not keep the second runner out"
        # On another host, or after the lease was lost: whoever is second continues, or is refused by name.
        assert world.runner.run(world.config, command, lease=False) in (0, 1), _log(world.config)
    finally:
        os.kill(pid, signal.SIGCONT if action == _A.SIGSTOP else signal.SIGKILL)
    ended = world.runner.wait(pid)
    assert ended["code"] in ((0, 1) if action == _A.SIGSTOP else (-signal.SIGKILL,)), _log(world.config)
    now = ledger_of(world.config).last()
    assert before is None or (now is not None and now.batch_id >= before.batch_id)


@pytest.mark.parametrize(("point", "action"), cases(DRAIN, few=4))
def test_a_drain_that_fails_anywhere_goes_on(drained: World, point: str, action: Action) -> None:
    drained.change()
    _struck(drained, "drain", point, action)
    drained.change()
    drained.clean()


@pytest.mark.parametrize(("point", "action"), cases(DRAIN, (_A.SIGSTOP, _A.HANG), few=2))
def test_a_second_runner_beside_one_that_stands_still(drained: World, point: str, action: Action) -> None:
    drained.change()
    _struck(drained, "drain", point, action)
    drained.change()
    drained.clean()


@pytest.mark.parametrize(("point", "action"), cases(TICKS, few=2))
def test_a_tick_that_fails_anywhere_goes_on(ticked: World, point: str, action: Action) -> None:
    ticked.change()
    _struck(ticked, "drain", point, action)
    ticked.change()
    ticked.clean()


@pytest.mark.parametrize(("point", "action"), cases(INIT))
def test_an_init_that_fails_anywhere_is_run_again(
    drained: World, runner: Runner, tmp_path: Path, point: str, action: Action
) -> None:
    world = World(drained.conninfo, tmp_path / "lake", runner, other="_init")
    world.number = 100_000 + drained.number
    sql(world.config, "truncate public.a", "insert into public.a values (0, 'first')")
    _struck(world, "init", point, action)
    world.change()
    world.clean("init")
    assert world.runner.run(world.config, "uninstall") == 0, _log(world.config)
    drained.clean()


@pytest.mark.parametrize(("point", "action"), cases(REPAIR))
def test_a_repair_that_fails_anywhere_is_run_again(drained: World, point: str, action: Action) -> None:
    drained.change()
    _struck(drained, "repair", point, action)
    drained.change()
    drained.clean("repair")


@pytest.mark.parametrize(("point", "action"), cases(TO_SLOT))
def test_a_handover_that_fails_anywhere_is_run_again(ticked: World, point: str, action: Action) -> None:
    ticked.change()
    ticked.by("logged")
    _struck(ticked, "init", point, action)
    ticked.change()
    ticked.clean("init")
    ticked.by("tick")
    ticked.clean("init")


@pytest.mark.parametrize(("point", "action"), cases(UNINSTALL))
def test_an_uninstall_that_fails_is_run_again(
    pg16: EmbeddedServer, runner: Runner, tmp_path: Path, point: str, action: Action
) -> None:
    with fresh_database(pg16) as conninfo:
        world = _begun(World(conninfo, tmp_path / "lake", runner))
        _struck(world, "uninstall", point, action)
        assert runner.run(world.config, "uninstall", lease=False) in (0, 1), _log(world.config)
        with psycopg.connect(conninfo) as conn:
            left = conn.execute(
                "select (select count(*) from pg_replication_slots where slot_name = %s), to_regnamespace('cdc')",
                [world.slot],
            ).fetchone()
        assert left == (0, None)


@pytest.mark.parametrize(("point", "action"), cases(CHECKPOINT))
def test_a_checkpoint_that_fails_is_made_again(drained: World, point: str, action: Action) -> None:
    drained.change()
    sql(drained.config, f"alter table public.a alter x set default '{drained.number}'")
    drained.clean()
    _struck(drained, "checkpoint", point, action)
    drained.clean("checkpoint")


@pytest.mark.parametrize("action", [_A.SIGKILL, pytest.param(_A.LIE, marks=pytest.mark.wide)])
def test_the_older_checkpoint_may_stay(drained: World, action: Action) -> None:
    """The second commit of a checkpoint removes the one before it."""
    for number in range(2):
        sql(drained.config, f"alter table public.a alter x set default '{action}{number}'")
        drained.clean()
        if number == 0:
            drained.clean("checkpoint")
    _struck(drained, "checkpoint", "swap.before:2", action)
    drained.clean("checkpoint")


@pytest.fixture(scope="module")
def pair(pg16: EmbeddedServer, runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[World]]:
    """Two lakes of one database."""
    with fresh_database(pg16) as conninfo:
        folder = tmp_path_factory.mktemp("grid")
        worlds = [_begun(World(conninfo, folder / "one", runner))]
        worlds.append(World(conninfo, folder / "two", runner, other="_two"))
        worlds[1].clean("init")
        yield worlds


@pytest.mark.parametrize(
    ("command", "point", "action"),
    [
        pytest.param(command, *case.values, id=f"{command}-{case.id}", marks=case.marks)
        for command, steps in (("drain", DRAIN), ("repair", (Point.SLOT,)), ("init", (Point.INSTALL, Point.SETTLE)))
        for case in cases(steps, _WORST)
    ],
)
def test_a_fault_of_one_lake_is_none_of_another(pair: list[World], command: str, point: str, action: Action) -> None:
    for one, other in (pair, pair[::-1]):
        pair[0].change()
        _struck(one, command, point, action)
        other.clean()
        pair[0].change()
        one.clean(command)
        other.clean()


@pytest.mark.parametrize(("point", "action"), cases(UNINSTALL, _WORST))
def test_an_uninstall_of_one_lake_that_fails_leaves_the_other(
    pair: list[World], runner: Runner, tmp_path: Path, point: str, action: Action
) -> None:
    third = World(pair[0].conninfo, tmp_path / "lake", runner, other="_three")
    third.clean("init")
    _struck(third, "uninstall", point, action)
    for world in pair:
        pair[0].change()
        world.clean()
    assert runner.run(third.config, "uninstall", lease=False) in (0, 1), _log(third.config)
    pair[0].change()
    for world in pair:
        world.clean()


@pytest.fixture(scope="module")
def stored(store: Store, pg16: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world whose warehouse is in a store."""
    runner = Runner()
    with fresh_database(pg16) as conninfo:
        yield _begun(World(conninfo, tmp_path_factory.mktemp("grid") / "s3", runner, lake=store.section))
    runner.close()


@pytest.mark.parametrize(
    ("command", "point", "action"),
    [
        pytest.param(command, *case.values, id=f"{command}-{case.id}", marks=case.marks)
        for command, steps in (
            ("drain", (Point.COMMIT, Point.FORCE, Point.SWAP, Point.ADVANCE, Point.JUDGED)),
            ("repair", (Point.COPY, Point.COMMIT)),
            ("checkpoint", CHECKPOINT),
        )
        for case in cases(steps, _WORST)
    ],
)
def test_a_lake_in_a_store_goes_on(stored: World, command: str, point: str, action: Action) -> None:
    stored.change()
    if command == "checkpoint":
        sql(stored.config, f"alter table public.a alter x set default '{stored.number}'")
        stored.clean()
    _struck(stored, command, point, action)
    stored.change()
    stored.clean(command)


def test_other_batches_give_the_same_log(drained: World) -> None:
    """I8: a few messages at a time, ended after each commit, give what one drain gives."""
    drained.change()
    for _ in range(3):
        commands.drain(drained.config, max_changes=1)
        drained.change()
        _struck(drained, "drain", "commit.after", _A.SIGKILL)
    drained.clean()


def test_every_point_has_a_place_and_a_case() -> None:
    used: Counter[str] = Counter()
    for file in sorted((_ROOT / "toolkit").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "can_fail":
                (argument,) = node.args
                assert isinstance(argument, ast.Attribute), f"{file}: a point is named by the enumeration"
                used[argument.attr] += 1
    catalogs = 2  # the embedded one swaps a table's metadata by itself, any other one by pyiceberg
    assert used == Counter(point.name for point in Point) + Counter(SWAP=catalogs - 1)
    assert {*set().union(*STRUCK.values()), *RUN, *MAINTAIN} == set(Point)


def test_points_are_read_strictly_and_cost_nothing_when_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain() -> int:
        return 1

    monkeypatch.delenv(failpoints.VARIABLE, raising=False)
    assert failpoints.can_fail(Point.COMMIT)(plain) is plain
    assert failpoints.points("commit.after:3=sigkill advance.before=skip") == {
        "commit.after": (3, _A.SIGKILL),
        "advance.before": (1, _A.SKIP),
    }
    for wrong in ("comit.after=exit", "commit=exit", "commit.after=explode", "commit.after=skip"):
        with pytest.raises(ConfigError, match="CDC_FAILPOINTS"):
            failpoints.points(wrong)

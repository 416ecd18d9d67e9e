"""Random life with the server as oracle: at each drain, and as of every earlier one, the log's rows equal SELECT.

`CDC_TEST_LIFE_SECONDS` is the time budget of all rounds of a test; the seed is in the header of the run. A life that
failed leaves a file that says it line by line, in the folder `CDC_TEST_LIFE_KEPT` if that is set; `lives/` holds those
that found something, and they are lived again. `make soak` runs lives for an hour, or for a given time.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support_cut import Awaited
from tests.support_kinds import KINDS, SCHEMA
from tests.support_life import Life
from tests.support_log import Log, Shown
from tests.support_postgres import fresh_database, has_postgres_15
from tests.support_struck import POINTS, Faults
from toolkit.capture import drift
from toolkit.capture.repair_scope import Scope
from toolkit.demo.server import EmbeddedServer
from toolkit.quality import dual_capture
from toolkit.source import change_log, locks
from toolkit.values.config import Config
from toolkit.values.errors import CdcError, ConfigError, UnknownTable
from toolkit.values.lsn import Lsn
from toolkit.values.table import OPERATIONS

pytestmark = pytest.mark.postgres

_BUDGET = os.environ.get("CDC_TEST_LIFE_SECONDS")
_KEPT = os.environ.get("CDC_TEST_LIFE_KEPT")
_STEPS = 240  # of one round, on a database of its own
LIVES = Path(__file__).with_name("lives")
_KIND, _SETUP = "kind: ", "setup: "


#: What the log says of a table whose publication sends less than everything, or did.
_OF_PUBLICATION = "the publication (now sends|until now sent)|no publication sends|in publishes:|place in a publication"
_BATCHES = (1, 10, 10**9)  # changes of a batch
#: What the server says that it publishes; to say it, it opens each table. A filter is nothing to a TRUNCATE, and 15
#: names generated columns, which it does not send.
_PUBLISHED = """
select c.oid::int8,
  array(select a.attname::text from pg_attribute as a
    where a.attrelid = c.oid and a.attname = any (t.attnames) and a.attgenerated = '' order by a.attnum),
  case when pubinsert or pubupdate or pubdelete then t.rowfilter end,
  pubinsert and pubupdate and pubdelete and pubtruncate
from pg_publication_tables as t join pg_publication as p on p.pubname = t.pubname
join pg_class as c on c.relname = t.tablename and c.relnamespace = t.schemaname::regnamespace
where t.schemaname <> 'cdc'
"""


@pytest.fixture(autouse=True)
def _waits_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread drives all sessions: what waits for a lock of theirs waits in vain."""
    for module in (drift, change_log):
        monkeypatch.setattr(module, "_LOCK_SECONDS", 0.05)


class Round:
    """One life and its log. `points` are what SELECT showed at each drain.

    To what the life says it adds `drain: CHANGES A BATCH`, `repair: TABLE, ...`, and of a repair that other sessions
    go on beside: `cut: awaited`, and later `copy: TABLE, ...` or `copy: TABLE (COLUMN, ...)`. `Faults` add theirs.
    """

    def __init__(self, life: Life, log: Log, server: EmbeddedServer) -> None:
        self.life, self.log = life, log
        self.points: list[tuple[Lsn, dict[int, Shown]]] = []
        self.counts: Counter[str] = Counter()
        self.faults = Faults(life, log, server, self.counts)
        self.awaited: Awaited | None = None
        self.beside = False  # whether a copy was made that others went on beside

    @classmethod
    @contextmanager
    def ready(
        cls, server: EmbeddedServer, directory: Path, seed: str, kind: str = "plain", setup: str | None = None
    ) -> Iterator[Round]:
        dice, of = random.Random(seed), KINDS[kind]
        with (
            fresh_database(server) as conninfo,
            Life.lived(conninfo, dice, of, setup) as life,
            Log.started(of.config(conninfo), directory) as log,
        ):
            round_ = cls(life, log, server)
            try:
                yield round_
            finally:
                round_.give_up()
                round_.faults.close()

    def live(self, steps: int) -> None:
        for number in range(steps):
            self.life.step()
            if self.life.dice.random() < 0.03:
                self.repair_beside()
            if self.life.dice.random() < 0.06:
                self.look(self.life.dice.choice(_BATCHES))
            if self.life.dice.random() < 0.03:
                self.faults.strike(self.life.dice.choice(POINTS), self.life.dice.choice(_BATCHES))
            if self.life.dice.random() < 0.002:
                self.give_up()
                self.faults.crash()
            if number % 80 == 79:
                self.life.settle()
                self.look(_BATCHES[-1])  # what is stale may have another name by now
                known = [v.table for v in self.log.versions.values()]
                published = {t.identifier for t in known if t.published and not t.dropped}
                stale = [name for name, state in self.log.states().items() if not state.comparable]
                if kept := [name for name in stale if name in published]:
                    self.repair(*kept)
                self.restore()
        self.life.settle()
        self.look(_BATCHES[-1])

    def follow(self, text: str) -> None:
        """Live as the lines of a kept life tell."""
        for line in text.splitlines():
            word, _, rest = line.partition(": ")
            if not line.strip() or line.startswith(("--", _KIND, _SETUP)):
                continue
            if self.awaited is not None:
                _ = self.awaited.had  # or it waits for one of the sessions, as when this life was lived
            if word == "drain":
                self.look(int(rest))
            elif word == "repair":
                self.repair(*rest.split(", "))
            elif word == "cut":
                self.await_cut()
            elif word == "copy":
                table, _, columns = rest.removesuffix(")").partition(" (")
                self.copy(*rest.split(", ")) if not columns else self.copy(table, columns=tuple(columns.split(", ")))
            elif word == "crash":
                self.give_up()
                self.faults.crash()
            elif not self.faults.follow(word, rest):
                self.life.follow(word, rest)

    def restore(self) -> None:
        """Now and then: a copy of the server is left behind, and drained."""
        if self.life.dice.random() < 0.1 and not self.life.kind.by_ticks:
            self.faults.take_copy()
            for _ in range(10):
                self.life.step()
            self.look(_BATCHES[-1])
            self.faults.drain_copy()

    def repair(self, *tables: str) -> None:
        self.life.said.append(f"repair: {', '.join(tables)}")
        self.log.repair(*tables)

    def repair_beside(self) -> None:
        """Repair, as whole tables or columns of one, while other sessions write, alter and commit."""
        dice = self.life.dice
        self.await_cut()
        for _ in range(20):
            assert self.awaited is not None
            if self.awaited.had:
                break
            self.life.step()
        else:
            self.life.settle()
        for _ in range(dice.randrange(4)):
            self.life.step()
        live = [v.table for v in self.log.versions.values() if v.table.published and not v.table.dropped]
        stale = [t for t in live if self.log.unverified(t.relid, self.log.complete_to)]
        if not live:
            self.give_up()
            return
        one = dice.choice(stale if stale and dice.random() < 0.7 else live)
        columns = [c.name for c in one.columns if c.published]
        if columns and dice.random() < 0.5:
            self.copy(one.identifier, columns=tuple(dice.sample(columns, dice.randint(1, len(columns)))))
        else:
            self.copy(*dict.fromkeys((one.identifier, dice.choice(live).identifier, dice.choice(live).identifier)))
        if dice.random() < 0.5:
            self.look(_BATCHES[-1])

    def await_cut(self) -> None:
        self.life.said.append("cut: awaited")
        self.awaited = Awaited(self.log.config, self.log.conn)

    def give_up(self) -> None:
        """Let go of a cut."""
        if self.awaited is not None:
            self.awaited.__exit__(None, None, None)
            self.awaited = None

    def copy(self, *tables: str, columns: tuple[str, ...] = ()) -> None:
        """What a repair does at its cut. One that is refused leaves its tables as they were."""
        self.life.said.append(f"copy: {', '.join(tables)}" + (f" ({', '.join(columns)})" if columns else ""))
        assert self.awaited is not None
        self.beside = True
        try:
            cut = self.awaited.cut
            self.log.drain(cut=cut)
            copied = self.log.copy(cut, tables, Scope(columns=columns))
        except (locks.LockTimeout, UnknownTable, ConfigError):
            self.counts["not repaired"] += 1
        else:
            self.counts["repaired"] += len(copied.rows)
            self.counts["not repaired"] += len(copied.left_out)
        finally:
            self.give_up()

    def look(self, batch_changes: int) -> None:
        """Drain with whatever is open, and note what SELECT shows. Nothing commits meanwhile."""
        self.life.said.append(f"drain: {batch_changes}")
        try:
            at = self.log.drain(batch_changes=batch_changes)
        except CdcError as error:
            assert "DDL that has not committed locks a table" in str(error)  # a tick is refused then
            self.counts["refused"] += 1
            return
        self.recorded(at)
        shown: dict[int, Shown] = {}
        for relid in self.log.versions:
            table = self.log.version(relid, at)
            if table is None:
                continue
            try:
                with self.log.conn.transaction(force_rollback=True):
                    self.log.conn.execute("set local lock_timeout = '40ms'")  # also for an index under REINDEX
                    relation = f'"{table.schema}"."{table.name}"'
                    self.log.conn.execute(f"lock table {relation} in access share mode nowait".encode())
                    shown[relid] = self.log.select(relid)
            except (psycopg.errors.LockNotAvailable, AssertionError) as error:
                assert "lock timeout" in str(error) or "obtain lock" in str(error), error
                self.counts["locked"] += 1
        self.points.append((at, shown))
        self.compare(at, shown)
        self.check(at, shown)

    def recorded(self, at: Lsn) -> None:
        """What the log says is published, of which rows and columns, is what the server says.

        But where it could not be captured: DDL of a publication opens tables that others lock.
        """
        if self.life.kind.logged:
            return
        try:
            with self.log.conn.transaction(force_rollback=True):
                self.log.conn.execute("set local lock_timeout = '40ms'")
                server = {relid: shown for relid, *shown in self.log.conn.execute(_PUBLISHED.encode())}
        except psycopg.errors.LockNotAvailable:
            return
        tables = [t for t in (self.log.version(relid, at) for relid in self.log.versions) if t is not None]
        known = {
            t.relid: [[c.name for c in t.columns if c.published], t.row_filter, t.publishes == OPERATIONS]
            for t in tables
            if t.capture != "change_log" and "capture failed" not in (self.log.unverified(t.relid, at) or "")
        }
        server = {
            relid: shown for relid, shown in server.items() if relid in known or not self.log.unverified(relid, at)
        }
        assert known == server, f"published at {at}: {known}, and the server says {server}"

    def check(self, at: Lsn, shown: dict[int, Shown]) -> None:
        """As `cdc check`: a stale table of which a part was copied is known from here on, if every row is right."""
        repaired = {s.relid for s in self.log.states().values() if s.repaired_lsn is not None}
        for relid, seen in shown.items():
            if relid not in repaired or self.log.unverified(relid, at) is None:
                continue
            try:
                right = self.log.rows(relid, at) == seen
            except AssertionError:  # it lacks rows that changes came of
                right = False
            self.counts["repaired in part" if right else "not repaired in part"] += 1
            if right:
                self.log.prove(relid, at)

    def compare(self, at: Lsn, shown: dict[int, Shown]) -> None:
        for relid, (attnums, rows) in shown.items():
            table, doubt = self.log.version(relid, at), self.log.unverified(relid, at)
            assert table is not None
            if doubt is not None:
                # A root's partitions come and go without row events; a table is born before it has triggers, or unsent.
                allowed = relid in self.life.unverified or (table.kind == "p" and self.life.kind.by_roots)
                allowed |= (self.life.kind.logged or self.life.partial) and doubt == "no baseline"
                # Of a table that is being made, the life has no record; `recorded` asks the server what is sent.
                allowed |= self.life.partial and bool(re.search(_OF_PUBLICATION, doubt))
                allowed |= self.life.kind.parts and "brought a row inside the row filter" in doubt
                # No DDL waits for capture: behind a lock it fails instead, and says so.
                allowed |= doubt.endswith("DDL capture failed")
                # In the snapshot of a cut the server prints the catalog as DDL of others has made it meanwhile.
                allowed |= self.beside and doubt.startswith("the catalog differs")
                assert allowed, f"{table.identifier} at {at} is stale without need: {doubt}"
                self.counts["stale"] += 1
                continue
            found = self.log.rows(relid, at)
            assert found[0] == attnums, f"{table.identifier} at {at}: columns"
            assert found[1] == rows, (
                f"{table.identifier} at {at}: {found[1] - rows} too many, {rows - found[1]} missing"
            )
            self.counts["exact"] += 1
            self.counts["rows"] += rows.total()

    def again(self) -> None:
        """As of earlier points, by all that the log knows now; and what is captured twice is the same twice."""
        for at, shown in self.points:
            self.compare(at, shown)
        for relid, low, high in dual_capture.windows(self.log.reading()):  # type: ignore[arg-type]
            self.audited(relid, low, high)

    def audited(self, relid: int, low: int, high: int | None) -> None:
        """As `cdc audit`, in Python: what the slot was not sent is red by name."""
        sides: dict[int, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}
        for event in sorted(self.log.events, key=_place):
            commit = event["commit_lsn"]
            if event["relid"] == relid and low < commit and (high is None or commit < high):
                slot, logged = sides.setdefault(commit, ([], []))
                if event["kind"] == "logged":
                    logged.append(event)
                elif event["kind"] in ("row", "truncate") and event["origin"] == "slot":
                    slot.append(event)
        for commit, pairs in sides.items():
            for one, two in itertools.zip_longest(*pairs):
                stated = f"{relid} at {Lsn(commit)}: captured as {one} and as {two}"
                assert _alike(one, two) or self.log.unverified(relid, Lsn(commit + 1)), stated
                self.counts["audited"] += 1


def _alike(slot: dict[str, Any] | None, logged: dict[str, Any] | None) -> bool:
    if slot is None or logged is None or slot["op"] != logged["op"]:
        return False
    unsent = set(slot["unchanged"] or ())
    new = [
        (c, d)
        for i, (c, d) in enumerate(zip(slot["new"] or (), logged["new"] or (), strict=True), 1)
        if i not in unsent
    ]
    old = [(c, d) for c, d in zip(slot["old"] or (), logged["old"] or (), strict=False) if c is not None]
    return all(c == d for c, d in (*new, *old))


def _play(server: EmbeddedServer, directory: Path, seed: str, kind: str = "plain", steps: int = _STEPS) -> Counter[str]:
    with Round.ready(server, directory, seed, kind) as round_:
        try:
            round_.live(steps)
            round_.again()
        except Exception as error:
            kept = Path(_KEPT or directory) / f"life-{server.major}-{kind}-{seed}.sql"
            setup = (SCHEMA + KINDS[kind].more).strip().splitlines()
            lines = [_KIND + kind, *(_SETUP + line for line in setup), *round_.life.said]
            lines += (f"-- {line}" for line in str(error).splitlines())
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text("\n".join(lines) + "\n", encoding="utf-8")
            raise AssertionError(
                f"life {seed} ({kind}) on {server.major}: {str(error)[:2000]}; {kept} has it line by line: put it"
                f" into {LIVES}"
            ) from error
        counts = round_.counts
        counts["statements"], counts["changes"] = round_.life.done, round_.log.changes
        counts["ddl"] = len(round_.log.of("ddl"))
        return counts


def test_the_log_is_what_select_showed(
    request: pytest.FixtureRequest, tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    _lives(request, tmp_path, seed, tuple(KINDS), float(_BUDGET or 60), capsys)


@pytest.mark.wide
@pytest.mark.parametrize("kind", KINDS)
def test_the_log_of_one_kind_is_what_select_showed(
    request: pytest.FixtureRequest, tmp_path: Path, seed: int, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _lives(request, tmp_path, seed, (kind,), float(_BUDGET or 20), capsys)


def _lives(
    request: pytest.FixtureRequest,
    directory: Path,
    seed: int,
    kinds: Sequence[str],
    seconds: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rounds on each server and of each kind in turn, the pairs in an order of the seed."""
    pairs = list(itertools.product(_servers(request), kinds))
    random.Random(seed).shuffle(pairs)
    end = time.monotonic() + seconds
    counts: Counter[str] = Counter()
    for number, (server, kind) in enumerate(itertools.cycle(pairs)):
        if time.monotonic() > end and number >= 3:
            break
        counts += _play(request.getfixturevalue(server), directory, f"{seed}-{number}", kind)
        counts["rounds"] += 1
    with capsys.disabled():
        print(f"\nlife of {', '.join(kinds)}: {json.dumps(counts)}")
    if counts["rounds"] >= 3:
        assert counts["faults"]
    # Else nothing was proven: most looks find a table that can be known, through DDL and changes.
    assert counts["exact"] > counts["stale"]
    # A round of parts has about 50 changes, so that few rounds on a busy machine may have fewer.
    assert counts["changes"] > 25 * counts["rounds"] and counts["ddl"] > 5 * counts["rounds"]


def _servers(request: pytest.FixtureRequest) -> list[str]:
    return [*(["pg15"] if has_postgres_15() else []), "pg16", "pg18"]


@pytest.mark.parametrize("kept", sorted(LIVES.glob("*.sql")), ids=lambda path: path.stem)
@pytest.mark.parametrize("pg", ["pg15", "pg16", "pg18"], indirect=True)
def test_a_kept_life_is_lived_again(pg: EmbeddedServer, tmp_path: Path, kept: Path) -> None:
    text = kept.read_text(encoding="utf-8")
    setup = "\n".join(line.removeprefix(_SETUP) for line in text.splitlines() if line.startswith(_SETUP))
    kind = next((line.removeprefix(_KIND) for line in text.splitlines() if line.startswith(_KIND)), "plain")
    with Round.ready(pg, tmp_path, kept.stem, kind, setup) as round_:
        round_.follow(text)
        round_.again()
        # Else the file proves nothing here: the tables it is about can be known.
        assert round_.counts["exact"] and round_.life.done


def test_a_life_that_failed_can_be_lived_again(
    pg16: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of a life that fails, here by a fault in the log, fails for the same reason, and is green without it."""
    monkeypatch.setattr(Round, "compare", _as_if_never_deleted)
    with pytest.raises(AssertionError, match="line by line") as failed:
        for number in range(20):
            _play(pg16, tmp_path, f"kept-{number}", steps=_STEPS // 2)
    (kept,) = tmp_path.glob("life-16-*.sql")
    with pytest.raises(AssertionError) as again:
        test_a_kept_life_is_lived_again(pg16, tmp_path, kept)
    assert str(failed.value.__cause__).split(" at ")[0] == str(again.value).split(" at ")[0]
    monkeypatch.undo()
    test_a_kept_life_is_lived_again(pg16, tmp_path, kept)


_compare = Round.compare


def _as_if_never_deleted(self: Round, at: Lsn, shown: dict[int, Shown]) -> None:
    events = self.log.events
    self.log.events = [e for e in events if e["op"] != "D"]
    try:
        _compare(self, at, shown)
    finally:
        self.log.events = events


def test_a_planted_loss_is_found(pg16: EmbeddedServer, tmp_path: Path) -> None:
    with Round.ready(pg16, tmp_path, "planted") as round_:
        round_.live(_STEPS // 2)
        log, (at, shown) = round_.log, round_.points[-1]
        events = log.events
        known = [relid for relid in shown if log.unverified(relid, at) is None]
        truncated = {relid: max((_place(e) for e in log.of("truncate", relid)), default=(0, 0)) for relid in known}
        rows = [e for e in events if e["op"] == "I" and e["relid"] in known and _place(e) > truncated[e["relid"]]]
        shapes = []
        for relid in known:
            versions = log.of("schema", relid)
            shapes += [
                b["schema_id"]
                for a, b in itertools.pairwise(versions)
                if [c["attnum"] for c in a["payload"]["columns"]] != [c["attnum"] for c in b["payload"]["columns"]]
            ]
        for lost in (rows[-1], next(e for e in events if e["kind"] == "schema" and e["schema_id"] == shapes[-1])):
            log.events = [e for e in events if e is not lost]
            with pytest.raises((AssertionError, KeyError)):
                round_.again()


def test_ddl_that_is_left_open_holds_up_no_drain(source: Config, tmp_path: Path) -> None:
    """To print a column's default the server opens the table: the catalog comparison waited for the user's commit."""
    with psycopg.connect(source.source.conninfo, autocommit=True) as conn:
        conn.execute("create table public.t (id int primary key, v text default 'x')")
        with Log.started(source, tmp_path) as log, psycopg.connect(source.source.conninfo) as open_one:
            open_one.execute("alter table public.t add column late int default 7")
            conn.execute("create table public.u (id int primary key)")
            at = log.drain()
            assert log.compared_to < at
            open_one.commit()
            conn.execute("insert into public.t values (1)")
            assert log.drain() == log.compared_to or log.compared_to > at
            relid = next(r for r, v in log.versions.items() if v.table.name == "t")
            assert log.rows(relid, log.complete_to) == log.select(relid)


def _place(event: dict[str, Any]) -> tuple[int, int]:
    return event["commit_lsn"], event["ordinal"]
